"""A web page for queues: counts, messages, dead letters.

Layer: edges.  Touches: messages, only when a person with the token asks for it, and then by the verbs of the queue.
Made of Python's own http.server and one hand-written page: a dozen people at most look at it, over loopback, and then
nothing to install beats a framework. It needs no network: no CDN, no font, no tracker.
"""

from dirqueue.web.api import Api
from dirqueue.web.server import Server, make_server

__all__ = ["Api", "Server", "make_server"]

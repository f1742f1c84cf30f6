"""The interface of textqueue 1.1: change `import textqueue` to `from dirqueue.compat import textqueue` and go on.

Layer: edges.
What is different, and why:

* `get_next` claims: of several readers, in whatever processes, each message goes to one. The claim is kept alive while
  the TextQueue is open, given back by `close`, and over a minute after the process died.
* A mark or a variable that would hit something else (an editor moved the message, somebody else marked it) raises
  `LeaseLost`, and nothing is written.
* After `mark_as_critical_error` the status is `critical`.
* Variables are measured in bytes, as they are stored. One that is too long, or has two lines, is a ValueError.
* A message is not given out while somebody is still writing it.
* Files are UTF-8 whatever the locale, and a byte that is not spoils only its own message.
* `append` puts a message, beside any number of readers and writers. There is `with`.
"""

from dirqueue.compat.textqueue.item import MessageStatus, QueueItem
from dirqueue.compat.textqueue.queue import TextQueue

__all__ = ["MessageStatus", "QueueItem", "TextQueue"]

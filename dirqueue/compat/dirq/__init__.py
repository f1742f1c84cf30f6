"""The interface of dirq 1.8: change `from dirq` to `from dirqueue.compat.dirq` and go on.

Layer: edges.  The modules are named as dirq names them: queue, QueueSimple, QueueNull, QueueSet, QueueBase, Exceptions.
What dirq documents is kept, on disk and in Python; what went wrong in it is not: docs/howto/from-dirq.md has the list.
"""

AUTHOR = "the dirqueue authors"
#: The version whose interface this is.
VERSION = "1.8"
DATE = "3 Nov 2021"
__author__ = AUTHOR
__version__ = VERSION
__date__ = DATE

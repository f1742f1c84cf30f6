"""Everything dirqueue raises.

    DirQueueError
    ├── Empty            (queue.Empty)          nothing to get in time
    ├── Full             (queue.Full)           the queue holds max_messages
    ├── LeaseLost                               the lease is no longer ours; nothing was touched
    ├── MessageError
    │   ├── MessageNotFound  (LookupError)      no such message, or it changed state first
    │   ├── MessageTooLarge  (ValueError)       body above max_size
    │   ├── InvalidId        (ValueError)       not a message id
    │   └── CodecError       (ValueError)       body cannot be encoded or decoded
    ├── QueueError
    │   ├── QueueNotFound    (FileNotFoundError)
    │   ├── QueueAccess      (OSError)          not a directory, no permission, read-only, full disk ...
    │   ├── LayoutError                         unknown, mixed or newer format
    │   └── Unsupported                         this layout cannot do that, and why
    └── SettingsError    (ValueError)           a setting or argument that cannot be

Layer: pure values.  Each error keeps its parts as attributes and survives pickling.
Raised *by handlers* to steer a worker: `Retry`, `Reject`, `Release`.
"""

from __future__ import annotations

import os
import queue
from typing import Any


class DirQueueError(Exception):
    """Base of all errors of this package."""

    def __init__(self, text: str, **fields: Any) -> None:
        super().__init__(text)
        self.text = text
        self._fields = fields
        for name, value in fields.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.text, self._fields)


def _rebuild(kind: type[DirQueueError], text: str, fields: dict[str, Any]) -> DirQueueError:
    return kind(text, **fields)


class Empty(DirQueueError, queue.Empty):
    """`get` found nothing in time."""


class Full(DirQueueError, queue.Full):
    """`put` found the queue at `max_messages` and no room came in time."""


class LeaseLost(DirQueueError):
    """The lease is not ours any more: it expired and was taken, or was ended before.

    `message_id`, `token` and `reason` ("gone", "ended" or "forked") say which and why. Nothing was changed.
    """

    message_id: str
    token: str
    reason: str


class MessageError(DirQueueError):
    """Something about one message; `message_id` names it."""

    message_id: str


class MessageNotFound(MessageError, LookupError):
    """There is no such message in that state: it never was, or somebody was faster."""


class MessageTooLarge(MessageError, ValueError):
    """The body is larger than `max_size`."""


class InvalidId(MessageError, ValueError):
    """The text is not a message id."""


class CodecError(MessageError, ValueError):
    """A body that the codec cannot encode or decode."""


class QueueError(DirQueueError):
    """Something about a queue as a whole; `path` names it."""

    path: str


class QueueNotFound(QueueError, FileNotFoundError):
    """There is no queue at that path."""


class QueueAccess(QueueError, OSError):
    """The filesystem refused: `errno` says what, `path` where; the text says what to do.

    ENOSPC and EDQUOT: no space, which stops put but not get and ack. EACCES, EPERM and EROFS: no right to do it.
    EMFILE, ENFILE and ENOMEM: a limit of this process or machine. EIO: the disk itself; after a failed fsync the put
    or ack did not happen durably, and is not tried again. Whatever it is, nothing is left half done.
    """

    errno: int


class LayoutError(QueueError):
    """The directory is not in a format this version reads, or is a mixture of formats."""


class Unsupported(QueueError):
    """The layout on disk has no way to express that; the text says why."""


class SettingsError(DirQueueError, ValueError):
    """A setting or an argument that cannot be; the text names it and what is allowed."""


class Retry(Exception):
    """Raised in a handler: it failed, try again after `delay` seconds (policy if None)."""

    def __init__(self, delay: float | None = None, error: str | None = None) -> None:
        super().__init__(delay, error)
        self.delay, self.error = delay, error


class Reject(Exception):
    """Raised in a handler: it will never work; the message goes to `dead`."""

    def __init__(self, reason: str = "rejected by the handler") -> None:
        super().__init__(reason)
        self.reason = reason


class Release(Exception):
    """Raised in a handler: not mine; give it back uncounted."""


#: What a person can do about an errno, by name, for the errors people really meet.
_WAY_OUT = {
    "ENOSPC": "the disk is full; free some space (consumers can still drain the queue)",
    "EDQUOT": "the disk quota is used up; free some space",
    "EACCES": "no permission; check owner, group and mode of the directory",
    "EPERM": "not permitted; in a sticky directory only the owner may rename or delete",
    "EROFS": "the filesystem is read-only; remount it or use another path",
    "ENOTDIR": "it, or a part of its path, is not a directory; give the path of a directory",
    "EMFILE": "too many open files; close some or raise the limit (ulimit -n)",
    "ENFILE": "too many open files on this machine",
    "ENAMETOOLONG": "the path is too long for this filesystem",
    "EXDEV": "it is on another filesystem; copy it to this one first",
    "EIO": "the disk reported an I/O error; look at the kernel log",
    "ENOENT": "it does not exist",
    "ELOOP": "too many symbolic links",
}


def access_error(path: str, doing: str, error: OSError) -> QueueAccess:
    """Return the one-sentence error for an OSError met while `doing` something to the queue at `path`."""
    import errno as codes

    code = codes.errorcode.get(error.errno or 0, "unknown errno")
    way_out = _WAY_OUT.get(code, os.strerror(error.errno) if error.errno else str(error))
    text = f"cannot {doing} {path!r}: {way_out} [{code}]"
    return QueueAccess(text, path=path, errno=error.errno, strerror=way_out, filename=path)

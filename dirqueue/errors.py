"""Everything dirqueue raises.

    DirQueueError
    ├── Empty            (queue.Empty)          nothing to get in time
    ├── Full             (queue.Full)           the queue holds max_messages
    ├── LeaseLost                               the lease is not ours any more; nothing was changed
    ├── MessageError
    │   ├── MessageNotFound  (LookupError)      no such message, or it changed state first
    │   ├── MessageTooLarge  (ValueError)       body above max_size
    │   ├── InvalidId        (ValueError)       not a message id
    │   └── CodecError       (ValueError)       body cannot be encoded or decoded
    ├── QueueError
    │   ├── QueueNotFound    (FileNotFoundError)
    │   ├── QueueAccess      (OSError)          not a directory, no permission, read-only, full disk ...
    │   ├── LayoutError                         unknown, mixed or newer format, damaged queue.json
    │   ├── Unsupported                         this layout cannot do that, and why
    │   └── InDoubt          (OSError)          a transaction of which nobody knows any more whether it was committed
    ├── Conflict         (LookupError)          a transaction met something that is not as it was seen
    │   └── Contended                           others were faster, twenty times
    └── SettingsError    (ValueError)           an invalid setting or argument

Layer: pure values.  Each error keeps its parts as attributes and survives pickling.
Raised *by handlers* to steer a worker: `Retry`, `Reject`, `Release`, `Move`.
"""

from __future__ import annotations

import os
import queue
from typing import Any, ClassVar, Literal, NamedTuple


class DirQueueError(Exception):
    """Base of all errors of this package."""

    #: The keywords of the constructor, each kept as an attribute.
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            _rebuild,
            (type(self), self.text, {name: getattr(self, name) for name in self._fields}),
            vars(self),
        )


def _rebuild(kind: type[DirQueueError], text: str, fields: dict[str, Any]) -> DirQueueError:
    return kind(text, **fields)


class Empty(DirQueueError, queue.Empty):
    """`get` found nothing in time; `path` names the queue, and is empty for a set of queues."""

    _fields: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(self, text: str, *, path: str = "") -> None:
        super().__init__(text)
        self.path = path


class Full(DirQueueError, queue.Full):
    """`put` found the queue at `max_messages` and no room came in time; `path` names the queue."""

    _fields: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(self, text: str, *, path: str = "") -> None:
        super().__init__(text)
        self.path = path


class LeaseLost(DirQueueError):
    """The lease is not ours any more: it expired and was taken, or was ended before. Nothing was changed.

    `message_id` and `token` say which lease. `reason` is "gone" (another consumer has the message or ended it), "ended"
    (this object has ended it already) or "forked" (it belongs to the parent process).
    """

    _fields: ClassVar[tuple[str, ...]] = ("message_id", "token", "reason")

    def __init__(
        self, text: str, *, message_id: str, token: str, reason: Literal["gone", "ended", "forked"]
    ) -> None:
        super().__init__(text)
        self.message_id = message_id
        self.token = token
        self.reason = reason


class MessageError(DirQueueError):
    """An error about one message; `message_id` names it (empty if it has no id yet)."""

    _fields: ClassVar[tuple[str, ...]] = ("message_id",)

    def __init__(self, text: str, *, message_id: str) -> None:
        super().__init__(text)
        self.message_id = message_id


class MessageNotFound(MessageError, LookupError):
    """There is no such message in that state: there never was, or another client was faster."""


class MessageTooLarge(MessageError, ValueError):
    """The body has `size` bytes, more than `max_size`, which is `limit`."""

    _fields: ClassVar[tuple[str, ...]] = ("message_id", "size", "limit")

    def __init__(self, text: str, *, message_id: str, size: int, limit: int) -> None:
        super().__init__(text, message_id=message_id)
        self.size = size
        self.limit = limit


class InvalidId(MessageError, ValueError):
    """The text is not a message id."""


class CodecError(MessageError, ValueError):
    """The codec cannot encode or decode the body."""


class QueueError(DirQueueError):
    """An error about a queue as a whole; `path` names it."""

    _fields: ClassVar[tuple[str, ...]] = ("path",)

    def __init__(self, text: str, *, path: str) -> None:
        super().__init__(text)
        self.path = path


class QueueNotFound(QueueError, FileNotFoundError):
    """There is no queue at that path."""


class QueueAccess(QueueError, OSError):
    """The filesystem refused: `errno` says what, `path` where; the text says what to do.

    ENOSPC and EDQUOT: no space, which stops put but not get and ack. EACCES, EPERM and EROFS: no right to do it.
    EMFILE, ENFILE and ENOMEM: a limit of this process or machine. EIO: the disk itself; after a failed fsync the put
    or ack did not happen durably, and is not tried again. Whatever it is, nothing is left half done.
    """

    _fields: ClassVar[tuple[str, ...]] = ("path", "errno", "strerror")

    def __init__(self, text: str, *, path: str, errno: int | None, strerror: str = "") -> None:
        super().__init__(text, path=path)
        self.errno = errno
        self.strerror = strerror
        self.filename = path


class LayoutError(QueueError):
    """The directory is not in a format that this version reads, mixes formats, or has a damaged queue.json."""


class Unsupported(QueueError):
    """The layout on disk has no way to express that; `capability` is the key of its reason in `layout.lacks`."""

    _fields: ClassVar[tuple[str, ...]] = ("path", "capability")

    def __init__(self, text: str, *, path: str, capability: str = "") -> None:
        super().__init__(text, path=path)
        self.capability = capability


class InDoubt(QueueError, OSError):
    """A transaction on a network filesystem was either committed or aborted, and nothing tells which any more.

    It takes a call that the server answers only after hours, when others have purged what was left.
    """


class Ref(NamedTuple):
    """A message that stood in the way of a transaction."""

    #: Its id: of the user's own where one was given.
    id: str
    #: The name of its queue.
    queue: str
    #: Its version as it was seen; 0 for a message that was to be put.
    version: int = 0


class Conflict(DirQueueError, LookupError):
    """A transaction was refused: nothing was done. All that was in its way is listed.

    `missing` are gone, `changed` are there in another state or under another lease than was seen, `held` are of these
    the ones that another client holds, `taken` are ids of the user's own that other messages have.
    """

    _fields: ClassVar[tuple[str, ...]] = ("missing", "changed", "held", "taken")

    def __init__(
        self,
        text: str,
        *,
        missing: list[Ref] | None = None,
        changed: list[Ref] | None = None,
        held: list[Ref] | None = None,
        taken: list[Ref] | None = None,
    ) -> None:
        super().__init__(text)
        self.missing = missing or []
        self.changed = changed or []
        self.held = held or []
        self.taken = taken or []


class Contended(Conflict):
    """Twenty tries met others that were faster: nothing was done. Try again, or spread the work."""


class SettingsError(DirQueueError, ValueError):
    """An invalid setting or argument. The message names it and lists the allowed values."""


class Retry(Exception):
    """Raised in a handler: it failed, try again after `delay` seconds (policy if None)."""

    def __init__(self, delay: float | None = None, error: str | None = None) -> None:
        super().__init__(delay, error)
        self.delay, self.error = delay, error


class Reject(Exception):
    """Raised in a handler: it will never work; the message goes to dead/."""

    def __init__(self, reason: str = "rejected by the handler") -> None:
        super().__init__(reason)
        self.reason = reason


class Release(Exception):
    """Raised in a handler: not mine; give it back, not counted as a failure."""


class Move(Exception):
    """Raised in a handler: this message belongs into another queue of the same space."""

    def __init__(self, queue: str, error: str | None = None) -> None:
        super().__init__(queue, error)
        self.queue, self.error = queue, error


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
    return QueueAccess(text, path=path, errno=error.errno, strerror=way_out)

"""What every on-disk format offers to the queue object, and how it says that it cannot.

Layer: layouts.  One protocol, so that Queue, Worker, CLI and Spark work with each format alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import BinaryIO, ClassVar, NamedTuple, NoReturn, Protocol

from dirqueue.disk.directory import Directory
from dirqueue.errors import LeaseLost, SettingsError, Unsupported
from dirqueue.message import Entry, Failure
from dirqueue.settings import Settings


class Claim:
    """One claimed message and the exact name that it is held by; a renewal changes `place` and `ends`."""

    __slots__ = ("attempts", "data", "ends", "id", "leased", "place")

    def __init__(
        self, id: str, place: str, leased: int, ends: int, attempts: int, data: bytes | None = None
    ) -> None:
        self.id = id
        #: Where it lies, in the layout's own terms; also the handle of the lease.
        self.place = place
        #: When it was claimed and when the lease ends, in microseconds since the epoch.
        self.leased = leased
        self.ends = ends
        #: Deliveries so far, this one included.
        self.attempts = attempts
        #: The body if it was read with the claim; if None, it is read from `place` when somebody asks for it.
        self.data = data

    @property
    def token(self) -> str:
        """The name of this lease: the end of `place`, in every layout."""
        return self.place[max(self.place.rfind("."), self.place.rfind("@")) + 1 :]


class Purged(NamedTuple):
    """What a purge did."""

    new: int = 0  #: unfinished files and staging directories removed
    directories: int = 0  #: emptied slices and batches removed
    done: int = 0  #: kept messages past their time
    dead: int = 0
    buried: int = 0  #: messages out of attempts that nobody had claimed again
    released: int = 0  #: claims of consumers that never came back
    other: int = 0  #: error notes without a message, tombstones of acks
    busy: int = 0  #: 1 if another purger was at work and nothing was done

    def __add__(self, other: object) -> Purged:
        if not isinstance(other, Purged):
            return NotImplemented
        return Purged(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Layout(Protocol):
    """One on-disk format, open on one directory."""

    name: ClassVar[str]
    #: What the format has no way to express, and why: capability -> reason.
    lacks: ClassVar[dict[str, str]]
    directory: Directory
    settings: Settings

    # producers
    def put(self, data: bytes, delay: float, priority: int | None) -> str: ...
    def put_many(self, bodies: Iterable[bytes], *, delay: float, priority: int | None) -> list[str]: ...
    def put_path(self, path: str, *, delay: float, priority: int | None, link: bool = False) -> str: ...
    def count(self) -> int: ...

    # consumers: each ends in one change of an exact name; LeaseLost if it is not there
    def claim(self, seconds: float) -> Claim | None: ...
    def wakes_in(self) -> float | None: ...

    def watched(self) -> list[str]:
        """Return the directories in the queue that producers may be putting to, by the last look."""
        ...

    def arrived(self, name: str) -> None:
        """Take a hint from whoever waited: nothing was there, then this name came."""
        ...

    def ack(self, held: Claim) -> None: ...
    def renew(self, held: Claim, seconds: float) -> None: ...
    def retry(self, held: Claim, delay: float, error: str | None) -> None: ...
    def release(self, held: Claim) -> None: ...
    def bury(self, held: Claim, reason: str) -> None: ...
    def entry(self, held: Claim) -> Entry: ...
    def hold(self, handle: str) -> Claim: ...

    # lookers
    def check_id(self, id: object) -> str: ...
    def entries(self, states: Iterable[str] = ()) -> Iterator[Entry]: ...
    def find(self, id: str) -> Entry | None: ...
    def load(self, place: str) -> bytes: ...
    def stream(self, place: str) -> BinaryIO: ...
    def size(self, place: str) -> int: ...
    def leased_at(self, entry: Entry) -> datetime | None: ...
    def failure(self, entry: Entry) -> Failure | None: ...

    # changers of what nobody holds
    def cancel(self, entry: Entry) -> None: ...
    def change(self, entry: Entry, *, priority: int | None, delay: float | None) -> Entry: ...
    def redrive(self, entry: Entry) -> bool: ...
    def remove(self, entry: Entry) -> bool: ...

    # making and cleaning
    def create(self) -> None: ...
    def purge(self, progress: Callable[[], None] | None = None) -> Purged: ...
    def close(self) -> None: ...


def refuse(layout: Layout, capability: str, what: str) -> NoReturn:
    """Say that this format cannot do it, and why."""
    raise Unsupported(
        f"the {layout.name} layout cannot {what}: {layout.lacks[capability]} (queue {layout.directory.path!r})",
        path=layout.directory.path,
        capability=capability,
    )


def bad_handle(handle: object) -> SettingsError:
    """Return the error for text that is not the handle of a lease."""
    return SettingsError(
        f"{handle!r:.160} is not the handle of a lease: give what Lease.handle or get --hold said"
    )


def lost(held: Claim, doing: str) -> LeaseLost:
    """Return the error for a lease that somebody else ended."""
    return LeaseLost(
        f"cannot {doing} {held.id}: the lease {held.token or held.place} was lost (it expired and was taken, "
        f"or was ended elsewhere); nothing was changed",
        message_id=held.id,
        token=held.token,
        reason="gone",
    )

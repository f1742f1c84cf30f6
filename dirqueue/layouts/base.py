"""The protocol that every on-disk format satisfies, and the values and errors that all of them share.

Layer: layouts.  One protocol, so that Queue, Worker, CLI and Spark work with each format alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, BinaryIO, ClassVar, NamedTuple, NoReturn, Protocol

from dirqueue.disk.directory import Directory
from dirqueue.errors import LeaseLost, SettingsError, Unsupported
from dirqueue.message import Details, Entry, Extras, Failure
from dirqueue.settings import Settings


class Claim:
    """One claimed message and the exact name that it is held by; a renewal changes `place` and `ends`."""

    __slots__ = ("attempts", "data", "ends", "extras", "id", "leased", "place")

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
        #: The body if it was read with the claim; if None, it is read from `place` when it is first used.
        self.data = data
        #: What it carries beside the body, read with the claim.
        self.extras: Extras | None = None

    @property
    def token(self) -> str:
        """The name of this lease: the end of `place`, in every layout."""
        token = self.place[max(self.place.rfind("."), self.place.rfind("@")) + 1 :]
        return token.partition("~")[0] if "~" in token else token


class Purged(NamedTuple):
    """What a purge did."""

    new: int = 0  #: unfinished files and staging directories removed
    directories: int = 0  #: emptied slices and batches removed
    done: int = 0  #: kept messages past their time
    dead: int = 0
    buried: int = 0  #: messages out of attempts that nobody had claimed again
    released: int = 0  #: claims of consumers that never came back
    other: int = 0  #: error notes without a message, tombstones of acks
    expired: int = 0  #: ready messages that were too old
    busy: int = 0  #: 1 if another purger was at work and nothing was done

    def __add__(self, other: object) -> Purged:
        if not isinstance(other, Purged):
            return NotImplemented
        return Purged(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


#: The most ids that a layout remembers of messages that its claims have set aside.
BURIED = 1000


def none_buried() -> deque[str]:
    """Return what `Layout.buried` is at first."""
    return deque(maxlen=BURIED)


class Committer(Protocol):
    """A space, as far as a lease from one of its queues knows it."""

    def commit_with(self, lease: Any, then: Iterable[Any]) -> None:
        """Acknowledge a lease and put these together."""
        ...

    def move_lease(self, lease: Any, queue: str, error: str | None) -> None:
        """Move a leased message to another queue."""
        ...

    def queue_of(self, what: Any) -> str:
        """Return the name of the queue that a lease or a message is of."""
        ...


class Producer(Protocol):
    """What publishes messages: a layout, or one whose messages carry something beside their bodies."""

    def put(self, data: bytes, delay: float, priority: int | None) -> str:
        """Publish one body, durably if the queue syncs, and return its id. Called for every message."""
        ...

    def put_many(self, bodies: Iterable[bytes], *, delay: float, priority: int | None) -> list[str]:
        """Publish all or none, and return their ids; one by one where "batch" is lacking."""
        ...

    def put_path(self, path: str, *, delay: float, priority: int | None, link: bool = False) -> str:
        """Publish a file by moving it in, or by a second link to it; return the id. Nothing is copied."""
        ...


class Layout(Producer, Protocol):
    """One on-disk format, open on one directory: `queue.layout`.

    Every method may raise QueueAccess when the filesystem refuses; the others that it raises are named below. Instants
    are microseconds since the epoch by the file server's clock, durations are seconds. The arguments have been checked
    by the caller. Methods are safe beside other threads and processes.
    """

    #: How `Queue(layout=...)` and the tools call it.
    name: ClassVar[str]
    #: What the format has no way to express, and why: capability -> reason. Callers look here before they ask for it.
    lacks: ClassVar[dict[str, str]]
    directory: Directory
    #: The space that the queue was opened in, if it was.
    space: Committer | None
    #: What the queue was opened with, with the defaults of this format.
    settings: Settings
    #: The ids of messages that claims have moved to the dead, for whoever reports that: only the latest.
    buried: deque[str]

    def __str__(self) -> str:
        """Return the name."""
        ...

    # --- producers: called by Queue ------------------------------------------------------------------------

    def carrying(self, extras: Extras) -> Producer:
        """Return what publishes messages that carry this. Unsupported where "attributes" is lacking."""
        ...

    def count(self) -> int:
        """Return the number of messages that are waiting or leased. For `len(queue)` and max_messages."""
        ...

    # --- consumers: called by Queue and Lease --------------------------------------------------------------
    # Each of ack, renew, retry, release and bury changes the exact name that was claimed, once. If that name is gone
    # it raises LeaseLost and has changed nothing.

    def claim(self, seconds: float) -> Claim | None:
        """Lease the next message for `seconds`; None if there is none now. Called for every message.

        A message that is out of attempts, or cannot be read, is set aside on the way.
        """
        ...

    def claim_for(self, holder: str, seconds: float) -> Claim | None:
        """Lease the next message for whoever the text names, as `claim`; Unsupported in a peer's format."""
        ...

    def wakes_in(self) -> float | None:
        """Return in how many seconds a known delay or lease ends, if any. For whoever waits; costs no call."""
        ...

    def watched(self) -> list[str]:
        """Return the directories in the queue that producers may be putting to, by the last look. For whoever waits."""
        ...

    def arrived(self, name: str) -> None:
        """Take a hint from whoever waited: nothing was there, then this name came."""
        ...

    def ack(self, claim: Claim) -> None:
        """Remove the message, or keep it as done; durable if the queue syncs. Called for every message."""
        ...

    def renew(self, claim: Claim, seconds: float) -> None:
        """Hold on for so long from now; changes `place` and `ends` of the claim."""
        ...

    def retry(self, claim: Claim, delay: float, error: str | None) -> None:
        """Make the message claimable after the delay, this delivery counted; keep the error beside it."""
        ...

    def release(self, claim: Claim) -> None:
        """Make the message claimable now, this delivery not counted."""
        ...

    def bury(self, claim: Claim, reason: str) -> None:
        """Move the message to the dead, with the reason. Unsupported where "dead" is lacking."""
        ...

    def entry(self, claim: Claim) -> Entry:
        """Return what is known of a leased message, without looking."""
        ...

    def hold(self, handle: str) -> Claim:
        """Return the claim that `Lease.handle` names, whichever process made it. For `Queue.lease`.

        SettingsError if the text is no handle, LeaseLost if that lease is not held any more.
        """
        ...

    # --- looking: called by Queue, Message, stats and the tools --------------------------------------------

    def check_id(self, id: object) -> str:
        """Return an id given from outside; InvalidId if this format could not have made it."""
        ...

    def entries(self, states: Iterable[str] = ()) -> Iterator[Entry]:
        """Yield what is there, in no order: all, or at least those in the given states.

        A snapshot: what others rename meanwhile may be missed. QueueNotFound if the queue is removed meanwhile.
        """
        ...

    def find(self, id: str) -> Entry | None:
        """Return the message of that id in whatever state; None if it is not there."""
        ...

    def load(self, place: str) -> bytes:
        """Return the body of the message that lies there; MessageNotFound if it does not any more."""
        ...

    def stream(self, place: str) -> BinaryIO:
        """Open the body for reading; MessageNotFound as in `load`."""
        ...

    def size(self, place: str) -> int:
        """Return the length of the body; MessageNotFound as in `load`."""
        ...

    def leased_at(self, entry: Entry) -> datetime | None:
        """Return when the message was last claimed, if the format keeps that."""
        ...

    def failure(self, entry: Entry) -> Failure | None:
        """Return why the message failed last, if it did and the format keeps that."""
        ...

    def extras(self, entry: Entry) -> Extras | None:
        """Return what the message carries beside its body; None if nothing."""
        ...

    def details(self, entry: Entry) -> Details | None:
        """Return what its side file says; None if it has none."""
        ...

    def holder(self, entry: Entry) -> str:
        """Return who its token is of: the text that was given as holder, or the token itself."""
        ...

    # --- changing what nobody holds: called by Message, Queue and the tools --------------------------------

    def cancel(self, entry: Entry) -> None:
        """Remove an unclaimed message; MessageNotFound if it is claimed, or another client was faster."""
        ...

    def change(self, entry: Entry, *, priority: int | None, delay: float | None) -> Entry:
        """Give an unclaimed message another priority or delay, and return its new entry.

        MessageNotFound as in `cancel`; Unsupported where "change" is lacking.
        """
        ...

    def redrive(self, entry: Entry) -> bool:
        """Make a dead message ready, its attempts reset. Return False if another client was faster.

        Not durable by itself: whoever redrives many calls `directory.sync()` at the end.
        """
        ...

    def remove(self, entry: Entry) -> bool:
        """Delete a message in whatever state by its exact name. Return False if that name is gone.

        Not durable by itself: whoever removes many flushes the directories that they were in at the end.
        """
        ...

    # --- pausing: called by Queue, stats and the tools -----------------------------------------------------

    def pause(self) -> bool:
        """Give nothing from now on; return False if it was paused. Unsupported where "pause" is lacking."""
        ...

    def resume(self) -> bool:
        """End a pause; return False if there was none. Unsupported where "pause" is lacking."""
        ...

    def paused(self) -> bool:
        """Return whether the queue is paused; False where "pause" is lacking."""
        ...

    # --- making and cleaning: called by Queue.create, Queue.purge and Queue.close --------------------------

    def create(self) -> None:
        """Make the directory so that it is recognised as being in this format. Raises plain OSError."""
        ...

    def purge_lock(self) -> str:
        """Return the path of the file that one purger at a time locks."""
        ...

    def purge(self, progress: Callable[[], None] | None = None) -> Purged:
        """Remove what crashes and time left behind. Raises plain OSError; the queue adds the context."""
        ...

    def close(self) -> None:
        """Let go of descriptors; the next use opens them again."""
        ...


def refuse(layout: Layout, capability: str, what: str) -> NoReturn:
    """Raise Unsupported: this format cannot do it, and why."""
    raise Unsupported(
        f"the {layout.name} layout cannot {what}: {layout.lacks[capability]} (queue {layout.directory.path!r})",
        path=layout.directory.path,
        capability=capability,
    )


def refuse_holder(layout: Layout) -> NoReturn:
    """Raise Unsupported: this format has no place for the name of a holder."""
    raise Unsupported(
        f"the {layout.name} layout cannot keep who holds a message: get without holder= "
        f"(queue {layout.directory.path!r})",
        path=layout.directory.path,
        capability="holder",
    )


def remove_all(layout: Layout, states: tuple[str, ...]) -> int:
    """Delete the messages in these states; return their number."""
    sweep = getattr(layout, "sweep", None)
    if sweep is not None:  # where one by one would be quadratic
        return int(sweep(states))
    return sum(layout.remove(entry) for entry in layout.entries(states) if entry.state in states)


def bad_handle(handle: object) -> SettingsError:
    """Return the error for text that is not the handle of a lease."""
    return SettingsError(
        f"{handle!r:.160} is not the handle of a lease: give what Lease.handle or get --hold returned"
    )


def lost(claim: Claim, doing: str) -> LeaseLost:
    """Return the error for a lease that expired and was taken over, or that was ended elsewhere."""
    return LeaseLost(
        f"cannot {doing} {claim.id}: the lease {claim.token or claim.place} was lost (it expired and was taken, "
        f"or was ended elsewhere); nothing was changed",
        message_id=claim.id,
        token=claim.token,
        reason="gone",
    )

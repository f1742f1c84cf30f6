"""A message as people see it, and what its name alone tells.

Layer: pure values, no I/O of its own: a message asks the layout it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, BinaryIO, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from dirqueue import codecs
from dirqueue.errors import QueueError

T = TypeVar("T")
R = TypeVar("R")


class Card(NamedTuple):
    """What the name of a message says beyond its state, once a holder or a transaction has had to do with it."""

    #: How often it has changed.
    version: int
    #: The number of its side file; 0 if it has none.
    side: int = 0
    #: The id of the user's own, or a hash of it that begins with `=`.
    key: str = ""

    @property
    def text(self) -> str:
        """The card as it is written at the end of a name."""
        return f"~{self.version}~{self.side}~{self.key}" if self.key else f"~{self.version}~{self.side}"

    def raised(self) -> Card:
        """Return the card of the next version."""
        return self._replace(version=self.version + 1)


class Details(NamedTuple):
    """What a side file says: what a name has no room for."""

    #: The version that it was written for: a name of a lower one cannot mean it.
    version: int
    failures: int = 0
    error: str | None = None
    #: When the error was set, in microseconds.
    at: int = 0
    own_id: str = ""
    #: The body, if it was replaced.
    body: bytes | None = None


class Entry(NamedTuple):
    """One message as a listing shows it."""

    id: str
    state: str
    #: Where it is, in the layout's own terms.
    place: str
    #: Microseconds since the epoch: when put; and when the delay, the lease or the life ended.
    put: int
    until: int = 0
    attempts: int = 0
    token: str = ""
    priority: int | None = None
    card: Card | None = None

    @property
    def version(self) -> int:
        """How often the message has changed; of one without a card, how often it was delivered."""
        return self.card.version if self.card is not None else self.attempts


def age(entry: Entry) -> tuple[int, int, str]:
    """Return a sort key: by priority, then the oldest first."""
    return entry.priority or 0, entry.put, entry.id


def oldest(entries: Iterable[Entry], limit: int | None) -> list[Entry]:
    """Return the entries in the order of their age, the most urgent first; at most `limit` of them."""
    if limit is None:
        return sorted(entries, key=age)
    import heapq

    return heapq.nsmallest(limit, entries, key=age)


class Put(NamedTuple):
    """A message to be put into a queue of a space: what `lease.ack(then=[...])` takes, and what a handler returns."""

    #: The name of the queue, in the same space.
    queue: str
    #: What the space's codec takes; bytes or str without one.
    body: Any
    delay: float = 0
    priority: int | None = None
    #: An id of your own, unique in the space.
    id: str | None = None
    #: Whether a message that has this id already is as good.
    skip_existing: bool = False
    #: Seconds from then on after which it is not delivered any more.
    ttl: float | None = None
    #: A small map of text that it carries beside its body.
    attributes: Mapping[str, str] | None = None


class Failure(NamedTuple):
    """Why a message failed last, as recorded beside it."""

    error: str
    at: datetime
    leased_at: datetime | None = None
    #: The traceback of a handler, the last call first, or the last output of a program.
    trace: str | None = None

    @property
    def text(self) -> str:
        """The error and the trace under it."""
        return f"{self.error}\n{self.trace}" if self.trace else self.error


class Located(Protocol):
    """What has a path."""

    @property
    def path(self) -> str: ...


class Extras(NamedTuple):
    """What a message carries beside its body."""

    attributes: dict[str, str]
    #: When it is not delivered any more, in microseconds since the epoch; 0 = never.
    expires: int = 0


class Source(Protocol):
    """What a message needs of the layout it came from."""

    @property
    def directory(self) -> Located: ...
    def load(self, place: str) -> bytes: ...
    def stream(self, place: str) -> BinaryIO: ...
    def size(self, place: str) -> int: ...
    def leased_at(self, entry: Entry) -> datetime | None: ...
    def failure(self, entry: Entry) -> Failure | None: ...
    def extras(self, entry: Entry) -> Extras | None: ...
    def details(self, entry: Entry) -> Details | None: ...
    def holder(self, entry: Entry) -> str: ...
    def cancel(self, entry: Entry) -> None: ...
    def change(self, entry: Entry, *, priority: int | None, delay: float | None) -> Entry: ...


def instant(micros: int) -> datetime:
    """Return microseconds since the epoch as an aware UTC time."""
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


class Message(Generic[T]):
    """One message: its body and what its name tells."""

    __slots__ = ("_body", "_codec", "_data", "_entry", "_source")

    def __init__(
        self, entry: Entry, source: Source, codec: codecs.Codec[T], data: bytes | None = None
    ) -> None:
        self._entry = entry
        self._source = source
        self._codec = codec
        self._data = data
        self._body: Any = None

    def __repr__(self) -> str:
        return f"<Message {self.entry.id} {self.entry.state} attempts={self.entry.attempts}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Message cannot be pickled: send its body, or its id and its queue's path for Queue(path).message(id)"
        )

    def _at(self, look: Callable[[str], R]) -> R:
        """Call a function of the layout with the place of the file."""
        return look(self.entry.place)

    @property
    def entry(self) -> Entry:
        """What its name tells, as one tuple."""
        return self._entry

    @property
    def layout(self) -> Any:
        """The layout that it came from: `queue.layout`."""
        return self._source

    @property
    def id(self) -> str:
        """The id that put() returned."""
        return self.entry.id

    @property
    def path(self) -> str:
        """The directory of the queue that it is in."""
        return self._source.directory.path

    @property
    def data(self) -> bytes:
        """The body as bytes, as it is on disk."""
        if self._data is None:
            self._data = self._at(self._source.load)
        return self._data

    @property
    def body(self) -> T:
        """The body, decoded; CodecError if that fails."""
        if self._body is None:  # not decoded yet; or null, which is decoded each time
            self._body = codecs.decode(self._codec, self.data, self.id)
        return self._body  # type: ignore[no-any-return]

    def open(self) -> BinaryIO:
        """Open the body for reading as a stream, for bodies too large for memory."""
        return self._at(self._source.stream)

    @property
    def size(self) -> int:
        """Length of the body in bytes."""
        return self._at(self._source.size) if self._data is None else len(self._data)

    @property
    def state(self) -> str:
        """The state when the message was looked up: ready, delayed, leased, dead or done."""
        return self.entry.state

    @property
    def attempts(self) -> int:
        """Deliveries so far, this one included."""
        return self.entry.attempts

    @property
    def priority(self) -> int | None:
        """1 is the most urgent; None in a queue without priorities."""
        return self.entry.priority

    @property
    def token(self) -> str:
        """The name of the lease, if there is one: host, process id, random, count."""
        return self.entry.token

    @property
    def version(self) -> int:
        """How often it has changed; of one that no holder and no transaction had to do with, how often delivered."""
        return self.entry.version

    @property
    def holder(self) -> str | None:
        """Who holds it, or put it: the text given as `holder`; the token of a consumer that gave none; else None."""
        entry = self.entry
        return self._source.holder(entry) if entry.token else None

    @property
    def own_id(self) -> str | None:
        """The id of your own that it was put with; None if there was none."""
        card = self.entry.card
        if card is None or not card.key:
            return None
        if not card.key.startswith("="):
            return card.key
        details = self._source.details(self.entry)
        return details.own_id if details else None

    @property
    def failures(self) -> int:
        """How many failures were set for it by a transaction: `Transaction.put` and `change`."""
        details = self._source.details(self.entry)
        return details.failures if details else 0

    @property
    def enqueued_at(self) -> datetime:
        """When it was put."""
        return instant(self.entry.put)

    @property
    def until(self) -> datetime | None:
        """When the delay or the lease ends; when a dead or done message ended."""
        return instant(self.entry.until) if self.entry.until else None

    @property
    def leased_at(self) -> datetime | None:
        """When it was last claimed, if the layout records that; while it is leased: claimed or last renewed."""
        return self._source.leased_at(self.entry)

    @property
    def failure(self) -> Failure | None:
        """Why and when it failed last, if it did."""
        return self._source.failure(self.entry)

    @property
    def error(self) -> str | None:
        """Why it failed last, if it did."""
        failure = self.failure
        return failure.error if failure else None

    @property
    def extras(self) -> Extras | None:
        """Its attributes and when it expires, if it has any."""
        return self._source.extras(self.entry)

    @property
    def attributes(self) -> dict[str, str]:
        """The map of text that it was put with; empty if none."""
        extras = self.extras
        return extras.attributes if extras else {}

    @property
    def expires_at(self) -> datetime | None:
        """When it is not delivered any more, if it was put with a ttl."""
        extras = self.extras
        return instant(extras.expires) if extras and extras.expires else None

    @property
    def trace(self) -> str | None:
        """What explains the error: a handler's traceback, the last call first, or a program's last output."""
        failure = self.failure
        return failure.trace if failure else None

    def _told(self) -> tuple[str | None, int | None, int | None]:
        """Return its own id, its failures and its size; nothing of a task whose side file is damaged."""
        try:
            return self.own_id, self.failures, self.size
        except QueueError:
            if self.entry.card is None:
                raise
            return None, None, None

    def cancel(self) -> None:
        """Remove an unclaimed message; MessageNotFound if another client was faster."""
        self._source.cancel(self.entry)

    def change(self, *, priority: int | None = None, delay: float | None = None) -> Message[T]:
        """Give an unclaimed message another priority or delay by one rename; return the changed message."""
        return Message(
            self._source.change(self.entry, priority=priority, delay=delay), self._source, self._codec
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the body, as plain values for JSON."""
        failure = self.failure
        leased_at = self.leased_at
        extras = self.extras or Extras({})
        own_id, failures, size = self._told()
        return {
            "id": self.id,
            "state": self.state,
            "attempts": self.attempts,
            "priority": self.priority,
            "enqueued_at": self.enqueued_at.isoformat(),
            "until": self.until.isoformat() if self.until else None,
            "leased_at": leased_at.isoformat() if leased_at else None,
            "token": self.token or None,
            "version": self.version,
            "holder": self.holder,
            "own_id": own_id,
            "failures": failures,
            "size": size,
            "error": failure.error if failure else None,
            "failed_at": failure.at.isoformat() if failure else None,
            "trace": failure.trace if failure else None,
            "attributes": extras.attributes,
            "expires_at": instant(extras.expires).isoformat() if extras.expires else None,
        }

"""A claim on one message, and its four ends.

Layer: mechanisms.
A lease trades mutual exclusion for progress: it runs out, and then nothing stops its late holder from working on.
What the late holder cannot do is commit: ack, retry, release, reject and renew change the exact name that was
claimed, and if that name is gone they raise LeaseLost and touch nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, NamedTuple, NoReturn, ParamSpec, TypeVar

from dirqueue.codecs import BYTES, Codec
from dirqueue.disk.identity import PROCESS
from dirqueue.errors import (
    DirQueueError,
    LeaseLost,
    MessageNotFound,
    Move,
    Reject,
    Release,
    Retry,
    SettingsError,
)
from dirqueue.failure import describe
from dirqueue.layouts.base import Claim, Committer, Layout
from dirqueue.message import Entry, Extras, Message, Put, instant
from dirqueue.renewer import RENEWER
from dirqueue.settings import check_seconds

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

#: A lease in a `with` block is renewed when this part of it has passed: room for two failed tries.
RENEW_AT = 1 / 3
#: How often a renewal may come between finding a file and opening it.
RENAMED = 10


class LeasedMessage(Message[T]):
    """The message of a lease, which makes it. Its properties follow renewals."""

    __slots__ = ("_claim",)
    _claim: Claim
    _source: Layout

    @property
    def entry(self) -> Entry:
        return self._source.entry(self._claim)

    @property
    def id(self) -> str:
        return self._claim.id

    @property
    def attempts(self) -> int:
        return self._claim.attempts

    @property
    def token(self) -> str:
        return self._claim.token

    @property
    def extras(self) -> Extras | None:
        return self._claim.extras  # read with the claim

    def _at(self, look: Callable[[str], R]) -> R:
        directory = self._source.directory
        if directory.fd < 0:
            directory.need()
        for _ in range(RENAMED):
            place = self._claim.place
            try:
                return look(place)
            except MessageNotFound:
                if place == self._claim.place:  # else RACE: renewed between the two lines above
                    raise
        return look(self._claim.place)


class Lease(Generic[T]):
    """One delivery of one message, ours until `until`. Ends by ack, retry, release or reject, once."""

    __slots__ = {
        "_claim": None,
        "_codec": None,
        "_ended": None,
        "_generation": None,
        "_layout": None,
        "_lock": None,
        "message": "The leased message.",
        "seconds": "The length of the lease when it was claimed, and of a renewal that names none.",
    }

    def __init__(self, layout: Layout, claim: Claim, seconds: float, codec: Codec[T]) -> None:
        self._layout = layout
        self._claim = claim
        self._codec = codec
        # COST: with a call of its __init__ 1 % of get + ack on tmpfs; to decode bytes by the codec, another one.
        message: LeasedMessage[T] = object.__new__(LeasedMessage)
        message._claim, message._source, message._codec = claim, layout, codec  # noqa: SLF001
        message._data = data = claim.data  # noqa: SLF001
        message._body = data if codec is BYTES else None  # noqa: SLF001
        self.message: Message[T] = message
        self._generation = PROCESS.generation
        # Created by the first renewal: until then no other thread renames the file.
        # COST: created here, and taken by every ack, it would be 2 % of get + ack on tmpfs.
        self._lock: threading.RLock | None = None
        self._ended = ""
        self.seconds = seconds

    def __repr__(self) -> str:
        return f"<Lease {self._claim.id} {self._ended or 'until ' + self.until.isoformat()}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Lease cannot be pickled: send its path and handle, and take it over with Queue(path).lease(handle)"
        )

    @property
    def claim(self) -> Claim:
        """What is held, in the layout's terms; a renewal changes it."""
        return self._claim

    @property
    def path(self) -> str:
        """The directory of the queue that the message came from."""
        return self._layout.directory.path

    @property
    def layout(self) -> Layout:
        """The layout of the queue that the message came from: the object that its `Queue.layout` is."""
        return self._layout

    @property
    def codec(self) -> Codec[T]:
        """How the body becomes bytes and back."""
        return self._codec

    @property
    def token(self) -> str:
        """The name of this lease; a renewal changes it."""
        return self._claim.token

    @property
    def handle(self) -> str:
        """Text with which any process can take over this lease by `Queue.lease`; a renewal changes it."""
        return self._claim.place

    @property
    def until(self) -> datetime:
        """When the lease ends and others may claim the message, by the file server's clock."""
        return instant(self._claim.ends)

    @property
    def ended(self) -> str:
        """How the lease ended: acked, retried, released, dead or lost; empty while it is held."""
        return self._ended

    @property
    def lost(self) -> bool:
        """Whether the lease was found to be lost, perhaps by a renewal in the background: stop working."""
        return self._ended == "lost"

    def ack(self, then: Iterable[Any] | None = None) -> None:
        """The work is done: the message is gone for good when this returns.

        Args:
            then: Messages to put with it, each a `Put(queue, body)`: all of it happens, or nothing does. For leases
                from the queues of a `Space`. Raises Conflict, as a transaction does.
        """
        if then is not None:
            return self._space("ack(then=...)").commit_with(self, then)
        shared = self._lock
        if shared or self._ended or self._generation != PROCESS.generation:
            return self._end("ack", "acked", self._layout.ack)
        try:
            self._layout.ack(self._claim)
        except LeaseLost:
            if self._lock is not None:  # RACE: renewed by another thread since we looked
                return self._end("ack", "acked", self._layout.ack)
            self._mark_lost()
            raise
        self._ended = "acked"
        return None

    def move(self, queue: str, error: str | BaseException | None = None) -> None:
        """Move the message to another queue of the space, where it begins a new life.

        Args:
            queue: The name of the queue.
            error: Why, if it failed here; kept beside the message.
        """
        self._space("move").move_lease(self, queue, describe(error))

    def _space(self, doing: str) -> Committer:
        if self._layout.space is None:
            raise SettingsError(
                f"{doing} needs a lease from a Space, and {self.path!r} was opened as a queue alone: "
                f"use Space({os.path.dirname(self.path)!r}).get({os.path.basename(self.path)!r})"
            )
        return self._layout.space

    def retry(self, delay: float | None = None, error: str | BaseException | None = None) -> None:
        """The work failed: deliver again after `delay` seconds (backoff if None); dead after max_attempts.

        Of an exception given as `error` the traceback is kept too.
        """
        layout, attempts = self._layout, self._claim.attempts
        reason = describe(error)
        if delay is not None:
            check_seconds("delay", delay)
        if 0 < layout.settings.max_attempts <= attempts and "dead" not in layout.lacks:
            self._end("retry", "dead", layout.bury, reason or f"failed {attempts} times")
            return
        if delay is None:
            delay = layout.settings.pause(attempts)
        self._end("retry", "retried", layout.retry, delay, reason)

    def release(self) -> None:
        """Give the message back at once, not counted as a failure."""
        self._end("release", "released", self._layout.release)

    def reject(self, reason: str | BaseException = "rejected") -> None:
        """The work can never succeed: move the message to dead/, with the reason."""
        self._end("reject", "dead", self._layout.bury, describe(reason) or "rejected")

    def renew(self, seconds: float | None = None) -> None:
        """Extend the lease to `seconds` from now; to the length of the first claim if None."""
        duration = self.seconds if seconds is None else seconds
        check_seconds("seconds", duration, above=True)
        self._guard()
        self._end("renew", "", self._layout.renew, duration)

    def _guard(self) -> None:
        """Create the lock; from then on another thread may renew the lease."""
        with MAKING:
            if self._lock is None:
                self._lock = threading.RLock()

    def _end(
        self,
        doing: str,
        how: str,
        change: Callable[Concatenate[Claim, P], None],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> None:
        """Change the claimed name if the lease is still ours, and record `how` that ended the lease."""
        # First: a thread of the parent may have held the lock at the fork.
        if self._generation != PROCESS.generation:
            raise self._refusal(doing)
        with self._lock or contextlib.nullcontext():
            if self._ended:
                raise self._refusal(doing)
            if self._layout.directory.fd < 0:
                self._layout.directory.need()
            try:
                change(self._claim, *arguments, **options)
            except LeaseLost:
                self._mark_lost()
                raise
            self._ended = how

    def _mark_lost(self) -> None:
        self._ended = self._ended or "lost"  # another thread, or a signal handler, may have ended it

    def _refusal(self, doing: str) -> LeaseLost:
        claim = self._claim
        reason: Literal["ended", "forked"] = "ended"
        text = f"the lease has ended already ({self._ended})"
        if self._generation != PROCESS.generation:
            reason = "forked"
            text = "it was claimed by the parent process before the fork; get your own"
        return LeaseLost(
            f"cannot {doing} {claim.id}: {text}", message_id=claim.id, token=claim.token, reason=reason
        )

    # --- with ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Message[T]:
        self._guard()
        RENEWER.watch(self, self.seconds * RENEW_AT)
        return self.message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if RENEWER.forget(self) and error is None:
            raise self._refusal("ack")
        if self._ended:
            return False
        if error is None:
            self.ack()
            return False
        try:
            verb_for(error, propagates=True).end(self)
        except DirQueueError as worse:
            error.add_note(f"and then: {worse}")
            return False
        return isinstance(error, (Retry, Reject, Release, Move))


# What transactions do with a lease. Users have no need of these, so they are no methods.


@contextlib.contextmanager
def frozen(lease: Lease[Any], doing: str) -> Iterator[Claim]:
    """Keep other threads from renewing or ending a lease in the block; LeaseLost if it is not held any more."""
    if lease._generation != PROCESS.generation:  # noqa: SLF001
        raise lease._refusal(doing)  # noqa: SLF001
    lease._guard()  # noqa: SLF001
    with lease._lock or contextlib.nullcontext():  # noqa: SLF001
        if lease._ended:  # noqa: SLF001
            raise lease._refusal(doing)  # noqa: SLF001
        yield lease._claim  # noqa: SLF001


def unshared(lease: Lease[Any]) -> tuple[Layout, Claim] | None:
    """Return what is held, and where; None if other threads may renew or end it, or somebody has: then freeze it."""
    if lease._lock is not None or lease._ended or lease._generation != PROCESS.generation:  # noqa: SLF001
        return None
    return lease._layout, lease._claim  # noqa: SLF001


def finish(lease: Lease[Any], how: str) -> None:
    """Record how a transaction ended a lease; nothing if it only renewed it."""
    lease._ended = how  # noqa: SLF001


class Outcome(NamedTuple):
    """How to end a lease. Plain values: they cross the socket between a worker and its child processes."""

    verb: Literal["ack", "retry", "release", "reject", "move"] = "ack"
    delay: float | None = None
    error: str | None = None
    #: Messages to put together with the ack, and the queue to move to.
    then: tuple[Put, ...] = ()
    queue: str = ""

    def end(self, lease: Lease[Any]) -> None:
        """End the lease in this way."""
        if self.verb == "ack":
            lease.ack(self.then) if self.then else lease.ack()
        elif self.verb == "move":
            lease.move(self.queue, self.error)
        elif self.verb == "retry":
            lease.retry(self.delay, self.error)
        elif self.verb == "reject":
            lease.reject(self.error or "rejected")
        else:
            lease.release()


def verb_for(error: BaseException, *, propagates: bool = False) -> Outcome:
    """Return how an exception ends the lease of the message that was being worked on.

    `Retry`, `Reject` and `Release` say it themselves, and any other Exception is a failure of the message: retry.
    SystemExit, KeyboardInterrupt, GeneratorExit and the cancellation of a task are no Exceptions. Where they
    propagate (out of a `with` block) they end the program or the task, which is no fault of the message: release, not
    counted. Where they do not (a worker outlives its handlers) the handler failed, perhaps by sys.exit(): retry,
    counted, because a message released uncounted would come again at once, without end.
    """
    if isinstance(error, Retry):
        return Outcome("retry", error.delay, describe(error))
    if isinstance(error, Reject):
        return Outcome("reject", None, describe(error))
    if isinstance(error, Move):
        return Outcome("move", None, describe(error.error), (), error.queue)
    if isinstance(error, Release) or (propagates and not isinstance(error, Exception)):
        return Outcome("release")
    return Outcome("retry", None, describe(error))


#: Held for a moment by whoever creates the lock of a lease. Reentrant: a signal handler may renew one too.
MAKING = threading.RLock()


def _forked() -> None:
    """Replace the lock in a child: a thread of the parent may have held it."""
    global MAKING
    MAKING = threading.RLock()


os.register_at_fork(after_in_child=_forked)

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
import time
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, TypeVar

from dirqueue.codecs import BYTES, Codec
from dirqueue.disk.identity import PROCESS
from dirqueue.errors import DirQueueError, LeaseLost, MessageNotFound, Reject, Release, Retry
from dirqueue.layouts.base import Claim, Layout
from dirqueue.message import Entry, Message, instant
from dirqueue.settings import check_seconds

T = TypeVar("T")
R = TypeVar("R")

#: A lease in a `with` block is renewed when this part of it has passed: room for two failed tries.
RENEW_AT = 1 / 3
#: How often a renewal may come between finding a file and opening it.
RENAMED = 10


class LeasedMessage(Message[T]):
    """The message of a lease: what it says of itself follows the renewals."""

    __slots__ = ("_claim", "_layout")

    def __init__(self, claim: Claim, layout: Layout, codec: Codec[T]) -> None:
        self._claim = claim
        self._source = self._layout = layout
        self._codec = codec
        self._data = claim.data
        # COST: decoding bytes by the codec would be 2 % of get + ack on tmpfs.
        self._body: Any = claim.data if codec is BYTES else None

    @property
    def entry(self) -> Entry:
        return self._layout.entry(self._claim)

    @property
    def id(self) -> str:
        return self._claim.id

    @property
    def attempts(self) -> int:
        return self._claim.attempts

    @property
    def token(self) -> str:
        return self._claim.token

    def _at(self, look: Callable[[str], R]) -> R:
        directory = self._layout.directory
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
        "_message": None,
        "seconds": "How long it was asked for.",
    }

    def __init__(self, layout: Layout, claim: Claim, seconds: float, codec: Codec[T]) -> None:
        self._layout = layout
        self._claim = claim
        self._codec = codec
        self._message: LeasedMessage[T] | None = None
        self._generation = PROCESS.generation
        # Created by the first renewal: until then no other thread can rename the file.
        self._lock: threading.Lock | None = None
        self._ended = ""
        self.seconds = seconds

    def __repr__(self) -> str:
        return f"<Lease {self._claim.id} {self._ended or 'until ' + self.until.isoformat()}>"

    @property
    def message(self) -> Message[T]:
        """The message that is held."""
        message = self._message
        if message is None:
            message = self._message = LeasedMessage(self._claim, self._layout, self._codec)
        return message

    @property
    def path(self) -> str:
        """The queue that the message came from."""
        return self._layout.directory.path

    @property
    def codec(self) -> Codec[T]:
        """How the body becomes bytes and back."""
        return self._codec

    @property
    def token(self) -> str:
        """Names this lease; a renewal changes it."""
        return self._claim.token

    @property
    def handle(self) -> str:
        """Text by which any process can end or renew this lease with `Queue.lease`; a renewal changes it."""
        return self._claim.place

    @property
    def until(self) -> datetime:
        """When others may take the message, by the file server's clock."""
        return instant(self._claim.ends)

    @property
    def ended(self) -> str:
        """How the lease ended: acked, retried, released, dead or lost; empty while it is held."""
        return self._ended

    @property
    def lost(self) -> bool:
        """Whether the lease was found to be taken, perhaps by a renewal in the background: stop working."""
        return self._ended == "lost"

    def ack(self) -> None:
        """It worked: the message is gone for good when this returns."""
        renewing = self._lock
        if renewing or self._ended or self._generation != PROCESS.generation:
            return self._end("ack", "acked")
        try:
            self._layout.ack(self._claim)
        except LeaseLost:
            if self._lock is not None:  # RACE: renewed by another thread since we looked
                return self._end("ack", "acked")
            self._mark_lost()
            raise
        self._ended = "acked"
        return None

    def retry(self, delay: float | None = None, error: str | BaseException | None = None) -> None:
        """It failed: deliver again after `delay` seconds (policy if None); dead after max_attempts."""
        settings, claim = self._layout.settings, self._claim
        reason = describe(error)
        if delay is not None:
            check_seconds("delay", delay)
        if 0 < settings.max_attempts <= claim.attempts and "dead" not in self._layout.lacks:
            self._end("bury", "dead", reason or f"failed {claim.attempts} times")
            return
        if delay is None:
            delay = settings.pause(claim.attempts)
        self._end("retry", "retried", delay, reason)

    def release(self) -> None:
        """Not mine: give it back at once, not counted as a failure."""
        self._end("release", "released")

    def reject(self, reason: str | BaseException = "rejected") -> None:
        """It never will work: to dead/, with the reason."""
        self._end("bury", "dead", describe(reason) or "rejected")

    def renew(self, seconds: float | None = None) -> None:
        """Hold on for `seconds` from now (as long as asked for at first, if None)."""
        duration = self.seconds if seconds is None else seconds
        check_seconds("seconds", duration, above=True)
        self._guard()
        self._end("renew", "", duration)

    def _guard(self) -> None:
        """From now on no end of this lease comes between the steps of a renewal."""
        with MAKING:
            if self._lock is None:
                self._lock = threading.Lock()

    def _end(self, verb: str, how: str, *arguments: object) -> None:
        # A thread of the parent may have held the lock at the fork, so this comes first.
        if self._generation != PROCESS.generation:
            raise self._refusal(verb)
        # The lock keeps a renewal in the background from changing the name that we are about to use.
        with self._lock or contextlib.nullcontext():
            if self._ended:
                raise self._refusal(verb)
            if self._layout.directory.fd < 0:
                self._layout.directory.need()
            try:
                getattr(self._layout, verb)(self._claim, *arguments)
            except LeaseLost:
                self._mark_lost()
                raise
            self._ended = how

    def _mark_lost(self) -> None:
        self._ended = self._ended or "lost"

    def _refusal(self, verb: str) -> LeaseLost:
        claim = self._claim
        if self._generation != PROCESS.generation:
            text, reason = "it was taken by the parent process before the fork; get your own", "forked"
        else:
            text, reason = f"the lease has ended already ({self._ended})", "ended"
        return LeaseLost(
            f"cannot {verb} {claim.id}: {text}", message_id=claim.id, token=claim.token, reason=reason
        )

    # --- with ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Message[T]:
        RENEWER.watch(self)
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
            return self._settle(error)
        except DirQueueError as worse:
            error.add_note(f"and then: {worse}")
            return False

    def _settle(self, error: BaseException) -> bool:
        """End the lease as the exception says; whether that was all the exception was for."""
        if isinstance(error, Retry):
            self.retry(error.delay, error.error)
        elif isinstance(error, Reject):
            self.reject(error.reason)
        elif isinstance(error, Release):
            self.release()
        elif isinstance(error, Exception):
            self.retry(error=error)
            return False
        else:
            self.release()  # KeyboardInterrupt, SystemExit, GeneratorExit, cancellation: not the message's fault
            return False
        return True


def describe(error: str | BaseException | None) -> str | None:
    """Return an error as one line of text."""
    if error is None or isinstance(error, str):
        return error
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class Renewer:
    """One thread for all leases in `with` blocks: keeps them from running out while the work runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Lease[Any], float] = {}
        #: Leases that were found to be taken, whose holders do not know it yet.
        self._untold: set[Lease[Any]] = set()
        self._wakes = 0.0
        self._thread: threading.Thread | None = None

    def watch(self, lease: Lease[Any], after: float | None = None) -> None:
        """Renew the lease in time, until it is forgotten."""
        lease._guard()  # noqa: SLF001 - its other half
        when = time.monotonic() + (lease.seconds * RENEW_AT if after is None else after)
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="dirqueue-renewer", daemon=True)
                thread.start()
                self._thread = thread
            self._due[lease] = when
            if when < self._wakes:
                self._changed.notify()

    def forget(self, lease: Lease[Any]) -> bool:
        """The block is over: keep nothing of it; whether its holder has to be told that the lease was lost."""
        with self._changed:
            self._due.pop(lease, None)
            untold = lease in self._untold
            self._untold.discard(lease)
            return untold

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                due = [lease for lease, when in self._due.items() if when <= now]
                if not due:
                    self._wakes = min(self._due.values(), default=now + IDLE_SECONDS)
                    if not self._changed.wait(self._wakes - now) and not self._due:
                        self._thread = None  # nothing to do for long: end, and start again when needed
                        return
                    continue
            for lease in due:
                self._renew(lease)

    def _renew(self, lease: Lease[Any]) -> None:
        pause = lease.seconds * RENEW_AT
        try:
            lease.renew()
        except LeaseLost as error:
            return self._lose(lease, error)
        except Exception:  # noqa: BLE001 - one lease in trouble must not end the renewal of the others
            pause /= 4  # a full disk, a dead server: there is time to try again
        with self._changed:
            if lease in self._due:
                self._due[lease] = time.monotonic() + pause
        return None

    def _lose(self, lease: Lease[Any], error: LeaseLost) -> None:
        """Its holder is told at the end of the block, unless the block ended it itself, or is over."""
        with self._changed:
            if self._due.pop(lease, None) is not None and error.reason == "gone":
                self._untold.add(lease)


IDLE_SECONDS = 5.0
RENEWER = Renewer()
os.register_at_fork(after_in_child=RENEWER.__init__)  # type: ignore[misc]
#: Held for a moment, by whoever makes the lock of a lease; free in a child, whatever the parent was doing.
MAKING = threading.Lock()
os.register_at_fork(before=MAKING.acquire, after_in_parent=MAKING.release, after_in_child=MAKING.release)

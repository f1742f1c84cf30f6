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
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from dirqueue.codecs import Codec
from dirqueue.disk.identity import PROCESS
from dirqueue.errors import DirQueueError, LeaseLost, Reject, Release, Retry
from dirqueue.layouts.base import Held, Layout
from dirqueue.message import Message, instant
from dirqueue.settings import check_seconds

if TYPE_CHECKING:
    from dirqueue.renewer import Renewer

T = TypeVar("T")
R = TypeVar("R")

#: A lease in a `with` block is renewed when this part of it has passed: room for two failed tries.
RENEW_AT = 1 / 3


class Lease(Generic[T]):
    """One delivery of one message, ours until `until`. Ends by ack, retry, release or reject, once."""

    __slots__ = {
        "_ended": None,
        "_generation": None,
        "_lock": None,
        "message": "The message that is held.",
        "seconds": "How long it was asked for.",
    }
    #: Renews leases in `with` blocks; set by `dirqueue.queue`, because this module and the renewer are of one row.
    _renewer: ClassVar[Renewer]

    def __init__(self, layout: Layout, held: Held, seconds: float, codec: Codec[T]) -> None:
        # What the layout took becomes a message that people can read.
        held._source = layout  # noqa: SLF001 - its other half, as below
        held._codec = codec  # noqa: SLF001
        self.message: Message[T] = held
        self._generation = PROCESS.generation
        # Made by the first renewal: only that changes the name under the feet of another thread.
        self._lock: threading.Lock | None = None
        self._ended = ""
        self.seconds = seconds

    def __repr__(self) -> str:
        return f"<Lease {self._held.id} {self._ended or 'until ' + self.until.isoformat()}>"

    @property
    def _held(self) -> Held:
        return cast("Held", self.message)

    @property
    def _layout(self) -> Layout:
        return cast("Layout", self.message._source)  # noqa: SLF001

    @property
    def path(self) -> str:
        """The queue that the message came from."""
        return self._layout.directory.path

    @property
    def codec(self) -> Codec[T]:
        """How the body becomes bytes and back."""
        return self.message._codec  # noqa: SLF001

    @property
    def token(self) -> str:
        """Names this lease; a renewal changes it."""
        return self._held.token

    @property
    def handle(self) -> str:
        """Text by which any process can end or renew this lease with `Queue.lease`; a renewal changes it."""
        return self._held.place

    @property
    def until(self) -> datetime:
        """When others may take the message, by the file server's clock."""
        return instant(self._held.ends)

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
        held: Any = self.message
        try:
            held._source.ack(held)  # noqa: SLF001 - its other half
        except LeaseLost:
            if self._lock is not None:  # RACE: renewed by another thread since we looked
                return self._end("ack", "acked")
            self._mark_lost()
            raise
        self._ended = "acked"
        return None

    def retry(self, delay: float | None = None, error: str | BaseException | None = None) -> None:
        """It failed: deliver again after `delay` seconds (policy if None); dead after max_attempts."""
        settings, held = self._layout.settings, self._held
        reason = describe(error)
        if delay is not None:
            check_seconds("delay", delay)
        if 0 < settings.max_attempts <= held.attempts and "dead" not in self._layout.lacks:
            self._end("bury", "dead", reason or f"failed {held.attempts} times")
            return
        if delay is None:
            delay = settings.pause(held.attempts)
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
                getattr(self._layout, verb)(self._held, *arguments)
            except LeaseLost:
                self._mark_lost()
                raise
            self._ended = how

    def _mark_lost(self) -> None:
        self._ended = self._ended or "lost"

    def _refusal(self, verb: str) -> LeaseLost:
        held = self._held
        if self._generation != PROCESS.generation:
            text, reason = "it was taken by the parent process before the fork; get your own", "forked"
        else:
            text, reason = f"the lease has ended already ({self._ended})", "ended"
        return LeaseLost(
            f"cannot {verb} {held.id}: {text}", message_id=held.id, token=held.token, reason=reason
        )

    # --- with ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Message[T]:
        self._guard()
        self._renewer.watch(self, self.seconds * RENEW_AT)
        return self.message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._renewer.forget(self) and error is None:
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


#: Held for a moment, by whoever makes the lock of a lease; free in a child, whatever the parent was doing.
MAKING = threading.Lock()
os.register_at_fork(before=MAKING.acquire, after_in_parent=MAKING.release, after_in_child=MAKING.release)

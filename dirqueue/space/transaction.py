"""Several changes that happen together or not at all.

Layer: objects.  Touches: nothing before the commit (commit.py).
A transaction is built in memory. It names messages by their exact names, as they were leased or seen: the name tells
the version, so that whatever happened to a message meanwhile is noticed, and nothing is done then.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dirqueue import states
from dirqueue.admission import Admission
from dirqueue.codecs import Codec, encode
from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.identity import new_id
from dirqueue.errors import Contended, LeaseLost, MessageNotFound, SettingsError, access_error
from dirqueue.failure import describe
from dirqueue.layouts.base import Claim, Layout
from dirqueue.layouts.native import conditions, names, resolve
from dirqueue.lease import Lease, finish, frozen
from dirqueue.message import Entry, Extras, Message
from dirqueue.settings import check_count, check_seconds
from dirqueue.space import ids, steps
from dirqueue.space.carried import leave_carried, skipped
from dirqueue.space.commit import Attempt
from dirqueue.space.conflicts import Judge
from dirqueue.space.notes import carry_notes, drop_notes, write_notes
from dirqueue.space.results import Committed, committed
from dirqueue.space.sides import drop_sides, write_sides
from dirqueue.space.steps import KEEP, Change, Inserted, Keep, Place, Step
from dirqueue.space.work import Aborted, Refused, Work

if TYPE_CHECKING:
    from dirqueue.space.ground import Ground

#: How often a transaction is tried that others are in the way of, and the longest first pause in between.
TRIES = 20
PAUSE = 0.005
LONGEST_PAUSE = 0.2


class Transaction:
    """Puts, acks, moves and needs that are committed together: by `commit`, or by the end of a `with` block.

    An exception in the block changes nothing. After a Conflict nothing was changed either: leases are still held.
    What only its holder may do to a message that was looked at, a transaction of that holder may.
    """

    def __init__(self, ground: Ground, holder: str | None = None, codec: Codec[Any] | None = None) -> None:
        self._ground = ground
        self._codec = codec or ground.codec
        #: As tokens have it; empty if nobody is named.
        self._holder = "" if holder is None else ground.written(holder)
        self._steps: list[Step] = []
        self._needs: list[Step] = []
        self._inserts: list[Inserted] = []
        self._used: set[tuple[str, str]] = set()
        self._over = ""

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
        elif not self._over:
            self.commit()

    # --- what it is to do ----------------------------------------------------------------------------------

    def put(
        self,
        queue: str,
        body: Any,
        *,
        delay: float = 0,
        ttl: float | None = None,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        id: str | None = None,
        skip_existing: bool = False,
        at: datetime | None = None,
        failures: int = 0,
        error: str | BaseException | None = None,
    ) -> str:
        """Put a message; return its id. It becomes visible with everything else.

        Args:
            queue: The name of the queue.
            body: bytes or str, or what the space's codec takes.
            delay: Seconds before anybody may get it.
            ttl: Seconds from now after which it is not delivered any more.
            priority: 1 is the most urgent; only in a queue created with priorities.
            attributes: A small map of text that it carries beside its body.
            id: An id of your own, unique in the space until the message is gone.
            skip_existing: If a message has this id already, leave this one out.
            at: The instant from which anybody may get it, instead of a delay: an aware datetime.
            failures: What `Message.failures` says of it.
            error: What `Message.error` says of it.
        """
        data = encode(self._codec, body)
        self._open()
        until = steps.check_when(delay, at)
        steps.check_failures(failures, error)
        target = self._ground.transacted(queue)
        priority = steps.check_put(target, len(data), delay, priority)
        if id is not None:
            ids.check(id)
            if any(each.own_id == id for each in self._inserts):
                raise SettingsError(f"the id {id!r:.60} is in this transaction already")
        native = new_id() if priority is None else f"{priority}{new_id()}"
        directory = self._ground.directory_of(queue)
        self._inserts.append(
            Inserted(
                target.layout,
                directory,
                native,
                data,
                delay,
                until,
                priority,
                id,
                skip_existing,
                self._holder,
                failures,
                describe(error),
                Admission(target.layout).extras(attributes, ttl) if attributes or ttl is not None else None,
            )
        )
        return native if id is None else id

    def ack(self, lease: Lease[Any]) -> None:
        """The work is done: the message goes."""
        self._lease("ack", lease, "acked", steps.done, alone=steps.layout_of("ack", lease).ack)

    def retry(
        self, lease: Lease[Any], delay: float | None = None, error: str | BaseException | None = None
    ) -> None:
        """The work failed: deliver again after `delay` seconds (backoff if None); dead after max_attempts."""
        layout, attempts = steps.layout_of("retry", lease), lease.message.attempts
        reason = describe(error)
        if delay is not None:
            check_seconds("delay", delay)
        if 0 < layout.settings.max_attempts <= attempts:
            self._bury("retry", lease, reason or f"failed {attempts} times")
            return
        pause = layout.settings.pause(attempts) if delay is None else delay
        self._lease(
            "retry",
            lease,
            "retried",
            lambda step, claim, now: steps.later(step, claim, now + micros(pause)),
            reason,
            lambda claim: layout.retry(claim, pause, reason),
        )

    def release(self, lease: Lease[Any]) -> None:
        """Give the message back at once, not counted as a failure."""
        self._lease(
            "release", lease, "released", steps.released, alone=steps.layout_of("release", lease).release
        )

    def reject(self, lease: Lease[Any], reason: str | BaseException = "rejected") -> None:
        """The work can never succeed: the message goes to dead/, with the reason."""
        self._bury("reject", lease, describe(reason) or "rejected")

    def _bury(self, verb: str, lease: Lease[Any], reason: str) -> None:
        layout = steps.layout_of(verb, lease)
        self._lease(verb, lease, "dead", steps.dead, reason, lambda claim: layout.bury(claim, reason))

    def renew(self, what: Lease[Any] | Message[Any], seconds: float | None = None) -> None:
        """Hold a message for so many seconds from the commit; for the length of the first claim if None.

        Args:
            what: A lease, or a message that the holder of this transaction holds, as it was seen.
            seconds: How long; a message that was looked at is held for the setting of its queue if None.
        """
        layout = what.layout if isinstance(what, Message) else steps.layout_of("renew", what)
        first = what.seconds if isinstance(what, Lease) else layout.settings.lease
        duration = check_seconds("seconds", first if seconds is None else seconds, above=True)

        def place(step: Step, claim: Claim, now: int) -> str:
            return steps.renewed(step, claim, now + micros(duration))

        if isinstance(what, Lease):
            self._lease("renew", what, "", place, alone=lambda claim: layout.renew(claim, duration))
        else:
            self._message("renew", what, place, allowed=(states.LEASED,))

    def cancel(self, message: Message[Any]) -> None:
        """Remove a message, if it is still as it was seen.

        One that is held only if the holder of this transaction holds it, or its lease is over: else Conflict.
        """
        self._message("cancel", message, steps.done)

    def move(
        self, what: Lease[Any] | Message[Any], queue: str, *, delay: float = 0, error: str | None = None
    ) -> None:
        """Move a message to another queue of the space: a leased one, or one that may be cancelled, as it was seen.

        It begins a new life there: its deliveries are counted anew.
        """
        check_seconds("delay", delay)
        target = self._ground.transacted(queue)
        directory = self._ground.directory_of(queue)

        def place(_: Step, claim: Claim, now: int) -> str:
            until = now + micros(delay) if delay else 0
            return steps.moved(claim, target.settings, directory, until, now)

        if isinstance(what, Lease):
            self._lease("move", what, "moved", place, error)
        else:
            self._message("move", what, place, error)
        self._steps[-1] = self._steps[-1]._replace(into=target.layout)

    def change(
        self,
        what: Lease[Any] | Message[Any],
        *,
        body: Any = KEEP,
        delay: float | Keep = KEEP,
        at: datetime | None = None,
        queue: str | Keep = KEEP,
        failures: int | Keep = KEEP,
        error: str | BaseException | Keep | None = KEEP,
        attempts: int | Keep = KEEP,
        hold: bool = False,
    ) -> None:
        """Change a message that is leased, or one that may be cancelled, if it is still as it was seen.

        Nobody holds it afterwards, unless `hold` says so; its version is one more. What is not given stays as it is.

        Args:
            what: The lease, or the message.
            body: What the space's codec takes.
            delay: Seconds before anybody may get it. If neither this nor `at` is given, what is held can be got at
                once, and what waits keeps its time.
            at: The instant from which anybody may get it, instead of a delay: an aware datetime.
            queue: The queue that it moves to.
            failures: What `Message.failures` says of it.
            error: What `Message.error` says of it; None for no error.
            attempts: How often it was delivered.
            hold: Whether the holder of this transaction holds it until then.
        """
        until = steps.check_when(delay, at)
        steps.check_failures(failures, error)
        if hold and not self._holder:
            raise SettingsError("hold=True needs a transaction with a holder")
        if not isinstance(attempts, Keep):
            check_count("attempts", attempts)
        target, into = None, None
        if not isinstance(queue, Keep):
            found = self._ground.transacted(queue)
            target, into = (self._ground.directory_of(queue), found.settings), found.layout
        change = Change(
            target,
            delay,
            until or KEEP,
            KEEP if body is KEEP else encode(self._codec, body),
            failures,
            error if isinstance(error, Keep) else describe(error),
            attempts,
            self._holder if hold else "",
        )
        if isinstance(what, Lease):
            step = self._step("change", what.layout, what, None, what.message.id)
            self._steps.append(
                step._replace(how="released", target=lambda claim, now: change.apply(step, claim, now))
            )
        else:
            entry = steps.entry_of("change", what, states.LIVE)
            step = self._step("change", what.layout, None, entry, entry.id)
            self._steps.append(step._replace(target=lambda claim, now: change.apply(step, claim, now)))
        self._steps[-1] = self._steps[-1]._replace(into=into)

    def need(self, what: Lease[Any] | Message[Any]) -> None:
        """Commit only if this message is still as it was seen; it stays as it is."""
        if isinstance(what, Lease):
            self._needs.append(self._step("need", what.layout, what, None, what.message.id))
        else:
            self._needs.append(self._step("need", what.layout, None, what.entry, what.id))

    # --- steps ---------------------------------------------------------------------------------------------

    def _lease(
        self,
        verb: str,
        lease: Lease[Any],
        how: str,
        place: Place,
        reason: str | None = None,
        alone: Callable[[Claim], None] | None = None,
    ) -> None:
        step = self._step(verb, lease.layout, lease, None, lease.message.id)
        self._append(step._replace(how=how, reason=reason, alone=alone), place)

    def _message(
        self,
        verb: str,
        message: Message[Any],
        place: Place,
        reason: str | None = None,
        allowed: tuple[str, ...] = states.LIVE,
    ) -> None:
        entry = steps.entry_of(verb, message, allowed)
        step = self._step(verb, message.layout, None, entry, entry.id)
        self._append(step._replace(reason=reason), place)

    def _append(self, step: Step, place: Place) -> None:
        self._steps.append(
            step._replace(target=lambda claim, now: steps.going(place(step, claim, now), claim))
        )

    def _step(self, verb: str, layout: Any, lease: Lease[Any] | None, entry: Entry | None, id: str) -> Step:
        self._open()
        queue = self._ground.directory_of_layout(layout)
        if (queue, id) in self._used:
            raise SettingsError(f"message {id} is in this transaction already: it can be in it once")
        self._used.add((queue, id))
        if entry is not None:
            # Of a transaction that is committed and not at its end: its name is another in a moment.
            folder = names.folder_of(entry.place)
            condition = conditions.parse(entry.place[len(folder) :])
            if condition is not None:
                entry = entry._replace(place=folder + condition.base.text)
        return Step(verb, layout, queue, lease, entry)

    # --- the end -------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Do nothing of it."""
        self._over = self._over or "aborted"

    def commit(self) -> Committed:
        """Do all of it, or nothing.

        Raises:
            Conflict: Something is not as it was seen, or an id is taken; all of it is listed. Nothing was done.
            Contended: Others were faster, twenty times. Nothing was done.
            QueueAccess: The filesystem refused. Nothing was done, unless it says otherwise.
            InDoubt: Network filesystems only: nobody knows.
        """
        self._open()
        if not (self._steps or self._inserts or self._needs):
            self._over = "committed"
            return Committed([], [])
        with contextlib.ExitStack() as held:
            for step in sorted(self._steps + self._needs, key=lambda step: step.id):
                if step.lease is not None:
                    try:
                        held.enter_context(frozen(step.lease, step.verb))
                    except LeaseLost as lost:
                        raise self._judge().lost(step, lost) from lost
            if (judge := self._judge()).is_held():
                raise judge.conflict() or self._contended()
            alone = len(self._steps) == 1 and not self._inserts and not self._needs
            left_out, work = self._alone() if alone else self._run()
            self._over = "committed"
        return committed(self._inserts, left_out, work, self._ground.name_of)

    def _open(self) -> None:
        if self._over:
            raise SettingsError(f"this transaction has ended already ({self._over}): begin another")

    def _alone(self) -> tuple[list[str], Work]:
        """One change by itself is one call, and needs no transaction."""
        step = self._steps[0]
        try:
            work = self._make_up()
        except MessageNotFound:
            return self._run()  # finds out what has become of it
        if (
            step.lease is None
            or step.alone is None
            or (work.consume[0].target and "~" in work.consume[0].path)
        ):
            return self._move_alone(step, work)
        try:
            step.alone(step.lease.claim)
        except LeaseLost as lost:
            raise self._judge().lost(step, lost) from lost
        finish(step.lease, step.how)
        return [], work

    def _move_alone(self, step: Step, work: Work) -> tuple[list[str], Work]:
        if self._ground.directory.mount.replies_can_be_lost or work.carried:
            return self._run()  # NFS: a register tells what has happened, one rename alone does not
        fd = self._ground.directory.fd
        (source, _, target), *_ = work.consume
        made: list[str] = []
        try:
            write_sides(work.sides, made, fd, sync=work.sync)
        except Aborted:
            return self._run()
        except OSError as error:
            raise access_error(self._ground.path, f"{step.verb} a message of", error) from error
        write_notes(work.notes, fd)
        try:
            if target:
                resolve.carry(source, target, fd)
            else:
                fs.unlink(source, dir_fd=fd)
        except FileNotFoundError:
            drop_sides(made, fd)
            return self._run()  # finds out what is in the way
        except OSError as error:
            drop_notes(work.notes, fd)
            drop_sides(made, fd)
            raise access_error(self._ground.path, f"{step.verb} a message of", error) from error
        carry_notes(work.carry, fd)
        if work.sync:
            self._ground.make_durable(source, target)
        drop_sides(work.drop, fd)
        leave_carried(work)
        self._finish(step, target)
        return [], work

    def _run(self) -> tuple[list[str], Work]:
        """Try until it is decided."""
        owner = self._ground.owner()
        for tries in range(TRIES):
            if tries:
                time.sleep(random.uniform(0, min(LONGEST_PAUSE, PAUSE * 2**tries)))  # noqa: S311 - spreads clients
            try:
                work = self._make_up()
            except MessageNotFound as error:
                conflict = self._judge().conflict()
                if conflict is not None:
                    raise conflict from error
                continue  # held for a moment by another transaction
            try:
                attempt = Attempt(owner, work)
            except OSError as error:
                raise access_error(self._ground.path, "begin a transaction in", error) from error
            try:
                attempt.run()
                return skipped(self._inserts, attempt.skipped, work), work
            except Refused:
                conflict = self._judge().conflict()
                if conflict is not None:
                    raise conflict from None
            except Aborted:
                pass
            finally:
                if attempt.committed:
                    self._over = "committed"
                    for step, change in zip(self._steps, work.consume, strict=True):
                        self._finish(step, change.target)
        raise self._contended()

    def _judge(self) -> Judge:
        return Judge(self._ground, self._holder, self._steps, self._needs, self._inserts)

    def _contended(self) -> Contended:
        return Contended(
            f"others were in the way of the transaction in {self._ground.path!r} {TRIES} times; nothing was done"
        )

    def _make_up(self) -> Work:
        """Return what is to be done, by the exact names as they are now known."""
        return steps.make_up(self._steps, self._needs, self._inserts, self._ground.directory.clock.now())

    def _finish(self, step: Step, target: str) -> None:
        """Record how a lease ended."""
        if step.lease is None:
            return
        if step.verb == "renew":
            claim = step.lease.claim
            claim.place = target.partition("/")[2]
            claim.ends = int(target.rpartition("/")[2].split(".")[1])
        finish(step.lease, step.how)


# What the rooms beside do with a transaction. Users have no need of these, so they are no methods.


def rename(t: Transaction, layout: Layout, place: str, new: str) -> None:
    """Rename what is no message, a lot of pinned ones, to another place in its queue (held_lots.py)."""
    step = t._step("ack", layout, None, Entry(place, states.READY, place, 0), place)  # noqa: SLF001
    target = steps.Target(f"{step.queue}/{new}")
    t._steps.append(step._replace(target=lambda *_: target))  # noqa: SLF001


def carry(t: Transaction, extras: Extras | None) -> None:
    """Let what was put last carry exactly this: an end of life that is not counted from now (export.py)."""
    t._inserts[-1] = t._inserts[-1]._replace(extras=extras)  # noqa: SLF001

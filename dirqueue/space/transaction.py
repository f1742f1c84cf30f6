"""Several changes that happen together or not at all.

Layer: objects.  Touches: nothing before the commit (commit.py).
A transaction is built in memory. It names messages by their exact names, as they were leased or seen: the name is the
version, so that whatever happened to a message meanwhile is noticed, and nothing is done then.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from dirqueue import states
from dirqueue.admission import Admission
from dirqueue.codecs import encode
from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.identity import new_id
from dirqueue.errors import Conflict, Contended, LeaseLost, Ref, SettingsError, access_error
from dirqueue.failure import describe
from dirqueue.layouts.base import Claim
from dirqueue.layouts.native import resolve
from dirqueue.layouts.native.side import note_of, note_text
from dirqueue.lease import Lease
from dirqueue.message import Entry, Extras, Message
from dirqueue.settings import check_seconds
from dirqueue.space import ids, steps
from dirqueue.space.commit import Attempt
from dirqueue.space.notes import carry_notes, drop_notes, write_notes
from dirqueue.space.steps import Inserted, Place, Step, check_put, layout_of
from dirqueue.space.work import Aborted, Carried, Consumed, Insert, Refused, Work

if TYPE_CHECKING:
    from dirqueue.space.space import Space

#: How often a transaction is tried that others are in the way of, and the longest first pause in between.
TRIES = 20
PAUSE = 0.005
LONGEST_PAUSE = 0.2


class Committed(NamedTuple):
    """What a transaction did."""

    #: The ids of the messages that were put, in the order given; those of existing ones where `skip_existing` said so.
    ids: list[str]
    #: Those of your own ids that existed already, and were skipped.
    skipped: list[str]


class Transaction:
    """Puts, acks, moves and needs that are committed together: by `commit`, or by the end of a `with` block.

    An exception in the block changes nothing. After a Conflict nothing was changed either: leases are still held.
    """

    def __init__(self, space: Space[Any]) -> None:
        self._space = space
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
        """
        data = encode(self._space.codec, body)
        extras = None
        if attributes or ttl is not None:
            extras = Admission(self._space.transacted(queue).layout).extras(attributes, ttl)
        return self.put_data(
            queue, data, delay=delay, priority=priority, id=id, skip_existing=skip_existing, extras=extras
        )

    def put_data(
        self,
        queue: str,
        data: bytes,
        *,
        delay: float = 0,
        priority: int | None = None,
        id: str | None = None,
        skip_existing: bool = False,
        extras: Extras | None = None,
    ) -> str:
        """Put a body that is encoded already; otherwise as `put`."""
        self._open()
        target = self._space.transacted(queue)
        priority = check_put(target, len(data), delay, priority)
        if id is not None:
            ids.check(id)
            if any(each.own_id == id for each in self._inserts):
                raise SettingsError(f"the id {id!r:.60} is in this transaction already")
        native = new_id() if priority is None else f"{priority}{new_id()}"
        directory = self._space.directory_of(queue)
        self._inserts.append(
            Inserted(target.layout, directory, native, data, delay, priority, id, skip_existing, extras)
        )
        return native if id is None else id

    def ack(self, lease: Lease[Any]) -> None:
        """The work is done: the message goes."""
        self._lease("ack", lease, "acked", steps.done, alone=layout_of("ack", lease).ack)

    def retry(
        self, lease: Lease[Any], delay: float | None = None, error: str | BaseException | None = None
    ) -> None:
        """The work failed: deliver again after `delay` seconds (backoff if None); dead after max_attempts."""
        layout, attempts = layout_of("retry", lease), lease.message.attempts
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
        self._lease("release", lease, "released", steps.released, alone=layout_of("release", lease).release)

    def reject(self, lease: Lease[Any], reason: str | BaseException = "rejected") -> None:
        """The work can never succeed: the message goes to dead/, with the reason."""
        self._bury("reject", lease, describe(reason) or "rejected")

    def _bury(self, verb: str, lease: Lease[Any], reason: str) -> None:
        layout = layout_of(verb, lease)
        self._lease(verb, lease, "dead", steps.dead, reason, lambda claim: layout.bury(claim, reason))

    def renew(self, lease: Lease[Any], seconds: float | None = None) -> None:
        """Hold the lease for so many seconds from the commit; for the length of the first claim if None."""
        layout = layout_of("renew", lease)
        duration = check_seconds("seconds", lease.seconds if seconds is None else seconds, above=True)
        self._lease(
            "renew",
            lease,
            "",
            lambda step, claim, now: steps.renewed(step, claim, now + micros(duration)),
            alone=lambda claim: layout.renew(claim, duration),
        )

    def cancel(self, message: Message[Any]) -> None:
        """Remove a message that nobody holds, if it is still as it was seen."""
        self._message("cancel", message, steps.done)

    def move(
        self, what: Lease[Any] | Message[Any], queue: str, *, delay: float = 0, error: str | None = None
    ) -> None:
        """Move a message to another queue of the space: one that is leased, or one that nobody holds, as it was seen.

        It begins a new life there: its deliveries are counted anew.
        """
        check_seconds("delay", delay)
        target = self._space.transacted(queue)
        directory = self._space.directory_of(queue)

        def place(_: Step, claim: Claim, now: int) -> str:
            return steps.moved(claim.id, target.settings, directory, now + micros(delay) if delay else 0)

        if isinstance(what, Lease):
            self._lease("move", what, "moved", place, error)
        else:
            self._message("move", what, place, error)
        self._steps[-1] = self._steps[-1]._replace(into=target.layout)

    def change(self, message: Message[Any], *, delay: float) -> None:
        """Give a message that nobody holds another delay, if it is still as it was seen."""
        check_seconds("delay", delay)

        def place(step: Step, claim: Claim, now: int) -> str:
            if delay or claim.attempts:
                return steps.later(step, claim, now + micros(delay))
            return f"{step.queue}/{claim.id}"

        self._message("change", message, place)

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
        self._steps.append(
            step._replace(
                how=how, target=lambda claim, now: place(step, claim, now), reason=reason, alone=alone
            )
        )

    def _message(
        self,
        verb: str,
        message: Message[Any],
        place: Place,
        reason: str | None = None,
    ) -> None:
        if not isinstance(message, Message):
            raise SettingsError(f"{verb} takes a message, not {message!r:.60}")
        entry = message.entry
        if entry.state not in states.UNCLAIMED:
            raise SettingsError(
                f"cannot {verb} {entry.id}: it is {entry.state}, and only a message that nobody holds can be"
            )
        step = self._step(verb, message.layout, None, entry, entry.id)
        self._steps.append(step._replace(target=lambda claim, now: place(step, claim, now), reason=reason))

    def _step(self, verb: str, layout: Any, lease: Lease[Any] | None, entry: Entry | None, id: str) -> Step:
        self._open()
        queue = self._space.directory_of_layout(layout)
        if (queue, id) in self._used:
            raise SettingsError(f"message {id} is in this transaction already: it can be in it once")
        self._used.add((queue, id))
        return Step(verb, layout, queue, lease, entry)

    def _now(self) -> int:
        return self._space.directory.clock.now()

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
                        held.enter_context(step.lease.frozen(step.verb))
                    except LeaseLost as lost:
                        raise self._lost(step, lost) from lost
            skipped = (
                self._alone()
                if len(self._steps) == 1 and not self._inserts and not self._needs
                else self._run()
            )
            self._over = "committed"
        own = [each.own_id or each.id for each in self._inserts]
        return Committed(own, skipped)

    def _open(self) -> None:
        if self._over:
            raise SettingsError(f"this transaction has ended already ({self._over}): begin another")

    def _alone(self) -> list[str]:
        """One change by itself is one call, and needs no transaction."""
        step = self._steps[0]
        if step.lease is None or step.alone is None:
            return self._move_alone(step)
        try:
            step.alone(step.lease.claim)
        except LeaseLost as lost:
            raise self._lost(step, lost) from lost
        step.lease.finish(step.how)
        return []

    def _move_alone(self, step: Step) -> list[str]:
        work, fd = self._work(), self._space.directory.fd
        (source, _, target), *_ = work.consume
        write_notes(work.notes, fd)
        try:
            for each in work.carried:
                each.layout.keep_extras(each.id, each.extras)
            if target:
                resolve.carry(source, target, fd)
            else:
                fs.unlink(source, dir_fd=fd)
        except FileNotFoundError:
            return self._run()  # finds out what is in the way, and drops what is carried if it is refused
        except OSError as error:
            drop_notes(work.notes, fd)
            raise access_error(self._space.path, f"{step.verb} a message of", error) from error
        carry_notes(work.carry, fd)
        if work.sync:
            for folder in sorted({path.rpartition("/")[0] for path in (source, target) if path}):
                try:
                    fs.sync_directory(folder, fd)
                except FileNotFoundError:
                    pass  # it was empty, and is gone
                except OSError as error:
                    raise access_error(self._space.path, "make durable a change in", error) from error
        self._finish(step, target)
        return []

    def _run(self) -> list[str]:
        """Try until it is decided."""
        owner = self._space.owner()
        for tries in range(TRIES):
            if tries:
                time.sleep(random.uniform(0, min(LONGEST_PAUSE, PAUSE * 2**tries)))  # noqa: S311 - spreads clients
            work = self._work()
            try:
                attempt = Attempt(owner, work)
            except OSError as error:
                raise access_error(self._space.path, "begin a transaction in", error) from error
            try:
                attempt.run()
                return self._skipped(attempt.skipped)
            except Refused:
                conflict = self._conflict()
                if conflict is not None:
                    raise conflict from None
            except Aborted:
                pass
            finally:
                if attempt.committed:
                    self._over = "committed"
                    for step, change in zip(self._steps, work.consume, strict=True):
                        self._finish(step, change.target)
        raise Contended(
            f"others were in the way of the transaction in {self._space.path!r} {TRIES} times; nothing was done"
        )

    def _skipped(self, ids: set[str]) -> list[str]:
        """Return which of the user's own ids were there already; what was to come with them is not needed."""
        skipped = [each for each in self._inserts if each.own_id and each.id in ids]
        for each in skipped:
            if each.extras is not None:
                each.layout.drop_extras(each.id)  # type: ignore[attr-defined]
        return [each.own_id for each in skipped if each.own_id]

    def _work(self) -> Work:
        """Return what is to be done, by the exact names as they are now known."""
        consume, notes, carry = [], [], []
        carried = [
            Carried(each.layout, each.id, each.extras)  # type: ignore[arg-type]
            for each in self._inserts
            if each.extras is not None
        ]
        now = self._now()
        for step in self._steps:
            claim = step.claim()
            target = step.target(claim, now)
            consume.append(Consumed(f"{step.queue}/{claim.place}", claim.id, target))
            old = f"{step.queue}/{note_of(claim.place, claim.id)}"
            goes_as = target.rpartition("/")[2].partition(".")[0]
            if step.into is not None and (extras := step.extras()) is not None:
                carried.append(Carried(step.into, goes_as, extras))  # type: ignore[arg-type]
            new = note_of(target, goes_as) if target else ""
            if step.reason is not None and target:
                notes.append((new, note_text(step.reason, now, claim.leased)))
            if claim.attempts > 1 and new != old:
                carry.append((old, "" if step.reason is not None else new))
        inserts = [
            Insert(
                f"{each.queue}/{each.layout.place_for(each.id, each.delay, each.priority)}",  # type: ignore[attr-defined]
                each.id,
                each.data,
                ids.check(each.own_id) if each.own_id is not None else "",
                each.skip,
                each.layout.link_at,  # type: ignore[attr-defined]
            )
            for each in self._inserts
        ]
        need = [f"{step.queue}/{step.claim().place}" for step in self._needs]
        layouts = [step.layout for step in self._steps] + [each.layout for each in self._inserts]
        sync = any(layout.settings.sync for layout in layouts)
        return Work(
            tuple(consume), tuple(inserts), tuple(need), tuple(notes), tuple(carry), sync, tuple(carried)
        )

    def _finish(self, step: Step, target: str) -> None:
        """Record how a lease ended. What a message carried goes, unless that is where the message still is."""
        goes_as = target.rpartition("/")[2].partition(".")[0]
        same_queue = step.into is None or step.into.directory.path == step.layout.directory.path
        if not target or not same_queue or goes_as != step.id:
            step.layout.drop_extras(step.id)  # type: ignore[attr-defined]
        if step.lease is None:
            return
        if step.verb == "renew":
            claim = step.lease.claim
            claim.place = target.partition("/")[2]
            claim.ends = int(target.rpartition("/")[2].split(".")[1])
        step.lease.finish(step.how)

    # --- what was in the way -------------------------------------------------------------------------------

    def _ref(self, step: Step) -> Ref:
        return Ref(step.id, self._space.name_of(step.queue), step.claim().place)

    def _lost(self, step: Step, lost: LeaseLost) -> Conflict:
        ref = self._ref(step)
        return Conflict(f"nothing was done: {lost}", missing=[ref])

    def _conflict(self) -> Conflict | None:
        """Return all that is not as it was seen; None if everything is, so that it was only others passing by."""
        found: dict[str, list[Ref]] = {"missing": [], "changed": [], "held": [], "taken": []}
        fd = self._space.directory.fd
        for step in (*self._steps, *self._needs):
            if not fs.exists(f"{step.queue}/{step.claim().place}", fd):
                kind = self._became(step)
                if kind:
                    found[kind].append(self._ref(step))
        for each in self._inserts:
            if each.own_id is not None and not each.skip and self._space.find_own(each.own_id) is not None:
                found["taken"].append(Ref(each.own_id, self._space.name_of(each.queue)))
        if not any(found.values()):
            return None
        shown = "; ".join(
            f"{kind}: {', '.join(f'{ref.id} of {ref.queue!r}' for ref in refs[:5])}"
            + (" ..." if len(refs) > 5 else "")
            for kind, refs in found.items()
            if refs
        )
        return Conflict(f"nothing was done in {self._space.path!r}: {shown}", **found)

    def _became(self, step: Step) -> str:
        """Return what has become of a message that is not under its name any more."""
        entry = step.layout.find(step.id)
        if entry is None or entry.state in states.ENDED:
            return "missing"
        if entry.place.startswith(step.claim().place):
            return ""  # held for a moment by another transaction
        now = self._now()
        return "held" if entry.state == states.LEASED and entry.until > now else "changed"

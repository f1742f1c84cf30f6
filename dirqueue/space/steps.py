"""What a transaction is made of: messages that it ends, moves, changes or needs, and messages that it puts.

Layer: objects.  Pure values, but for the count of a bounded queue.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

from dirqueue import states
from dirqueue.bounds import too_large
from dirqueue.disk.clock import micros
from dirqueue.errors import Full, SettingsError
from dirqueue.layouts.base import Claim, Layout
from dirqueue.layouts.native import holders, names, sidefile
from dirqueue.layouts.native.names import DEAD, DONE, SPARK
from dirqueue.layouts.native.side import note_of, note_text
from dirqueue.lease import Lease
from dirqueue.message import Card, Details, Entry, Extras, Message
from dirqueue.queue import Queue
from dirqueue.settings import Settings, check_count, check_priority, check_seconds
from dirqueue.space import ids
from dirqueue.space.work import Carried, Consumed, Insert, Sidefile, Work


class Keep:
    """What is not to be changed."""

    def __repr__(self) -> str:
        return "KEEP"


KEEP: Final = Keep()


class Target(NamedTuple):
    """Where a message goes, as a path in the space, nowhere if empty; and its side files before and after."""

    path: str
    #: The side file that the new name means, if it is a new one.
    side: Sidefile | None = None
    #: The side file that no name means afterwards.
    drop: str = ""
    #: Whether the note of its last failure goes along.
    note: bool = True


class Step(NamedTuple):
    """One message that the transaction ends, moves, changes or needs."""

    verb: str
    layout: Layout
    #: The directory of its queue.
    queue: str
    lease: Lease[Any] | None
    #: What is known of a message that is not leased.
    entry: Entry | None
    #: How the lease ends.
    how: str = ""
    #: Where the message goes, from its claim and the time.
    target: Callable[[Claim, int], Target] = lambda _claim, _now: Target("")
    #: What does the same to a lease if nothing else is to happen, in one call.
    alone: Callable[[Claim], None] | None = None
    #: Why it failed, to be kept beside it.
    reason: str | None = None
    #: Where it moves to, if to another queue.
    into: Layout | None = None

    @property
    def id(self) -> str:
        """The id of the message."""
        return self.claim().id

    def claim(self) -> Claim:
        """Return the exact name as it is now known."""
        if self.lease is not None:
            return self.lease.claim
        entry = self.entry
        assert entry is not None  # noqa: S101 - one of the two
        return Claim(entry.id, entry.place, 0, entry.until, entry.attempts)

    def extras(self) -> Extras | None:
        """Return what the message carries."""
        return self.claim().extras if self.entry is None else self.layout.extras(self.entry)

    def known(self) -> Entry:
        """Return what is known of the message."""
        return self.entry if self.entry is not None else self.layout.entry(self.claim())

    def is_held_from(self, holder: str, now: int) -> bool:
        """Return whether somebody else holds a message that was only looked at; `holder` is as tokens have it."""
        entry = self.entry
        if entry is None or entry.state != states.LEASED:
            return False
        if entry.place.startswith(f"{SPARK}/"):
            return True  # of a sealed lot
        over = entry.until + micros(self.layout.settings.margin) <= now
        held_by = holders.holder_of(entry)
        return not over and held_by != holders.ANYBODY and (not holder or held_by != holder)


#: Where a message goes, from its claim and the time: a path in the space.
Place = Callable[[Step, Claim, int], str]


class Inserted(NamedTuple):
    """One message that the transaction puts."""

    layout: Layout
    #: The directory of its queue.
    queue: str
    id: str
    data: bytes
    delay: float
    #: When it can be claimed, in microseconds, instead of a delay; 0 if not given.
    until: int
    priority: int | None
    own_id: str | None
    skip: bool
    #: As tokens have it; empty if the transaction has none.
    holder: str = ""
    failures: int = 0
    error: str | None = None
    extras: Extras | None = None

    def place(self, now: int) -> Target:
        """Return where it is put."""
        layout: Any = self.layout
        until = self.until or (now + micros(self.delay) if self.delay else 0)
        if until <= now:
            until = 0
        if not (self.holder or self.own_id or self.failures or self.error):
            if until:
                return Target(f"{self.queue}/{names.later(self.id, until, 0)}")
            return Target(f"{self.queue}/{layout.place_for(self.id, self.priority)}")
        key = ids.key_of(self.own_id) if self.own_id else ""
        details = Details(0, self.failures, self.error, now if self.error else 0, ids.kept(self.own_id))
        number, side = side_for(self.id, details)
        card, token = Card(0, number, key).text, holders.new_token(self.holder) if self.holder else ""
        if until:
            return Target(f"{self.queue}/{names.later(self.id, until, 0, card, token)}", side)
        folder = names.folder_of(layout.place_for(self.id, self.priority))
        return Target(f"{self.queue}/{folder}{names.waiting(self.id, now, 0, card, token)}", side)


class Change(NamedTuple):
    """What is to become of a message; KEEP what is not given."""

    #: The target's directory and settings; None to stay in its queue.
    queue: tuple[str, Settings] | None = None
    #: From the time of the commit, or microseconds.
    delay: float | Keep = KEEP
    until: int | Keep = KEEP
    body: bytes | Keep = KEEP
    failures: int | Keep = KEEP
    error: str | Keep | None = KEEP
    attempts: int | Keep = KEEP
    #: Who holds it until then, as tokens have it; empty if nobody does.
    holder: str = ""

    def apply(self, step: Step, claim: Claim, now: int) -> Target:
        """Return where the message goes."""
        entry = step.known()
        old = entry.card or Card(entry.version)
        directory, id = step.queue, claim.id
        if self.queue is not None:
            directory, settings = self.queue
            if settings.priorities != (entry.priority is not None):
                id = names.with_priority(id, settings.default_priority if settings.priorities else None)
        number, side, drop = old.side, None, ""
        if not (self.body is KEEP and self.failures is KEEP and self.error is KEEP):
            number, side = side_for(claim.id, self._details(step, entry, now))
            drop = sidefile.path_of(claim.id, old.side) if old.side else ""
        attempts = claim.attempts if isinstance(self.attempts, Keep) else self.attempts
        card = Card(old.version + 1, number, old.key).text
        until = self._until(entry, now)
        if self.holder and until > now:
            place = holders.held(id, until, attempts, self.holder, card)
        else:
            place = names.free(id, until, attempts, card, now)
        return Target(f"{directory}/{place}", side, drop, isinstance(self.error, Keep))

    def _until(self, entry: Entry, now: int) -> int:
        if not isinstance(self.until, Keep):
            return max(self.until, now)
        if not isinstance(self.delay, Keep):
            return now + micros(self.delay)
        return now if entry.state == states.LEASED else max(entry.until, now)

    def _details(self, step: Step, entry: Entry, now: int) -> Details:
        """Return what its new side file says."""
        found = step.layout.details(entry) or Details(0)
        if not isinstance(self.body, Keep):
            found = found._replace(body=self.body)
        if not isinstance(self.failures, Keep):
            found = found._replace(failures=self.failures)
        if not isinstance(self.error, Keep):
            found = found._replace(error=self.error, at=now)
        return found._replace(version=entry.version + 1)


def side_for(id: str, details: Details) -> tuple[int, Sidefile | None]:
    """Return the number of the side file that says this, and the file; 0 and None if there is nothing to say."""
    if details.body is None and not (details.failures or details.error or details.own_id):
        return 0, None
    number = sidefile.new_number()
    return number, Sidefile(sidefile.path_of(id, number), details)


def side_of(claim: Claim) -> str:
    """Return the side file of a message that goes; empty if it has none."""
    card = names.card_at(claim.place)
    return sidefile.path_of(claim.id, card.side) if card is not None and card.side else ""


def make_up(steps: list[Step], needs: list[Step], inserts: list[Inserted], now: int) -> Work:
    """Return what is to be done, by the exact names as they are now known."""
    consume, notes, carry, sides, drop, puts = [], [], [], [], [], []
    carried: list[Carried] = []
    left: list[tuple[Any, str]] = []
    for step in steps:
        claim = step.claim()
        target, side, old_side, keeps_note = step.target(claim, now)
        sides += [side] if side is not None else []
        drop += [old_side] if old_side else []
        consume.append(Consumed(f"{step.queue}/{claim.place}", claim.id, target))
        old = f"{step.queue}/{note_of(claim.place, claim.id)}"
        new = note_of(target, target.rpartition("/")[2].partition(".")[0]) if target else ""
        if step.into is not None and (extras := step.extras()) is not None:
            carried.append(Carried(step.into, _id_in(target), extras))  # type: ignore[arg-type]
        if not target or step.into is not None:
            left.append((step.layout, claim.id))
        if step.reason is not None and target:
            notes.append((new, note_text(step.reason, now, claim.leased)))
        # A first delivery has no note yet.
        if claim.attempts > bool(claim.leased) and (new != old or not keeps_note):
            carry.append((old, new if step.reason is None and keeps_note else ""))
    for each in inserts:
        place = each.place(now)
        key = ids.check(each.own_id) if each.own_id is not None else ""
        link = each.layout.link_at  # type: ignore[attr-defined]
        sides += [place.side] if place.side is not None else []
        puts.append(Insert(place.path, each.id, each.data, link, key, each.skip, place.side))
        if each.extras is not None:
            carried.append(Carried(each.layout, each.id, each.extras))  # type: ignore[arg-type]
    need = [f"{step.queue}/{step.claim().place}" for step in needs]
    layouts = [step.layout for step in steps] + [each.layout for each in inserts]
    return Work(
        tuple(consume),
        tuple(puts),
        any(layout.settings.sync for layout in layouts),
        tuple(need),
        tuple(notes),
        tuple(carry),
        tuple(sides),
        tuple(drop),
        now,
        tuple(carried),
        tuple(left),
    )


def _id_in(path: str) -> str:
    """Return the id in the name of a message."""
    base = path.rpartition("/")[2]
    return base[: len(base) - len(base.lstrip("0123456789"))]


def going(path: str, claim: Claim) -> Target:
    """Return a target whose side file stays the same, or goes with the message."""
    return Target(path, None, "" if path else side_of(claim))


def done(step: Step, claim: Claim, now: int) -> str:
    """Nowhere, or to the history where its queue keeps one."""
    if not step.layout.settings.keep_done:
        return ""
    return f"{step.queue}/{names.ended(DONE, claim.id, now, claim.attempts, names.raised(claim.place))}"


def dead(step: Step, claim: Claim, now: int) -> str:
    """To the dead letters."""
    return f"{step.queue}/{names.ended(DEAD, claim.id, now, claim.attempts, names.raised(claim.place))}"


def later(step: Step, claim: Claim, until: int) -> str:
    """To where it waits for its time."""
    return f"{step.queue}/{names.later(claim.id, until, claim.attempts, names.raised(claim.place))}"


def released(step: Step, claim: Claim, now: int) -> str:
    """Back, this delivery not counted."""
    counted, card = claim.attempts - 1, names.raised(claim.place)
    return f"{step.queue}/{names.later(claim.id, now, counted, card) if counted or card else claim.id}"


def renewed(step: Step, claim: Claim, until: int) -> str:
    """To a lease that ends later."""
    card = names.raised(claim.place)
    token = holders.next_token(claim.token) if card else holders.new_token("")
    end = max(until, claim.ends + 1)
    return f"{step.queue}/{names.leased(claim.id, end, claim.attempts, token, card)}"


def moved(claim: Claim, settings: Settings, directory: str, until: int, now: int) -> str:
    """To another queue, with the priority that is usual there and no attempts."""
    id = names.with_priority(claim.id, settings.default_priority if settings.priorities else None)
    card = names.raised(claim.place)
    if card:
        return f"{directory}/{names.free(id, until or now, 0, card, now)}"
    return f"{directory}/{names.later(id, until, 0) if until else id}"


def layout_of(verb: str, lease: object) -> Layout:
    """Return the layout of a lease; SettingsError if it is none."""
    if not isinstance(lease, Lease):
        raise SettingsError(f"{verb} takes a lease, not {lease!r:.60}")
    return lease.layout


def entry_of(verb: str, message: object, allowed: tuple[str, ...]) -> Entry:
    """Return what is known of a message that was looked at; SettingsError if it is none, or cannot be used so."""
    if not isinstance(message, Message):
        raise SettingsError(f"{verb} takes a message, not {message!r:.60}")
    entry = message.entry
    if entry.state not in allowed:
        raise SettingsError(
            f"cannot {verb} {entry.id}: it is {entry.state}, and only one that is {' or '.join(allowed)} can be"
        )
    return entry


def check_when(delay: float | Keep, at: datetime | None) -> int:
    """Check a delay, or return an instant in microseconds; 0 if none is given."""
    if not isinstance(delay, Keep):
        check_seconds("delay", delay)
    if at is None:
        return 0
    if not isinstance(delay, Keep) and delay:
        raise SettingsError("give delay= or at=, not both")
    if getattr(at, "tzinfo", None) is None:
        raise SettingsError(
            f"at={at!r:.60} is not an instant: give a datetime with a time zone, as datetime.now(UTC) has"
        )
    return max(1, round(at.timestamp() * 1_000_000))


def check_failures(failures: int | Keep, error: str | BaseException | Keep | None) -> None:
    """Check what is to be kept of failures."""
    if not isinstance(failures, Keep):
        check_count("failures", failures)
    if not isinstance(error, (str, BaseException, Keep)) and error is not None:
        raise SettingsError(f"error must be text or an exception, not {error!r:.60}")


def check_put(queue: Queue[Any], size: int, delay: float, priority: int | None) -> int | None:
    """Check what is to be put, as the queue does, without waiting: Full if there is no room. Return the priority."""
    settings = queue.settings
    check_seconds("delay", delay)
    if 0 < settings.max_size < size:
        raise too_large(size, settings.max_size)
    if priority is not None and not settings.priorities:
        raise SettingsError(
            f"priority={priority!r} needs a queue with priorities: Queue.create({queue.path!r}, priorities=True)"
        )
    if settings.max_messages and queue.layout.count() >= settings.max_messages:
        raise Full(f"{queue.path!r} holds max_messages={settings.max_messages}", path=queue.path)
    if not settings.priorities:
        return None
    return settings.default_priority if priority is None else check_priority(priority)

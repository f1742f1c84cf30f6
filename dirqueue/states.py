"""The states of a message, their groups and the transitions between them. No other module lists them.

    new ──publish──▶ ready ──claim──▶ leased ──ack──▶ done, or removed
                       ▲   ◀──release── │ ──reject, out of attempts──▶ dead
     put with a delay  │                └──retry──▶ delayed
     delayed ──due─────┘ (claimed directly)         dead ──redrive──▶ ready

Layer: pure values.
To add a state: add it here, to a group or two, and to TRANSITIONS; then follow "add a state" in CONTRIBUTING.md.
"""

from __future__ import annotations

from dirqueue.errors import SettingsError

NEW, READY, DELAYED, LEASED, DONE, DEAD = "new", "ready", "delayed", "leased", "done", "dead"
#: Entries that are not ours; counted, never touched.
FOREIGN = "foreign"

#: Nobody holds it and its life has not ended: it can be moved, cancelled or changed.
UNCLAIMED = (READY, DELAYED)
#: Waiting or held: what `len(queue)` counts and `max_messages` bounds.
LIVE = (*UNCLAIMED, LEASED)
#: What a listing of the queue's own directory shows.
LISTED = (*LIVE, NEW, FOREIGN)
#: Its life has ended; purge removes it by age.
ENDED = (DEAD, DONE)
#: What an operator can move to another queue.
MOVABLE = (*UNCLAIMED, DEAD)
#: What a person can look at: everything that was ever visible.
VISIBLE = (*LIVE, *ENDED)
#: All states, in the order of a life.
ALL = (NEW, *LIVE, DONE, DEAD)
#: What one pass over the names counts.
COUNTED = (*VISIBLE, NEW, FOREIGN)

#: (from, verb) -> to. None: the message is gone.
TRANSITIONS: dict[tuple[str, str], str | None] = {
    (NEW, "publish"): READY,
    (NEW, "publish with a delay"): DELAYED,
    (READY, "claim"): LEASED,
    (DELAYED, "claim"): LEASED,
    (LEASED, "claim"): LEASED,  # when the lease has expired
    (LEASED, "renew"): LEASED,
    (LEASED, "ack"): None,
    (LEASED, "ack, with keep_done"): DONE,
    (LEASED, "retry"): DELAYED,
    (LEASED, "release"): READY,
    (LEASED, "reject"): DEAD,
    (LEASED, "out of attempts"): DEAD,
    (DELAYED, "out of attempts"): DEAD,
    (READY, "cancel"): None,
    (DELAYED, "cancel"): None,
    (READY, "change"): DELAYED,
    (DELAYED, "change"): READY,
    (DEAD, "redrive"): READY,
}


def check(state: object, allowed: tuple[str, ...] = VISIBLE) -> str:
    """Return the state if it is one of those; SettingsError lists them."""
    if isinstance(state, str) and state in allowed:
        return state
    raise SettingsError(f"state must be one of {', '.join(allowed)}, not {state!r:.60}")

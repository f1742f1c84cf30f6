"""What was in the way of a transaction: all of it, told at once.

Layer: objects.  Touches: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.errors import Conflict, LeaseLost, Ref
from dirqueue.layouts.native import holders
from dirqueue.space.steps import Inserted, Step

if TYPE_CHECKING:
    from dirqueue.space.ground import Ground

#: As many of each kind are shown by the text of a Conflict.
SHOWN = 5


class Judge:
    """Looks at what a transaction names."""

    def __init__(
        self, ground: Ground, holder: str, steps: list[Step], needs: list[Step], inserts: list[Inserted]
    ) -> None:
        self._ground = ground
        self._holder = holder
        self._steps, self._needs, self._inserts = steps, needs, inserts

    def _ref(self, step: Step) -> Ref:
        return Ref(step.id, self._ground.name_of(step.queue), step.known().version)

    def is_held(self) -> bool:
        """Return whether it changes what somebody else holds."""
        now = self._now()
        return any(step.is_held_from(self._holder, now) for step in self._steps)

    def _now(self) -> int:
        return self._ground.directory.clock.now()

    def lost(self, step: Step, lost: LeaseLost) -> Conflict:
        """Return the conflict for a lease that is not held any more, with all else that is in the way."""
        ref, found = self._ref(step), self.conflict()
        missing, changed, held = (found.missing, found.changed, found.held) if found else ([], [], [])
        if ref not in missing + changed + held:
            missing = [ref, *missing]
        return Conflict(
            f"nothing was done: {lost}",
            missing=missing,
            changed=changed,
            held=held,
            taken=found.taken if found else [],
        )

    def conflict(self) -> Conflict | None:
        """Return all that is not as it was seen; None if everything is, so that it was only others passing by."""
        found: dict[str, list[Ref]] = {"missing": [], "changed": [], "held": [], "taken": []}
        fd, now = self._ground.directory.fd, self._now()
        for step in self._steps:
            if step.is_held_from(self._holder, now):
                found[self._became(step) or "held"].append(self._ref(step))
        for step in (*self._steps, *self._needs):
            known = step.verb != "need" and step.is_held_from(self._holder, now)
            if not known and not fs.exists(f"{step.queue}/{step.claim().place}", fd):
                kind = self._became(step)
                if kind:
                    found[kind].append(self._ref(step))
        for each in self._inserts:
            if each.own_id is not None and not each.skip and self._ground.find_own(each.own_id) is not None:
                found["taken"].append(Ref(each.own_id, self._ground.name_of(each.queue)))
        if not any(found.values()):
            return None
        shown = "; ".join(
            f"{kind}: {', '.join(f'{ref.id} of {ref.queue!r}' for ref in refs[:SHOWN])}"
            + (" ..." if len(refs) > SHOWN else "")
            for kind, refs in found.items()
            if refs
        )
        return Conflict(f"nothing was done in {self._ground.path!r}: {shown}", **found)

    def _became(self, step: Step) -> str:
        """Return what has become of a message that is not under its name any more; empty if it is, or will be again."""
        entry = step.layout.find(step.id)
        if entry is None or entry.state in states.ENDED:
            return "missing"
        if entry.place.startswith(step.claim().place):
            return ""  # held for a moment by another transaction
        if entry.state != states.LEASED or entry.until <= self._now():
            return "changed"
        mine = bool(self._holder) and holders.holder_of(entry) == self._holder
        return "changed" if mine else "held"

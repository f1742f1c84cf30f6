"""Bringing conditional names to their ends: publish, give back, move on or remove what a decided transaction left.

Layer: layouts.  Touches: conditional names in the queue; the names that they stand for; registers of abandoned ones.
Invariant: each change renames or unlinks the exact conditional name, after its transaction is decided. Anybody may do
it, any number at once: the first one succeeds, and the others find that the name is gone.
Crash: the name is as before, or at its end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.layouts.native import conditions, links, names
from dirqueue.layouts.native.conditions import (
    ABORTED,
    COMMITTED,
    IF,
    MV,
    OPEN,
    UN,
    Condition,
    here,
)
from dirqueue.layouts.native.register import Register, register_beside
from dirqueue.settings import Settings

#: Seconds for which a held name is left to its owner. For throughput only: to abort it at once would be safe.
PATIENCE = 5.0
NEVER = 1 << 62
#: How often a missing room is made on the way to the place that a plan names.
TRIES = 20


class Resolved(NamedTuple):
    """What has become of the conditional names in one directory."""

    #: Plain names that are there now in their place.
    names: list[str]
    #: When to look again at those that are undecided, in microseconds; NEVER if there are none.
    again: int


class Resolver:
    """Resolves the conditional names that are met in one queue; all names are relative to its directory."""

    def __init__(self, directory: Directory, settings: Settings) -> None:
        self._directory = directory
        self._stale = micros(settings.stale)
        self.register = register_beside(directory)

    def resolve(
        self, prefix: str, found: Iterable[Condition], now: int, linked: set[str] | None = None
    ) -> Resolved:
        """Bring names of one directory to their ends; an open transaction that its owner has abandoned is aborted.

        Args:
            prefix: The directory, with its slash.
            found: The conditional names in it.
            now: Microseconds.
            linked: Names in it that are symbolic links; the plain names of those that are messages are added.
        """
        shown: list[str] = []
        again = NEVER
        verdicts: dict[str, str] = {}
        for each in found:
            if linked and each.text in linked and not links.is_link(prefix + each.text, self._directory.fd):
                continue  # not ours
            verdict = verdicts.get(each.txn) or self._look(each.txn)
            if verdict == OPEN:
                due = self.abandoned_at(prefix, each)
                if due is None:
                    continue  # RACE: at its end since it was listed
                if due <= now and self._directory.clock.plausible:
                    verdict = self.register.decide(each.txn)
            if verdict == OPEN:
                # The commit changes nothing in this directory, so that whoever waits here has to look again.
                again = min(again, now + micros(PATIENCE))
                continue
            verdicts[each.txn] = verdict
            if self.settle(prefix, each, verdict):
                shown.append(each.base.text)
                if linked and each.text in linked:
                    linked.add(each.base.text)
        return Resolved(shown, again)

    def _look(self, txn: str) -> str:
        try:
            return self.register.look(txn)
        except PermissionError:
            return OPEN  # the space is another user's: left to a process that may look

    def abandoned_at(self, prefix: str, condition: Condition) -> int | None:
        """Return when an open transaction may be aborted because of this name; None if the name is gone.

        A held name is in the way of others, a staged one is in nobody's: like ID.new it is left alone until it is
        stale, by its id and by the server's time.
        """
        try:
            facts = fs.stat(prefix + condition.text, dir_fd=self._directory.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if condition.how == IF:
            born = max(names.micros_of(condition.base.id), facts.st_mtime_ns // 1000)
            return born + self._stale + 1
        return held_until(facts, condition, self.register)

    def settle(self, prefix: str, condition: Condition, verdict: str) -> bool:
        """Make the one change that a verdict asks for; return whether the plain name is there now by our doing."""
        try:
            return settle(self._directory.fd, prefix, condition, verdict, self.register)
        except (FileNotFoundError, PermissionError):
            return False  # RACE: done by another client; or another user's, and left to a process that may


def settled(directory: Directory, place: str) -> str | None:
    """Bring a name to its end, aborting its transaction if that is open; return the name that it has then.

    A plain name is returned as it is. None: it is not there any more, or its transaction is another user's.
    """
    folder = names.folder_of(place)
    condition = conditions.parse(place[len(folder) :])
    if condition is None:
        return place
    register = register_beside(directory)
    try:
        there = settle(directory.fd, folder, condition, register.decide(condition.txn), register)
    except FileNotFoundError:
        there = True  # RACE: another client did it: the plain name is there now, or was
    return folder + condition.base.text if there else None


def held_until(facts: os.stat_result, condition: Condition, register: Register) -> int:
    """Return until when a held name is left to its owner, in microseconds of the server's clock.

    The rename that held it set the time of its file; an owner that needs longer shows that it is alive.
    """
    patience = micros(PATIENCE)
    seen = facts.st_ctime_ns // 1000
    return max(seen, micros(register.beat(condition.txn))) + patience


def settle(dir_fd: int, prefix: str, condition: Condition, verdict: str, register: Register) -> bool:
    """Bring one conditional name to its end; return whether the plain name is there now.

    Raises:
        FileNotFoundError: another client did it.
        OSError: plain.
    """
    if verdict not in (COMMITTED, ABORTED):
        return False
    name = prefix + condition.text
    if here(condition, verdict):
        fs.rename_in(name, prefix + condition.base.text, dir_fd)
        return True
    if condition.how == MV:
        target = register.plan(condition.txn).get(condition.base.id)
        if target is not None:
            carry(name, f"{os.path.dirname(os.path.dirname(register.root)) or '.'}/{target}", dir_fd)
            # CRASH: after a power cut a disk may show both names of the file; a rename of one to the other does
            # nothing then, and the old one has to go.
            fs.discard(name, dir_fd)
        return False
    assert condition.how in (IF, UN)  # noqa: S101 - there is no other
    fs.unlink(name, dir_fd=dir_fd)
    return False


def carry(name: str, target: str, dir_fd: int) -> None:
    """Rename to a place whose room may be missing: whoever needs it makes it."""
    for _ in range(TRIES):
        try:
            fs.rename_in(name, target, dir_fd)
            return
        except FileNotFoundError:
            if not fs.exists(name, dir_fd):
                raise
            make_rooms(os.path.dirname(target), dir_fd)
    fs.rename_in(name, target, dir_fd)


def make_rooms(path: str, dir_fd: int) -> None:
    """Make a directory and what is missing above it, each open to whoever may use the one around it."""
    try:
        fs.make_inner(path, dir_fd)
    except FileNotFoundError:
        make_rooms(os.path.dirname(path), dir_fd)
        fs.make_inner(path, dir_fd)

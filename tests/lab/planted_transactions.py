"""Bugs planted into transactions, one at a time: the explorer finds each of them."""

import contextlib
import dataclasses
from dataclasses import dataclass

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.layouts.native import held_lots, names, register, resolve
from dirqueue.layouts.native.conditions import ABORTED, COMMITTED, MV, OPEN, register_of
from dirqueue.layouts.native.settle import Settler
from dirqueue.space import commit, reads, steps, transaction
from dirqueue.space.commit import Attempt
from dirqueue.space.sides import write_sides
from dirqueue.space.work import Refused
from dirqueue.tools import delete
from lab.transactions import SCENARIOS


def abort_without_marker(self, txn):
    """Take an open transaction for aborted without making it so."""
    verdict = self.look(txn)
    return ABORTED if verdict == OPEN else verdict


def forgotten_early(self):
    """Remove the register before every name has come to its end."""
    fs.discard(self._register, self._fd)
    self._apply()
    self.committed = True


def lean_always(original):
    def planted(self, owner, work):
        original(self, owner, work)
        self._lean = True

    return planted


def one_look(self):
    """Look at each need once: they need not have been there together."""
    for path in self._work.need:
        if not fs.exists(path, self._fd) and not self._is_back(path):
            raise Refused


def believe_the_reply(self):
    """Take the answer of the commit for the truth, not the register."""
    self._asked = False
    try:
        self._decide()
    except OSError:
        raise Refused from None


def gone_first(self, txn):
    """Look at P.gone before P."""
    known = self._kind(register_of(txn)) or self._kind(register_of(txn, gone=True))
    if known is None and fs.exists(f"{self.root}/{register_of(txn).partition('/')[0]}", self._directory.fd):
        return OPEN
    return known or ABORTED


def shown_early(original):
    """Publish what was staged before the commit."""

    def planted(self):
        original(self)
        self._apply()

    return planted


def unsorted(original):
    """Hold nothing before the commit: only the record decides."""

    def planted(self, owner, work):
        original(self, owner, work)
        if len(self._order) > 1 and not self._moves:
            self._order = self._order[-1:]

    return planted


def card_not_raised(self, held, seconds):
    """Renew a lease without a new version."""
    until = max(self.directory.clock.now() + micros(seconds), held.ends + 1)
    card = names.card_at(held.place)
    place = names.leased(held.id, until, held.attempts, "t", card.text)
    self._rooms.move(held.place, place)
    held.place, held.ends = place, until


def side_files_late(self, step, work):
    """Write the side file after the rename to the name that means it."""
    fd = self._ground.directory.fd
    (source, _, target), *_ = work.consume
    try:
        fs.rename_in(source, target, fd)
    except FileNotFoundError:
        return self._run()
    write_sides(work.sides, [], fd, sync=False)
    return [], work


def nobody_holds(self, holder, now):
    """Let anybody change what somebody holds."""
    return False


def walk_believed(root):
    """Take what a walk has not shown for gone, though directories changed meanwhile."""
    return reads.Sight(list(reads.every_name(root.fd)), 0)


def removed_while_held(directory, place):
    """Remove the name of a message that a transaction holds, without a word to it."""
    return place


def whatever_there_is(folder, directory):
    """Delete a queue with whatever lies in it, the names of transactions too."""
    fs.remove_tree("leased", directory.fd)
    return 0


def dead_early(original):
    """Bring what moves to its place before the commit."""

    def planted(self):
        original(self)
        for each in self._held:
            self._settled(each.path, MV, each.target)

    return planted


def lot_given_back(directory, folder, name):
    """Give back a lot that a transaction holds, without aborting it."""
    plain = name.partition(".")[0]
    if held_lots.transaction_of(name):
        fs.rename_in(f"{folder}/{name}", f"{folder}/{plain}", directory.fd)
        return plain
    return name


@dataclass(frozen=True)
class Bug:
    """A planted bug: what is replaced, by what, and the scenario that shows it."""

    owner: object
    name: str
    replacement: object
    scenario: object

    @contextlib.contextmanager
    def planted(self):
        original = getattr(self.owner, self.name)
        wraps = self.replacement.__code__.co_varnames[:1] == ("original",)
        setattr(self.owner, self.name, self.replacement(original) if wraps else self.replacement)
        try:
            yield
        finally:
            setattr(self.owner, self.name, original)


def some(number, **more):
    return dataclasses.replace(SCENARIOS[number], **{"deep": False, "kills": 1, **more})


LOSSY = {"lossy": 1, "fstype": "nfs4"}
BUGS = {
    "abort without a marker": Bug(register.Register, "decide", abort_without_marker, some("1")),
    "register forgotten before the end": Bug(Attempt, "_finish", forgotten_early, some("1")),
    "lean in spite of needs": Bug(Attempt, "__init__", lean_always, some("6")),
    "one look at needs": Bug(Attempt, "_need", one_look, some("18")),
    "reply believed": Bug(Attempt, "_commit", believe_the_reply, some("1", **LOSSY)),
    "P.gone looked at before P": Bug(register.Register, "look", gone_first, some("24", kills=0)),
    "shown before the commit": Bug(Attempt, "_stage", shown_early, some("1")),
    "nothing held": Bug(Attempt, "__init__", unsorted, some("5")),
    "card not raised by renew": Bug(Settler, "renew", card_not_raised, some("31")),
    "side file after the rename": Bug(transaction.Transaction, "_move_alone", side_files_late, some("31")),
    "walk believed": Bug(reads, "sight", walk_believed, some("35", kills=0)),
    "message removed while it is held": Bug(resolve, "settled", removed_while_held, some("42")),
    "queue deleted with whatever there is": Bug(delete, "_remove_native", whatever_there_is, some("47")),
    "dead before the commit": Bug(Attempt, "_hold", dead_early, some("39")),
    "lot given back while it is held": Bug(held_lots, "settle", lot_given_back, some("49")),
    "purge without a marker": Bug(register.Register, "decide", abort_without_marker, some("43")),
    "held task changed by another": Bug(steps.Step, "is_held_from", nobody_holds, some("37")),
}

__all__ = ["BUGS", "COMMITTED", "commit", "transaction"]

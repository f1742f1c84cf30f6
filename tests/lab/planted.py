"""Bugs to plant in the library, each with the shortest schedule that shows it.

Some were once in the library and were found by the explorer; the others are common mistakes of such queues. A schedule
is stored as text. The meaning of its digits changes with the calls of the library, so a test checks each schedule with
its bug; `find` searches for a new one.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from dirqueue.disk import fs, identity, mount
from dirqueue.errors import LeaseLost
from dirqueue.layouts.base import Purged
from dirqueue.layouts.native import names, purge
from dirqueue.layouts.native.claim import Claimer
from dirqueue.layouts.native.cursor import Cursor
from dirqueue.layouts.native.due import Due
from dirqueue.layouts.native.publish import Publisher
from dirqueue.layouts.native.settle import Settler
from lab import explore
from lab.explore import Plan

NFS = {"fstype": "nfs4"}
#: A tick after which a bucket is over, and leases that outlast it.
MINUTES = {"ticks": 1, "tick": 130.0, "settings": (("lease", 1000.0),)}


@dataclass(frozen=True)
class Bug:
    """`plant(original)` returns the replacement of `owner.name`; `kind` is the violation that it causes."""

    owner: type
    name: str
    plant: Callable
    plan: Plan
    kind: str
    schedule: str


def find(bug, runs=20_000):
    """Search for a schedule that shows the planted bug; return the failure or None."""
    if len(bug.plan.programs) == 2:
        return explore.exhaust(bug.plan, limit=runs)[3]
    return explore.wander(bug.plan, runs, seed="find")[1]


# --- the replacements --------------------------------------------------------------------------------------


def _publish_by_link(_original):
    return lambda _, src, dst, dir_fd: mount._by_link(src, dst, dir_fd)


def _staging_must_be_new(_original):
    return lambda self, staging: fs.mkdir(staging, dir_fd=self._directory.fd)


def _never_given_back(_original):
    return lambda self, error, held: False


def _tombstones_at_once(original):
    def file(self, prefix, name):
        if name.kind == names.ACKED:
            return Purged(other=fs.discard(prefix + name.text, self._fd))
        return original(self, prefix, name)

    return file


def _unfinished_at_once(original):
    def file(self, prefix, name):
        if name.kind == names.NEW:
            return Purged(new=fs.discard(prefix + name.text, self._fd))
        return original(self, prefix, name)

    return file


def _with_its_contents(_original):
    return lambda self, bucket: fs.remove_tree(bucket, self._directory.fd)


def _never_due(kind, original):
    return lambda self, name: original(self, name) + (10**9 if name.kind == kind else 0)


def _no_room(_original):
    return lambda self, src, place: False


def _delete_by_id(_original):
    def ack(self, held):
        for entry in list(fs.listing("leased", self.directory.fd)):
            if entry.name.startswith(held.id):
                fs.discard(f"leased/{entry.name}", self.directory.fd)

    return ack


def _silent(original):
    def ack(self, held):
        try:
            original(self, held)
        except LeaseLost:
            pass

    return ack


def _old_name(original):
    def renew(self, held, seconds):
        place = held.place
        original(self, held, seconds)
        held.place = place

    return renew


def _in_place(_original):
    def put(self, data, delay, priority, extras=None):
        id = identity.new_id()
        self._directory.make()
        fs.create(id, data, self._directory.fd, sync=False)
        return id

    return put


def _reply_was_no(_original):
    return lambda self, error, folder, src, place: False


def _born_old(_original):
    return lambda self, held, seconds: True


def _early(original):
    @functools.wraps(original)
    def init(self, directory, settings, extras):
        original(self, directory, settings, extras)
        self._due._margin = -60_000_000

    return init


def _one_name_for_all(_original):
    return lambda self, held: self._give_back(held, "1700000000000000000000009", "release", None)


BUGS = {
    # once in the library
    "a link asked for twice published twice": Bug(
        mount.Mount,
        "publish",
        _publish_by_link,
        Plan.of("ga|p", before="", lossy=1, **NFS),
        "back",
        "0000000001000000010011",
    ),
    "a staging directory that exists already": Bug(
        Publisher,
        "_make_staging",
        _staging_must_be_new,
        Plan.of("P|ga", lossy=1, **NFS),
        "raised FileExistsError",
        "0001",
    ),
    "a release whose message was claimed at once": Bug(
        Settler,
        "_given_back",
        _never_given_back,
        Plan.of("gl|ga", lossy=1, **NFS),
        "false loss",
        "00000000000000000000000000000010100000000000000001",
    ),
    "a tombstone that purge took too soon": Bug(
        purge._Purger,
        "file",
        _tombstones_at_once,
        Plan.of("ga|u", lossy=1, **NFS),
        "false loss",
        "000000000000000101",
    ),
    "a lease that was over when it was handed out": Bug(
        Claimer, "_refreshed", _born_old, Plan.of("g|p", ticks=1), "born old", "000000010000001"
    ),
    # common mistakes of such queues
    "ack deletes whatever has the id": Bug(
        Settler, "ack", _delete_by_id, Plan.of("ga|ga", ticks=1), "acked twice", "000000000000000000121"
    ),
    "a lost lease is acknowledged in silence": Bug(
        Settler, "ack", _silent, Plan.of("ga|ga", ticks=1), "acked twice", "000000000000000121"
    ),
    "after a renewal the old name is used": Bug(
        Settler, "renew", _old_name, Plan.of("gna|g"), "false loss", ""
    ),
    "a message is written under its visible name": Bug(
        Publisher, "put", _in_place, Plan.of("p|ga", before=""), "nowhere", "0001"
    ),
    "purge takes files that are being written": Bug(
        purge._Purger, "file", _unfinished_at_once, Plan.of("p|u", before="", **NFS), "lost", "0000001"
    ),
    "a claim whose reply was lost is forgotten": Bug(
        Claimer, "_took_anyway", _reply_was_no, Plan.of("ga|p", lossy=1, **NFS), "blind", "00000000001"
    ),
    "a lease is taken before it ends": Bug(Cursor, "__init__", _early, Plan.of("g|g"), "two holders", ""),
    "a bucket is removed with what is in it": Bug(
        Due,
        "_remove",
        _with_its_contents,
        Plan.of("y|g", before="", **MINUTES),
        "lost",
        "0000000000000001210000000000000000000000000000010000001100000010001",
    ),
    "a claim makes no room for what it claims": Bug(
        Claimer, "_made_room", _no_room, Plan.of("ga|p", rooms=False), "blind", ""
    ),
    "an expired lease is overlooked": Bug(
        Due,
        "_claimable_at",
        functools.partial(_never_due, names.LEASED),
        Plan.of("g|g", ticks=1),
        "blind",
        "00000000000000001",
    ),
    "a delay that is over is overlooked": Bug(
        Due,
        "_claimable_at",
        functools.partial(_never_due, names.DELAYED),
        Plan.of("g|p", before="y", ticks=1),
        "blind",
        "0100002",
    ),
    "a release goes to a name that others use": Bug(
        Settler, "release", _one_name_for_all, Plan.of("gl|gl", before="pp"), "lost", "0000000001"
    ),
}

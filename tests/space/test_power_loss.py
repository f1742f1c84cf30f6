"""Power loss at any instant: a transaction that was reported is whole, any other is whole or not there."""

import collections
import os
import time

import pytest
from lab import images
from lab.powerloss import CHANGING

from dirqueue import Empty, Put, Space
from dirqueue.disk import fs
from dirqueue.layouts.native import conditions, resolve
from dirqueue.space import commit, sides, transaction

pytestmark = [pytest.mark.timeout(600), pytest.mark.needs("loop")]

COUNTS = {"ext4": 120, "xfs": 60, "btrfs": 60}
SETTINGS = {"lease": 600.0, "margin": 0, "max_attempts": 0}


class Client:
    """Runs durable transactions; an image is taken after every call that may change the disk."""

    def __init__(self, album, path, *, sync):
        self.album = album
        self.space = Space(path, sync=sync, **SETTINGS)
        #: What is in which queue: before the change that is under way, and after it.
        self.old = self.new = collections.Counter()

    def snap(self):
        self.album.take(old=dict(self.old), new=dict(self.new))

    def change(self, do, *, gone=(), come=()):
        """Make one change, and note when it was reported."""
        self.new = self.old - collections.Counter(gone) + collections.Counter(come)
        do()
        self.old = self.new
        self.snap()

    def run(self):
        number = 0
        while not self.album.full:
            number += 1
            self.round(number)
        self.space.close()

    def round(self, number):
        space = self.space
        one, two, three = (f"{number}-{each}".encode() * 200 for each in range(3))
        for body in (one, two, three):
            self.change(lambda body=body: space.put("a", body), come=[("a", body)])
        leases = [space.get("a", timeout=0) for _ in range(3)]
        held = [lease.message.body for lease in leases]
        result = f"{number}-result".encode() * 200
        self.change(
            lambda: leases[0].ack(then=[Put("b", result)]), gone=[("a", held[0])], come=[("b", result)]
        )

        def move():
            with space.transaction() as t:
                t.move(leases[1], "c")
                t.put("b", b"m" + result)

        self.change(move, gone=[("a", held[1])], come=[("c", held[1]), ("b", b"m" + result)])
        first = space.get("b", timeout=0)

        def both():
            with space.transaction() as t:
                t.ack(leases[2])
                t.ack(first)
                t.put("c", b"two", id=f"key-{number}")

        self.change(both, gone=[("a", held[2]), ("b", first.message.body)], come=[("c", b"two")])


class TaskClient(Client):
    """The same with tasks: what they mean lies in side files, and is replaced again and again."""

    def round(self, number):
        space = self.space
        bodies = [f"{number}-{each}".encode() * 200 for each in range(4)]
        t = space.transaction(holder="ann")
        id = t.put("a", bodies[0], failures=2, error="no luck")
        self.change(t.commit, come=[("a", bodies[0] + b"!2")])

        def change(*, put=None, **more):
            with space.transaction(holder="ann") as t:
                t.change(space.message(id), **more)
                if put:
                    t.put(put, bodies[3], failures=1)

        self.change(
            lambda: change(body=bodies[1]),
            gone=[("a", bodies[0] + b"!2")],
            come=[("a", bodies[1] + b"!2")],
        )
        self.change(
            lambda: change(put="b", body=bodies[2], queue="c", failures=3),
            gone=[("a", bodies[1] + b"!2")],
            come=[("c", bodies[2] + b"!3"), ("b", bodies[3] + b"!1")],
        )
        lease = space.get("b", timeout=0)
        self.change(lease.ack, gone=[("b", shown(lease.message))])


def shown(message):
    """Return the body of a message, and the failures that a task has."""
    return message.body + (b"!%d" % message.failures if message.entry.card else b"")


def drained(path):
    """Return all that consumers get who know nothing of transactions."""
    found = collections.Counter()
    with Space(os.path.join(path, "space"), sync=False, stale=0, **SETTINGS) as space:
        for queue in "abc":
            # Leases of the dead run for another ten minutes: their names are read as they are.
            for message in space.queue(queue).peek("leased"):
                if conditions.parse(message.entry.place.rpartition("/")[2]) is None:
                    found[queue, shown(message)] += 1
            while True:
                try:
                    lease = space.queue(queue).get(timeout=0)
                except Empty:
                    break
                found[queue, shown(lease.message)] += 1
                lease.ack()
        for queue in "abc":
            purged = space.queue(queue).layout
            purged.purge(None)
    return found


def judge(path, *, old, new):
    """Return what is neither as before the change that was under way nor as after it."""
    if not os.path.isdir(os.path.join(path, "space")):
        return [] if not old else ["lost: the whole space"]
    time.sleep(0.002)
    with Space(os.path.join(path, "space"), sync=False, stale=0, **SETTINGS) as space:
        for queue in "abc":
            space.queue(queue).layout.purge(None)
    found = dict(drained(path))
    if found in (old, new):
        return []
    missing = {
        key[1][:12]: count for key, count in (collections.Counter(old) - collections.Counter(found)).items()
    }
    extra = collections.Counter(found) - collections.Counter(new)
    return [f"neither before nor after: missing {missing}, extra {[(q, b[:12]) for q, b in extra]}"]


@pytest.mark.parametrize("of", [Client, TaskClient])
@pytest.mark.parametrize("kind", COUNTS)
def test_transaction_is_whole_or_not_there_after_a_power_cut(kind, of, tmp_path, require, monkeypatch):
    """Of those that were reported, every one is there."""
    require(kind)
    taken, wrong = photograph(kind, tmp_path, COUNTS[kind], monkeypatch, of, sync=True)
    assert wrong == []
    assert taken == COUNTS[kind]


@pytest.mark.parametrize("of", [Client, TaskClient])
def test_power_cut_undoes_what_is_not_durable(of, tmp_path, require, monkeypatch):
    """The control: without flushes the same cuts lose transactions that were reported."""
    require("ext4")
    _, wrong = photograph("ext4", tmp_path, 60, monkeypatch, of, sync=False)
    assert wrong != []


def test_side_file_that_is_not_flushed_is_noticed(tmp_path, require, monkeypatch):
    """A planted bug: names that are durable mean side files that are not."""
    require("ext4")

    def unflushed(sides_, made, fd, *, sync):
        return sides.write_sides(sides_, made, fd, sync=False)

    monkeypatch.setattr(transaction, "write_sides", unflushed)
    monkeypatch.setattr(commit, "write_sides", unflushed)
    _, wrong = photograph("ext4", tmp_path, 120, monkeypatch, TaskClient, sync=True)
    assert wrong != []


def photograph(kind, place, count, monkeypatch, of, *, sync):
    """Take images of one filesystem, after each call of transactions on it; return (images, violations)."""
    image, point = place / f"{kind}.img", place / "mount"
    images.make(kind, image)
    album = images.Album(image, place / "copies", count)
    with images.mounted(kind, image, point) as path:
        client = of(album, os.path.join(path, "space"), sync=sync)
        with monkeypatch.context() as patch:
            for name in CHANGING:
                patch.setattr(fs, name, watched(getattr(fs, name), client))
            client.run()
    monkeypatch.setattr(resolve, "PATIENCE", 0.0)
    wrong = album.look(kind, place / "again", judge)
    image.unlink()
    return len(album.taken), wrong


def watched(call, client):
    def watched(*args, **kwargs):
        result = call(*args, **kwargs)
        client.snap()
        return result

    return watched

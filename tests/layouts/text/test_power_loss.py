"""The power goes at any call: what put returned is there, what ack returned does not come back.

An image of the disk is made of what was synced and any part of what was not: pages of each file, old or new, and for a
file that grew any length, with zeros where a page is missing. The journal and the lock are never synced.
"""

import os
import random

import pytest
from support.kit import LONG, wait_until

from dirqueue import Empty, Queue
from dirqueue.disk import fs
from dirqueue.layouts.text import merge, turn

PAGE = 4096
SETTINGS = {"sync": True, "margin": 0, "lease": LONG, "backoff": 0, "layout": "text"}
NAMES = ("q.tq", ".q.tq.dirqueue/lock", ".q.tq.dirqueue/journal.0000000000000000")


class Recorder:
    """Remembers, at each call, what every file held, and what of it was synced."""

    def __init__(self, folder, promises):
        self.folder, self.promises = folder, promises
        self.now, self.durable = {}, {}
        self.moments = []
        self.real = {name: getattr(fs, name) for name in fs.CALLS}

    def __enter__(self):
        for name in ("pwrite", "pwritev", "fsync", "ftruncate"):
            setattr(fs, name, self.wrap(name, self.real[name]))
        return self

    def __exit__(self, *_):
        for name, call in self.real.items():
            setattr(fs, name, call)

    def wrap(self, name, call):
        def wrapped(fd, *arguments):
            result = call(fd, *arguments)
            try:
                path = os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), self.folder)
            except OSError:
                return result
            if name == "fsync":
                if path in NAMES:
                    self.durable[path] = self.now.get(path, b"")
            elif path in NAMES:
                size = os.fstat(fd).st_size
                self.now[path] = os.pread(fd, size, 0)
            self.moments.append((dict(self.now), dict(self.durable), self.promises.copy()))
            return result

        return wrapped


def image(old, new, dice):
    """Return what may be left of a file: its synced contents, with any pages of the newer ones."""
    size = len(old)
    if len(new) != len(old):
        size = dice.choice([len(old), len(new), *range(0, max(len(old), len(new)), PAGE)])
        size = max(size, min(len(old), len(new)))
    pages = []
    for start in range(0, size, PAGE):
        one, two = old[start : start + PAGE], new[start : start + PAGE]
        pages.append((dice.choice([one, two]) if one or two else b"").ljust(min(PAGE, size - start), b"\0"))
    return b"".join(page[:PAGE] for page in pages)[:size]


class Promises:
    """What has been returned so far."""

    def __init__(self, put=(), ending=(), done=()):
        #: What was put, what is being acknowledged, what was.
        self.put, self.ending, self.done = set(put), set(ending), set(done)

    def copy(self):
        return Promises(self.put, self.ending, self.done)


def story(path, promises):
    with Queue(path, **SETTINGS) as queue:
        for n in range(3):
            queue.put(b"m%d" % n)
            promises.put.add(b"m%d" % n)
        held = queue.get(timeout=0)
        promises.ending.add(held.message.body)
        held.ack()
        promises.done.add(held.message.body)
        many = [b"many%d " % n + b"x" * 900 for n in range(6)]
        queue.put_many(many)
        promises.put.update(many)
        long = b"long " + b"y" * 9000
        queue.put(long)
        promises.put.add(long)
        for _ in range(4):
            held = queue.get(timeout=0)
            promises.ending.add(held.message.body)
            held.ack()
            promises.done.add(held.message.body)
        held = queue.get(timeout=0)
        held.retry(0, "once")


@pytest.mark.parametrize("seed", range(15))
def test_power_loss_at_every_call(tmp_path, monkeypatch, seed):
    for module in (turn, merge):
        monkeypatch.setattr(module, "QUIET", 0)
    folder = tmp_path / "disk"
    folder.mkdir()
    promises = Promises()
    recorder = Recorder(folder, promises)
    with recorder:
        story(folder / "q.tq", promises)
    assert len(recorder.moments) > 50
    dice = random.Random(seed)
    for number, (now, durable, promised) in enumerate(recorder.moments):
        place = tmp_path / f"image{number}"
        (place / ".q.tq.dirqueue").mkdir(parents=True)
        for name in now:
            (place / name).write_bytes(image(durable.get(name, b""), now[name], dice))
        check(place / "q.tq", promised, number)


def check(path, promised, number):
    got = []
    with Queue(path, **(SETTINGS | {"sync": False})) as queue:

        def drained():
            for entry in list(queue.layout.entries(("leased",))):
                queue.lease(entry.place).release()
            while True:
                try:
                    lease = queue.get(timeout=0)
                except Empty:
                    return queue.stats().total == 0
                got.append(lease.message.body)
                lease.ack()

        queue.put(b"afterwards")
        wait_until(drained)
    assert set(got) >= (promised.put - promised.ending) | {b"afterwards"}, number
    assert not set(got) & promised.done, number
    assert len(set(got)) == len(got), number

"""Power loss: compare what a queue has promised with what is left in the images of its disk."""

import functools
import os

import dirqueue
from dirqueue.disk import fs
from lab import images
from lab.census import Census, uncarried

#: Calls that may change the disk.
CHANGING = (
    "write",
    "fsync",
    "close",
    "rename",
    "rename_noreplace",
    "link",
    "symlink",
    "unlink",
    "mkdir",
    "syncfs",
    "rmdir",
)


class Client:
    """Puts and acks messages; an image is taken after every call that may change the disk."""

    def __init__(self, album, path, *, attributes=None, **settings):
        self.album = album
        self.carried = {"attributes": attributes} if attributes else {}
        self.queue = dirqueue.Queue(path, **settings)
        #: Bodies are long enough to be torn; links hold at most 1,000 bytes.
        self.times = 90 if settings.get("links") else 300
        self.known, self.promised, self.acked, self.acking = set(), [], [], []

    def snap(self):
        self.album.take(
            known=set(self.known),
            promised=list(self.promised),
            acked=list(self.acked),
            maybe_acked=list(self.acking),
        )

    def run(self):
        """Put, get, ack and, through all rooms, retry, release, renew, reject and redrive until the album is full."""
        number = 0
        while not self.album.full:
            number += 1
            bodies = [f"{number}-{each}".encode() * self.times for each in range(4)]
            self.known.update(bodies)
            self.queue.put(bodies[0], **self.carried)
            self.promised.append(bodies[0])
            self.snap()
            self.queue.put_many(bodies[1:], **self.carried)
            self.promised += bodies[1:]
            self.snap()
            for _ in range(2):
                lease = self.queue.get(timeout=0)
                self.acking.append(lease.message.body)
                lease.ack()
                self.acked.append(lease.message.body)
                self.snap()
            if self.queue.layout.name == "native":
                self.visit_the_rooms(number)
        self.queue.close()

    def visit_the_rooms(self, number):
        later = f"{number}-later".encode() * self.times
        self.known.add(later)
        self.queue.get(timeout=0).reject("bad")
        self.snap()
        self.queue.get(timeout=0).retry(0.0, "no luck")
        self.queue.put(later, delay=60.0 * (number % 3), **self.carried)
        self.promised.append(later)
        self.snap()
        if number % 2:
            self.queue.redrive()
            self.snap()
        self.queue.get(timeout=0).release()
        lease = self.queue.get(timeout=0)
        lease.renew()
        self.acking.append(lease.message.body)
        lease.ack()
        self.acked.append(lease.message.body)
        self.snap()


def photograph(kind, place, count, **settings):
    """Take `count` images of one filesystem, after each call of a queue on it; return (images, violations)."""
    image, point = place / f"{kind}.img", place / "mount"
    images.make(kind, image)
    album = images.Album(image, place / "copies", count)
    saved = {name: getattr(fs, name) for name in CHANGING}
    with images.mounted(kind, image, point) as path:
        client = Client(album, os.path.join(path, "queue"), **settings)
        try:
            for name, call in saved.items():
                setattr(fs, name, _watched(call, client))
            client.run()
        finally:
            for name, call in saved.items():
                setattr(fs, name, call)
            client.queue.close()
    how = {"layout": settings.get("layout", "native"), "attributes": settings.get("attributes")}
    wrong = album.look(kind, place / "again", functools.partial(judge, **how))
    image.unlink()
    return len(album.taken), wrong


def _watched(call, client):
    def watched(*args, **kwargs):
        result = call(*args, **kwargs)
        client.snap()
        return result

    return watched


def judge(path, *, layout="native", attributes=None, **known):
    """Read an image without the library; return the violations: every promised message is there, once and complete.

    And no message is there without its attributes.
    """
    queue = os.path.join(path, "queue")
    if not os.path.isdir(queue):
        return [f"lost: {len(known['promised'])} messages with their queue"] if known["promised"] else []
    return Census(queue, layout).complaints(**known) + (uncarried(queue, attributes) if attributes else [])


#: Moves without a flush, or before it: of the queue and the lease of its message.
UNFLUSHED = {
    "retry": lambda _, lease: lease.retry(600.0),
    "release": lambda _, lease: lease.release(),
    "reject": lambda _, lease: _unflushed(lease.reject, "why"),
    "redrive": lambda queue, lease: (lease.reject("why"), os.sync(), _unflushed(queue.redrive)),
    "change": lambda queue, lease: (lease.release(), os.sync(), _unflushed(_delay_one, queue)),
}


def _unflushed(call, *arguments):
    """Stop a call before its flush, as if the power went there."""
    saved = {name: getattr(fs, name) for name in ("fsync", "syncfs")}
    try:
        for name in saved:
            setattr(fs, name, lambda _: None)
        call(*arguments)
    finally:
        for name, real in saved.items():
            setattr(fs, name, real)


def _delay_one(queue):
    next(iter(queue.peek())).change(delay=600.0)


def flush_beside(kind, place, **settings):
    """Move a message without a flush; another process flushes the directory that it went to; lose the power.

    Return (images, violations): a flush of the new name without the departure of the old one leaves both.
    """
    image, body = place / f"{kind}.img", b"moved"
    images.make(kind, image)
    album = images.Album(image, place / "copies", 2 * len(UNFLUSHED))
    with images.mounted(kind, image, place / "mount") as path:
        for number, (verb, batch) in enumerate(
            (verb, batch) for verb in UNFLUSHED for batch in (False, True)
        ):
            name = f"queue{number}"
            with (
                dirqueue.Queue(os.path.join(path, name), **settings) as queue,
                dirqueue.Queue(os.path.join(path, name), **settings) as other,
            ):
                queue.put_many([body, b"beside"] if batch else [body])
                lease = queue.get(timeout=0)
                os.sync()
                UNFLUSHED[verb](queue, lease)
                other.put(b"top")
                other.put(b"later", delay=600.0)
                if verb == "reject":
                    other.get(timeout=0).reject("why")
            album.take(name=name, what=f"{verb}, {'of a batch' if batch else 'alone'}")

    def judge(path, *, name, what):
        census = Census(os.path.join(path, name))
        there = census.waiting + census.dead
        return [
            f"{what}: {each!r} {there.count(each)} times" for each in set(there) if there.count(each) != 1
        ]

    wrong = album.look(kind, place / "again", judge)
    image.unlink()
    return len(album.taken), wrong


def photograph_unsynced(kind, place, count, times=300, **settings):
    """Do the same with sync=False; return (images, losses, violations).

    The documented losses are allowed: puts since the last sync of the filesystem are missing, empty or short, and
    messages acked since then come back. Anything else is a violation.
    """
    image, point = place / f"{kind}.img", place / "mount"
    images.make(kind, image)
    album = images.Album(image, place / "copies", count)
    old = [f"old-{each}".encode() * times for each in range(12)]
    new = [f"new-{each}".encode() * times for each in range(max(count, 4))]
    with (
        images.mounted(kind, image, point) as path,
        dirqueue.Queue(os.path.join(path, "queue"), sync=False, **settings) as queue,
    ):
        for body in old[:8]:
            queue.put(body)
        queue.put_many(old[8:])
        acked = [_acked(queue) for _ in range(3)]
        with open(os.path.join(path, "synced"), "wb") as file:
            fs.syncfs(file.fileno())
        late = []
        for number, body in enumerate(new, 1):
            queue.put(body)
            if len(late) < 3:
                late.append(_acked(queue))
            album.take(kept=set(old) - set(acked) - set(late), gone=acked, late=late.copy(), new=new[:number])
    losses = []
    wrong = album.look(kind, place / "again", functools.partial(_judge_unsynced, losses))
    image.unlink()
    return len(album.taken), losses, wrong


def _acked(queue):
    lease = queue.get(timeout=0)
    lease.ack()
    return lease.message.body


def _judge_unsynced(losses, path, *, kept, gone, late, new):
    there = Census(os.path.join(path, "queue")).waiting
    wrong = [f"lost though it was synced: {body[:20]!r}" for body in kept if there.count(body) != 1]
    wrong += [f"back after a synced ack: {body[:20]!r}" for body in gone if body in there]
    losses += [f"put is gone: {body[:20]!r}" for body in new if body not in there]
    losses += [f"ack is gone: {body[:20]!r}" for body in late if body in there]
    for body in set(there) - kept - set(late) - set(new):
        if body.strip(b"\0") and not any(one.startswith(body) for one in new):
            wrong.append(f"neither complete nor empty nor short: {body[:20]!r}")
        losses.append(f"short: {body[:20]!r}")
    return wrong


def reorder(place, count, *, seed=0, **settings):
    """Record a queue's work on ext4 block by block, then lose the power `count` times; return (images, violations)."""
    from lab import blocklog

    marks = []
    with blocklog.disk(place, images.SIZES["ext4"]) as (device, log):
        images.run(*images.MAKE["ext4"], device)
        with images.mounted("ext4", device, place / "mount", "rw") as path:
            os.sync()
            start = blocklog.length(log)
            client = Client(_Marks(marks, log), os.path.join(path, "queue"), **settings)
            client.run()
    image = place / "crash.img"
    wrong, taken = [], 0
    for end in blocklog.crashes(log, images.SIZES["ext4"], image, since=start, count=count, seed=seed):
        taken += 1
        before = [known for at, known in marks if at <= end]
        after = [known for at, known in marks if at > end]
        # Promised is what had returned by then; an ack that returned a little later may be on disk.
        known = dict(before[-1] if before else {"promised": [], "acked": [], "maybe_acked": []})
        known["known"] = marks[-1][1]["known"]
        known["maybe_acked"] = (after or before)[-1]["maybe_acked"]
        with images.mounted("ext4", image, place / "again") as path:
            how = {"attributes": settings.get("attributes")}
            wrong += [f"image {taken}: {each}" for each in judge(path, **how, **known)]
    image.unlink()
    return taken, wrong


class _Marks:
    """An album that only records the length of the log."""

    def __init__(self, marks, log, rounds=12):
        self._marks, self._log, self._left = marks, log, rounds * 5

    @property
    def full(self):
        return self._left <= 0

    def take(self, **known):
        self._left -= 1
        self._marks.append((os.path.getsize(self._log), known))

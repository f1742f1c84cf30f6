"""Prepares and judges the stories of `stories`, each in its own directory; a child runs them.

Only the directory is judged: it is first read without the library, then cleaned and emptied with it.
"""

import errno
import os
import shutil
import time
from pathlib import Path

import dirqueue
from dirqueue.tools.convert import convert
from lab import stories
from lab.census import Census, bodies, carried, expire, uncarried
from lab.stories import LARGE, STORIES, open_queue

ALL_AT_ONCE = ("put_many", "put_many with attributes", "batch commit")
BATCH = [b"one", b"two", b"three"]

#: Leftovers of a process that died long ago, by layout: (name, content; None for a directory).
ORPHANS = {
    "native": [("1700000000000000000000001.new", b"orphan"), ("1700000000000000000000002.batch.new", None)],
    "vsqs": [("1700000000000000.new", b"orphan")],
    "dirq-simple": [
        ("65530000/65530000000001.tmp", b"orphan"),
        ("65530000/65530000000002.lck", b"orphan"),
    ],
    "dirq-normal": [
        ("temporary/65530000000001/body", b"orphan"),
        ("temporary/65530000000002", None),
        ("obsolete/65530000000003/body", b"orphan"),
    ],
}


class Story:
    """One story in one directory; `settings` are those of its queue, including the layout."""

    def __init__(self, name, place, **settings):
        self.name = name
        self.place = Path(place)
        self.path = str(self.place / "queue")
        self.settings = settings
        self.layout = settings.get("layout", "native")
        self.carries = stories.carries(name)
        self.known = {b"moved", LARGE, *BATCH}
        self.promised = []

    def _open(self):
        return open_queue(self.path, **{**STORIES[self.name][2], **self.settings, "sync": False})

    # --- before --------------------------------------------------------------------------------------------

    def prepare(self):
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        steps = STORIES[self.name][0]
        if steps == "-":
            return
        Path(self.path).mkdir()
        with self._open() as queue:
            for place, step in enumerate(steps):
                self._step(queue, step, f"before{place}".encode())

    def _step(self, queue, step, body):
        if step in "sl" or (step in "dt" and self.layout != "native"):
            return
        if step == "f":
            (self.place / "file").write_bytes(b"moved")
        elif step == "o":
            self._orphans()
        elif step == "B":
            self.known.add(b"more")
            self.promised += [body, b"more"]
            queue.put_many([body, b"more"])
        else:
            self.promised.append(body)
            queue.put(body, **({"attributes": stories.ATTRIBUTES} if self.carries else {}))
            if step in "dt":
                self._hold(queue, step, body)
        self.known.add(body)

    def _orphans(self):
        for name, content in ORPHANS[self.layout]:
            orphan = Path(self.path, name)
            orphan.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                orphan.mkdir()
            else:
                orphan.write_bytes(content)

    @staticmethod
    def _hold(queue, step, body):
        """Make one message dead, or one that has been delivered before."""
        leases = [queue.get(timeout=0, lease=60.0)]
        while leases[-1].message.body != body:
            leases.append(queue.get(timeout=0, lease=60.0))
        if step == "d":
            leases.pop().reject("bad")
        else:
            leases.pop().retry(0.0, "once")
        for lease in leases:
            lease.release()

    # --- after ---------------------------------------------------------------------------------------------

    def judge(self, events):
        """Return the violations in the directory as it was left, and after it was cleaned and emptied."""
        reported = {"trying": [], "put": [], "acking": [], "acked": []}
        for word, *rest in events:
            if word in reported:
                body = rest[0].encode()
                reported[word].append(LARGE if LARGE.startswith(body) else body)
        books = {
            "known": self.known,
            "promised": [*self.promised, *reported["put"]],
            "acked": reported["acked"],
            "maybe_acked": reported["acking"],
        }
        if self.name == "convert":
            return self._converted(books)
        if not os.path.isdir(self.path):
            return [f"lost: {body!r}" for body in reported["put"]]
        wrong = self._complaints(books)
        if self.name.startswith("put_path") and b"moved" not in Census(self.path, self.layout).waiting:
            wrong += [] if (self.place / "file").exists() else ["lost: the file that was moved in"]
        return wrong or self._after(books)

    def aside(self, code):
        """Return whether a message was set aside with a note that it could not be read for this reason."""
        words = f"cannot be read: {os.strerror(getattr(errno, code))}".encode()
        return any(words in note.read_bytes() for note in Path(self.path).rglob("*.error"))

    def _complaints(self, books):
        there = Census(self.path, self.layout)
        wrong = there.complaints(**books)
        wrong += uncarried(self.path, stories.ATTRIBUTES) if self.carries else []
        if self.layout == "native" and self.name in ALL_AT_ONCE:
            seen = sum(body in there.waiting for body in BATCH)
            wrong += [f"{seen} of a batch of 3 are visible"] if seen not in (0, 3) else []
        return wrong

    def _after(self, books):
        queue = self._open()
        time.sleep(0.002)
        expire(self.path)
        queue.purge()
        if self.name == "batch commit":
            stories.commit(queue)  # the writer does not know that it succeeded, and writes it again
            queue.purge()
            books = {**books, "promised": [*books["promised"], *BATCH]}
        wrong = self._complaints(books)
        left = Census(self.path, self.layout)
        wrong += [f"left after purge: {name}" for name in left.unfinished]
        got = []
        for _ in range(20):
            try:
                lease = queue.get(timeout=0)
            except dirqueue.Empty:
                break
            got.append(lease.message.body)
            if self.carries and lease.message.attributes != stories.ATTRIBUTES:
                wrong.append(f"delivered without its attributes: {got[-1][:40]!r}")
            lease.ack()
        else:
            wrong.append("the queue never becomes empty")
        wrong += [f"not delivered: {body[:40]!r}" for body in set(left.waiting) - set(got)]
        queue.purge()
        end = Census(self.path, self.layout)
        if not end.dead:
            rest = (*end.notes, *end.unfinished, *end.foreign, *carried(self.path))
            wrong += [f"left at the end: {name}" for name in rest]
        queue.close()
        return wrong

    def _converted(self, books):
        """Check that an interrupted conversion lost no message, and that a second run completes it."""
        there = bodies(self.place)
        wrong = [f"lost: {body!r}" for body in set(books["promised"]) - there]
        if wrong:
            return wrong
        target = "dirq-simple" if self.layout == "native" else "native"
        for name in ("queue", "queue.converting/queue", "queue.converting/old"):
            expire(self.place / name)
        try:
            convert(self.path, layout=target, wait=30.0, sync=self.settings.get("sync", True))
        except dirqueue.DirQueueError as error:
            return [f"the second conversion failed: {error}"]
        time.sleep(0.002)
        with open_queue(self.path, **({} if target == "native" else {"layout": target})) as queue:
            queue.purge()
        end = Census(self.path, target)
        wrong = end.complaints(**books)
        wrong += [f"left after purge: {name}" for name in end.unfinished]
        wrong += [f"left beside the queue: {name}" for name in os.listdir(self.place) if name != "queue"]
        return wrong


#: ESTALE means that another host removed the directory, so errors that report it or a message as gone are right.
GONE = ("QueueNotFound", "LeaseLost", "Empty", "MessageNotFound")


def judge_error(events, code, *, aside=False):
    """Return the violations in how an injected errno was reported.

    The only right error is QueueAccess with that errno, in the attribute and in the text. A message that was
    claimed and is unreadable is set aside with a note (`aside`); the queue may then be empty. So it may be when a
    directory in it may not be entered: that is stepped over.
    """
    wrong = []
    aside = aside or code == "EACCES"
    for word, *rest in events:
        if word == "raised":
            wrong.append(f"{code}: raised {rest[0]}: {rest[1]}")
        elif word == "leak":
            wrong.append(f"{code}: {rest[0]} descriptors left open")
        elif (
            word == "error" and not (code == "ESTALE" and _gone(rest)) and not (aside and rest[0] == "Empty")
        ):
            kind, number, text = rest
            if kind != "QueueAccess" or number != getattr(errno, code) or f"[{code}]" not in text:
                wrong.append(f"{code}: reported as {kind} {number}: {text}")
    return wrong


def _gone(error):
    kind, number, text = error
    return (
        kind in GONE
        or (kind == "QueueAccess" and number == errno.ENOENT)
        or (kind == "QueueError" and text.endswith("nothing is lost, run it again"))
    )

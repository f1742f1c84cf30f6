"""What a process may be doing when it is killed: short stories on a queue, told as they happen.

Each story is prepared by the caller (`prepare`), lived by a child (`do`, which says what it was promised), and judged
afterwards from the directory alone (`judge`). Leases are short, so that what was held can be had again at once.
"""

import errno
import os
import shutil
import time
from pathlib import Path

import dirqueue
from dirqueue.layouts.native import publish
from lab.census import Census

SETTINGS = {"lease": 0.001, "margin": 0.0, "stale": 0.0, "backoff": 0.0}
LARGE = b"L" * 200_000


def open_queue(path, **more):
    return dirqueue.Queue(path, **{**SETTINGS, **more})


class Child:
    """Lives a story and says what was promised."""

    def __init__(self, path, say, settings):
        self.path = path
        self.say = say
        self.queue = open_queue(path, **settings)

    def put(self, *bodies, **how):
        for body in bodies:
            self.say("trying", body[:100])
            self.queue.put(body, **how)
            self.say("put", body[:100])

    def put_many(self, *bodies):
        for body in bodies:
            self.say("trying", body)
        self.queue.put_many(bodies)
        for body in bodies:
            self.say("put", body)

    def get(self):
        return self.queue.get(timeout=0, lease=60.0)

    def ack(self, lease):
        body = lease.message.body.decode()
        self.say("acking", body)
        lease.ack()
        self.say("acked", body)


def _put(child):
    child.put("one", "two")


def _put_large(child):
    child.put(LARGE.decode())


def _put_delay(child):
    child.put("one", delay=0.001)


def _put_many(child):
    child.put_many("one", "two", "three")


def _put_path(child):
    child.say("trying", "moved")
    child.queue.put_path(os.path.join(os.path.dirname(child.path), "file"))
    child.say("put", "moved")


def _get(child):
    child.get()


def _ack(child):
    child.ack(child.get())
    child.ack(child.get())


def _retry(child):
    child.get().retry(0.0, "no luck")


def _release(child):
    child.get().release()


def _reject(child):
    child.get().reject("never")


def _renew(child):
    lease = child.get()
    lease.renew(60.0)
    child.ack(lease)


def _purge(child):
    child.queue.purge()


def _redrive(child):
    child.queue.redrive()


def first(queue):
    """Return the first ready message; a queue whose directory is gone (ESTALE) has none."""
    for message in queue.peek():
        return message
    raise dirqueue.MessageNotFound("there is none", message_id="")


def _cancel(child):
    message = first(child.queue)
    child.say("acking", message.body.decode())
    message.cancel()
    child.say("acked", message.body.decode())


def _change(child):
    first(child.queue).change(delay=0.001)


def _with(child):
    with child.get() as message:
        child.say("acking", message.body.decode())
    child.say("acked", message.body.decode())


def _worker(child):
    def handle(message):
        child.say("acking", message.body.decode())

    dirqueue.Worker(child.queue, handle).run(until_empty=True)


def _dead_by_attempts(child):
    for _ in range(3):
        try:
            child.get().retry(0.0, "again")
        except dirqueue.Empty:
            return


#: name -> (what lies there before, the story, settings)
STORIES = {
    "put": ("", _put, {}),
    "put large": ("", _put_large, {}),
    "put delay": ("", _put_delay, {}),
    "put_many": ("", _put_many, {}),
    "put_path": ("f", _put_path, {}),
    "first put": ("-", _put, {}),
    "put in slices": ("s", _put, {}),
    "get": ("pp", _get, {}),
    "ack": ("pp", _ack, {}),
    "ack in batch": ("B", _ack, {}),
    "ack keep_done": ("pp", _ack, {"keep_done": True}),
    "with": ("pp", _with, {}),
    "retry": ("pp", _retry, {}),
    "release": ("pp", _release, {}),
    "reject": ("pp", _reject, {}),
    "renew": ("pp", _renew, {}),
    "out of attempts": ("p", _dead_by_attempts, {"max_attempts": 2}),
    "purge": ("ppodt", _purge, {}),
    "redrive": ("pdd", _redrive, {}),
    "cancel": ("pp", _cancel, {}),
    "change": ("pp", _change, {}),
}


def prepare_server():
    """Import and touch everything once, so that children make no calls of Python's own."""
    import shutil as _shutil
    import tempfile

    import filelock  # noqa: F401

    place = tempfile.mkdtemp()
    queue = open_queue(os.path.join(place, "q"))
    queue.put(b"x")
    queue.purge()
    queue.get(timeout=0).retry(0.0, "x")
    queue.get(timeout=0).reject("x")
    queue.redrive()
    list(queue.peek("dead"))
    queue.close()
    _shutil.rmtree(place)


def do(name, say, *, path, settings=None, leaks=False):
    """Live a story. An error of the library's own kind is said; any other ends the child."""
    before = _descriptors() if leaks else None
    child, deep = None, publish.DEEP
    try:
        if STORIES[name][0] == "s":
            publish.DEEP = -1
        child = Child(path, say, {**STORIES[name][2], **(settings or {})})
        STORIES[name][1](child)
    except dirqueue.DirQueueError as error:
        say("error", type(error).__name__, getattr(error, "errno", None), str(error))
    except BaseException as error:  # noqa: BLE001
        say("raised", type(error).__name__, str(error))
    finally:
        publish.DEEP = deep  # a story may be told in the process of the tests
        if child is not None:
            child.queue.close()
    after = _descriptors() if leaks else None
    if before is not None and after is not None and after > before:
        say("leak", after - before)


def _descriptors():
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


class Story:
    """One story in one directory: prepared here, lived in a child, judged here."""

    def __init__(self, name, place, **settings):
        self.name = name
        self.place = Path(place)
        self.path = str(self.place / "queue")
        self.settings = settings
        self.known = {b"moved", LARGE, *(b"one two three".split())}
        self.promised = []

    def prepare(self):
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        steps = STORIES[self.name][0]
        if steps == "-":
            return
        Path(self.path).mkdir()
        queue = open_queue(self.path, **{**STORIES[self.name][2], **self.settings, "sync": False})
        for place, step in enumerate(steps):
            body = f"before{place}".encode()
            if step == "f":
                (self.place / "file").write_bytes(b"moved")
                continue
            if step == "s":
                continue
            if step == "o":
                Path(self.path, "1700000000000000000000001.new").write_bytes(b"orphan")
                Path(self.path, "1700000000000000000000002.batch.new").mkdir()
                continue
            self.known.add(body)
            self.promised.append(body)
            if step == "B":
                self.known.add(b"more")
                self.promised.append(b"more")
                queue.put_many([body, b"more"])
                continue
            queue.put(body)
            if step in "dt":
                leases = [queue.get(timeout=0, lease=60.0)]
                while leases[-1].message.body != body:
                    leases.append(queue.get(timeout=0, lease=60.0))
                if step == "d":
                    leases.pop().reject("bad")
                else:
                    leases.pop().retry(0.0, "once")
                for lease in leases:
                    lease.release()
        queue.close()

    def judge(self, said):
        """Return complaints about the directory as it was left, and after it was cleaned and emptied."""
        told = {"trying": [], "put": [], "acking": [], "acked": []}
        for word, *rest in said:
            if word in told:
                body = rest[0].encode()
                told[word].append(LARGE if LARGE.startswith(body) else body)
        if not os.path.isdir(self.path):
            return [f"lost: {body!r}" for body in told["put"]]
        promised = [*self.promised, *told["put"]]
        books = {
            "known": self.known,
            "promised": promised,
            "acked": told["acked"],
            "maybe_acked": told["acking"],
        }
        wrong = Census(self.path).complaints(**books)
        file = self.place / "file"
        if self.name == "put_path" and not wrong and not file.exists():
            there = Census(self.path)
            if b"moved" not in there.waiting:
                wrong.append("lost: the file that was moved in")
        return wrong or self._after(books)

    def _after(self, books):
        queue = open_queue(self.path, **{**STORIES[self.name][2], **self.settings, "sync": False})
        time.sleep(0.002)
        _expire(self.path)
        queue.purge()
        wrong = Census(self.path).complaints(**books)
        left = Census(self.path)
        wrong += [f"left after purge: {name}" for name in left.unfinished]
        got = []
        for _ in range(20):
            try:
                lease = queue.get(timeout=0)
            except dirqueue.Empty:
                break
            got.append(lease.message.body)
            lease.ack()
        else:
            wrong.append("the queue cannot be emptied")
        wrong += [f"not delivered: {body[:40]!r}" for body in set(left.waiting) - set(got)]
        queue.purge()
        end = Census(self.path)
        if not end.dead:
            wrong += [f"left at the end: {name}" for name in (*end.notes, *end.unfinished, *end.foreign)]
        queue.close()
        return wrong


def _expire(path):
    """Let the leases of a killed child run out: rename them as if they had been taken long ago."""
    for root, _, files in os.walk(path):
        for name in files:
            parts = name.split(".")
            if len(parts) == 4 and parts[1].isdigit() and len(parts[1]) == 16:
                parts[1] = "1700000000000000"
                os.rename(os.path.join(root, name), os.path.join(root, ".".join(parts)))


#: Which errors of the library may follow from an injected errno; everything else is a bug.
EXPECTED = (
    "QueueAccess",
    "QueueNotFound",
    "LeaseLost",
    "Empty",
    "MessageNotFound",
    "LayoutError",
    "SettingsError",
)


#: A stale handle is a directory that another host removed: to say that it is not there is to say the same.
SAID_AS = {name: {number} for number, name in errno.errorcode.items()} | {
    "ESTALE": {errno.ESTALE, errno.ENOENT}
}


def judge_error(said, code):
    """Return complaints about how an injected errno was reported."""
    wrong = []
    for word, *rest in said:
        if word == "raised":
            wrong.append(f"{code}: raised {rest[0]}: {rest[1]}")
        elif word == "error" and rest[0] not in EXPECTED:
            wrong.append(f"{code}: {rest[0]}: {rest[2]}")
        elif word == "error" and rest[0] == "QueueAccess" and rest[1] not in SAID_AS[code]:
            wrong.append(f"{code}: reported as errno {rest[1]}: {rest[2]}")
        elif word == "leak":
            wrong.append(f"{code}: {rest[0]} descriptors left open")
    return wrong

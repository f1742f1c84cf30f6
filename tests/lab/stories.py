"""What a process may be doing when it is killed: short stories on a queue, reported step by step.

`scenarios` prepares and judges a story; here a child runs it and reports what the queue promised.
Its clock advances only by a microsecond at each reading, so that every run makes the same system calls.
"""

import contextlib
import os
import time
from types import ModuleType

import dirqueue
import dirqueue.tools.convert
from dirqueue.disk import fs
from dirqueue.layouts.native import attempt, publish, staged
from lab import seam

SETTINGS = {"lease": 0.001, "margin": 0.0, "stale": 0.0, "backoff": 0.0}
LARGE = b"L" * 200_000
#: What the messages of some stories carry.
ATTRIBUTES = {"colour": "blue"}
IDENTITY = staged.Identity("campaign", 7)


def open_queue(path, **more):
    return dirqueue.Queue(path, **{**SETTINGS, **more})


class Child:
    """Runs a story and reports what was promised."""

    def __init__(self, path, say, settings, *, carries=False):
        self.path = path
        self.carried = {"attributes": ATTRIBUTES} if carries else {}
        self.say = say
        self.settings = settings
        self.queue = open_queue(path, **settings)

    def put(self, *bodies, **how):
        for body in bodies:
            self.say("trying", body[:100])
            self.queue.put(body, **how, **self.carried)
            self.say("put", body[:100])

    def put_many(self, *bodies):
        for body in bodies:
            self.say("trying", body)
        self.queue.put_many(bodies, **self.carried)
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
    child.queue.put_path(os.path.join(os.path.dirname(child.path), "file"), **child.carried)
    child.say("put", "moved")


def _batch_commit(child):
    for body in ("one", "two", "three"):
        child.say("trying", body)
    commit(child.queue)
    for body in ("one", "two", "three"):
        child.say("put", body)


def commit(queue):
    """Write a batch of two writers with an identity, as Spark does."""
    directory, settings = queue.layout.directory, queue.settings
    staging, parts = staged.begin(directory), []
    for bodies in ((b"one", b"two"), (b"three",)):
        writer = attempt.Writer(directory, settings, staging)
        writer.add(bodies)
        parts += writer.finish()
    return staged.commit(directory, settings, staging, parts, IDENTITY)


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


def _change_priority(child):
    first(child.queue).change(priority=1)


def _with(child):
    with child.get() as message:
        child.say("acking", message.body.decode())
    child.say("acked", message.body.decode())


def _worker(child):
    handled = []

    def handle(message):
        child.say("acking", message.body.decode())
        handled.append(message.body.decode())

    counts = dirqueue.Worker(child.queue, handle, lease=60.0, signals=False).run_until_empty()
    if counts.acked == len(handled):
        for body in handled:
            child.say("acked", body)


def _convert(child):
    """Convert a native queue to dirq-simple, and any other to native."""
    child.queue.close()
    target = "dirq-simple" if child.queue.layout.name == "native" else "native"
    dirqueue.tools.convert.convert(child.path, layout=target, wait=1.0, sync=child.settings.get("sync", True))


def _dead_by_attempts(child):
    for _ in range(3):
        try:
            child.get().retry(0.0, "again")
        except dirqueue.Empty:
            return


#: name -> (the steps of its preparation, the story, settings)
STORIES = {
    "put": ("", _put, {}),
    "put large": ("", _put_large, {}),
    "put delay": ("", _put_delay, {}),
    "put_many": ("", _put_many, {}),
    "put_path": ("f", _put_path, {}),
    "batch commit": ("", _batch_commit, {}),
    "first put": ("-", _put, {}),
    "put in slices": ("s", _put, {}),
    "put by link": ("l", _put, {}),
    "get": ("pp", _get, {}),
    "ack": ("pp", _ack, {}),
    "ack in batch": ("B", _ack, {}),
    "ack keep_done": ("pp", _ack, {"keep_done": True}),
    "with": ("pp", _with, {}),
    "worker": ("pp", _worker, {}),
    "retry": ("pp", _retry, {}),
    "release": ("pp", _release, {}),
    "reject": ("pp", _reject, {}),
    "renew": ("pp", _renew, {}),
    "out of attempts": ("p", _dead_by_attempts, {"max_attempts": 2}),
    "purge": ("ppodt", _purge, {}),
    "redrive": ("pdd", _redrive, {}),
    "cancel": ("pp", _cancel, {}),
    "change": ("pp", _change, {}),
    "convert": ("pp", _convert, {}),
    "put with attributes": ("-", _put, {}),
    "put_many with attributes": ("", _put_many, {}),
    "put_path with attributes": ("f", _put_path, {}),
    "ack with attributes": ("pp", _ack, {}),
    "reject with attributes": ("pp", _reject, {}),
    "redrive with attributes": ("pdd", _redrive, {}),
    "change with attributes": ("pp", _change_priority, {"priorities": True}),
    "purge with attributes": ("ppodt", _purge, {}),
}
#: The stories that every layout can run.
COMMON = (
    "put", "put large", "put_many", "put_path", "first put", "get", "ack", "with", "worker", "retry", "release",
    "renew", "purge", "cancel", "convert",
)  # fmt: skip
LAYOUTS = ("native", "vsqs", "dirq-simple", "dirq-normal")


#: Those that only the campaign kills at every call: their calls are in others too.
SLOW = ("reject with attributes", "redrive with attributes", "purge with attributes")


def carries(name):
    """Return whether the messages of a story have attributes."""
    return name.endswith("with attributes")


def of(layout):
    """Return the names of the stories that a layout can run."""
    return tuple(STORIES) if layout == "native" else COMMON


class Stopped(seam.Clock):
    """A clock that advances by a microsecond at each reading. A sleep really sleeps, but only for a moment."""

    @property
    def ns(self):
        self._ns += 1000
        return self._ns

    @ns.setter
    def ns(self, value):
        self._ns = value

    def sleep(self, seconds):
        self._ns += int(max(seconds, 1e-6) * 1e9)
        time.sleep(min(seconds, 0.001))


@contextlib.contextmanager
def stopped_clock():
    """Replace the clock of the library within the block."""
    clock = Stopped(time.time())
    modules = [m for _, m in seam.modules("dirqueue") if isinstance(getattr(m, "time", None), ModuleType)]
    try:
        for module in modules:
            module.time = clock
        yield
    finally:
        for module in modules:
            module.time = time


def prepare_server():
    """Import and use everything once, so that children make no calls for imports."""
    import logging
    import shutil
    import tempfile

    import filelock  # noqa: F401

    logging.disable()  # injected errors need not be logged
    place = tempfile.mkdtemp()
    for layout in LAYOUTS:
        queue = open_queue(os.path.join(place, layout), layout=layout, sync=False)
        queue.put(b"x", **({"attributes": ATTRIBUTES} if layout == "native" else {}))
        queue.purge()
        queue.get(timeout=0).retry(0.0, "x")
        if layout == "native":
            queue.get(timeout=0).reject("x")
            queue.redrive()
            list(queue.peek("dead"))
            commit(queue)
        dirqueue.Worker(queue, str, signals=False).run_until_empty()
        queue.close()
        dirqueue.tools.convert.convert(
            queue.path, layout="vsqs" if layout == "native" else "native", wait=1.0
        )
    shutil.rmtree(place)


@contextlib.contextmanager
def _circumstances(steps):
    """Simulate a deep queue, or a filesystem that publishes by link; undone at the end of the block."""
    deep, noreplace = publish.DEEP, fs.rename_noreplace
    try:
        if steps == "s":
            publish.DEEP = -1
        if steps == "l":
            fs.rename_noreplace = _not_here
        with stopped_clock():
            yield
    finally:
        publish.DEEP, fs.rename_noreplace = deep, noreplace


def _not_here(*_):
    raise NotImplementedError


def do(name, say, *, path, settings=None, leaks=False):
    """Run a story. Errors of the library are reported as "error", all others as "raised"."""
    before = _descriptors() if leaks else None
    child = None
    steps, story, more = STORIES[name]
    with _circumstances(steps):
        try:
            child = Child(path, say, {**more, **(settings or {})}, carries=carries(name))
            story(child)
        except dirqueue.DirQueueError as error:
            say("error", type(error).__name__, getattr(error, "errno", None), str(error))
        except BaseException as error:  # noqa: BLE001
            say("raised", type(error).__name__, str(error))
        finally:
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

"""The real dirq 1.8 on the simulated directory: its modules get the simulated `os`, and its clients are scheduled.

A case is an initial queue, some clients, and a judge that returns the violation.
"""

import contextlib
import io
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import dirq.queue
import dirq.QueueBase
import dirq.QueueSimple

from lab import seam
from lab.schedule import DepthFirst, Endless, Pruned, Recorded, Scheduler, read, shorten, writing, written
from lab.simfs import SimFS

MODULES = (dirq.QueueBase, dirq.QueueSimple, dirq.queue)
SCHEMA = {"body": "string"}
#: Seconds after which dirq considers any lock or temporary element stale.
AGES = 10_000


class File(io.StringIO):
    """The file that dirq gets when it opens a name; like a buffered file it is written when closed."""

    def __init__(self, files, fd, *, text, reads):
        super().__init__()
        self._files, self._fd, self._text = files, fd, text
        self._parts = None if reads else []

    def read(self, size=-1):
        data = self._files.read(self._fd, 1 << 20)
        return data.decode() if self._text else data

    def write(self, data):
        self._parts.append(data.encode() if isinstance(data, str) else data)

    def close(self):
        if not self.closed:
            super().close()
            if self._parts:
                self._files.write(self._fd, b"".join(self._parts))
            self._files.close(self._fd)


class FakeOS:
    """Replaces the module `os` in dirq."""

    def __init__(self, files, *, touches):
        self._files = files
        self._touches = touches
        for name in ("unlink", "utime", "stat", "lstat", "listdir", "rmdir", "rename", "open", "mkdir"):
            setattr(self, name, getattr(files, name))
        self.path = SimpleNamespace(exists=self._exists, isdir=self._exists)

    def __getattr__(self, name):
        return getattr(os, name)

    def link(self, src, dst):
        self._files.link(src, dst)
        if self._touches:
            self._files.touch(dst)

    def _exists(self, path):
        try:
            self._files.stat(path)
        except OSError:
            return False
        return True

    def makedirs(self, path):
        above = os.path.dirname(path)
        if above != "/sim" and not self._exists(above):
            with contextlib.suppress(FileExistsError):
                self.makedirs(above)
        self._files.mkdir(path)

    def umask(self, mask):
        return 0o022

    def fdopen(self, fd, mode):
        return File(self._files, fd, text=False, reads=mode.startswith("r"))

    def open_by_name(self, path, mode, encoding=None):
        flags = os.O_RDONLY if mode.startswith("r") else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        fd = self._files.open(path, flags)
        return File(self._files, fd, text=encoding is not None, reads=mode.startswith("r"))


class Clock(seam.Clock):
    """A clock that advances by a microsecond per reading of a client: the first names of two clients are equal."""

    def __init__(self, scheduler):
        super().__init__()
        self._scheduler = scheduler
        self._readings = {}

    def time(self):
        client = self._scheduler.current
        self._readings[client] = self._readings.get(client, -1) + 1
        return (self.ns + 1000 * self._readings[client]) / 1e9


@dataclass(frozen=True)
class Case:
    """Clients of one kind of queue: `before(queue, world)` and `clients[name](queue, world)`."""

    kind: str
    before: Callable
    clients: dict
    judge: Callable
    lossy: int = 0
    #: Let a link set the time of its file, as if dirq touched it at the same moment; this excludes D1.
    touches: bool = False


class World:
    """One run of a case."""

    def __init__(self, case, chooser):
        self.case = case
        self.story = []
        self.scheduler = Scheduler(chooser, world=self._state)
        self.clock = Clock(self.scheduler)
        self.files = SimFS(self.clock.now_ns, self.scheduler)

    def _state(self):
        return (self.files.digest, self.clock.ns, self.files.lossy, tuple(self.story))

    def queue(self):
        """Open the queue as another process; all have the same random digit, as one in sixteen would."""
        if self.case.kind == "simple":
            return dirq.QueueSimple.QueueSimple("/sim/q", rndhex=7)
        return dirq.queue.Queue("/sim/q", rndhex=7, schema=SCHEMA, maxelts=4)

    def record(self, *event):
        """Add an event to the story that the judge reads."""
        self.scheduler.turn("record", writing, "story")
        self.story.append(event)

    def run(self):
        """Return the violation in a few words, or an empty string."""
        with self._replaced():
            first = self.queue()
            self.element = self.case.before(first, self)
            queues = {name: self.queue() for name in self.case.clients}
            self.files.lossy = self.case.lossy
            try:
                self.scheduler.run(
                    {
                        name: (lambda body=body, queue=queues[name], name=name: body(queue, self, name))
                        for name, body in self.case.clients.items()
                    }
                )
            except Endless:
                return "endless"
            return self.case.judge(self)

    @contextlib.contextmanager
    def _replaced(self):
        fake = FakeOS(self.files, touches=self.case.touches)
        news = {"os": fake, "time": self.clock, "_warn": lambda *_: None}
        news |= {"open": fake.open_by_name, "codecs": SimpleNamespace(open=fake.open_by_name)}
        saved = [(module, name, vars(module).get(name)) for module in MODULES for name in news]
        dice = random.random
        try:
            for module, name, old in saved:
                if old is not None or name == "open":
                    setattr(module, name, news[name])
            yield
        finally:
            random.random = dice
            for module, name, old in saved:
                if old is not None:
                    setattr(module, name, old)
                elif name in vars(module):
                    delattr(module, name)

    # --- for judges ----------------------------------------------------------------------------------------

    def errors(self, *names):
        """Return which of these clients ended with an error."""
        return [name for name in names if name in self.scheduler.errors]

    def elements(self):
        """Return the elements of the queue: path -> content."""
        tree = self.files.tree()
        return {path: body for path, body in tree.items() if body is not None and "." not in path}


def replay(case, text):
    """Run one schedule again; return the violation, and the calls in their order."""
    world = World(case, Recorded(read(text)))
    return world.run(), world.scheduler.log


def search(case, wanted, limit=20_000):
    """Run all schedules until one shows the wanted violation; return (its shortest form, runs), or (None, runs)."""
    chooser = DepthFirst()
    for number in range(1, limit + 1):
        chooser.begin()
        try:
            wrong = World(case, chooser).run()
        except Pruned:
            wrong = ""
        if wrong == wanted:
            made = chooser.made

            def fails(choices):
                return World(case, Recorded(choices)).run() == wanted

            return written(shorten(made, fails)), number
        if not chooser.next():
            break
    return None, number

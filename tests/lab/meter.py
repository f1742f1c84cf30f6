"""A simulated filesystem that counts: system calls, and entries that were listed, on a clock that only these move.

What code does "so seldom that it costs 2 % of the time" depends on the time that a listing takes. Here a call takes
CALL_NS and an entry of a listing ENTRY_NS, always, so that the counts of a run are the same on every machine.
"""

import collections
import contextlib
import gc
import importlib
import pkgutil

import dirqueue
import dirqueue.layouts
from dirqueue.disk import fs as seam_fs
from lab import seam
from lab.simfs import MOUNT, SimFS

# A module that is imported only while a world runs would get the real clock.
for _found in pkgutil.walk_packages(dirqueue.layouts.__path__, "dirqueue.layouts."):
    importlib.import_module(_found.name)

CALL_NS = 5_000
ENTRY_NS = 500


class Clock(seam.Clock):
    """Sleeping may let others act: `on_sleep` is called once, while somebody sleeps."""

    on_sleep = None

    def sleep(self, seconds):
        super().sleep(seconds)
        act, self.on_sleep = self.on_sleep, None
        if act is not None:
            act()


class Counts:
    """What was done."""

    def __init__(self):
        self.calls = collections.Counter()
        self.listed = 0

    @property
    def total(self):
        return self.calls.total()

    @property
    def cost(self):
        """The time that the calls and the entries took, in microseconds."""
        return (self.total * CALL_NS + self.listed * ENTRY_NS) / 1000

    def __repr__(self):
        return f"{self.total} calls, {self.listed} listed: {dict(self.calls)}"


class Metered(SimFS):
    """Its directories have a size, so that deep queues are sliced."""

    def _facts(self, inode):
        facts = super()._facts(inode)
        if inode.entries is not None:
            facts.st_size = 4096 + 20 * len(inode.entries)
        return facts


class World:
    """A filesystem in memory at `path`, and counts of what is done to it."""

    def __init__(self):
        self.clock = Clock()
        self.fs = Metered(self.clock.now_ns)
        self.counts = Counts()

    def path(self, name="q"):
        """Return the path of a new directory."""
        self.fs.mkdir(f"{MOUNT}/{name}")
        return f"{MOUNT}/{name}"

    def fill(self, folder, names):
        """Make empty files in a directory, which is made too."""
        with contextlib.suppress(FileExistsError):
            self.fs.mkdir(folder)
        for name in names:
            self.fs.close(self.fs.open(f"{folder}/{name}", seam_fs.CREATE))

    @contextlib.contextmanager
    def running(self):
        """Run the package in this world; what earlier ones left open is closed before."""
        gc.collect()
        with seam.replaced("dirqueue", seam_fs.CALLS, fs=self, clock=self.clock):
            yield

    def counting(self, work):
        """Return the counts of one call of a function."""
        gc.collect()
        gc.disable()
        try:
            found = self.counts = Counts()
            work()
            return found
        finally:
            self.counts = Counts()
            gc.enable()

    def __getattr__(self, name):
        call = getattr(self.fs, name)
        lists = name in ("scandir", "listdir")

        def counted(*arguments, **options):
            self.counts.calls[name] += 1
            self.clock.ns += CALL_NS
            found = call(*arguments, **options)
            if lists:
                found = list(found)
                self.counts.listed += len(found)
                self.clock.ns += ENTRY_NS * len(found)
                found = found if name == "listdir" else _Listing(found)
            return found

        return counted


class _Listing:
    def __init__(self, found):
        self._found = iter(found)

    def __iter__(self):
        return self._found

    def __next__(self):
        return next(self._found)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

"""Replace the filesystem, the clock and the random numbers of a package within a `with` block."""

import contextlib
import functools
import random
import sys
import time as real_time
from types import ModuleType


class Clock:
    """The clock of a simulated world: it stands still until `advance` or `tick` is called."""

    def __init__(self, start=1_700_000_000.0):
        self.start_ns = int(start * 1e9)
        self.ns = self.start_ns
        self.ticked = 0

    def tick(self, seconds):
        """Advance while clients are in the middle of an operation."""
        self.ticked += 1
        self.advance(seconds)

    def advance(self, seconds):
        self.ns += int(seconds * 1e9)

    def now_ns(self):
        return self.ns

    # what `import time` gives the package
    def time_ns(self):
        return self.ns

    def time(self):
        return self.ns / 1e9

    def monotonic(self):
        return 1000.0 + (self.ns - self.start_ns) / 1e9

    def monotonic_ns(self):
        return 1000 * 10**9 + self.ns - self.start_ns

    perf_counter = monotonic

    def sleep(self, seconds):
        self.advance(max(seconds, 1e-6))

    def __getattr__(self, name):
        return getattr(real_time, name)


@contextlib.contextmanager
def replaced(package, calls, *, fs, clock=None, seed=0):
    """Give `package.disk.fs` the calls of `fs`, and every module of the package the clock and seeded random numbers.

    Raises:
        LookupError: the package binds a call that `fs` does not simulate.
    """
    seam = sys.modules[f"{package}.disk.fs"]
    unknown = [name for name in calls if not callable(getattr(fs, name, None))]
    if unknown:
        raise LookupError(f"not simulated: {', '.join(unknown)}")
    news = [(seam, name, getattr(fs, name)) for name in calls]
    fakes = {"random": random.Random(seed)} | ({"time": clock} if clock else {})
    for _, module in modules(package):
        news += [(module, f, fakes[f]) for f in fakes if isinstance(getattr(module, f, None), ModuleType)]
    saved = [(module, name, getattr(module, name)) for module, name, _ in news]
    try:
        for module, name, value in news:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in saved:
            setattr(module, name, value)


@functools.cache
def _loaded(package, count):
    return [(name, m) for name, m in sys.modules.items() if name == package or name.startswith(package + ".")]


def modules(package):
    """Return (name, module) of the loaded modules of a package."""
    return _loaded(package, len(sys.modules))

"""A process that dies at its n-th filesystem call: every later call fails too, even those of cleaning up."""

import contextlib
import fcntl

from dirqueue.disk import fs


class Died(BaseException):
    """The process is dead."""


@contextlib.contextmanager
def dying(at):
    """Allow `at` filesystem calls and raise Died in all later ones. Yield a list that holds the count."""
    real = {name: getattr(fs, name) for name in fs.CALLS if hasattr(fs, name)}
    count = [0]

    def wrap(call):
        def counted(*args, **kwargs):
            count[0] += 1
            if count[0] > at:
                # The kernel closes what the dead had open; else the test runner runs out of descriptors.
                if call is real["close"]:
                    call(*args, **kwargs)
                raise Died
            return call(*args, **kwargs)

        return counted

    try:
        for name, call in real.items():
            setattr(fs, name, wrap(call))
        yield count
    finally:
        for name, call in real.items():
            setattr(fs, name, call)


class Killer:
    """Replaces every call of fs: the process dies before or after call `at` (how="before", "after"), and stays dead."""

    def __init__(self, at, how):
        self.at, self.how = at, how
        self.count, self.dead = 0, False
        self.real = {name: getattr(fs, name) for name in fs.CALLS}

    def __enter__(self):
        for name, call in self.real.items():
            setattr(fs, name, self.wrap(name, call))
        return self

    def __exit__(self, *_):
        for name, call in self.real.items():
            setattr(fs, name, call)

    def wrap(self, name, call):
        def wrapped(*arguments, **named):
            if self.dead:
                if self.survives(name, arguments):
                    return call(*arguments)
                raise Died
            self.count += 1
            if self.count != self.at:
                return call(*arguments, **named)
            self.dead = True
            with contextlib.suppress(OSError):
                self.last(name, call, arguments, named)
            raise Died

        return wrapped

    def survives(self, name, arguments):
        """Return whether the kernel makes this call for the dead: it closes their files and ends their locks."""
        return name == "close" or (name == "flock" and arguments[1] & fcntl.LOCK_UN)

    def last(self, name, call, arguments, named):
        """Make the call in which the process dies, if it dies after it."""
        if self.how == "after":
            result = call(*arguments, **named)
            if hasattr(result, "close"):
                result.close()  # a listing, which the kernel would close


def every_death(story):
    """Run `story(limit)` once for each of its filesystem calls and die there; yield the limit each time."""
    at = 0
    while True:
        with dying(at) as count:
            with contextlib.suppress(Died):
                story(at)
            over = count[0] <= at
        yield at
        if over:
            return
        at += 1

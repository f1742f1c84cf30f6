"""A process that dies at its n-th filesystem call: from there on every call of it fails, cleaning up included."""

import contextlib

from dirqueue.disk import fs


class Died(BaseException):
    """The process is dead."""


@contextlib.contextmanager
def dying(at):
    """Let filesystem calls up to number `at` through; raise Died for all others. Yields the count as a list."""
    real = {name: getattr(fs, name) for name in fs.CALLS if hasattr(fs, name)}
    count = [0]

    def wrap(call):
        def counted(*args, **kwargs):
            count[0] += 1
            if count[0] > at:
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


def every_death(story):
    """Run `story(limit)` once for each of its filesystem calls, dying there; yield the number each time."""
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

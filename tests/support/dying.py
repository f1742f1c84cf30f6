"""A process that dies at its n-th filesystem call: every later call fails too, even those of cleaning up."""

import contextlib

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

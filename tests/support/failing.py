"""Make chosen calls of `dirqueue.disk.fs` fail, to reach the errno branches."""

import contextlib
import errno
import gc
import os

from dirqueue.disk import fs


def error(code):
    """Return the OSError for an errno."""
    return OSError(code, os.strerror(code))


def of(*endings):
    """Select calls whose first path has one of these endings."""
    return lambda path, *_, **__: str(path).endswith(endings)


class Fault:
    """A call that fails; `hits` counts the failures."""

    def __init__(self, call, code, when, times, done):
        self.call, self.code, self.when, self.left, self.done = call, code, when, times, done
        self.hits = 0

    def __call__(self, *arguments, **named):
        if self.left <= 0 or (self.when is not None and not self.when(*arguments, **named)):
            return self.call(*arguments, **named)
        self.left -= 1
        self.hits += 1
        if self.done:  # the server did it, and the reply was lost
            self.call(*arguments, **named)
        raise NotImplementedError if self.code is None else error(self.code)


@contextlib.contextmanager
def failing(call, code, *, when=None, times=1, done=False):
    """Fail the next `times` calls of that name that match `when`; with `done`, execute them first.

    A code of None stands for a kernel without the call. The test fails if no call matched.
    """
    real = getattr(fs, call)
    fault = Fault(real, code, when, times, done)
    setattr(fs, call, fault)
    try:
        yield fault
    finally:
        setattr(fs, call, real)
    assert fault.hits, f"{call} was never called that way"


@contextlib.contextmanager
def before(call, action, *, when=None):
    """Run `action` just before the first call of that name that matches `when`, to force a race."""
    real = getattr(fs, call)
    done = []

    def wrapped(*arguments, **named):
        if not done and (when is None or when(*arguments, **named)):
            done.append(1)
            action()
        return real(*arguments, **named)

    setattr(fs, call, wrapped)
    try:
        yield
    finally:
        setattr(fs, call, real)
    assert done, f"{call} was never called that way"


#: Errors of a disk, a server or a permission that no code can correct.
HARD = (errno.EIO, errno.EACCES, errno.EROFS)
FULL = (errno.ENOSPC, errno.EDQUOT)


def names(codes):
    """Return pytest parameters with the names of the errnos as ids."""
    import pytest

    return [pytest.param(code, id=errno.errorcode[code]) for code in codes]


def _open():
    """Return the open descriptors, without opening one."""
    found = set()
    for number in range(1024):
        with contextlib.suppress(OSError):
            os.fstat(number)
            found.add(number)
    return found


@contextlib.contextmanager
def nothing_left_open():
    """Fail if a descriptor that was opened inside is still open at the end."""
    gc.collect()
    gc.disable()  # garbage of earlier tests must not be closed meanwhile, or its number reused
    try:
        before_ = _open()
        yield
        left = _open() - before_
    finally:
        gc.enable()
    assert not left, [os.readlink(f"/proc/self/fd/{number}") for number in left]

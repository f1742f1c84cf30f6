"""Let a call of `dirqueue.disk.fs` fail, once and where it is wanted: the fault behind every errno branch."""

import contextlib
import errno
import gc
import os

from dirqueue.disk import fs


def error(code):
    """Return the exception that the kernel's errno becomes."""
    return OSError(code, os.strerror(code))


def of(*endings):
    """Choose calls whose first path ends like this."""
    return lambda path, *_, **__: str(path).endswith(endings)


class Fault:
    """A call that fails; `hits` counts how often it did."""

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
    """Fail the next `times` calls of that name that are as wanted; with `done`, after doing them.

    A code of None is a kernel without the call. It is an error of the test if the fault was never met.
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
    """Do something just before the first call of that name that is as wanted: a race, forced."""
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


#: What a disk, a server or a limit answers that no code can mend.
HARD = (errno.EIO, errno.EACCES, errno.EROFS)
FULL = (errno.ENOSPC, errno.EDQUOT)


def names(codes):
    """Return parameters for pytest that show the names of errnos."""
    import pytest

    return [pytest.param(code, id=errno.errorcode[code]) for code in codes]


def _open():
    """Return the descriptors that are open, without opening one."""
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
    gc.disable()  # what earlier tests left to the collector must not be closed in between, nor its number used again
    try:
        before_ = _open()
        yield
        left = _open() - before_
    finally:
        gc.enable()
    assert not left, [os.readlink(f"/proc/self/fd/{number}") for number in left]

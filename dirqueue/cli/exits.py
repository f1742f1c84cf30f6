"""Exit statuses, and how an error becomes one.

Layer: edges, pure values.
"""

from __future__ import annotations

import errno
import os
from enum import IntEnum

from dirqueue import errors


class Exit(IntEnum):
    """What the exit status of every verb means."""

    OK = 0  #: it worked
    FAILED = 1  #: it failed; the message on stderr says why
    USAGE = 2  #: the command line is invalid
    EMPTY = 3  #: nothing to do: the queue is empty, or no message came in time
    LEASE_LOST = 4  #: the lease is no longer held; nothing was changed
    PROBLEMS = 5  #: check or doctor found a problem
    UNAVAILABLE = 69  #: an optional package is not installed
    DEFECT = 70  #: a bug in dirqueue; DIRQUEUE_TRACE=1 shows the traceback
    CANNOT_CREATE = 73  #: the queue or the message cannot be written there
    TRY_AGAIN = 75  #: the queue or the disk is full, or in use by another process; it may work later
    INTERRUPTED = 130  #: Ctrl-C
    PIPE = 141  #: the reader of the output went away


class MissingExtra(errors.DirQueueError):
    """An optional package is not installed; the message says how to install it."""


class InputError(errors.DirQueueError):
    """The input cannot be read."""


class OutputError(errors.DirQueueError):
    """The output cannot be written."""


#: Errors of the filesystem that pass: no space, no quota, no descriptors, busy.
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EBUSY, errno.EAGAIN, errno.ENOMEM)


#: What errors of the library say to Python programs, and what that is in the shell.
_IN_SHELL = (
    ("put() or create() makes one", "`dirqueue put` or `dirqueue create` makes one"),
    ("ids are the digits that put() returned", "ids are the digits that `dirqueue put` printed"),
    ("give what Lease.handle or get --hold returned", "give what `dirqueue get --hold` printed"),
    (
        'or layout="text" if odd lines are to be passed over',
        "or correct the other lines: `dirqueue check FILE` lists them",
    ),
    ("or give wait=SECONDS", "or add --wait TIME"),
)


def status_of(error: BaseException, *, creates: bool = False) -> Exit:
    """Return the exit status for an error; `creates` if the verb writes something new."""
    match error:
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
        case BrokenPipeError():
            return Exit.PIPE
        case errors.Empty():
            return Exit.EMPTY
        case errors.Full():
            return Exit.TRY_AGAIN
        case errors.LeaseLost():
            return Exit.LEASE_LOST
        case errors.SettingsError() | errors.InvalidId():
            return Exit.USAGE
        case MissingExtra():
            return Exit.UNAVAILABLE
        case errors.QueueNotFound():
            return Exit.FAILED
        case OSError():
            if error.errno in _PASSING:
                return Exit.TRY_AGAIN
            return Exit.CANNOT_CREATE if creates else Exit.FAILED
        case errors.DirQueueError():
            return Exit.FAILED
        case _:
            return Exit.DEFECT


def sentence_of(error: BaseException) -> str:
    """Return one sentence about an error, for people."""
    if isinstance(error, errors.DirQueueError):
        text = str(error)
        for python, shell in _IN_SHELL:
            text = text.replace(python, shell)
        return text
    if isinstance(error, OSError):
        where = f" {os.fsdecode(error.filename)!r}" if isinstance(error.filename, str | bytes) else ""
        return f"cannot continue{where}: {error.strerror or error}"
    return (
        f"this is a bug in dirqueue: {type(error).__name__}: {error} (DIRQUEUE_TRACE=1 shows the traceback)"
    )

"""Holding back the handlers of signals for a moment.

Layer: disk.
A handler runs between any two lines of the main thread, and may use the queue that those lines are changing. Threads
of dirqueue take no signals, so that none comes to the main thread by way of them.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # COST: `signal` wraps every call and imports enum

#: HUP, INT, QUIT, USR1, USR2, ALRM, TERM, CHLD, TSTP, XCPU, XFSZ, VTALRM, PROF, WINCH, IO, in Linux.
HANDLED = (1, 2, 3, 10, 12, 14, 15, 17, 20, 24, 25, 26, 27, 28, 29)


_QUIET = (None, _signal.SIG_DFL, _signal.SIG_IGN, _signal.default_int_handler)


def hold() -> set[int] | None:
    """Hold signals back in this thread; return those that were held back before. None if there are no handlers."""
    get = _signal.getsignal
    # COST: a look at each is a quarter of the two calls that hold and restore. KeyboardInterrupt needs no hold.
    for number in HANDLED:
        if get(number) not in _QUIET:
            before: set[int] = _signal.pthread_sigmask(_signal.SIG_BLOCK, HANDLED)
            return before
    return None


def restore(before: set[int]) -> None:
    """Let signals come again; the handlers of those that were held back run now."""
    _signal.pthread_sigmask(_signal.SIG_SETMASK, before)


def refuse() -> None:
    """Take no signals in this thread."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())

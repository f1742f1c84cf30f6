"""Holding back the handlers of signals for a moment.

Layer: disk.
A handler runs between any two lines of the main thread, and may use the queue that those lines are changing. Holding
signals back in that thread is enough if no other thread takes them: those of dirqueue do not. Where there are others,
what must not be interrupted is done in a thread of its own.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # COST: `signal` wraps every call and imports enum
import _thread
import threading
from collections.abc import Callable
from typing import TypeVar

#: HUP, INT, QUIT, USR1, USR2, ALRM, TERM, CHLD, TSTP, XCPU, XFSZ, VTALRM, PROF, WINCH, IO, in Linux.
HANDLED = (1, 2, 3, 10, 12, 14, 15, 17, 20, 24, 25, 26, 27, 28, 29)


T = TypeVar("T")
#: Threads that take no signals.
_DEAF: list[threading.Thread] = []
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
    _DEAF[:] = [each for each in _DEAF if each.is_alive()] + [threading.current_thread()]
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())


def taken_by_others() -> bool:
    """Return whether a signal may come through another thread than this one."""
    # Those that a library in C starts are not among them.
    started = _thread._count()  # noqa: SLF001 - also counts those that `threading` does not know
    return started > sum(each.is_alive() for each in _DEAF)


def aside(act: Callable[[], T]) -> T:
    """Call a function in a thread of its own, and wait; return what it returned.

    A handler that runs meanwhile interrupts the waiting only: it may itself wait for what the function holds.
    """
    returned: list[T] = []
    raised: list[BaseException] = []
    over = _thread.allocate_lock()

    def call() -> None:
        try:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
            returned.append(act())
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that asked for it
            raised.append(error)
        finally:
            over.release()

    over.acquire()
    _thread.start_new_thread(call, ())
    try:
        over.acquire()
    except BaseException:  # a handler raised: what was begun ends first
        if not (returned or raised):  # RACE: it may have ended in the moment of the signal
            over.acquire()
        raise
    if raised:
        raise raised[0]
    return returned[0]

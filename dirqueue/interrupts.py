"""Interrupts: what one thread leaves for another to raise, where nothing has begun.

Layer: mechanisms.
An exception set from outside could strike in the middle of a put and leave a lock taken. So the thread that is to be
stopped raises it itself, at the start of a put, a get or a pause.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

#: Threads that another one wants to stop, by ident, and the function that raises in them. Nearly always empty.
INTERRUPTS: dict[int, Callable[[], None]] = {}
os.register_at_fork(after_in_child=INTERRUPTS.clear)


def check_interrupt() -> None:
    """Raise in this thread what another one left for it. Callers test first whether INTERRUPTS is empty."""
    interrupt = INTERRUPTS.get(threading.get_ident())
    if interrupt is not None:
        interrupt()

"""Waiting for a message without burning CPU: polling always, inotify where it works.

Layer: mechanisms.
A notification is a hint: it is silent on network filesystems, so the poll goes on underneath.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterable
from typing import Any, Self

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.interrupts import INTERRUPTS, check_interrupt
from dirqueue.layouts.base import Layout
from dirqueue.states import LIVE

#: Pauses between looks: they grow while nothing happens.
SHORTEST = 0.001
LONGEST = 0.1
#: With inotify the poll is only a safety net.
LONGEST_WATCHED = 1.0
GROWTH = 1.5


class Waiter:
    """One wait for one or several queues: whichever changes first ends a pause.

    Use it as a context manager, look after entering it, then call `pause` between looks.
    """

    def __init__(self, layouts: Iterable[Layout], timeout: float | None, *, for_room: bool = False) -> None:
        self._layouts = tuple(layouts)
        self._for_room = for_room
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._next = SHORTEST
        self._inotify: Any = None
        #: The queues that are watched, by the number of their watch.
        self._watches: dict[int, Layout] = {}
        #: The directories in them that are watched too.
        self._inner: dict[int, list[str]] = {}
        self._ended = False

    def __enter__(self) -> Self:
        if not self._for_room:
            self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        if self._inotify is not None:
            _put_by(self._inotify)

    def pause(self) -> bool:
        """Sleep until something may have changed. Return False when the time is over."""
        if INTERRUPTS:
            check_interrupt()
        if self._ended or any(self._inner[watch] != each.watched() for watch, each in self._watches.items()):
            # RACE: an event has ended a watch, or the look showed a directory that was not watched, and found
            # nothing: what came before this line is seen by one more look, what comes after it by the watch.
            self._arm()
            return True
        pause = LONGEST_WATCHED if len(self._watches) == len(self._layouts) else self._next
        self._next = min(self._next * GROWTH, LONGEST)
        if not self._for_room:  # else nobody looks for leases here: the time that is known may be long past
            pause = min([pause, *(due for each in self._layouts if (due := each.wakes_in()) is not None)])
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                return False
            pause = min(pause, left)
        if not self._watches:
            time.sleep(pause)
        elif event := _event(self._inotify, pause):
            self._ended = True  # most likely the look that follows finds the message, and no watch is needed
            watch, name = _parse(event)
            if watch in self._watches:
                self._watches[watch].arrived(name)
        return True

    def _arm(self) -> None:
        """Watch all that can be watched; the others are polled."""
        self._watches, self._inner, self._ended = {}, {}, False
        for layout in self._layouts:
            directory = layout.directory
            if directory.fd < 0 or directory.mount.inotify_is_silent or "watch" in layout.lacks:
                continue
            if self._inotify is None:
                self._inotify = _open()
                if self._inotify is None:
                    return
            inner = layout.watched()
            watch = _arm(self._inotify, directory.path, inner, directory.events)
            if watch:
                self._watches[watch] = layout
                self._inner[watch] = inner


def join(layout: Layout, id: str | None, timeout: float | None) -> bool:
    """Wait until a queue is empty, or until one message of it has ended; return False when the time is over first.

    It is polled: an end may be in any directory. COST: looks take at most about a tenth of the time.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = SHORTEST
    while True:
        began = time.monotonic()
        # A listing may miss a name that is being renamed: an end takes two looks.
        if not _is_live(layout, id) and not _is_live(layout, id):
            return True
        ended = time.monotonic()
        if deadline is not None and ended >= deadline:
            return False
        pause = min(pause * GROWTH, LONGEST)
        wanted = max(pause, 10 * (ended - began))
        if INTERRUPTS:
            check_interrupt()
        time.sleep(wanted if deadline is None else min(wanted, max(0.0, deadline - ended)))


def _is_live(layout: Layout, id: str | None) -> bool:
    if id is None:
        return layout.count() > 0
    entry = layout.find(id)
    return entry is not None and entry.state in LIVE


#: inotify(7), at the top only: a name was deleted, as at the end of a pause. Claims and acks delete nothing there.
DELETED = 0x200
#: Descriptors kept for the next wait: to close one takes the kernel milliseconds, and a message would wait for that.
_idle: list[Any] = []
IDLE = 8


def _open() -> Any:
    """Return an inotify descriptor, or None where the extra is not installed or the kernel refuses."""
    try:
        from inotify_simple import INotify
    except ImportError:
        return None
    try:
        return _idle.pop() if _idle else INotify()
    except (OSError, IndexError, AttributeError):
        return (
            None  # out of descriptors, RACE: another thread took the last one, or macOS: the poll is enough
        )


def _arm(inotify: Any, path: str, inner: list[str], events: int = Directory.events) -> int:
    """Watch a queue and directories in it for one event each: a watch that stayed would cost every put and claim.

    Return the number of the queue's watch, 0 where it is refused.
    """
    try:
        watch: int = inotify.add_watch(path, events | DELETED)
    except OSError:
        return 0  # out of watches, or the directory is gone
    for each in inner:
        try:
            inotify.add_watch(os.path.join(path, each), events)
        except OSError:
            pass  # emptied and removed; the look will tell
    return watch


def _event(inotify: Any, seconds: float) -> bytes:
    """Wait for an event and return it, with those that came with it; nothing when the time is over."""
    from select import POLLIN, poll

    # Not INotify.read: it takes every event apart, and a message would wait for that.
    waiting = poll()
    waiting.register(inotify, POLLIN)
    return fs.read(inotify.fileno(), 4096) if waiting.poll(max(1, int(seconds * 1000))) else b""


def _parse(event: bytes) -> tuple[int, str]:
    """Return the number of the watch that the first event came from, and the name it is about; see inotify(7)."""
    watch = int.from_bytes(event[:4], sys.byteorder)
    length = int.from_bytes(event[12:16], sys.byteorder)
    return watch, event[16 : 16 + length].rstrip(b"\0").decode("ascii", "replace")


def _put_by(inotify: Any) -> None:
    """Keep a descriptor for the next wait. A watch still on it ends with its first event, which is read away then."""
    if len(_idle) < IDLE:
        _idle.append(inotify)
    else:
        inotify.close()


def _close_idle() -> None:
    while _idle:
        _idle.pop().close()


# A child that read from its parent's descriptors would take the parent's events.
os.register_at_fork(after_in_child=_close_idle)
atexit.register(_close_idle)

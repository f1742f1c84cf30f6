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
from dirqueue.layouts.base import Layout

#: Pauses between looks: they grow while nothing happens.
SHORTEST = 0.001
LONGEST = 0.1
#: With inotify the poll is only a safety net.
LONGEST_WATCHED = 1.0
GROWTH = 1.5


class Waiter:
    """One wait. Use it as a context manager, look after entering it, then call `pause` between looks."""

    def __init__(self, layout: Layout, timeout: float | None, *, for_room: bool = False) -> None:
        self._layout = layout
        self._for_room = for_room
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._next = SHORTEST
        self._inotify: Any = None
        self._watch = 0
        self._path = ""
        #: The directories that are watched; None when an event has ended the watch.
        self._armed: list[str] | None = []

    def __enter__(self) -> Self:
        directory = self._layout.directory
        quiet = (
            directory.mount.inotify_is_silent or "watch" in self._layout.lacks if directory.fd >= 0 else True
        )
        if not quiet and not self._for_room:
            self._path = directory.path
            self._armed = directory.inner
            self._inotify, self._watch = _watch(directory.path, directory.inner)
        return self

    def __exit__(self, *_: object) -> None:
        if self._inotify is not None:
            _put_by(self._inotify)

    def pause(self) -> bool:
        """Sleep until something may have changed; False when the time is over."""
        if self._inotify is not None and self._armed != self._layout.directory.inner:
            # RACE: an event has ended the watch, or the look showed a directory that was not watched, and found
            # nothing: what came before this line is seen by one more look, what comes after it by the watch.
            self._arm()
            return True
        longest = LONGEST if self._inotify is None else LONGEST_WATCHED
        pause = longest if self._inotify is not None else min(self._next, longest)
        self._next = min(self._next * GROWTH, longest)
        # Nobody looks for leases here while waiting for room: the time that is known may be long past.
        due = None if self._for_room else self._layout.wakes_in()
        if due is not None:
            pause = min(pause, due)
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                return False
            pause = min(pause, left)
        if self._inotify is None:
            time.sleep(pause)
        elif event := _event(self._inotify, pause):
            self._armed = None  # most likely the look that follows finds the message, and no watch is needed
            self._layout.directory.arrived = _name(event, self._watch)
        return True

    def _arm(self) -> None:
        """Watch again; where that is refused, poll."""
        self._armed = inner = self._layout.directory.inner
        self._watch = _arm(self._inotify, self._path, inner)
        if not self._watch:
            _put_by(self._inotify)
            self._inotify = None


class Waiters:
    """One wait for several queues, used as a Waiter: whichever changes first ends a pause."""

    def __init__(self, layouts: Iterable[Layout], timeout: float | None) -> None:
        self._layouts = tuple(layouts)
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._next = SHORTEST
        self._inotify: Any = None
        #: What is watched: queues and the directories in them that the last look knew of.
        self._armed: list[tuple[Layout, list[str]]] = []
        self._ended = False

    def __enter__(self) -> Self:
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        if self._inotify is not None:
            _put_by(self._inotify)

    def _arm(self) -> None:
        """Watch all that can be watched; the others are polled."""
        self._armed, self._ended = [], False
        for layout in self._layouts:
            directory = layout.directory
            if directory.fd < 0 or directory.mount.inotify_is_silent or "watch" in layout.lacks:
                continue
            inner = directory.inner
            if self._inotify is None:
                self._inotify, watch = _watch(directory.path, inner)
            else:
                watch = _arm(self._inotify, directory.path, inner)
            if watch:
                self._armed.append((layout, inner))

    def pause(self) -> bool:
        """Sleep until something may have changed; False when the time is over."""
        if self._armed and (self._ended or any(inner != each.directory.inner for each, inner in self._armed)):
            self._arm()  # RACE: as in a Waiter: one more look for what came before this line
            return True
        pause = LONGEST_WATCHED if len(self._armed) == len(self._layouts) else self._next
        self._next = min(self._next * GROWTH, LONGEST)
        pause = min([pause, *(due for each in self._layouts if (due := each.wakes_in()) is not None)])
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                return False
            pause = min(pause, left)
        if not self._armed:
            time.sleep(pause)
        elif _event(self._inotify, pause):
            self._ended = True
        return True


#: inotify(7): moved to, created, the directory itself deleted; and only once.
MASK = 0x80 | 0x100 | 0x400 | 0x80000000
#: Descriptors kept for the next wait: to close one takes the kernel milliseconds, and a message would wait for that.
_idle: list[Any] = []
IDLE = 8


def _watch(path: str, inner: list[str]) -> tuple[Any, int]:
    """Return an inotify descriptor that watches a queue, or None where the extra or the kernel does not have it."""
    try:
        from inotify_simple import INotify
    except ImportError:
        return None, 0
    try:
        inotify = _idle.pop() if _idle else INotify()
    except (OSError, IndexError):
        return None, 0  # out of descriptors, or RACE: another thread took the last one: the poll is enough
    watch = _arm(inotify, path, inner)
    if watch:
        return inotify, watch
    _put_by(inotify)
    return None, 0


def _arm(inotify: Any, path: str, inner: list[str]) -> int:
    """Watch a queue and directories in it for one event each: a watch that stayed would cost every put and claim.

    Return the number of the queue's watch, 0 where it is refused.
    """
    try:
        watch: int = inotify.add_watch(path, MASK)
    except OSError:
        return 0  # out of watches, or the directory is gone
    for each in inner:
        try:
            inotify.add_watch(f"{path}/{each}", MASK)
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


def _name(event: bytes, watch: int) -> str:
    """Return the name that the first event is about, if it came from this watch; see inotify(7)."""
    length = int.from_bytes(event[12:16], sys.byteorder)
    if int.from_bytes(event[:4], sys.byteorder) != watch:
        return ""
    return event[16 : 16 + length].rstrip(b"\0").decode("ascii", "replace")


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

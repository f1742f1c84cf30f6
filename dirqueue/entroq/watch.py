"""Learn of what other processes put: inotify on the queues that claims wait for.

A watch ends with its first event, and is armed again before the next look: so a busy queue costs one event for each
look, not one for each message. A queue that is not there yet shows by its directory coming into the space. Where
inotify is silent or refuses, the desk polls.

Layer: edges.
"""

from __future__ import annotations

import os
import select
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.queue import Queue
from dirqueue.space import naming
from dirqueue.waiting import DELETED

#: inotify(7): created, moved to; only a directory; do not follow links.
APPEARS = 0x100 | 0x80 | 0x01000000
OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")


class DirectoryWatch:
    """Watches queues of a space. Its methods may be called by any thread.

    Args:
        path: The directory of the space.
        find: Returns the queue of a name, if it is there.
    """

    def __init__(self, path: str, find: Callable[[str], Queue[Any] | None]) -> None:
        self._path, self._find = path, find
        self._inotify: Any = None
        self._lock = threading.Lock()
        #: The queues that are watched, by the numbers of their watches; and those numbers, by queue.
        self._queues: dict[int, str] = {}
        self._watches: dict[str, tuple[int, ...]] = {}
        #: The directories in them that are watched too.
        self._inner: dict[str, list[str]] = {}
        self._root = -1
        self._changed: Callable[[str], None] = lambda _: None
        self._thread: threading.Thread | None = None
        self._waker: tuple[int, int] = (-1, -1)

    def begin(self, changed: Callable[[str], None]) -> None:
        """Watch from now on, where that is possible."""
        try:
            from inotify_simple import INotify

            self._inotify = INotify()
        except (ImportError, OSError, AttributeError):
            return  # not installed, out of descriptors, or macOS
        self._changed = changed
        self._waker = os.pipe()
        self._thread = threading.Thread(target=self._run, name="dirqueue-entroq-watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Watch no more."""
        if self._thread is None:
            return
        os.write(self._waker[1], b"x")
        self._thread.join()
        with self._lock:
            self._inotify.close()
            self._inotify = None
            self._queues.clear()
            self._watches.clear()
        for fd in self._waker:
            fs.close(fd)

    def arm(self, queues: Sequence[str]) -> bool:
        """Tell of the next change of each of these; False if one of them cannot be watched."""
        if self._inotify is None:
            return False
        with self._lock:
            return self._arm_root() and sum(self._arm(queue) for queue in queues) == len(queues)

    def armed(self, queue: str) -> bool:
        """Return whether the next change of a queue will be told."""
        return queue in self._watches

    def missed(self, queues: Sequence[str]) -> bool:
        """Return whether the look after `arm` showed directories that are not watched: then arm, and look again."""
        if self._inotify is None:
            return False
        for name in queues:
            inner = self._inner.get(name)
            queue = self._find(name)
            if inner is None:
                if queue is not None and self._watches.get(name) == ():
                    return True  # it has come since
            elif queue is not None and queue.layout.watched() != inner:
                return True
        return False

    def _arm_root(self) -> bool:
        if self._root < 0:
            self._root = self._add(self._path, APPEARS)
        return self._root >= 0

    def _arm(self, queue: str) -> bool:
        # RACE: one that is not there yet is told by the directory above, which is watched already.
        found = self._find(queue)
        if found is None:
            self._forget(queue)
            self._watches[queue] = ()
            return True
        layout = found.layout
        if layout.directory.mount.inotify_is_silent:
            return False
        path = layout.directory.path
        inside = self._inner[queue] = layout.watched()
        inner = [os.path.join(path, each) for each in inside]
        first = self._add(path, Directory.events | DELETED)
        if first < 0:
            self._forget(queue)
            return False
        numbers = (first, *(number for each in inner if (number := self._add(each, Directory.events)) >= 0))
        if self._watches.get(queue) != numbers:
            self._forget(queue)
            self._inner[queue] = inside
            self._watches[queue] = numbers
            self._queues.update(dict.fromkeys(numbers, queue))
        return True

    def _add(self, path: str, events: int) -> int:
        try:
            return int(self._inotify.add_watch(path, events))
        except OSError:
            return -1  # not there, or out of watches

    def _forget(self, queue: str) -> None:
        self._inner.pop(queue, None)
        for number in self._watches.pop(queue, ()):
            self._queues.pop(number, None)

    def _run(self) -> None:
        waiting = select.poll()
        waiting.register(self._inotify.fileno(), select.POLLIN)
        waiting.register(self._waker[0], select.POLLIN)
        while True:
            ready = {fd for fd, _ in waiting.poll()}
            if self._waker[0] in ready:
                return
            for queue in self._read():
                self._changed(queue)

    def _read(self) -> set[str]:
        """Return the queues that have changed."""
        data = fs.read(self._inotify.fileno(), 64 << 10)
        changed: set[str] = set()
        place = 0
        with self._lock:
            while place < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, place)
                name = data[place + _EVENT.size : place + _EVENT.size + length].rstrip(b"\0")
                place += _EVENT.size + length
                if mask & OVERFLOW:
                    changed.update(self._watches)
                elif number == self._root:
                    found = naming.decode(name.decode("ascii", "replace"))
                    changed.update(() if found is None else (found,))
                elif number in self._queues:
                    changed.add(self._queues[number])
            for queue in changed:
                self._forget(queue)
        return changed

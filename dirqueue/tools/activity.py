"""Counting the puts, acks and failures of a queue as they happen, from the kernel's events.

Layer: tools.  Touches: nothing; uses inotify, where the extra is installed and the filesystem is local.
Readings once a second miss what came and went in between; the kernel does not. When its queue of events overflows,
when a batch came and went unseen, or when there are too many directories to watch, there is no count: nothing is
guessed. Of a batch that was begun before it was seen, what was left is counted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dirqueue.disk import fs
from dirqueue.layouts.base import Layout
from dirqueue.layouts.native import names
from dirqueue.layouts.native.names import BATCH, CONTAINERS, DEAD, DELAYED, DONE, LEASED, NEW, READY, Name

#: Directories that one queue may take: slices and batches of a deep one are many.
WATCHES = 512


class Counts(NamedTuple):
    """What happened since the last call."""

    put: int
    ack: int
    error: int


class Activity:
    """The events of one queue."""

    def __init__(self, layout: Layout, inotify: Any, flags: Any) -> None:
        self._layout = layout
        self._inotify = inotify
        self._flags = flags
        self._wanted = (
            flags.MOVED_FROM
            | flags.MOVED_TO
            | flags.CREATE
            | flags.DELETE
            | flags.ONLYDIR
            | flags.DONT_FOLLOW
        )
        #: Watch -> the directory, as a prefix of the names in it.
        self._prefixes: dict[int, str] = {}
        #: Ids that were counted when their directory was first listed, and whose events may still come.
        self._known: set[str] = set()
        self._put = self._ack = self._error = 0
        self._missed = False

    def close(self) -> None:
        """Stop watching."""
        self._inotify.close()

    def begin(self) -> None:
        """Watch the queue and the directories in it; what is there already is not counted."""
        self._watch("")
        for prefix in ("", DEAD, DONE):
            for name in self._directories(prefix):
                self._watch(name + "/")

    def _directories(self, prefix: str) -> list[str]:
        if prefix:
            return [prefix] if fs.exists(prefix, self._layout.directory.fd) else []
        found = []
        for entry in fs.listing(".", self._layout.directory.fd):
            name = names.parse(entry.name)
            if name is not None and name.kind in CONTAINERS:
                found.append(name.text)
        return found

    def _watch(self, prefix: str) -> None:
        if len(self._prefixes) >= WATCHES:
            self._missed = True
            return
        try:
            # By its descriptor: a queue that was renamed is the same queue.
            watch = self._inotify.add_watch(
                f"/proc/self/fd/{self._layout.directory.fd}/{prefix}", self._wanted
            )
        except OSError:
            self._missed = self._missed or bool(not prefix)  # RACE: emptied and removed meanwhile
            return
        self._prefixes[watch] = prefix

    def read(self) -> Counts | None:
        """Return what happened since the last call; None if not all of it is known."""
        moved: dict[int, tuple[str, Name | None]] = {}
        for event in self._inotify.read(timeout=0):
            if event.mask & self._flags.Q_OVERFLOW:
                self._missed = True
            elif event.mask & self._flags.IGNORED:
                self._prefixes.pop(event.wd, None)
            elif event.wd in self._prefixes:
                self._count(event, self._prefixes[event.wd], moved)
        counts = None if self._missed else Counts(self._put, self._ack, self._error)
        self._put = self._ack = self._error = 0
        self._missed = len(self._prefixes) >= WATCHES
        return counts

    def _count(self, event: Any, prefix: str, moved: dict[int, tuple[str, Name | None]]) -> None:
        flags, name = self._flags, names.parse(event.name)
        if event.mask & flags.MOVED_FROM:
            moved[event.cookie] = prefix, name
        elif event.mask & flags.ISDIR:
            if event.mask & (flags.CREATE | flags.MOVED_TO):
                self._directory(prefix, event.name, name)
        elif name is None:
            return
        elif event.mask & flags.DELETE:
            self._ack += prefix not in (DEAD + "/", DONE + "/") and name.kind == LEASED
        elif event.mask & flags.MOVED_TO:
            self._moved(prefix, name, moved.pop(event.cookie, None))
        elif name.kind == READY:
            self._arrived(name.id)  # published by a link

    def _moved(self, prefix: str, name: Name, source: tuple[str, Name | None] | None) -> None:
        if name.kind not in (READY, DELAYED):
            return
        if prefix == DONE + "/":
            self._ack += 1
        elif prefix == DEAD + "/":
            self._error += 1
        elif source is None or (source[1] is not None and source[1].kind == NEW):
            self._arrived(name.id)
        elif source[1] is not None and source[1].kind == LEASED and name.attempts >= source[1].attempts:
            self._error += 1

    def _arrived(self, id: str) -> None:
        if id in self._known:
            self._known.discard(id)
        else:
            self._put += 1

    def _directory(self, prefix: str, text: str, name: Name | None) -> None:
        """Watch a directory that appeared, then count what is in it already."""
        if not prefix and text in (DEAD, DONE):
            self._watch(text + "/")
            inside = len(self._messages(text))
            self._error += inside if text == DEAD else 0
            self._ack += inside if text == DONE else 0
        elif name is not None and name.kind in CONTAINERS:
            self._watch(f"{prefix}{text}/")
            inner = self._messages(f"{prefix}{text}")
            self._put += len(inner)
            if name.kind != BATCH:
                self._known |= inner
            elif not inner:  # a batch appears complete, and nobody adds to it: this one was used up already
                self._missed = True

    def _messages(self, folder: str, depth: int = 2) -> set[str]:
        found: set[str] = set()
        try:
            for entry in fs.listing(folder, self._layout.directory.fd):
                name = names.parse(entry.name)
                if name is None:
                    continue
                if name.kind in CONTAINERS and depth:
                    self._watch(f"{folder}/{name.text}/")
                    found |= self._messages(f"{folder}/{name.text}", depth - 1)
                elif name.kind in (READY, DELAYED, LEASED):
                    found.add(name.id)
        except OSError:
            self._missed = True  # RACE: emptied and removed before it was listed; or it may not be listed
        return found


def watch(layout: Layout) -> Activity | None:
    """Return the events of a queue from now on; None where the kernel reports none."""
    directory = layout.directory
    if layout.name != "native" or not directory.find() or directory.mount.inotify_is_silent:
        return None
    try:
        from inotify_simple import INotify, flags
    except ImportError:
        return None
    try:
        activity = Activity(layout, INotify(nonblocking=True), flags)
    except OSError:
        return None  # out of instances: readings are enough
    try:
        activity.begin()
    except OSError:
        activity.close()
        return None
    return activity

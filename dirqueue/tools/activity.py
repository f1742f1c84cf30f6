"""Counting the puts, acks and failures of a queue as they happen, from the kernel's events.

Layer: tools.  Touches: nothing; uses inotify, where the extra is installed and the filesystem is local.
Readings once a second miss what came and went in between; the kernel does not. When its queue of events overflows, when
a message was given back to a directory that was not watched yet and cannot be found there, or when there are too many
directories to watch, there is no count: nothing is guessed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dirqueue.disk import fs
from dirqueue.layouts.base import Layout
from dirqueue.layouts.native import names
from dirqueue.layouts.native.inspect import buckets
from dirqueue.layouts.native.names import (
    BATCH,
    CONTAINERS,
    DEAD,
    DELAYED,
    DONE,
    LATER,
    LEASED,
    LEASED_ROOM,
    NEW,
    READY,
    ROOMS,
    Name,
)

#: Directories that one queue may take: slices and batches of a deep one are many, and so are the minutes of a day.
WATCHES = 2048
#: What ends is moved to the latest of them; of what lies in the others nothing comes back from done/.
DONE_BUCKETS = 2


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
        #: What left for a directory that is not watched: id -> its name.
        self._away: dict[str, Name] = {}
        #: What had been delivered, and was found in a bucket when that was first listed: id -> directory, name.
        self._found: dict[str, tuple[str, Name]] = {}
        self._put = self._ack = self._error = 0
        self._missed = False

    def close(self) -> None:
        """Stop watching."""
        self._inotify.close()

    def begin(self) -> None:
        """Watch the queue and the directories in it; what is there already is not counted."""
        self._watch("")
        directory = self._layout.directory
        for entry in list(fs.listing(".", directory.fd)):
            if entry.name in ROOMS or names.parse_directory(entry.name) is not None:
                self._watch(entry.name + "/")
        for room in (LATER, DEAD, DONE):
            found = buckets(directory, room)
            for bucket in found[-DONE_BUCKETS:] if room == DONE else found:
                self._watch(f"{room}/{bucket}/")
                for inner in self._containers(f"{room}/{bucket}"):
                    self._watch(inner)

    def _containers(self, folder: str) -> list[str]:
        """Return the batches in a bucket: those that were put with a delay."""
        try:
            found = [names.parse(name) for name in fs.names_in(folder, self._layout.directory.fd)]
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return []
        return [f"{folder}/{name.text}/" for name in found if name is not None and name.kind in CONTAINERS]

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
        moved: dict[int, Name] = {}
        for event in self._inotify.read(timeout=0):
            if event.mask & self._flags.Q_OVERFLOW:
                self._missed = True
            elif event.mask & self._flags.IGNORED:
                self._prefixes.pop(event.wd, None)
            elif event.wd in self._prefixes:
                self._count(event, self._prefixes[event.wd], moved)
        self._settle(moved)
        counts = None if self._missed else Counts(self._put, self._ack, self._error)
        self._put = self._ack = self._error = 0
        self._missed = len(self._prefixes) >= WATCHES
        return counts

    def _settle(self, moved: dict[int, Name]) -> None:
        """Account for what went to a directory that was not watched yet."""
        self._away |= {name.id: name for name in moved.values()}
        for id, (prefix, name) in self._found.items():
            source = self._away.pop(id, None)
            if source is not None or prefix.startswith((DEAD, DONE)):
                self._moved(prefix, name, source)
        if any(name.kind == LEASED for name in self._away.values()):
            self._missed = True  # given back or failed, nobody knows
        self._away.clear()
        self._found.clear()

    def _count(self, event: Any, prefix: str, moved: dict[int, Name]) -> None:
        flags, name = self._flags, names.parse(event.name)
        if event.mask & flags.ISDIR:
            if event.mask & (flags.CREATE | flags.MOVED_TO):
                self._directory(prefix, event.name)
        elif name is None:
            return
        elif event.mask & flags.MOVED_FROM:
            moved[event.cookie] = name
        elif event.mask & flags.DELETE:
            self._ack += name.kind == LEASED and not prefix.startswith((DEAD, DONE))
        elif event.mask & flags.MOVED_TO:
            if name.id in self._found and prefix.startswith(self._found[name.id][0]):
                del self._found[name.id]  # listed as well
            self._moved(prefix, name, moved.pop(event.cookie, None) or self._source(name.id, moved))
        elif name.kind in (READY, DELAYED):
            self._arrived(name.id)  # published by a link

    def _source(self, id: str, moved: dict[int, Name]) -> Name | None:
        """Return the name under which a message left for a directory that was not watched yet."""
        self._away |= {name.id: name for name in moved.values()}
        moved.clear()
        return self._away.pop(id, None)

    def _moved(self, prefix: str, name: Name, source: Name | None) -> None:
        room = prefix.partition("/")[0]
        if name.kind not in (READY, DELAYED, LEASED):
            return
        if room == DONE:
            self._ack += 1
        elif room == DEAD:
            self._error += 1
        elif source is None or source.kind == NEW:
            # A first delivery out of a directory that was not watched yet is also the first that is seen of it.
            if name.kind != LEASED or name.attempts == 1:
                self._arrived(name.id)
        elif source.kind == LEASED:
            # Out of a directory that was not watched, and claimed again: what was counted in between.
            self._error += max(0, name.attempts - source.attempts + (name.kind != LEASED))

    def _arrived(self, id: str) -> None:
        if id in self._known:
            self._known.discard(id)
        else:
            self._put += 1

    def _directory(self, prefix: str, text: str) -> None:
        """Watch a directory that appeared, then count what is in it already."""
        room = prefix.partition("/")[0] or text
        if room not in ROOMS and names.parse_directory(text) is None:
            return
        self._watch(f"{prefix}{text}/")
        found = self._messages(f"{prefix}{text}")
        if room == LEASED_ROOM and not prefix:
            self._missed = True  # what was claimed and ended before is not known
        elif room in (DEAD, DONE):
            self._found |= {name.id: (prefix or f"{text}/", name) for name in found}
        else:
            self._found |= {name.id: (prefix, name) for name in found if name.attempts}
            fresh = {name.id for name in found if not name.attempts}
            for id in fresh:
                self._arrived(id)
            if not text.endswith(f".{BATCH}"):  # a batch appears complete, and nobody adds to it
                self._known |= fresh

    def _messages(self, folder: str, depth: int = 3) -> list[Name]:
        found: list[Name] = []
        try:
            for entry in list(fs.listing(folder, self._layout.directory.fd)):
                inner = names.parse_directory(entry.name) if entry.is_dir(follow_symlinks=False) else None
                name = names.parse(entry.name)
                if inner is not None and depth:
                    self._watch(f"{folder}/{inner.text}/")
                    found += self._messages(f"{folder}/{inner.text}", depth - 1)
                elif name is not None and name.kind in (READY, DELAYED, LEASED):
                    found.append(name)
        except FileNotFoundError:
            pass  # RACE: emptied and removed before it was listed
        except OSError:
            self._missed = True  # it may not be listed
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
    except (OSError, AttributeError):
        return None  # out of instances, or not Linux: readings are enough
    try:
        activity.begin()
    except OSError:
        activity.close()
        return None
    return activity

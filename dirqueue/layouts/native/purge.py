"""Removing what crashes and time have left behind.

Layer: layouts.  Touches: stale ID.new, ID.batch.new/, notes without a message, emptied directories, old done and dead.
Invariant: only names of ours, only by age (by the id's time and the file's own), never a message that waits.
Crash: at any call; the next purge goes on. Two purges at once do no harm: each removal is of an exact name.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import ID_DIGITS
from dirqueue.layouts.base import Purged
from dirqueue.layouts.native import conditions, links, names, pins, staged
from dirqueue.layouts.native.inspect import buckets
from dirqueue.layouts.native.names import (
    ACKED,
    BUCKET,
    DEAD,
    DELAYED,
    DONE,
    ERROR,
    ERROR_NEW,
    HOUR,
    LATER,
    LEASED,
    LEASED_ROOM,
    NEW,
    SLICE,
    STAGING,
    TEMPORARY,
    Name,
)
from dirqueue.layouts.native.orphans import Orphans
from dirqueue.layouts.native.publish import SLICE_SECONDS
from dirqueue.layouts.native.resolve import Resolver
from dirqueue.settings import Settings

#: Moves a message that is out of attempts to dead/: (directory, name, now).
Bury = Callable[[str, Name, int], None]


def purge(
    directory: Directory, settings: Settings, bury: Bury, progress: Callable[[], None] | None
) -> Purged:
    """Clean the whole queue once."""
    if not directory.find():
        return Purged()
    # What is committed is shown before anything stale is removed.
    staged.roll_forward(directory)
    carried = Orphans(directory)
    directory.clock.now()
    if not directory.clock.plausible:
        return Purged()
    purger = _Purger(directory, settings, bury, progress or (lambda: None), carried)
    total = purger.folder("") + purger.folder(f"{LEASED_ROOM}/") + purger.later() + purger.spark()
    total += purger.attributes()
    total += purger.ended(DONE, settings.keep_done_for) + purger.ended(DEAD, settings.keep_dead_for)
    directory.keep_ballast()
    return total


def leftovers(directory: Directory, settings: Settings, bury: Bury, prefix: str, found: list[Name]) -> None:
    """Remove these if they are stale by their own times too."""
    purger = _Purger(directory, settings, bury, lambda: None, Orphans(directory, look=False))
    for name in found:
        if name.kind == STAGING:
            purger.inner(prefix + name.text, name)
        elif links.is_message(prefix + name.text, directory.fd):
            purger.file(prefix, name)


class _Purger:
    def __init__(
        self,
        directory: Directory,
        settings: Settings,
        bury: Bury,
        progress: Callable[[], None],
        carried: Orphans,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._bury = bury
        self._resolver = Resolver(directory, settings)
        self._fd = directory.fd
        self._progress = progress
        self._now = directory.clock.now()
        self._stale = micros(settings.stale)
        self._carried = carried

    def folder(self, prefix: str) -> Purged:
        """Clean one directory and those in it."""
        total = Purged()
        notes: dict[str, str] = {}
        tried: set[str] = set()
        inner: list[Name] = []
        conditional: list[conditions.Condition] = []
        try:
            seen = [None if _plain(found) else found for found in fs.listing(prefix or ".", self._fd)]
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            if not prefix:
                raise
            return total  # RACE: it was emptied and removed; or it is another user's
        for found in filter(None, seen):
            self._progress()
            folder = found.is_dir(follow_symlinks=False)
            name = names.parse_directory(found.name) if folder else names.parse(found.name)
            if name is None:
                if links.is_body(found, prefix, self._fd):
                    conditional += conditions.among([found.name])
                if not prefix and TEMPORARY.fullmatch(found.name) and self._old(found.name):
                    total += Purged(other=fs.discard(found.name, self._fd))
            elif folder:
                inner.append(name)
            elif links.fits(found, name, prefix, self._fd):
                if name.attempts and name.kind != ACKED:
                    tried.add(name.id)
                if name.kind == ERROR:
                    notes[name.id] = prefix + name.text
                else:
                    total += self.file(prefix, name)
        self._resolver.resolve(prefix, conditional, self._now)
        orphans = self._orphans(notes, tried | {each.base.id for each in conditional})
        total += orphans
        bare = len(seen) == total.new + total.other
        for name in inner:
            total += self.inner(prefix + name.text, name)
        if prefix and bare:
            total += self._empty(prefix[:-1])
        return total

    def later(self) -> Purged:
        """Clean the buckets whose minute has begun: what waits in the others cannot be stale."""
        total = Purged()
        for bucket in buckets(self._directory, LATER):
            if bucket <= self._now:
                total += self.folder(f"{LATER}/{bucket}/")
        return total

    def file(self, prefix: str, name: Name) -> Purged:
        """Remove one file if it is stale; bury a message out of attempts."""
        path = prefix + name.text
        if name.kind in (NEW, ERROR_NEW) and self._aged(name.id) and self._old(path):
            gone = fs.discard(path, self._fd)
            if gone and name.kind == NEW:
                self._carried.drop(name.id)
            return Purged(new=gone)
        if name.kind == ACKED:
            # NFS: a lost reply of the rename to this name is recognised by its presence, so it stays for a while.
            old = name.until + self._stale < self._now
            return Purged(other=fs.discard(path, self._fd) if old else 0)
        limit = self._settings.max_attempts
        margin = micros(self._settings.margin) if name.kind == LEASED else 0
        if name.kind in (DELAYED, LEASED) and 0 < limit <= name.attempts and name.until + margin < self._now:
            self._bury(prefix, name, self._now)
            return Purged(buried=1)
        return Purged()

    def inner(self, path: str, name: Name) -> Purged:
        """Clean a directory of messages; remove a staging directory that is stale."""
        if name.kind != STAGING:
            return self.folder(path + "/")
        return Purged(new=staged.remove_staging(self._directory, self._settings, path))

    def spark(self) -> Purged:
        """Give back what lost consumers pinned, and remove unfinished records of batches."""
        directory, settings = self._directory, self._settings
        released = pins.release_stale(directory, settings)
        return Purged(
            released=released, other=staged.clean(directory, self._now / 1_000_000 - settings.stale)
        )

    def _empty(self, path: str) -> Purged:
        """Remove an empty directory, and the one above it if that is empty then; rooms stay."""
        above, _, text = path.rpartition("/")
        name = names.parse_directory(text)
        if name is None:
            return Purged()
        if name.kind == SLICE and self._now < names.micros_of(name.id) + micros(2 * SLICE_SECONDS):
            return Purged()
        if name.kind == BUCKET and self._now < name.until + HOUR:
            return Purged()  # others are about to move something into it
        try:
            removed = fs.remove_directory(path, self._fd)
        except PermissionError:
            return Purged()  # another user's
        return Purged(directories=removed) + (self._empty(above) if removed and above else Purged())

    def _orphans(self, notes: dict[str, str], tried: set[str]) -> Purged:
        gone = sum(
            fs.discard(path, self._fd) for id, path in notes.items() if id not in tried and self._old(path)
        )
        return Purged(other=gone)

    def attributes(self) -> Purged:
        """Remove what messages carried that are gone."""
        kept = self._carried.kept()
        stale = {place: id for place, id in kept.items() if self._aged(id) and self._old(place)}
        total = Purged(other=sum(fs.discard(place, self._fd) for place in self._carried.among(stale)))
        for folder in self._carried.buckets():
            total += self._empty(folder)
        return total

    def ended(self, room: str, keep: float) -> Purged:
        """Remove what ended longer ago than it is to be kept, and notes without a message."""
        oldest = self._now - micros(keep)
        gone = 0
        total = Purged()
        for bucket in (None, *buckets(self._directory, room)):
            prefix = f"{room}/" if bucket is None else f"{room}/{bucket}/"
            went, others = self._kept(prefix, oldest if keep else 0)
            gone += went
            total += others
            if bucket is not None:
                total += self._empty(prefix[:-1])
        return total + (Purged(done=gone) if room == DONE else Purged(dead=gone))

    def _kept(self, prefix: str, oldest: int) -> tuple[int, Purged]:
        """Remove from one directory what ended before that time; return how many messages, and what else went."""
        gone = 0
        notes: dict[str, str] = {}
        kept: set[str] = set()
        try:
            found = list(fs.listing(prefix, self._fd))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return 0, Purged()
        for each in found:
            self._progress()
            name = names.parse(each.name)
            if name is None or not links.fits(each, name, prefix, self._fd):
                continue
            if name.kind == ERROR:
                notes[name.id] = prefix + name.text
            elif name.kind == ERROR_NEW:
                self.file(prefix, name)
            elif name.kind == DELAYED and name.until < oldest:
                went = fs.discard(prefix + name.text, self._fd)
                gone += went
                if went:
                    self._carried.drop(name.id)
            else:
                kept.add(name.id)
        return gone, self._orphans(notes, kept)

    def _facts(self, path: str) -> os.stat_result | None:
        try:
            return fs.stat(path, dir_fd=self._fd, follow_symlinks=False)
        except (FileNotFoundError, PermissionError):
            return None

    def _aged(self, id: str) -> bool:
        return names.micros_of(id) + self._stale < self._now

    def _old(self, path: str) -> bool:
        """By its own time too: the id's is the producer's clock, this is the server's."""
        facts = self._facts(path)
        return facts is not None and facts.st_mtime * 1_000_000 + self._stale < self._now


def _plain(found: os.DirEntry[str]) -> bool:
    """Whether it is a message that waits: nothing to purge, and most of what there is."""
    name = found.name
    return (
        len(name) == ID_DIGITS
        and name[0].isdigit()
        and (found.is_file(follow_symlinks=False) or found.is_symlink())
    )

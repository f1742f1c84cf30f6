"""The dirq-simple layout: `DIR/ELEMENT`, locked by a hard link, as QueueSimple and Directory::Queue::Simple write it.

Layer: layouts.  Touches: see simple_store.py.  Invariant and crash: see layout.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import ClassVar

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.disk.plain import check_plain_file
from dirqueue.layouts.base import Claim, lost
from dirqueue.layouts.dirq import names
from dirqueue.layouts.dirq.cursor import Cursor
from dirqueue.layouts.dirq.layout import DirqLayout
from dirqueue.layouts.dirq.simple_store import SECOND_NS, TRYING_NS, SimpleStore
from dirqueue.layouts.dirq.store import GRACE
from dirqueue.message import Entry
from dirqueue.settings import Settings


class DirqSimple(DirqLayout):
    """Elements are files."""

    name: ClassVar[str] = "dirq-simple"

    def __init__(self, directory: Directory, settings: Settings) -> None:
        super().__init__(directory, settings)
        self.store = self._locks = SimpleStore(
            directory, sync=settings.sync, granularity=settings.granularity
        )
        self.store.grace = GRACE
        self._cursor = Cursor(self.store, self.store.look, _ends(self.store, self._honoured), settings.order)

    def create(self) -> None:
        super().create()
        if not self.store.directories():
            self.store.make_directory(names.folder(self.settings.granularity))

    def put(self, data: bytes, delay: float = 0, priority: int | None = None) -> str:
        try:
            name = self.store.add(data)
        except OSError as error:
            self._fail("put to", error)
        if self.settings.order != "fifo":
            self._cursor.refresh()
        return name

    def put_path(
        self, path: str, *, delay: float = 0, priority: int | None = None, link: bool = False
    ) -> str:
        try:
            check_plain_file(path, self.settings)
            return self.store.add_path(path)
        except OSError as error:
            self._fail(f"put the file {path!r} into", error)

    def _take(self, name: str, now: int, shift: int) -> Claim | None:
        stale = self._cursor.stale
        if stale and name in stale:
            stale.discard(name)
            taken = self.store.steal(name, (now - self._honoured) * 1000, shift * 1000)
        else:
            taken = self.store.take(name, shift * 1000)
        if taken is None:
            return None
        time_ns, data = taken
        return Claim(name, f"{name}@{time_ns}", now, time_ns // 1000 + self._lease, 1, data)

    def ack(self, held: Claim) -> None:
        """End the lease as in layout.py.

        COST: in one piece, because it runs for every message: 2 % of get + ack on tmpfs.
        """
        directory, name = self.directory, held.id
        if directory.fd < 0:
            directory.need()
        fd, lock = directory.fd, name + names.LOCK
        try:
            time_ns = fs.stat(lock, dir_fd=fd, follow_symlinks=False).st_mtime_ns
            if f"{name}@{time_ns}" != held.place and time_ns % SECOND_NS != TRYING_NS:
                raise lost(held, "ack")
            fs.unlink(name, dir_fd=fd)
            try:
                fs.unlink(lock, dir_fd=fd)
            except OSError:
                pass  # CRASH: as in simple_store.py, a lock without an element is purged when it is stale
            self._cursor.forget(name)
            if self.store.sync:
                self._sync(name)
        except FileNotFoundError:
            raise lost(held, "ack") from None
        except OSError as error:
            self._fail("ack a message of", error)

    def _entries_of(self, where: str, found: list[os.DirEntry[str]]) -> Iterator[Entry]:
        locked = {each.name[:-4] for each in found if each.name.endswith(names.LOCK)}
        for each in found:
            name, place = each.name, f"{where}/{each.name}"
            bare, _, suffix = name.partition(".")
            if not names.ELEMENT.fullmatch(bare) or not each.is_file(follow_symlinks=False):
                yield Entry("", "foreign", place, 0)
            elif name in locked:
                yield self._seen(place)
            elif name == bare:
                yield Entry(place, "ready", place, names.micros_of(name))
            elif suffix == "tmp":
                yield Entry(place[:-4], "new", place, names.micros_of(bare))
            elif suffix != "lck":
                yield Entry("", "foreign", place, 0)


def _ends(store: SimpleStore, honoured: int) -> Callable[[str], int]:
    """Return what tells when a lock that is there may be taken over; it must not keep the layout alive."""

    def ends(name: str) -> int:
        when = store.locked_at(name)
        return 0 if when is None else when + honoured

    return ends

"""The dirq-normal layout: `DIR/ELEMENT/`, one file for each piece of data, as Queue and Directory::Queue::Normal do.

Layer: layouts.  Touches: see normal_store.py.  Invariant and crash: see layout.py.

A body is one message: where the schema has a single piece it is that piece, else a JSON object of all pieces
(`codec="json"`, or `codec=Schema(...)` for real bytes in binary pieces). Without a schema it is `{"body": "binary"}`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from typing import BinaryIO, ClassVar

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.plain import check_plain_file
from dirqueue.errors import CodecError, SettingsError
from dirqueue.layouts.base import Claim
from dirqueue.layouts.dirq import names
from dirqueue.layouts.dirq.cursor import Cursor
from dirqueue.layouts.dirq.layout import DirqLayout
from dirqueue.layouts.dirq.names import OBSOLETE, STAGING
from dirqueue.layouts.dirq.normal_spares import Spares
from dirqueue.layouts.dirq.normal_store import NormalStore
from dirqueue.layouts.dirq.schema import DEFAULT, Schema
from dirqueue.layouts.dirq.store import GRACE
from dirqueue.layouts.peer import moved_on
from dirqueue.message import Entry
from dirqueue.settings import Settings

#: How soon a locked element is tried again: nothing in the directory above it shows that it was unlocked.
AGAIN_SECONDS = 0.5


class DirqNormal(DirqLayout):
    """Elements are directories."""

    name: ClassVar[str] = "dirq-normal"

    def __init__(self, directory: Directory, settings: Settings) -> None:
        super().__init__(directory, settings)
        try:
            self.schema = Schema(settings.schema or DEFAULT)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        self.store = self._locks = NormalStore(directory, sync=settings.sync, maxelts=settings.maxelts)
        self.store.grace = GRACE
        self.store.keys = tuple(self.schema.types)
        self._cursor = Cursor(self.store, self.store.look, lambda _: 0, settings.order)
        self.store.spares = self._spares = Spares(directory)

    def put(self, data: bytes, delay: float = 0, priority: int | None = None) -> str:
        files = self._files(data)
        try:
            name = self.store.add(files)
        except OSError as error:
            self._fail("put to", error)
        if self.settings.order != "fifo":
            self._cursor.refresh()
        return name

    def _files(self, data: bytes) -> dict[str, bytes]:
        try:
            return self.schema.split(data)
        except ValueError as error:
            raise CodecError(f"the body does not fit the schema: {error}", message_id="") from error

    def put_path(
        self, path: str, *, delay: float = 0, priority: int | None = None, link: bool = False
    ) -> str:
        """Link a file in and remove its old name; where bodies are JSON, write what it holds."""
        source = os.path.abspath(path)
        try:
            check_plain_file(source, self.settings)
            if self.schema.plain:
                name = self.store.add_file(self.store.keys[0], source)
            else:
                name = self.put(fs.read_file(source, -1))
            # CRASH: the element and the file are both there; nothing is lost.
            fs.unlink(source)
        except OSError as error:
            self._fail(f"put the file {path!r} into", error)
        return name

    # --- consumers -----------------------------------------------------------------------------------------

    def claim(self, seconds_: float) -> Claim | None:
        held = super().claim(seconds_)
        if held is None:
            self._spares.drop()
        return held

    def ack(self, held: Claim) -> None:
        self._spares.wanted = bool(self._cursor.run)
        super().ack(held)

    def close(self) -> None:
        self._spares.drop()
        super().close()

    def _take(self, name: str, now: int, shift: int) -> Claim | None:
        store = self.store
        token = store.lock(name)
        if token is None:
            token = self._take_over(name, now)
            if token is None:
                return None
        until = now + self._lease
        if shift:
            renewed = store.renew(name, token, shift * 1000)
            if renewed is None:
                return None
            until = renewed[1] + self._lease
        held = Claim(name, f"{name}@{token}", now, until, 1)
        if self.schema.plain:
            self._cursor.not_before(name, until)
            return held if self._read_plain(held) else None
        files = store.read(name, self.schema.types)
        if len(files) < len(self.schema.types) and not store.ours(name, token):
            return None  # RACE: a late holder removed it while we read, so this is not all of it
        self._cursor.not_before(name, until)
        try:
            held.data = self._join(name, files)
        except CodecError:
            # There is no place for dead messages: raise, and leave it alone for a while so that others come through.
            self.retry(held, self.settings.max_backoff, None)
            raise
        return held

    def _read_plain(self, held: Claim) -> bool:
        """Read the one piece, unless it is long. Return False if it is gone."""
        try:
            fd = fs.open(f"{held.id}/{self.store.keys[0]}", fs.READ, dir_fd=self.directory.fd)
        except FileNotFoundError:
            if not self.store.ours(held.id, held.token):
                return False  # RACE: a late holder removed it
            self.retry(held, self.settings.max_backoff, None)
            raise _misfit(held.id, f"missing data file: {self.store.keys[0]}") from None
        try:
            data = fs.read(fd, fs.CHUNK)
        finally:
            fs.close(fd)
        if len(data) < fs.CHUNK:
            held.data = data
        return True

    def _join(self, name: str, files: dict[str, bytes]) -> bytes:
        try:
            return self.schema.join(files)
        except ValueError as error:
            raise _misfit(name, error) from error

    def _take_over(self, name: str, now: int) -> str | None:
        """Take a stale lock over; one that is not is tried again when it can be stale, or soon."""
        when = self.store.locked_at(name)
        if when is None:
            return None
        if when + self._honoured <= now:
            stale = self.store.break_lock(name, (now - self._honoured) * 1000)
            return self.store.lock(name) if stale else None
        self._cursor.not_before(name, min(when + self._honoured, now + micros(AGAIN_SECONDS)))
        return None

    # --- lookers -------------------------------------------------------------------------------------------

    def _is_ours(self, where: str) -> bool:
        return where in (STAGING, OBSOLETE) or super()._is_ours(where)

    def _entries_of(self, where: str, found: list[os.DirEntry[str]]) -> Iterator[Entry]:
        volatile = where in (STAGING, OBSOLETE)
        for each in found:
            place = f"{where}/{each.name}"
            if not names.ELEMENT.fullmatch(each.name) or not each.is_dir(follow_symlinks=False):
                yield Entry("", "foreign", place, 0)
            elif not volatile:
                yield self._seen(place)
            elif where == STAGING:
                yield Entry(place, "new", place, names.micros_of(each.name))

    def load(self, place: str) -> bytes:
        self._open()
        place = place.partition("@")[0]
        try:
            files = self.store.read(place, self.schema.types)
            if len(files) < len(self.schema.types) and not fs.exists(place, self.directory.fd):
                raise moved_on(place)
            return self._join(place, files)
        except OSError as error:
            raise self._unreachable(place, error) from error

    def stream(self, place: str) -> BinaryIO:
        return super().stream(self._piece(place)) if self.schema.plain else io.BytesIO(self.load(place))

    def size(self, place: str) -> int:
        return super().size(self._piece(place)) if self.schema.plain else len(self.load(place))

    def _piece(self, place: str) -> str:
        return f"{place.partition('@')[0]}/{next(iter(self.schema.types))}"


def _misfit(name: str, why: object) -> CodecError:
    return CodecError(f"the element {name} does not fit the schema: {why}", message_id=name)

"""Putting: one file, a whole batch, or a file that is moved in.

Layer: layouts.  Touches: ID.new, ID, later/BUCKET/ID.UNTIL.0, ID.slice/, ID.batch.new/, ID.batch/.
Invariant: a visible name is a complete message; no name is ever overwritten; no listing is needed.
Crash: leaves ID.new or ID.batch.new, which nobody reads and purge removes; or, by link, ID.new as a second name
of a published message.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.fs import CREATE, FILE_MODE
from dirqueue.disk.identity import ID_DIGITS, TIME_DIGITS, UNIQUE_DIGITS, new_id
from dirqueue.disk.plain import check_plain_file
from dirqueue.errors import QueueError, access_error
from dirqueue.layouts.native import names
from dirqueue.layouts.native.extras import ExtrasStore
from dirqueue.layouts.native.links import Linker
from dirqueue.layouts.native.names import BATCH, LATER, LEASED_ROOM, PART, SLICE, STAGING
from dirqueue.layouts.native.rooms import Rooms
from dirqueue.layouts.native.staging import SOON, Beat, Start, settle
from dirqueue.message import Extras
from dirqueue.settings import Settings

#: Messages in one directory of a deep queue, and the seconds for which producers share one.
SLICE_SIZE = 4096
SLICE_SECONDS = 1
#: The queue's directory is deep when its own size says that so many names are in it.
DEEP = 4096
#: Puts between two looks at that size.
LOOK_EVERY = 256
#: A batch of more than this many is flushed with one call for the whole filesystem.
FLUSH_ALL = 8
#: How often a put starts anew when a directory goes away under it or a name is taken.
TRIES = 20
#: Of a batch so much is read from the caller before anything is written: most batches never wait for the caller.
AHEAD_BYTES = 1 << 20


class Vanished(Exception):
    """The staging directory is gone: we were stopped for so long that a purge removed it as a leftover."""


class Slice:
    """The directory that a producer appends to while the queue is deep, up to an id."""

    __slots__ = ("end", "left", "prefix")

    def __init__(self, id: str, end: str) -> None:
        self.prefix = f"{id}.{SLICE}/"
        self.end = end
        self.left = SLICE_SIZE


class Publisher:
    """The producing half of the native layout."""

    def __init__(
        self,
        directory: Directory,
        settings: Settings,
        rooms: Rooms,
        noticed: Callable[[str, str], None] | None,
        extras: ExtrasStore,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._rooms = rooms
        #: Called with (directory, id) of every message that can be claimed at once.
        self._noticed = noticed
        self._extras = extras
        self._durable = settings.sync  # bound once: looked at for every message
        self._linker = Linker(directory) if settings.links else None
        self._look_in, self._deep = 0, False
        self._slices: dict[int | None, Slice] = {}
        self._latest = ""

    def put(self, data: bytes, delay: float, priority: int | None, extras: Extras | None = None) -> str:
        """Write one message and make it visible."""
        directory, linker = self._directory, self._linker
        if directory.fd < 0:
            self._rooms.make_queue()
        for _ in range(TRIES):
            id = new_id()
            if priority is not None:
                id = f"{priority}{id}"
            # Before anything is written: the clock may be refused.
            later = self._later(id, delay) if delay else ""
            self._look_in -= 1
            slice, prefix = self._slices.get(priority), ""
            try:
                if slice is not None and slice.left > 0 and id < slice.end:
                    slice.left -= 1
                    prefix = slice.prefix
                elif self._deep or self._look_in < 0:
                    prefix = self._slice(id, priority)
                place = later or prefix + id
                if (extras is not None or linker is None or not linker.shows(data, id, place)) and not (
                    self._put_file(f"{prefix}{id}.new", place, data, extras)
                ):
                    continue
            except FileNotFoundError:
                self._remake(priority, later)
                continue
            except FileExistsError:
                continue  # NFS: created, reply lost, asked again; purge will take the leftover
            except OSError as error:
                raise access_error(directory.path, "put to", error) from error
            if self._durable:
                self._sync(place)
            self._latest = id
            if self._noticed is not None and not delay:
                self._noticed(prefix, id)
            return id
        raise self._gone()

    def link_at(self, data: bytes, path: str, dir_fd: int) -> bool:
        """Write a body as a link to a path that nobody reads yet; False if it has to be a file."""
        return self._linker is not None and self._linker.wrote(data, path, dir_fd)

    def place_for(self, id: str, priority: int | None) -> str:
        """Return where a message that can be claimed now is to be put: in a slice of a deep queue, or at the top."""
        if self._directory.fd < 0:
            self._rooms.make_queue()
        self._look_in -= 1
        slice = self._slices.get(priority)
        if slice is not None and slice.left > 0 and id < slice.end:
            slice.left -= 1
            return slice.prefix + id
        return (self._slice(id, priority) if self._deep or self._look_in < 0 else "") + id

    def _put_file(self, new: str, visible: str, data: bytes, extras: Extras | None) -> bool:
        """Write a file, or a link where replies can be lost, and show it; False if it needs another id."""
        directory, linker = self._directory, self._linker
        start = Start.now(directory) if directory.mount.replies_can_be_lost else None
        link = start is not None and linker is not None and linker.wrote(data, new, directory.fd)
        if not link:
            fs.fill(
                fs.open(new, CREATE, FILE_MODE, dir_fd=directory.fd), new, data, directory.fd, self._durable
            )
        if extras is not None:
            self._carry(new, extras)
        try:
            if directory.mount.closes_late and not link:
                settle(directory, [(new, len(data))])
            if visible.startswith(LATER):
                self._into(new, visible)
            else:
                directory.mount.publish(new, visible, directory.fd)
        except FileNotFoundError:
            # NFS: nobody removes an ID.new this soon. It was published, the reply was lost, and by the time of the
            # second try a consumer had claimed it; to put it again would be to put it twice. Later than that it may
            # have been removed as a leftover, and to put it twice is better than to lose it.
            return start is not None and start.is_recent(directory, self._settings)
        except FileExistsError:
            self._take_back(new)
            return False
        except OSError:
            self._take_back(new)
            raise
        return True

    def _carry(self, new: str, extras: Extras) -> None:
        """Write what an unfinished message carries."""
        try:
            self._extras.write(_id_in(new), extras)
        except OSError:
            self._take_back(new)
            raise

    def _take_back(self, new: str) -> None:
        """Remove an unfinished message, and what it was to carry."""
        self._extras.discard(_id_in(new))
        fs.discard(new, self._directory.fd)

    def _sync(self, visible: str) -> None:
        """Make the new name durable; if that fails the put failed, and the message goes unless it was taken."""
        try:
            if visible.startswith(LATER):  # as a link it may have found a bucket that nobody has flushed yet
                self._rooms.make_durable(names.folder_of(visible)[:-1])
            self._directory.sync(names.folder_of(visible)[:-1] or ".")
        except FileNotFoundError:
            pass  # RACE: consumers took all that was in the slice, this message too, and removed it
        except OSError as error:
            fs.discard(visible, self._directory.fd)
            raise access_error(self._directory.path, "put to", error) from error

    def _later(self, id: str, delay: float) -> str:
        return names.later(id, self._directory.clock.now() + micros(delay), 0)

    def _into(self, src: str, place: str) -> None:
        """Publish into a bucket; FileNotFoundError if the source is gone.

        RACE: a bucket is removed when it is empty and its minute is over.
        """
        bucket, dir_fd = names.folder_of(place)[:-1], self._directory.fd
        self._rooms.make(bucket)
        for _ in range(TRIES):
            try:
                return self._directory.mount.publish(src, place, dir_fd)
            except FileNotFoundError:
                if not fs.exists(src, dir_fd):
                    raise
                self._rooms.make(bucket)
        raise self._gone()

    def _remake(self, priority: int | None, later: str) -> None:
        """The directory we were about to write to is not there: a bucket, an emptied slice, or the whole queue."""
        if self._slices.pop(priority, None) is None:
            self._directory.remake()
            self._rooms.make(LEASED_ROOM)
        if later:
            self._rooms.make(names.folder_of(later)[:-1])

    def _gone(self) -> QueueError:
        path = self._directory.path
        text = f"cannot put to {path!r}: it is removed as fast as it is made, or its names are taken"
        return QueueError(text, path=path)

    # --- slices --------------------------------------------------------------------------------------------

    def _slice(self, id: str, priority: int | None) -> str:
        """Return the directory to append to from now on: a new slice if the queue is deep, else none.

        A slice belongs to one second, shared by all producers, so that a trickle of many does not make a
        directory each. Its id is the second's start, unless something of ours is later than that already: then
        it is our own, so that one producer's messages stay in order.
        """
        bare, directory = id[-ID_DIGITS:], self._directory
        self._look_in = LOOK_EVERY
        self._deep = fs.fstat(directory.fd).st_size > DEEP * directory.mount.name_bytes
        if not self._deep:
            self._slices.clear()
            return ""
        start = int(bare[:TIME_DIGITS]) // micros(SLICE_SECONDS) * micros(SLICE_SECONDS)
        first = f"{start}{'0' * UNIQUE_DIGITS}"
        if first <= self._latest[-ID_DIGITS:]:
            first = bare
        before = "" if priority is None else str(priority)
        end = f"{before}{start + micros(SLICE_SECONDS)}"
        slice = self._slices[priority] = Slice(before + first, end)
        fs.make_inner(slice.prefix, directory.fd)
        if self._settings.sync:
            directory.sync()  # whoever made it may not have come to this yet
        return slice.prefix

    # --- batches -------------------------------------------------------------------------------------------

    def put_many(
        self, bodies: Iterable[bytes], delay: float, priority: int | None, extras: Extras | None = None
    ) -> list[str]:
        """Write all messages into a directory that nobody reads, then show it with one rename."""
        bodies = iter(bodies)
        first, more = _read_ahead(bodies)
        if len(first) < 2:
            return [self.put(body, delay, priority, extras) for body in first]
        self._rooms.make_queue()
        if more:
            every = itertools.chain(first, bodies)
            first = []  # not kept beside what is written
            try:
                return self._batch(every, delay, priority, extras, flush_all=True, waits=True)
            except Vanished:
                raise self._vanished() from None
        for _ in range(TRIES):
            try:
                return self._batch(iter(first), delay, priority, extras, flush_all=len(first) > FLUSH_ALL)
            except Vanished:
                continue
        raise self._gone()

    def _batch(
        self,
        bodies: Iterator[bytes],
        delay: float,
        priority: int | None,
        extras: Extras | None,
        *,
        flush_all: bool,
        waits: bool = False,
    ) -> list[str]:
        """Stage, show and flush one batch; Vanished if what was staged was removed."""
        ids: list[str] = []
        directory, settings = self._directory, self._settings
        batch = new_id() if priority is None else f"{priority}{new_id()}"
        staging = f"{batch}.{STAGING}"
        flush_all = flush_all and settings.sync and directory.mount.syncfs
        start = Start.now(directory) if directory.mount.replies_can_be_lost else None
        try:
            self._make_staging(staging)
            with Beat(directory, staging, settings.stale * SOON) if waits else contextlib.nullcontext():
                until = directory.clock.now() + micros(delay) if delay else 0
                suffix = f".{until}.0" if until else ""
                self._stage(staging, bodies, suffix, priority, extras, ids, flush_all=flush_all)
            # A batch waits in the bucket of its messages.
            place = f"{names.folder_of(names.later(batch, until, 0)) if until else ''}{batch}.{BATCH}"
            self._show(staging, place, start)
        except BaseException:
            fs.remove_tree(staging, directory.fd)
            if extras is not None:
                for id in ids:
                    self._extras.discard(id)
            raise
        if settings.sync:
            try:
                if until:
                    self._rooms.make_durable(names.folder_of(place)[:-1])
                directory.sync(names.folder_of(place)[:-1] or ".")
            except OSError as error:
                fs.remove_tree(place, directory.fd)
                raise access_error(directory.path, "put to", error) from error
        self._latest = ids[-1]
        return ids

    def _show(self, staging: str, place: str, start: Start | None) -> None:
        # CRASH: until this rename nothing is visible; after it everything is.
        try:
            self._rooms.move(staging, place)
        except FileNotFoundError:
            # NFS: as in _put_file: shown, reply lost, and consumed whole before the second try.
            if start is None or not start.is_recent(self._directory, self._settings):
                raise Vanished from None
        except OSError as error:
            raise access_error(self._directory.path, "put to", error) from error

    def _vanished(self) -> QueueError:
        path = self._directory.path
        return QueueError(
            f"cannot put to {path!r}: the batch was removed as a leftover, because this process was stopped for longer "
            f"than the queue's `stale` seconds; nothing became visible, put it again",
            path=path,
        )

    def _make_staging(self, staging: str) -> None:
        for _ in range(TRIES):
            try:
                # NFS: "exists" is a lost reply, the name is ours alone.
                fs.make_inner(staging, self._directory.fd)
                return
            except FileNotFoundError:
                self._directory.remake()
            except OSError as error:
                raise access_error(self._directory.path, "put to", error) from error
        raise self._gone()

    def _write(self, name: str, body: bytes, *, sync: bool) -> bool:
        """Write a message in our own staging directory, where no other process writes; return whether it is a link."""
        for _ in range(TRIES):
            try:
                if self._linker is not None and self._linker.wrote(body, name, self._directory.fd):
                    return True
                fs.create(name, body, self._directory.fd, sync=sync)
                return False
            except FileExistsError:
                # NFS: made, reply lost, asked again. Left there it would be an empty message of the batch.
                fs.discard(name, self._directory.fd)
        raise self._gone()

    def _stage(
        self,
        staging: str,
        bodies: Iterator[bytes],
        suffix: str,
        priority: int | None,
        extras: Extras | None,
        ids: list[str],
        *,
        flush_all: bool,
    ) -> None:
        """Fill a staging directory; the first SLICE_SIZE lie in it, the others in parts. `ids` gets their ids."""
        directory = self._directory
        sync = self._settings.sync and not flush_all
        places = [staging]
        for body in bodies:  # what the caller's iterator raises is the caller's
            try:
                id = new_id() if priority is None else f"{priority}{new_id()}"
                if ids and len(ids) % SLICE_SIZE == 0:
                    places.append(f"{staging}/{id}.{PART}")
                    fs.make_inner(places[-1], directory.fd)
                name = f"{places[-1]}/{id}{suffix}"
                if not self._write(name, body, sync=sync) and directory.mount.closes_late:
                    settle(directory, [(name, len(body))])
            except OSError as error:
                raise self._unwritten(error) from error
            ids.append(id)
        try:
            if extras is not None:
                self._extras.write_all(ids, extras, flush=not flush_all)
            if flush_all:
                fs.syncfs(directory.fd)
            elif self._settings.sync:
                for place in reversed(places):
                    directory.sync(place)
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> Exception:
        """Return what to raise when a batch could not be written."""
        if isinstance(error, QueueError):
            return error
        if isinstance(error, FileNotFoundError):
            return Vanished()
        return access_error(self._directory.path, "put to", error)

    # --- a file moved in -----------------------------------------------------------------------------------

    def put_path(
        self,
        path: str,
        delay: float,
        priority: int | None,
        *,
        link: bool = False,
        extras: Extras | None = None,
    ) -> str:
        """Give a file a name in the queue, without a copy: moved in, or with `link` as a second name."""
        directory = self._directory
        source = os.path.abspath(path)
        self._check_file(source, link=link)
        self._rooms.make_queue()
        start = Start.now(directory)
        for _ in range(TRIES):
            id = new_id() if priority is None else f"{priority}{new_id()}"
            try:
                if extras is not None:
                    self._extras.write(id, extras)
                # Straight to its visible name: as ID.new it would be purged, and it is somebody's only copy.
                visible = self._later(id, delay) if delay else id
                if link:
                    if delay:
                        self._rooms.make(names.folder_of(visible)[:-1])
                    fs.link(source, visible, dst_dir_fd=directory.fd, follow_symlinks=False)
                elif delay:
                    self._into(source, visible)
                else:
                    directory.mount.publish(source, visible, directory.fd)
            except FileExistsError:
                continue
            except OSError as error:
                if extras is not None:
                    self._extras.discard(id)
                raise access_error(path, f"put into {directory.path!r} the file", error) from error
            if extras is not None and not start.is_recent(directory, self._settings):
                self._extras.restore(id, extras)
            if self._settings.sync:
                try:
                    directory.sync(names.folder_of(visible)[:-1] or ".")
                except OSError as error:
                    raise access_error(directory.path, "make durable a put to", error) from error
            self._latest = id
            return id
        raise self._gone()

    def _check_file(self, source: str, *, link: bool) -> None:
        try:
            check_plain_file(source, self._settings, linked=link)
        except OSError as error:
            raise access_error(source, "put the file", error) from error


def _id_in(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0]


def _read_ahead(bodies: Iterator[bytes]) -> tuple[list[bytes], bool]:
    """Return the first bodies, two or more if there are, up to a limit, and whether there may be more."""
    first: list[bytes] = []
    size = 0
    for body in bodies:
        first.append(body)
        size += len(body)
        if len(first) >= SLICE_SIZE or (size >= AHEAD_BYTES and len(first) > 1):
            return first, True
    return first, False

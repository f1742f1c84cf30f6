"""Putting: one file, a whole batch, or a file that is moved in.

Layer: layouts.  Touches: ID.new, ID, ID.UNTIL.0, ID.slice/, ID.batch.new/, ID.batch/.
Invariant: a visible name is a complete message; no name is ever overwritten; no listing is needed.
Crash: leaves ID.new or ID.batch.new, which nobody reads and purge removes; or, by link, ID.new as a second name
of a published message.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Iterable, Iterator

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.fs import CREATE, FILE_MODE
from dirqueue.disk.identity import ID_DIGITS, TIME_DIGITS, UNIQUE_DIGITS, new_id
from dirqueue.errors import QueueError, access_error
from dirqueue.layouts.native.names import BATCH, PART, SLICE, STAGING
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
#: NFS, HDFS: how long to wait for a closed file to show its full length.
SETTLE_SECONDS = 10.0


class Slice:
    """The directory that a producer appends to while the queue is deep, up to an id."""

    __slots__ = ("end", "left", "prefix")

    def __init__(self, id: str, end: str) -> None:
        self.prefix = f"{id}.{SLICE}/"
        self.end = end
        self.left = SLICE_SIZE


class Publisher:
    """The producing half of the native layout."""

    def __init__(self, directory: Directory, settings: Settings) -> None:
        self._directory = directory
        self._settings = settings
        self._durable = settings.sync  # bound once: looked at for every message
        self._look_in = 0
        self._deep = False
        self._slices: dict[int | None, Slice] = {}
        self._latest = ""

    def put(self, data: bytes, delay: float = 0, priority: int | None = None) -> str:
        """Write one message and make it visible."""
        directory = self._directory
        if directory.fd < 0:
            directory.make()
        sync = self._durable
        for _ in range(TRIES):
            id = new_id()
            if priority is not None:
                id = f"{priority}{id}"
            self._look_in -= 1
            slice, prefix = self._slices.get(priority), ""
            try:
                if slice is not None and slice.left > 0 and id < slice.end:
                    slice.left -= 1
                    prefix = slice.prefix
                elif self._deep or self._look_in < 0:
                    prefix = self._slice(id, priority)
                new = f"{prefix}{id}.new"
                fs.fill(fs.open(new, CREATE, FILE_MODE, dir_fd=directory.fd), new, data, directory.fd, sync)
            except FileNotFoundError:
                self._remake(priority)
                continue
            except FileExistsError:
                continue  # NFS: created, reply lost, asked again; purge will take the leftover
            except OSError as error:
                raise access_error(directory.path, "put to", error) from error
            visible = f"{prefix}{id}{self._suffix(delay)}" if delay else prefix + id
            try:
                if directory.mount.closes_late:
                    self._settle(new, len(data))
                directory.mount.publish(new, visible, directory.fd)
            except OSError as error:
                if not self._shown_anyway(error, new):
                    continue
            if sync:
                self._sync(prefix or ".", visible)
            self._latest = id
            return id
        raise self._gone()

    def _shown_anyway(self, error: OSError, new: str) -> bool:
        """Sort out a failed publish: False if the name is taken or the directory went away, else a real error."""
        if isinstance(error, FileNotFoundError):
            # NFS: nobody takes an ID.new away this soon. It was published, the reply was lost, and by the time of
            # the second try a consumer had claimed it. To put it again would be to put it twice.
            return self._directory.mount.replies_can_be_lost
        fs.discard(new, self._directory.fd)
        if isinstance(error, FileExistsError):
            return False
        raise access_error(self._directory.path, "put to", error) from error

    def _sync(self, folder: str, visible: str) -> None:
        """Make the new name durable; if that fails the put failed, and the message goes unless it was taken."""
        try:
            self._directory.sync(folder)
        except OSError as error:
            fs.discard(visible, self._directory.fd)
            raise access_error(self._directory.path, "put to", error) from error

    def _settle(self, new: str, size: int) -> None:
        """Wait until the closed file has its full length for everybody (HDFS closes in its own time)."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while fs.served_size(new, self._directory.fd) != size:
            if time.monotonic() > deadline:
                raise OSError(errno.EIO, f"{new} did not reach its length in {SETTLE_SECONDS:g} s")
            time.sleep(0.01)

    def _suffix(self, delay: float) -> str:
        return f".{self._directory.clock.now() + micros(delay)}.0" if delay else ""

    def _remake(self, priority: int | None) -> None:
        """Somebody removed the directory we were about to write to: an emptied slice, or the whole queue."""
        if self._slices.pop(priority, None) is None:
            self._directory.remake()

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
        fs.make_directory(slice.prefix, directory.fd)
        if self._settings.sync:
            directory.sync()  # whoever made it may not have come to this yet
        return slice.prefix

    # --- batches -------------------------------------------------------------------------------------------

    def put_many(self, bodies: Iterable[bytes], delay: float, priority: int | None) -> list[str]:
        """Write all messages into a directory that nobody reads, then show it with one rename."""
        bodies = iter(bodies)
        first = list(itertools.islice(bodies, FLUSH_ALL + 1))
        if len(first) < 2:
            return [self.put(body, delay, priority) for body in first]
        directory = self._directory
        directory.make()
        batch = new_id() if priority is None else f"{priority}{new_id()}"
        staging = f"{batch}.{STAGING}"
        try:
            self._make_staging(staging)
            flush_all = self._settings.sync and directory.mount.syncfs and len(first) > FLUSH_ALL
            every = itertools.chain(first, bodies)
            ids = self._stage(staging, every, self._suffix(delay), priority, flush_all=flush_all)
            # CRASH: until this rename nothing is visible; after it everything is.
            fs.move(staging, f"{batch}.{BATCH}", directory.fd)
        except OSError as error:
            fs.remove_tree(staging, directory.fd)
            raise access_error(directory.path, "put to", error) from error
        except BaseException:
            fs.remove_tree(staging, directory.fd)
            raise
        if self._settings.sync:
            try:
                directory.sync()
            except OSError as error:
                fs.remove_tree(f"{batch}.{BATCH}", directory.fd)
                raise access_error(directory.path, "put to", error) from error
        self._latest = ids[-1]
        return ids

    def _make_staging(self, staging: str) -> None:
        for _ in range(TRIES):
            try:
                # NFS: "exists" is a lost reply, the name is ours alone.
                fs.make_directory(staging, self._directory.fd)
                return
            except FileNotFoundError:
                self._directory.remake()
        raise self._gone()

    def _write(self, name: str, body: bytes, *, sync: bool) -> None:
        """Write a file in a staging directory of ours, where nobody else makes any."""
        for _ in range(TRIES):
            try:
                return fs.create(name, body, self._directory.fd, sync=sync)
            except FileExistsError:
                # NFS: made, reply lost, asked again. Left there it would be an empty message of the batch.
                fs.discard(name, self._directory.fd)
        raise self._gone()

    def _stage(
        self, staging: str, bodies: Iterator[bytes], suffix: str, priority: int | None, *, flush_all: bool
    ) -> list[str]:
        """Fill a staging directory; the first SLICE_SIZE lie in it, the others in parts of that size."""
        directory = self._directory
        ids: list[str] = []
        places = [staging]
        for body in bodies:
            id = new_id() if priority is None else f"{priority}{new_id()}"
            if ids and len(ids) % SLICE_SIZE == 0:
                places.append(f"{staging}/{id}.{PART}")
                fs.make_directory(places[-1], directory.fd)
            name = f"{places[-1]}/{id}{suffix}"
            self._write(name, body, sync=self._settings.sync and not flush_all)
            if directory.mount.closes_late:
                self._settle(name, len(body))
            ids.append(id)
        if flush_all:
            fs.syncfs(directory.fd)
        elif self._settings.sync:
            for place in reversed(places):
                directory.sync(place)
        return ids

    # --- a file moved in -----------------------------------------------------------------------------------

    def put_path(self, path: str, delay: float, priority: int | None, *, link: bool = False) -> str:
        """Give a file a name in the queue, without a copy: moved in, or with `link` as a second name."""
        directory = self._directory
        source = os.path.abspath(path)
        self._check_file(source, link=link)
        directory.make()
        for _ in range(TRIES):
            id = new_id() if priority is None else f"{priority}{new_id()}"
            try:
                # Straight to its visible name: as ID.new it would be purged, and it is somebody's only copy.
                visible = id + self._suffix(delay)
                if link:
                    fs.link(source, visible, dst_dir_fd=directory.fd, follow_symlinks=False)
                else:
                    directory.mount.publish(source, visible, directory.fd)
            except FileExistsError:
                continue
            except OSError as error:
                raise access_error(path, f"put into {directory.path!r} the file", error) from error
            if self._settings.sync:
                try:
                    directory.sync()
                except OSError as error:
                    raise access_error(directory.path, "make durable a put to", error) from error
            self._latest = id
            return id
        raise self._gone()

    def _check_file(self, source: str, *, link: bool) -> None:
        try:
            fs.check_plain_file(source, self._settings, linked=link)
        except OSError as error:
            raise access_error(source, "put the file", error) from error

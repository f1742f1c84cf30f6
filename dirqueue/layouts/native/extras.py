"""Attributes and the end of life of messages: a small file for each that has any, found by the id.

Layer: layouts.  Touches: attributes/BUCKET/ID; BUCKET is the start of the minute in which ID was put.
Invariant: it is there, and durable, before its message is visible; no change of state moves it. A queue without
attributes/ pays nothing for it.
Crash: a file whose message is gone is left, and purge removes it when it is stale.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Iterator

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.errors import access_error
from dirqueue.layouts.native import names, staging
from dirqueue.layouts.native.names import ATTRIBUTES, MALFORMED, MINUTE, PART
from dirqueue.layouts.native.rooms import TRIES, Rooms
from dirqueue.message import Extras

#: For how long a look at whether there are any in the queue is trusted, for those who only look.
TRUST_SECONDS = 1.0


class ExtrasStore:
    """What is kept beside the messages of one queue."""

    def __init__(self, directory: Directory, rooms: Rooms, *, sync: bool) -> None:
        self._directory = directory
        self._rooms = rooms
        self._sync = sync
        #: Whether any message of the queue may carry something, as far as is known. Looked at for every message.
        self.there = False
        self._looked = 0.0

    def write(self, id: str, extras: Extras) -> None:
        """Keep this for a message that is about to be published. Raises plain OSError."""
        self.write_all((id,), extras)

    def write_all(self, ids: Iterable[str], extras: Extras, *, flush: bool = True) -> None:
        """Keep the same for several messages. Without `flush` the caller flushes the whole filesystem after this.

        What their producer has written of them lies there by now, unseen: while it does, no purge takes this; and a
        producer that was stopped until a purge took both finds its own files missing.
        """
        data = dumps(extras)
        self._write(((id, data) for id in ids), flush=flush)

    def write_each(self, carried: Iterable[tuple[str, Extras]], *, flush: bool = True) -> None:
        """Keep for each of several messages what it carries; see write_all."""
        self._write(((id, dumps(extras)) for id, extras in carried), flush=flush)

    def _write(self, contents: Iterable[tuple[str, bytes]], *, flush: bool) -> None:
        folders = set()
        self.there = True
        for id, data in contents:
            folders.add(self._create(place_of(id), data, sync=self._sync and flush))
        if self._sync:
            for folder in sorted(folders):
                self._rooms.make_durable(folder)
                if flush:
                    self._directory.sync(folder)

    def _create(self, place: str, data: bytes, *, sync: bool) -> str:
        """Write one file; return its bucket."""
        folder, fd = names.folder_of(place)[:-1], self._directory.fd
        for _ in range(TRIES):
            try:
                fs.create(place, data, fd, sync=sync)
                if self._directory.mount.closes_late:
                    staging.settle(self._directory, [(place, len(data))])
            except FileNotFoundError:
                self._rooms.make(folder)
            except FileExistsError:
                fs.discard(place, fd)  # NFS: made, reply lost, asked again: ids are never used twice
            else:
                return folder
        raise OSError(errno.EBUSY, "the bucket is removed as fast as it is made", place)

    def read(self, id: str) -> Extras | None:
        """Return what is kept for a message; None if nothing is, or it is not as we write them."""
        try:
            found = loads(fs.read_file(place_of(id), self._directory.fd))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise access_error(
                self._directory.path, f"read the attributes of message {id} of", error
            ) from error
        self.there = True
        return found

    def look(self, id: str) -> Extras | None:
        """Return the same for somebody who looks at many: nothing is asked where there are none at all."""
        return self.read(id) if self.any() else None

    def any(self) -> bool:
        """Return whether any message of the queue may carry something."""
        now = time.monotonic()
        if not self.there and now >= self._looked + TRUST_SECONDS:
            self._looked = now
            return self._directory.find() and self.find()
        return self.there

    def find(self) -> bool:
        """Return the same for messages that are visible by now: what they carry was there before them. One call."""
        self.there = self.there or fs.exists(ATTRIBUTES, self._directory.fd)
        return self.there

    def discard(self, id: str) -> None:
        """Remove what is kept for a message that is gone, if there is anything."""
        if self.there:
            fs.discard(place_of(id), self._directory.fd)

    def is_older(self, id: str, when: int) -> bool:
        """Return whether what is kept for a message was written until then, in microseconds of the file server."""
        try:
            return self.there and fs.mtime_of(place_of(id), self._directory.fd) * 1_000_000 <= when
        except FileNotFoundError:
            return False

    def rename(self, old: str, new: str) -> None:
        """Keep it for another id too, which the message is about to get; `discard` removes the old one."""
        found = self.look(old) if old != new else None
        if found is not None:
            self.write(new, found)

    def restore(self, id: str, extras: Extras) -> None:
        """RACE: whoever published this was stopped for so long that a purge may have removed it: write it again."""
        try:
            if not fs.exists(place_of(id), self._directory.fd):
                self.write(id, extras)
        except OSError as error:
            raise access_error(
                self._directory.path, f"keep the attributes of message {id} of", error
            ) from error

    def revive(self, id: str) -> None:
        """Forget that a message was to expire: somebody wants it back. Raises plain OSError."""
        found = self.look(id)
        if found is not None and found.expires:
            staging.replace(self._directory, place_of(id), dumps(found._replace(expires=0)), sync=self._sync)


def place_of(id: str) -> str:
    """Return where the attributes of a message lie."""
    put = names.micros_of(id)
    return f"{ATTRIBUTES}/{put - put % MINUTE}/{id}"


def unseen(directory: Directory, place: str) -> Iterator[str]:
    """Yield the ids of the messages in a staging directory, and in its parts. Raises plain OSError."""
    for found in fs.listing(place, directory.fd):
        name = names.parse(found.name)
        if name is None:
            continue
        if name.kind == PART and found.is_dir(follow_symlinks=False):
            inner = map(names.parse, fs.names_in(f"{place}/{found.name}", directory.fd))
            yield from (each.id for each in inner if each is not None)
        else:
            yield name.id


def discard_unseen(directory: Directory, place: str) -> None:
    """Remove what the messages in a staging directory were to carry: they will never be visible."""
    try:
        for id in list(unseen(directory, place)):
            fs.discard(place_of(id), directory.fd)
    except (FileNotFoundError, NotADirectoryError):
        return  # its writer has given up too


def dumps(extras: Extras) -> bytes:
    """Return the file's content."""
    import json

    record: dict[str, object] = {"attributes": extras.attributes}
    if extras.expires:
        record["expires"] = extras.expires
    return json.dumps(record).encode()


def loads(data: bytes) -> Extras | None:
    """Return what a file says; None if it is not as we write them."""
    import json

    try:
        record = json.loads(data)
        attributes = {str(name): str(value) for name, value in record["attributes"].items()}
        return Extras(attributes, int(record.get("expires", 0)))
    except MALFORMED:
        return None

"""One attempt of one writer of a batch: it fills parts in a staging directory, which staged.py shows or removes.

Layer: layouts.  Touches: STAGING.batch.new/ID.part/..., and what messages carry in attributes/.
Invariant: nothing of it is visible. It cannot make STAGING, so that nothing it does comes back after commit or abort
took STAGING away.
Crash: its parts are left, and what their messages carry: staged.py removes both at the end of the job, or a purge does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory, not_found
from dirqueue.disk.identity import new_id
from dirqueue.errors import QueueError, access_error
from dirqueue.layouts.native import names
from dirqueue.layouts.native.extras import ExtrasStore, discard_unseen
from dirqueue.layouts.native.links import Linker
from dirqueue.layouts.native.names import PART, STAGING
from dirqueue.layouts.native.publish import SLICE_SIZE
from dirqueue.layouts.native.rooms import Rooms
from dirqueue.layouts.native.staging import settle
from dirqueue.message import Extras
from dirqueue.settings import Settings


class Writer:
    """One attempt of one writer: fills parts in a staging directory that begin() made. Not thread-safe."""

    def __init__(self, directory: Directory, settings: Settings, staging: str) -> None:
        self._directory = directory
        self._sync = settings.sync
        self._linker = Linker(directory) if settings.links else None
        self._job = names.check_id(staging)
        self._staging = f"{staging}.{STAGING}"
        self._open: dict[int | None, tuple[str, int, int]] = {}
        self._extras = ExtrasStore(directory, Rooms(directory, sync=settings.sync), sync=settings.sync)
        #: The messages in parts that are open which carry something, by priority.
        self._carrying: dict[int | None, list[str]] = {}
        self._unsettled: list[tuple[str, int]] = []
        #: What was written, as commit() wants it.
        self.parts: list[str] = []
        self.count = 0

    def add(
        self,
        bodies: Sequence[bytes],
        priority: int | None = None,
        delays: Sequence[float] | None = None,
        extras: Sequence[Extras | None] | None = None,
    ) -> None:
        """Write messages of one priority, and what each of them carries; nobody sees them before commit()."""
        try:
            self._add(bodies, priority, delays, extras)
        except FileNotFoundError:
            # RACE: the job was aborted, or is over: another attempt has won.
            self.discard()
            raise vanished(self._directory, self._job) from None
        except OSError as error:
            self.discard()
            raise access_error(self._directory.path, "put to", error) from error

    def _add(
        self,
        bodies: Sequence[bytes],
        priority: int | None,
        delays: Sequence[float] | None,
        extras: Sequence[Extras | None] | None,
    ) -> None:
        directory = self._directory
        directory.need()
        flush_each = self._sync and not directory.mount.syncfs
        lead = "" if priority is None else str(priority)
        done = 0
        while done < len(bodies):
            part, fd, room = self._part(lead, priority)
            some = bodies[done : done + room]
            ids = every = [lead + new_id() for _ in some]
            if delays is not None:
                now = directory.clock.now()
                late = delays[done : done + room]
                ids = [f"{i}.{now + micros(d)}.0" if d else i for i, d in zip(ids, late, strict=True)]
            for name, body in zip(ids, some, strict=True):
                if not self._linker or not self._linker.wrote(body, name, fd):
                    fs.create(name, body, fd, sync=flush_each)
                    if directory.mount.closes_late:
                        self._unsettled.append((f"{part}/{name}", len(body)))
            if extras is not None:
                self._carry(zip(every, extras[done : done + room], strict=True), priority, flush=flush_each)
            done += len(some)
            self._open[priority] = (part, fd, room - len(some))
        self.count += len(bodies)

    def _carry(
        self, carried: Iterable[tuple[str, Extras | None]], priority: int | None, *, flush: bool
    ) -> None:
        some = [(id, extras) for id, extras in carried if extras is not None]
        self._carrying.setdefault(priority, []).extend(id for id, _ in some)
        self._extras.write_each(some, flush=flush)

    def _part(self, lead: str, priority: int | None) -> tuple[str, int, int]:
        """Return the part to fill, its descriptor and its room; a full one is followed by another."""
        held = self._open.get(priority)
        if held is not None and held[2] > 0:
            return held
        directory = self._directory
        if held is not None:
            fs.close(held[1])
            del self._open[priority]
            self._carrying.pop(priority, None)
        name = f"{lead}{new_id()}.{PART}"
        part = f"{self._staging}/{name}"
        fs.make_inner(part, directory.fd)
        self.parts.append(name)
        held = self._open[priority] = (part, fs.open(part, fs.DIRECTORY, dir_fd=directory.fd), SLICE_SIZE)
        return held

    def finish(self) -> list[str]:
        """Make all of it durable, and sure to be whole for every reader; return the parts."""
        directory = self._directory
        try:
            if self._unsettled:
                settle(directory, self._unsettled)
            if self._sync and self.parts:
                if directory.mount.syncfs:
                    fs.syncfs(directory.fd)
                else:
                    for part in self.parts:
                        directory.sync(f"{self._staging}/{part}")
                    directory.sync(self._staging)
            self._close()
        except FileNotFoundError:
            self.discard()
            raise vanished(directory, self._job) from None
        except OSError as error:
            self.discard()
            raise access_error(directory.path, "put to", error) from error
        return self.parts

    def discard(self) -> None:
        """Give up: remove what this attempt wrote."""
        self._close()
        for part in self.parts:
            remove(self._directory, f"{self._staging}/{part}", carrying=self._extras.there)
        # RACE: abort() may have removed a message of a part that is open before we wrote what that carries. A part that
        # is full it has found whole: none begins after abort().
        for id in itertools.chain.from_iterable(self._carrying.values()):
            self._extras.discard(id)
        self.parts, self._carrying = [], {}

    def _close(self) -> None:
        while self._open:
            fs.close(self._open.popitem()[1][1])


def remove(directory: Directory, place: str, *, carrying: bool) -> int:
    """Remove messages that will never be visible, and before them what they carry."""
    if carrying:
        discard_unseen(directory, place)
    return fs.remove_tree(place, directory.fd)


def vanished(directory: Directory, staging: str) -> QueueError:
    """Return the error for a staging directory that is gone."""
    if directory.removed():
        return not_found(directory.path)
    return QueueError(
        f"cannot put to {directory.path!r}: the staged batch {staging} is gone (its job is over, or a purge "
        f"removed what was not written to for the queue's `stale` seconds); nothing became visible, write it again",
        path=directory.path,
    )

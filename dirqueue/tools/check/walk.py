"""One pass over the names of a queue, and a second one over what was found.

Layer: tools.  Touches: one probe file, made and removed.
Works beside producers and consumers: a listing may show a message that is being renamed under both names, so that
every finding is confirmed before it is reported.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from dirqueue.disk import ballast, fs, identity
from dirqueue.disk.clock import micros
from dirqueue.layouts.native import Native, conditions, links, names, sidefile, staged
from dirqueue.layouts.native.conditions import OPEN, UNKNOWN, Condition
from dirqueue.layouts.native.names import (
    ACKED,
    BUCKET,
    CONTAINERS,
    DEAD,
    DELAYED,
    DEPTH,
    DONE,
    ERROR,
    ERROR_NEW,
    FURNITURE,
    HOUR,
    LATER,
    LEASED,
    LEASED_ROOM,
    NEW,
    READY,
    ROOMS,
    SLICE,
    STAGING,
    TEMPORARY,
    Name,
)
from dirqueue.layouts.native.publish import SLICE_SECONDS
from dirqueue.layouts.native.resolve import PATIENCE, Resolver
from dirqueue.tools.check.codes import Finding

#: An id or an end further ahead than this is a wrong clock, not a plan.
FUTURE_SECONDS = 86400.0
FAR_SECONDS = 366 * 86400.0
#: Where messages end; also themselves queues that one can consume, with rooms of their own.
ENDED = (f"{DEAD}/", f"{DONE}/")


class Walker:
    """One pass over the names."""

    def __init__(self, layout: Native, *, deep: bool, progress: Callable[[], None]) -> None:
        self._settings = layout.settings
        self._directory = layout.directory
        self._fd = layout.directory.fd
        self._resolver = Resolver(layout.directory, layout.settings)
        self._deep = deep
        self._progress = progress
        self._now = layout.directory.clock.now()
        self._stale = micros(layout.settings.stale)
        self._device = fs.fstat(self._fd).st_dev
        #: Where each id was seen first.
        self._seen: dict[str, str] = {}

    def run(self) -> list[Finding]:
        """Return the findings that are confirmed."""
        found = [*self._furniture(), *self._folder("", 0)]
        return [each for each in found if self._still(each)]

    def _still(self, finding: Finding) -> bool:
        if finding.code in ("Q19", "Q23"):
            return True
        if not fs.exists(finding.place, self._fd):
            return False
        # RACE: two names of one message were seen if it was renamed meanwhile; names are never used again, so
        # that two that are there now are two.
        return finding.code not in ("Q04", "Q05") or fs.exists(finding.detail, self._fd)

    def _furniture(self) -> Iterator[Finding]:
        probe = f".clock-{identity.new_token()}"
        try:
            fs.create(probe, b"", self._fd, sync=False)
        except OSError as error:
            yield Finding("Q23", ".", os.strerror(error.errno or 0))
        else:
            fs.discard(probe, self._fd)
        if self._directory.mount.ballast and not ballast.kept(self._directory):
            yield Finding("Q19", ballast.NAME)

    # --- directories ---------------------------------------------------------------------------------------

    def _inner(self, path: str, depth: int) -> Iterator[Finding]:
        """Check a directory of the queue."""
        try:
            facts = fs.stat(path, dir_fd=self._fd, follow_symlinks=False)
            if facts.st_dev != self._device:
                yield Finding("Q20", path)
            yield from self._folder(path + "/", depth)
        except FileNotFoundError:
            return  # RACE: used up and removed
        except PermissionError as error:
            yield Finding("Q21", path, os.strerror(error.errno or 0))

    def _folder(self, prefix: str, depth: int) -> Iterator[Finding]:
        notes: dict[str, str] = {}
        ids: set[str] = set()
        bare = True
        inner: list[Name] = []
        below: list[str] = []
        for entry in list(fs.listing(prefix or ".", self._fd)):
            self._progress()
            bare = False
            if self._is_room(prefix, entry):
                below.append(prefix + entry.name)
                continue
            name = names.parse(entry.name)
            if name is None:
                condition = conditions.parse(entry.name)
                if condition is not None and links.is_body(entry, prefix, self._fd):
                    ids.add(condition.base.id)
                    yield from self._conditional(prefix, condition)
                else:
                    yield from self._stranger(prefix, entry)
                continue
            directory = name.kind in CONTAINERS or name.kind == STAGING
            folder = entry.is_dir(follow_symlinks=False)
            if not (folder if directory else links.fits(entry, name, prefix, self._fd)):
                yield Finding("Q03", prefix + name.text, _type(entry))
            elif directory:
                inner.append(name)
            elif name.kind == ERROR:
                notes[name.id] = prefix + name.text
            else:
                ids.add(name.id)
                yield from self._file(prefix, name)
        yield from (
            Finding("Q08", place) for id, place in notes.items() if id not in ids and self._old(place)
        )
        for name in inner:
            yield from self._container(prefix, name, depth)
        for path in below:
            yield from self._inner(path, 0)
        if bare:
            yield from self._empty(prefix[:-1])

    @staticmethod
    def _is_room(prefix: str, entry: os.DirEntry[str]) -> bool:
        """Return whether the entry is a room or a bucket."""
        if not entry.is_dir(follow_symlinks=False):
            return False
        if prefix in ("", *ENDED) and entry.name in ROOMS:
            return True
        return (prefix in ENDED or prefix.endswith(f"{LATER}/")) and names.parse_bucket(
            entry.name
        ) is not None

    def _stranger(self, prefix: str, entry: os.DirEntry[str]) -> Iterator[Finding]:
        name = entry.name
        if not prefix and TEMPORARY.fullmatch(name):
            if self._old(name):
                yield Finding("Q17", name)
        elif prefix not in ("", *ENDED) or name not in FURNITURE:
            yield Finding("Q02", prefix + name)
        elif name in ROOMS:
            yield Finding("Q03", prefix + name, _type(entry))

    def _conditional(self, prefix: str, condition: Condition) -> Iterator[Finding]:
        """Report a name of a transaction that its process did not bring to its end."""
        path = prefix + condition.text
        verdict = self._resolver.register.look(condition.txn)
        if verdict == UNKNOWN:
            yield Finding("Q28", path)
        elif verdict == OPEN:
            due = self._resolver.abandoned_at(prefix, condition)
            if due is not None and due <= self._now:
                yield Finding("Q26", path)
        elif self._changed(path) + micros(PATIENCE) <= self._now:
            yield Finding("Q27", path, verdict)

    def _changed(self, path: str) -> int:
        """Return when a name was last changed, in microseconds; now if it is gone."""
        try:
            return fs.stat(path, dir_fd=self._fd, follow_symlinks=False).st_ctime_ns // 1000
        except FileNotFoundError:
            return self._now

    def _container(self, prefix: str, name: Name, depth: int) -> Iterator[Finding]:
        path = prefix + name.text
        if name.kind == STAGING:
            if staged.stale_staging(self._directory, self._settings, path):
                yield Finding("Q07", path)
        elif depth >= DEPTH:
            yield Finding("Q11", path)
        else:
            if prefix in (f"{LEASED_ROOM}/", f"{LATER}/"):
                yield Finding("Q25", path)
            yield from self._inner(path, depth + 1)

    def _empty(self, path: str) -> Iterator[Finding]:
        """Report an empty directory, unless somebody may be about to move something into it; rooms stay."""
        name = names.parse_directory(path.rpartition("/")[2])
        if name is None:
            return
        if name.kind == SLICE:
            used_up = names.micros_of(name.id) + micros(2 * SLICE_SECONDS)
        else:
            used_up = name.until + HOUR if name.kind == BUCKET else 0
        if self._now > used_up:
            yield Finding("Q10", path)

    # --- files ---------------------------------------------------------------------------------------------

    def _file(self, prefix: str, name: Name) -> Iterator[Finding]:
        path = prefix + name.text
        if name.kind == ACKED:
            # NFS: its presence shows a consumer that a reply was lost, so for a while it is no leftover.
            if name.until + self._stale < self._now:
                yield Finding("Q09", path)
        elif name.kind in (NEW, ERROR_NEW):
            yield from self._unfinished(prefix, name)
        else:
            yield from self._message(prefix, name)

    def _unfinished(self, prefix: str, name: Name) -> Iterator[Finding]:
        path = prefix + name.text
        if name.kind == NEW and self._linked(path):
            # CRASH: published by a link, and the writer died before its own name was gone.
            visible = prefix + name.id
            if fs.same_file(path, visible, self._fd):
                yield Finding("Q04", path, visible)
                return
        if self._aged(name.id) and self._old(path):
            yield Finding("Q06", path)

    def _message(self, prefix: str, name: Name) -> Iterator[Finding]:
        path = prefix + name.text
        other = self._seen.setdefault(name.id, path)
        if other != path:
            behind, ahead = sorted((other, path), key=_progress_of)
            yield Finding("Q04" if fs.same_file(path, other, self._fd) else "Q05", behind, ahead)
        if names.micros_of(name.id) > self._now + micros(FUTURE_SECONDS):
            yield Finding("Q12", path)
        yield from self._order(prefix, name)
        if not prefix.startswith(ENDED):
            yield from self._life(path, name)
            if self._is_misplaced(prefix, name):
                yield Finding("Q25", path)
        if name.card is not None and name.card.side and not self._has_side(path):
            yield Finding("Q29", path)
        if self._deep:
            yield from self._body(path)

    def _has_side(self, path: str) -> bool:
        try:
            return sidefile.read(self._directory, path) is not None
        except FileNotFoundError:
            return True  # RACE: it has another name by now
        except OSError:
            return False

    def _order(self, prefix: str, name: Name) -> Iterator[Finding]:
        priority = names.priority_of(name.id)
        if (priority is not None) != self._settings.priorities:
            yield Finding("Q14", prefix + name.text)
        above = names.parse(prefix[:-1].rpartition("/")[2])
        if above is not None and above.kind in CONTAINERS and names.priority_of(above.id) != priority:
            yield Finding("Q15", prefix + name.text)

    @staticmethod
    def _is_misplaced(prefix: str, name: Name) -> bool:
        """Return whether consumers do not look for such a message there, or only after its time."""
        bucket = names.parse_bucket(prefix[:-1].rpartition("/")[2])
        if bucket is not None:
            return name.kind == READY or name.until < bucket.until
        return prefix == f"{LATER}/" or (prefix == f"{LEASED_ROOM}/" and name.kind == READY)

    def _life(self, path: str, name: Name) -> Iterator[Finding]:
        if name.until > self._now + micros(FAR_SECONDS):
            yield Finding("Q13", path)
        limit = self._settings.max_attempts
        margin = micros(self._settings.margin) if name.kind == LEASED else 0
        over = name.kind in (DELAYED, LEASED) and name.until + margin < self._now
        if over and 0 < limit <= name.attempts:
            yield Finding("Q16", path)

    def _body(self, path: str) -> Iterator[Finding]:
        try:
            fd = fs.open(path, fs.READ, dir_fd=self._fd)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno == errno.ELOOP:
                return  # a link of ours: the walk has read it
            yield Finding("Q21", path, os.strerror(error.errno or 0))
            return
        try:
            links = fs.fstat(fd).st_nlink
        finally:
            fs.close(fd)
        if links > 1:
            yield Finding("Q22", path, f"{links} names")

    # --- facts ---------------------------------------------------------------------------------------------

    def _linked(self, path: str) -> bool:
        try:
            return fs.stat(path, dir_fd=self._fd, follow_symlinks=False).st_nlink > 1
        except FileNotFoundError:
            return False

    def _aged(self, id: str) -> bool:
        return names.micros_of(id) + self._stale < self._now

    def _old(self, path: str) -> bool:
        try:
            return fs.mtime_of(path, self._fd) * 1_000_000 + self._stale < self._now
        except FileNotFoundError:
            return False


def _type(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "a symbolic link"
    return "a directory" if entry.is_dir() else "a file" if entry.is_file() else "a fifo, socket or device"


def _progress_of(path: str) -> tuple[int, int]:
    """Return a sort key: a dead name is behind a live one (a redrive died), ready behind delayed behind leased."""
    name = names.parse(path.rpartition("/")[2])
    if name is None or path.startswith(ENDED):
        return 0, 0
    return {READY: 1, DELAYED: 2, LEASED: 3}.get(name.kind, 0), name.until

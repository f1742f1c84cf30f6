"""Moving a queue from one layout to another, in place.

Layer: tools.  Touches: the names in `conversion`, and the queue itself through its own claims and acks.
Invariant: each message is in the old queue, in moving/ or in the new queue, whatever happens; what lies in moving/
counts only if the old queue has it no more and the new queue has it not yet.
Crash: run it again; it goes on where it was.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.disk.beside import side_of
from dirqueue.errors import (
    DirQueueError,
    Empty,
    LeaseLost,
    QueueError,
    QueueNotFound,
    Unsupported,
    access_error,
)
from dirqueue.layouts import describe, layout_class, recognise, signs
from dirqueue.layouts.native import names
from dirqueue.layouts.native.names import ACKED, ERROR, ERROR_NEW, NEW, ROOMS, TEMPORARY
from dirqueue.lease import Lease
from dirqueue.queue import Queue
from dirqueue.settings import check_seconds
from dirqueue.tools import conversion
from dirqueue.tools.conversion import FROM, LOCK
from dirqueue.tools.discover import holds_queues

#: How long one message may be on its way; after a crash its lease delays the conversion for so long.
LEASE = 60.0
#: How the note of a file's length is named.
SIZE = ".size"
#: COMPAT: unfinished elements of dirq, and locks.
_DIRQ_LITTER = re.compile(r"[0-9a-f]{14}\.(tmp|lck)")


class Converted(NamedTuple):
    """What a conversion did."""

    messages: int
    #: Where the old directory is kept because something in it is not dirqueue's; empty if it is gone.
    left: str


def convert(
    path: str | os.PathLike[str],
    *,
    layout: str,
    wait: float = 0,
    progress: Callable[[], None] | None = None,
    **settings: Any,
) -> Converted:
    """Move every message of a queue to another layout, in order; the path stays the same.

    Stop producers first: what one of them puts into the old directory after the last step is not seen. Attempts,
    and the time of a put, begin anew; what the new layout cannot hold (delayed, dead and done messages) is refused.

    Args:
        path: The queue.
        layout: The layout that it is to have.
        wait: Seconds to wait for leases that others hold; 0 refuses at once if there are any.
        progress: Called once for each message.
        settings: For the new queue.
    """
    return _Conversion(os.path.abspath(path), layout, settings, progress or (lambda: None)).run(
        check_seconds("wait", wait)
    )


class _Conversion:
    def __init__(
        self, path: str, layout: str, settings: dict[str, Any], progress: Callable[[], None]
    ) -> None:
        self.path = path
        self.work = path + conversion.SUFFIX
        self.target_path = os.path.join(self.work, conversion.TARGET)
        self.moving = os.path.join(self.work, conversion.MOVING)
        self.old = os.path.join(self.work, conversion.OLD)
        self.layout = layout
        self.settings = settings
        self.progress = progress
        self.moved = 0

    def run(self, wait: float) -> Converted:
        """Convert the queue, or continue. Only one run at a time: what it moves looks like a leftover to another."""
        from filelock import FileLock, Timeout

        if not (self._there(self.path) or self._there(self.work)):
            raise QueueNotFound(f"there is no queue at {self.path!r} to convert", path=self.path)
        try:
            made = fs.make_directory(self.work)
            try:
                with FileLock(os.path.join(self.work, LOCK), timeout=0):
                    return self._run(wait)
            except BaseException:
                if made:
                    self._withdraw()
                raise
        except Timeout:
            text = f"another process is converting {self.path!r}; nothing was done"
            raise QueueError(text, path=self.path) from None
        except OSError as error:
            if isinstance(error, DirQueueError):
                raise
            raise access_error(self.path, "convert", error) from error

    def _run(self, wait: float) -> Converted:
        if self._there(self.old) and self._began_as() == "auto":
            raise QueueError(
                f"{self.old!r} holds what an earlier conversion found and that is not dirqueue's: move it away first",
                path=self.path,
            )
        if not self._there(self.old):
            source = self._source()
            if source is None:
                return Converted(0, self._sweep())
            with source:
                self._begin(source, wait)
                with self._new(self.target_path) as target:
                    self._leftovers(source, target)
                    self._drain(source, target, time.monotonic() + wait)
            _rename(self.path, self.old)
            # CRASH: the path is free until the next rename; the next run does it.
        if self._there(self.target_path):
            _rename(self.target_path, self.path)
            fs.sync_directory(os.path.dirname(self.path), -1)
        left = self._sweep()
        return Converted(self.moved, left)

    def _withdraw(self) -> None:
        """Remove the directory of the conversion if it was refused before anything was done in it."""
        if self._there(self.work) and fs.names_in(self.work, -1) == [LOCK]:
            fs.discard(os.path.join(self.work, LOCK), -1)
            fs.remove_directory(self.work, -1)

    def _source(self) -> Queue[bytes] | None:
        """Return the old queue; None if the work is done already."""
        began_as = self._began_as()
        # The new queue is made before that is written down, and leaves its place in the last step but one.
        if began_as != "auto" and not self._there(self.target_path):
            return None
        if began_as == "auto":
            signs.need_queue(self.path, "converted")
        source = Queue(self.path, create=False, layout=began_as)
        # CRASH: that we die, however often, is no failure of the message that we hold then.
        source.layout.settings = source.settings._replace(max_attempts=0)
        if began_as != "auto" or source.layout.name != self.layout:
            return source
        source.close()
        return None

    def _began_as(self) -> str:
        """Return the layout of the old queue: an emptied one cannot always be recognised."""
        try:
            return fs.read_file(os.path.join(self.work, FROM), -1).decode()
        except FileNotFoundError:
            return "auto"

    def _begin(self, source: Queue[bytes], wait: float) -> None:
        """Refuse what is impossible before anything is done, then make the directories."""
        found = conversion.interrupted(self.path)
        if found is not None and found.layout != self.layout:
            raise QueueError(str(found), path=self.path)
        if holds_queues(self.path, linked=False):
            raise QueueError(
                f"{self.path!r} holds other queues, which would be taken away with it: move them elsewhere "
                "first",
                path=self.path,
            )
        stats = source.stats()
        if stats.paused:
            raise QueueError(f"{self.path!r} is paused: resume it first", path=self.path)
        lacks = _lacks(self.layout)
        if "attributes" in lacks and any(each.extras for state in states.LIVE for each in source.peek(state)):
            raise Unsupported(
                f"{self.path!r} holds messages with attributes or a ttl, and {self.layout} has no place for them",
                path=self.path,
            )
        for state, count in (("delay", stats.delayed), ("dead", stats.dead), ("done", stats.done)):
            if count and state in lacks:
                raise Unsupported(
                    f"{self.path!r} holds {count} {state.replace('delay', 'delayed')} messages, and {self.layout} "
                    f"has no place for them: get, redrive or clear them first",
                    path=self.path,
                )
        if stats.dead or (
            stats.done and found is None
        ):  # a text file keeps what an interrupted run acknowledged
            raise Unsupported(
                f"{self.path!r} holds {stats.dead} dead and {stats.done} done messages, which are not converted: "
                f"redrive or clear them first",
                path=self.path,
            )
        if (held := stats.leased - stats.expired) and not wait:
            raise QueueError(
                f"{held} messages of {self.path!r} are held: stop the consumers, or give wait=SECONDS",
                path=self.path,
            )
        fs.make_directories(self.moving)
        self._new(self.target_path).close()
        if not self._there(os.path.join(self.work, FROM)):
            fs.replace_file(os.path.join(self.work, FROM), source.layout.name.encode(), -1, sync=True)

    def _new(self, path: str) -> Queue[bytes]:
        """Make or open the new queue; one that an interrupted run made keeps its settings if none are given."""
        if not self.settings and self._there(path):
            return Queue(path, layout=self.layout)
        return Queue.create(path, layout=self.layout, **self.settings)

    def _drain(self, source: Queue[bytes], target: Queue[bytes], deadline: float) -> None:
        while True:
            try:
                lease = source.get(timeout=0, lease=LEASE)
            except Empty:
                if not len(source):
                    return
                if time.monotonic() > deadline:
                    raise QueueError(
                        f"{len(source)} messages of {self.path!r} are still held; nothing is lost, run it again",
                        path=self.path,
                    ) from None
                time.sleep(0.05)
            else:
                self._move(lease, target)

    def _move(self, lease: Lease[bytes], target: Queue[bytes]) -> None:
        """Write a copy, remove the original, publish the copy: at each moment one of them counts."""
        copy = os.path.join(self.moving, lease.message.id.replace("/", "-"))
        with lease.message.open() as stream:
            fs.discard(copy, -1)
            fs.copy_out(stream, copy)
        fs.chmod(copy, fs.FILE_MODE & ~fs.umask())
        _flush(copy)
        fs.sync_directory(self.moving, -1)
        try:
            lease.ack()
        except LeaseLost:
            # RACE: this process was stopped, and another consumer has the message: the copy must not be put as well.
            fs.discard(copy, -1)
            return
        if describe(self.layout).is_file:
            self._note_size(copy, target)
        target.put_path(copy)
        fs.discard(copy + SIZE, -1)
        self.moved += 1
        self.progress()

    @staticmethod
    def _note_size(copy: str, target: Queue[bytes]) -> None:
        """Write down how long the file is: a put into it and the removal of the copy are two steps."""
        fs.replace_file(copy + SIZE, str(fs.size_of(target.path, -1)).encode(), -1, sync=True)

    def _leftovers(self, source: Queue[bytes], target: Queue[bytes]) -> None:
        """Finish what a crash left between the two queues."""
        if describe(self.layout).is_file:
            target.purge()  # what was cut short is complete after that
        for name in fs.names_in(self.moving, -1):
            if name.endswith((".new", SIZE)):
                if name.endswith(".new"):
                    fs.discard(os.path.join(self.moving, name), -1)
                continue
            copy = os.path.join(self.moving, name)
            entry = source.layout.find(name.replace("-", "/"))
            if entry is not None and entry.state in states.LIVE:
                fs.unlink(copy)  # the old queue has it still
            elif _holds(target, fs.stat(copy)) or self._appended(copy, target):
                fs.unlink(copy)  # the new queue has it already
            else:
                # A second name in the new queue that nobody can see is no message, and would be in the way.
                fs.replace_file(copy, fs.read_file(copy, -1), -1, sync=True)
                if describe(self.layout).is_file:
                    self._note_size(copy, target)
                target.put_path(copy)
                self.moved += 1
        for name in fs.names_in(self.moving, -1):
            fs.discard(os.path.join(self.moving, name), -1)

    def _appended(self, copy: str, target: Queue[bytes]) -> bool:
        """Return whether a copy was put into the file before the crash: it is longer than it was."""
        try:
            before = int(fs.read_file(copy + SIZE, -1))
        except FileNotFoundError:
            return False
        return fs.size_of(target.path, -1) > before

    def _sweep(self) -> str:
        """Move what came into the old directory at the last moment, and remove it if nothing is left."""
        if self._there(self.old):
            with Queue(self.old, create=False, layout=self._began_as()) as late:
                if len(late):
                    fs.make_directories(self.moving)
                    with self._new(self.path) as target:
                        self._leftovers(late, target)
                        self._drain(late, target, time.monotonic())
            _remove_old(self.old, self._began_as())
        for name in (FROM + ".new", FROM, LOCK):
            fs.discard(os.path.join(self.work, name), -1)
        for path in (self.moving, self.work):
            fs.remove_directory(path, -1)
        return self.work if self._there(self.work) else ""

    @staticmethod
    def _there(path: str) -> bool:
        return fs.exists(path, -1)


def _rename(src: str, dst: str) -> None:
    """Rename a queue; if it is one file, what lies beside it first."""
    if fs.exists(side_of(src), -1):
        fs.remove_tree(side_of(dst), -1)  # CRASH: moved before, and then another was made
        fs.rename(side_of(src), side_of(dst))
    fs.rename(src, dst)


def _remove_old(path: str, layout: str) -> None:
    """Remove an emptied queue: its directories and what crashes left in it, but nothing that is not dirqueue's."""
    if describe(layout).is_file:
        fs.remove_tree(side_of(path), -1)
        fs.discard(path, -1)
        return
    for entry in list(fs.listing(path, -1)):
        inner = os.path.join(path, entry.name)
        if not entry.is_dir(follow_symlinks=False):
            if entry.name in describe("native").litter or TEMPORARY.fullmatch(entry.name):
                fs.discard(inner, -1)
            else:
                _remove_litter(path, entry.name)
        elif entry.name in describe(layout).nests and layout == "dirq-normal":
            fs.remove_tree(inner, -1)  # elements half removed or half written
        elif layout in recognise(entry.name, lambda: True) or entry.name in ROOMS:
            _remove_emptied(inner)
    fs.remove_directory(path, -1)


def _remove_emptied(path: str) -> None:
    """Remove a directory of messages with what crashes left in it."""
    for entry in list(fs.listing(path, -1)):
        if entry.is_dir(follow_symlinks=False):
            _remove_emptied(os.path.join(path, entry.name))
        else:
            _remove_litter(path, entry.name)
    fs.remove_directory(path, -1)


def _remove_litter(path: str, name: str) -> None:
    """Remove a file that a process left when it died: never a message that was accepted."""
    parsed = names.parse(name)
    if _DIRQ_LITTER.fullmatch(name) or (parsed and parsed.kind in (NEW, ERROR, ERROR_NEW, ACKED)):
        fs.discard(os.path.join(path, name), -1)


def _flush(path: str) -> None:
    fd = fs.open(path, fs.READ)
    try:
        fs.fsync(fd)
    finally:
        fs.close(fd)


def _holds(target: Queue[bytes], copy: os.stat_result) -> bool:
    """Return whether a message of the queue is the same file."""
    if copy.st_nlink == 1:
        return False
    for message in target.peek():
        with message.open() as stream:
            try:
                if fs.fstat(stream.fileno()).st_ino == copy.st_ino:
                    return True
            except io.UnsupportedOperation:
                continue  # a link that a producer put meanwhile
    return False


def _lacks(layout: str) -> dict[str, str]:
    lacks: dict[str, str] = layout_class(layout).lacks
    return lacks

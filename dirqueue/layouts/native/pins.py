"""Pinned messages: taken out of the queue in numbered, sealed lots that can be read again and again.

    .spark/pins/CONSUMER/owner           the process that pins, and its timeout; touched as a sign of life
    .spark/pins/CONSUMER/7.new/ID.part/  lot 7 being filled
    .spark/pins/CONSUMER/7/ID.part/      lot 7, sealed: it never changes until it ends
    .spark/pins/CONSUMER/7.mv.T/         held by a transaction that is to acknowledge it (held_lots.py)
    .spark/pins/CONSUMER/7.ack/          acknowledged, being removed

Layer: layouts.  Touches: the names above, and claimable messages by their exact names.
Invariant: a message has one name; a sealed lot ends by one rename, to 7.ack or back into the queue as ID.batch.
Crash: 7.new goes back to the queue when the consumer comes again; 7.ack is removed then; a consumer that gives no
sign of life for its timeout loses its lots to the queue, and learns it when it acknowledges.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import TIME_DIGITS, UNIQUE_DIGITS
from dirqueue.errors import LeaseLost, SettingsError, access_error
from dirqueue.layouts.native import held_lots, names, parts, sidefile, staging
from dirqueue.layouts.native.conditions import SPACE
from dirqueue.layouts.native.names import BATCH, DONE, MALFORMED, PART, SPARK
from dirqueue.layouts.native.publish import SLICE_SIZE
from dirqueue.layouts.native.rooms import Rooms
from dirqueue.layouts.native.side import set_time
from dirqueue.layouts.native.supply import Folder, Supply
from dirqueue.message import Entry
from dirqueue.settings import Settings

PINS = f"{SPARK}/pins"
OWNER = "owner"
NOTES = (OWNER, f"{OWNER}.new")
#: Renames at once where each one waits for a server.
REMOTE_THREADS = 16
#: A lot that is half full leaves a directory of so many messages whole to the next one.
WORTH_WAITING = 256
#: A consumer without a note of its owner is one being made, or half given up: it is left alone for so long.
OWNERLESS_SECONDS = 3600.0
#: Applies a function to each of many, and gives the results.
Each = Callable[[Callable[[str], int], Sequence[str]], Iterable[int]]
_CONSUMER = re.compile(r"[A-Za-z0-9_-]{1,100}")
_LOT = re.compile(r"(0|[1-9][0-9]{0,18})(\.new|\.ack)?")


class Limit(NamedTuple):
    """How much one lot may hold; None = all there is."""

    messages: int | None = None
    size: int | None = None


class Pins:
    """The lots of one consumer in one queue. One process at a time speaks for a consumer."""

    def __init__(self, directory: Directory, settings: Settings, consumer: str) -> None:
        if not _CONSUMER.fullmatch(consumer):
            raise SettingsError(f"{consumer!r:.60} cannot name a consumer: letters, digits, _ and - only")
        self.directory = directory
        self.settings = settings
        self.consumer = consumer
        self.base = f"{PINS}/{consumer}"

    # --- the consumer --------------------------------------------------------------------------------------

    def register(self, timeout: float, *, keep: bool = False, **about: Any) -> None:
        """Make the consumer known: its lots go back to the queue after `timeout` seconds without beat()."""
        directory, directories = self.directory, (SPARK, PINS, self.base)
        directory.make()
        try:
            for each in directories:
                fs.make_inner(each, directory.fd)
            text = json.dumps({"timeout": timeout, "keep": keep, **about}).encode()
            staging.replace(directory, f"{self.base}/{OWNER}", text, sync=self.settings.sync)
            self._sync(".", *directories)
        except OSError as error:
            raise access_error(directory.path, "pin messages of", error) from error

    def known(self) -> bool:
        """Whether the consumer is registered and was not given up."""
        return self.directory.find() and fs.exists(f"{self.base}/{OWNER}", self.directory.fd)

    def beat(self) -> None:
        """Give a sign of life; LeaseLost if the lots were given back already."""
        try:
            fs.utime(f"{self.base}/{OWNER}", dir_fd=self.directory.fd)
        except FileNotFoundError:
            raise self._lost("renew") from None
        except OSError as error:
            raise access_error(self.directory.path, "renew the pinned messages of", error) from error

    def forget(self) -> None:
        """Take the consumer off the list, if it holds nothing."""
        found = self.names()
        if all(name in NOTES for name in found):
            for name in found:
                fs.discard(f"{self.base}/{name}", self.directory.fd)
            fs.remove_directory(self.base, self.directory.fd)

    # --- lots ----------------------------------------------------------------------------------------------

    def lots(self) -> list[int]:
        """Return the numbers of the sealed lots."""
        return sorted(int(name) for name in self.names() if name.isdecimal() and _LOT.fullmatch(name))

    def names(self) -> list[str]:
        """Return all that lies in the consumer's directory."""
        try:
            return [entry.name for entry in fs.listing(self.base, self.directory.fd)]
        except FileNotFoundError:
            return []

    def pin(
        self, lot: int, waiting: Supply, limit: Limit, *, progress: Callable[[], None] | None = None
    ) -> int:
        """Move messages into a lot and seal it; return their number."""
        directory, new = self.directory, f"{self.base}/{lot}.new"
        try:
            self.give_back(f"{lot}.new")  # CRASH: of an earlier try
            if not fs.make_inner(new, directory.fd):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
            count = self._fill(new, waiting, limit, progress or (lambda: None))
            if not count:
                fs.remove_tree(new, directory.fd)
                return 0
            if self.settings.sync:
                self._flush(new)
            fs.move(new, f"{self.base}/{lot}", directory.fd)
            self._sync(self.base)
            return count
        except FileNotFoundError:
            raise self._lost("pin more messages for") from None
        except OSError as error:
            raise access_error(directory.path, "pin messages of", error) from error

    def _fill(self, new: str, waiting: Supply, limit: Limit, progress: Callable[[], None]) -> int:
        folders = self._takes_folders(limit)
        count = size = 0
        while limit.messages is None or count < limit.messages:
            room = SLICE_SIZE if limit.messages is None else limit.messages - count
            folder = waiting.folder() if folders else None
            if folder is None:
                part = _next(waiting, limit, min(room, SLICE_SIZE), size, begun=count > 0, folders=folders)
                count += self._take(new, part.names)
                size = part.size
                if part.last:
                    break
            elif limit.messages is None or len(folder.names) <= room:
                count += self._take_folder(new, folder, waiting)
            elif count >= room and len(folder.names) >= WORTH_WAITING:
                waiting.give_back(folder)  # whole in the next lot, rather than name by name in two
                break
            else:
                waiting.spread(folder)
            progress()
        return count

    def _takes_folders(self, limit: Limit) -> bool:
        """Return whether a directory may be taken whole.

        NFS: a host that knows the directory by its handle would go on to claim in it after it was taken.
        RACE: a transaction of a space may be about to hold a name in it.
        """
        mount = self.directory.mount
        apart = (
            mount.calls_are_slow or mount.replies_can_be_lost or fs.exists(f"../{SPACE}", self.directory.fd)
        )
        return limit.size is None and not apart

    def _take_folder(self, new: str, folder: Folder, waiting: Supply) -> int:
        """Move a directory into the lot and return the number of messages in it; or spread it, and return 0.

        RACE: consumers may claim in it until this rename, and after it their names lead nowhere; so it is counted now.
        """
        fd, place = self.directory.fd, folder.prefix[:-1]
        part = f"{new}/{place.rpartition('/')[2].partition('.')[0]}.{PART}"
        try:
            fs.rename(place, part, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError as error:
            # There is a part of that name; it is another user's; it was emptied and removed; or the lot is gone.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ENOENT):
                raise
            waiting.spread(folder)
            return 0
        return parts.count(self.directory, part)

    def _take(self, new: str, chunk: Sequence[tuple[str, str]]) -> int:
        """Move names into a part; return the number that were still there."""
        if not chunk:
            return 0
        part = f"{new}/{chunk[0][1].partition('.')[0]}.{PART}"
        fs.make_inner(part, self.directory.fd)
        moves = [(prefix + name, f"{part}/{names.unclaimed(name)}") for prefix, name in chunk]
        if not self.directory.mount.calls_are_slow:
            return sum(self._move(src, dst) for src, dst in moves)
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(REMOTE_THREADS) as pool:
            return sum(pool.map(lambda move: self._move(*move), moves))

    def _move(self, src: str, dst: str) -> bool:
        fd = self.directory.fd
        try:
            fs.rename(src, dst, src_dir_fd=fd, dst_dir_fd=fd)
        except FileNotFoundError:
            # RACE: another consumer claimed it first. NFS: or it was us, and the reply was lost.
            return self.directory.mount.replies_can_be_lost and fs.exists(dst, fd)
        except PermissionError:
            if "/" not in src:
                raise
            return False  # its slice or batch is another user's
        return True

    def parts(self, lot: int) -> list[str]:
        """Return the directories of a sealed lot, in order; LeaseLost if it is not there."""
        path = f"{self.base}/{lot}"
        try:
            found = [names.parse(entry.name) for entry in fs.listing(path, self.directory.fd)]
        except FileNotFoundError:
            raise self._lost("read") from None
        kept = [name for name in found if name is not None and name.kind == PART]
        return [f"{path}/{name.text}/" for name in sorted(kept, key=lambda name: names.order_key(name.id))]

    def ack(self, lot: int, *, keep: bool = False) -> int:
        """Remove a lot, or keep its messages in done/; return their number. LeaseLost if it was given back."""
        return self.finish(self._end(lot), keep=keep)

    def ack_through(self, last: int, *, keep: bool = False) -> int:
        """Acknowledge every lot up to this number that is still there, and finish what a crash left."""
        return sum(self.finish(name, keep=keep) for name in self.end_through(last))

    def end_through(self, last: int) -> list[str]:
        """Acknowledge every lot up to this number that is still there; return what there is to finish, in order."""
        ended = []
        for name in self.names():
            match = _LOT.fullmatch(name)
            if match and match[2] == ".ack":
                ended.append(name)
            elif match and not match[2] and int(match[1]) <= last:
                ended.append(self._end(int(match[1])))
        return sorted(ended, key=lambda name: int(name.partition(".")[0]))

    def _end(self, lot: int) -> str:
        """Acknowledge a lot; return what there is to finish."""
        try:
            fs.move(f"{self.base}/{lot}", f"{self.base}/{lot}.ack", self.directory.fd)
        except FileNotFoundError:
            raise self._lost("ack") from None
        except OSError as error:
            raise access_error(self.directory.path, "ack messages of", error) from error
        self._sync(self.base)
        return f"{lot}.ack"

    def finish(self, name: str, *, keep: bool, mapped: Each = map) -> int:
        """Remove an acknowledged lot, or move its messages to done/; return their number.

        Args:
            mapped: Removes the parts: like `map`, or that of a pool of threads.
        """
        path = f"{self.base}/{name}"
        inner = [f"{path}/{part}" for part in _directories(self.directory, path)]
        if not keep:
            self._forget_sides(path)
            return sum(mapped(self._remove, inner)) + fs.remove_tree(path, self.directory.fd)
        for part in inner:
            self._put_out(part)
        directory, count = self.directory, 0
        rooms, kept = Rooms(directory, sync=self.settings.sync), set()
        try:
            leased = int(fs.mtime_of(path, directory.fd) * 1_000_000_000)
            for part, each in parts.contents(directory, path):
                place = f"{path}/{part}/{each.text}"
                set_time(directory, place, leased)
                card, now = names.raised(each.text), directory.clock.now()
                done = names.ended(DONE, each.id, now, each.attempts + 1, card)
                rooms.move(place, done)
                kept.add(names.folder_of(done)[:-1])
                count += 1
        except FileNotFoundError:
            return count  # RACE: another process finishes it
        if self.settings.sync and kept:
            directory.sync(*kept)
        fs.remove_tree(path, directory.fd)
        return count

    def _remove(self, part: str) -> int:
        self._put_out(part)
        parts.forget_carried(self.directory, part)
        return fs.remove_tree(part, self.directory.fd)

    def _put_out(self, part: str) -> None:
        """Move links that are no messages, and came along with a directory, to the queue, where all leave them."""
        for name in parts.foreign(self.directory, part):
            # RACE: another process that finishes this lot has put it out; the next one may still be ours to do.
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                self.directory.mount.publish(f"{part}/{name}", name, self.directory.fd)

    def _forget_sides(self, path: str) -> None:
        """Remove the side files of the tasks in an acknowledged lot; only a queue of a space can have any."""
        if fs.exists(f"../{SPACE}", self.directory.fd):
            with contextlib.suppress(FileNotFoundError):  # RACE: another process finishes it
                for _, each in parts.contents(self.directory, path):
                    sidefile.forget(self.directory, each.id, each.card)

    def release(self, lot: int) -> bool:
        """Give a lot back to the queue, uncounted; False if it is not there."""
        return self.give_back(f"{lot}")

    def give_back(self, name: str) -> bool:
        """Make a lot, sealed or not, a batch of the queue again by one rename; False if it holds nothing."""
        directory, path = self.directory, f"{self.base}/{name}"
        try:
            ids = [each.id for _, each in parts.contents(directory, path)]
            if not ids:
                fs.remove_tree(path, directory.fd)
                return False
            first = min(ids, key=names.order_key)
            lead = str(names.priority_of(first) or "")
            when = f"{names.micros_of(first)}"[:TIME_DIGITS]
            unique = f"{random.randrange(10**UNIQUE_DIGITS):0{UNIQUE_DIGITS}d}"  # noqa: S311 - a name, no secret
            fs.move(path, f"{lead}{when}{unique}.{BATCH}", directory.fd)
            self._sync(".")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise access_error(directory.path, "release messages of", error) from error
        return True

    # --- helpers -------------------------------------------------------------------------------------------

    def _flush(self, path: str) -> None:
        if self.directory.mount.syncfs:
            return fs.syncfs(self.directory.fd)
        inner = [f"{path}/{entry.name}" for entry in fs.listing(path, self.directory.fd)]
        return self._sync(*inner, path, ".")

    def _sync(self, *directories: str) -> None:
        if self.settings.sync:
            self.directory.sync(*directories)

    def _lost(self, doing: str) -> LeaseLost:
        return LeaseLost(
            f"cannot {doing} the consumer {self.consumer} of {self.directory.path!r}: it gave no sign of life for its "
            f"timeout and its messages went back to the queue, or they were removed",
            message_id="",
            token=self.consumer,
            reason="gone",
        )


class _Part(NamedTuple):
    """Names for one part, the bytes of the lot with them, and whether the lot ends with it."""

    names: list[tuple[str, str]]
    size: int
    last: bool


def _next(waiting: Supply, limit: Limit, most: int, size: int, *, begun: bool, folders: bool) -> _Part:
    """Return what comes next, up to a directory that can be taken whole."""
    chunk: list[tuple[str, str]] = []
    while len(chunk) < most:
        if folders and chunk and (folder := waiting.folder()) is not None:
            waiting.give_back(folder)
            break
        found = waiting.take()
        if found is None:
            return _Part(chunk, size, last=True)
        more = 0 if limit.size is None else waiting.size(found)
        if limit.size is not None and size + more > limit.size and (begun or chunk):
            waiting.give_back(found)
            return _Part(chunk, size, last=True)
        if more >= 0:
            size += more
            chunk.append(found)
    return _Part(chunk, size, last=False)


def _directories(directory: Directory, path: str) -> list[str]:
    """Return the directories in a lot; none if it is gone."""
    try:
        return fs.directories_in(path, directory.fd)
    except OSError:
        return []


def consumers(directory: Directory) -> list[str]:
    """Return the names of the consumers that pin messages here."""
    try:
        found = [entry.name for entry in fs.listing(PINS, directory.fd)]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    return sorted(name for name in found if _CONSUMER.fullmatch(name))


class Owner(NamedTuple):
    """What is known of a consumer."""

    #: When it is given up unless it gives a sign of life, in microseconds.
    until: int
    #: Whether it keeps what it acknowledges.
    keep: bool


def owner(directory: Directory, consumer: str) -> Owner | None:
    """Return what is known of a consumer; None if nobody can know, and then it is never given up."""
    base = f"{PINS}/{consumer}"
    try:
        about = json.loads(fs.read_file(f"{base}/{OWNER}", directory.fd))
        touched = fs.mtime_of(f"{base}/{OWNER}", directory.fd)
        return Owner(micros(touched) + micros(float(about["timeout"])), bool(about.get("keep")))
    except FileNotFoundError:
        if not fs.exists(base, directory.fd):
            return None
        try:
            return Owner(micros(fs.mtime_of(base, directory.fd) + OWNERLESS_SECONDS), keep=False)
        except FileNotFoundError:
            return None  # RACE: gone since the line above
    except MALFORMED:
        return None  # not as we write them


def folders(directory: Directory) -> Iterator[tuple[str, int, str]]:
    """Yield the consumer, the end of its claim and the path of every part of its lots; no path if it is hidden."""
    for consumer in consumers(directory):
        base = f"{PINS}/{consumer}"
        try:
            known = owner(directory, consumer)
            until = known.until if known else 0
            for lot in [entry.name for entry in fs.listing(base, directory.fd)]:
                match = _LOT.fullmatch(lot)
                if match[2] == ".ack" if match else not held_lots.is_pinned(directory, lot):
                    continue
                for part in list(fs.listing(f"{base}/{lot}", directory.fd)):
                    if part.is_dir(follow_symlinks=False):
                        yield consumer, until, f"{base}/{lot}/{part.name}/"
        except (FileNotFoundError, NotADirectoryError):
            continue  # RACE: it ended meanwhile
        except PermissionError:
            yield consumer, 0, ""


def entries(directory: Directory) -> Iterator[Entry]:
    """Yield the pinned messages: they are leased, their token is the consumer."""
    for consumer, until, prefix in folders(directory):
        if prefix:
            foreign = {prefix + name for name in parts.foreign(directory, prefix)}
            found = parts.read(directory, prefix, until, consumer)
            yield from (entry for entry in found if entry.place not in foreign)
        else:
            yield Entry("", states.FOREIGN, f"{PINS}/{consumer}", 0)  # another user's


def release_stale(directory: Directory, settings: Settings) -> int:
    """Give back the lots of consumers that are past their timeout; return how many lots went back.

    RACE: consumers and purgers may do this at once: each lot goes by one rename, and whoever comes late finds it gone.
    """
    count = 0
    now = directory.clock.now() - micros(settings.margin)
    for consumer in consumers(directory):
        try:
            known = owner(directory, consumer)
            if known is not None and known.until < now and directory.clock.plausible:
                count += _give_up(Pins(directory, settings, consumer), keep=known.keep)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM):  # another user's
                raise
    return count


def _give_up(pins: Pins, *, keep: bool) -> int:
    """Give back the lots of one consumer; return how many went back."""
    count = 0
    # First the owner's note: whoever is late learns it at the next beat, before it pins more.
    for note in NOTES:
        fs.discard(f"{pins.base}/{note}", pins.directory.fd)
    for name in [held_lots.settle(pins.directory, pins.base, name) for name in pins.names()]:
        if name.endswith(".ack"):
            pins.finish(name, keep=keep)
        elif _LOT.fullmatch(name):
            count += pins.give_back(name)
    fs.remove_directory(pins.base, pins.directory.fd)
    return count

"""Ids of the user's own, each unique in its space: which message has which.

    .space/ids/HH/KEY/ID         KEY belongs to the message ID: a second name (hard link) of its file
    .space/ids/HH/KEY/ID.if.T    the same if T commits

KEY is the id as naming.py writes it, HH two digits of its hash. A directory has one entry. To take a key is to rename a
prepared directory onto it, which succeeds only if nobody has it or its directory is empty. An entry with one link left
is stale: its message is gone, so whoever meets it removes it, and a plain ack frees a key without knowing of keys.

Layer: objects.  Touches: .space/ids/, boxes among the registers.
Crash: an entry under a condition comes to its end like any other conditional name; a box goes with its register.
"""

from __future__ import annotations

import errno
import re
import zlib
from collections.abc import Callable
from typing import NamedTuple

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.errors import InvalidId
from dirqueue.layouts.native import conditions, holders
from dirqueue.layouts.native.conditions import ABORTED, OPEN, REGISTERS, SPACE, Condition
from dirqueue.layouts.native.register import Register
from dirqueue.layouts.native.resolve import settle
from dirqueue.space import naming

IDS = f"{SPACE}/ids"
#: The longest id, in characters; and in bytes as it is written, beyond which a hash stands for it.
LIMIT = 200
LONGEST = 200
#: What begins a hash: no written id can have a percent sign that is followed by this.
HASHED = "%z"
#: An id that the card of a name can hold.
_IN_NAMES = re.compile(r"[A-Za-z0-9_-]{1,36}")
#: How often a key that is being taken or freed by others is looked at again.
TRIES = 20

#: Waits for a transaction that is in the way, and returns its verdict; "open" to give up.
Wait = Callable[[str, Condition], str]


class Taken(Exception):
    """Another message has the key."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        #: The message that has it; empty if it could not be told because others keep changing it.
        self.id = id


class Box(NamedTuple):
    """A key about to be taken: its prepared directory, and the entry in it."""

    path: str
    entry: str


def check(id: object) -> str:
    """Return how an id of the user's own is written; InvalidId if it cannot be one."""
    if not isinstance(id, str) or not id:
        raise InvalidId(f"an id of your own is a text, not {id!r:.60}", message_id=str(id)[:60])
    try:
        key = naming.quote(id)
    except UnicodeEncodeError:
        raise InvalidId(
            f"an id must be encodable as UTF-8, and {id!r:.60} is not", message_id=id[:60]
        ) from None
    if len(id) > LIMIT:
        raise InvalidId(
            f"an id may have {LIMIT} characters, and {id!r:.60} has {len(id)}", message_id=id[:60]
        )
    return key if len(key) <= LONGEST else HASHED + holders.hashed(id.encode())


def key_of(id: str) -> str:
    """Return how an id of the user's own is told by the name of its message: as it is, or by a hash."""
    return id if _IN_NAMES.fullmatch(id) else "=" + holders.hashed(id.encode())


def kept(id: str | None) -> str:
    """Return what a side file has to keep of an id: all of it where the name has a hash."""
    return "" if id is None or _IN_NAMES.fullmatch(id) else id


def folder_of(key: str) -> str:
    """Return where a key lies in the space."""
    return f"{IDS}/{zlib.crc32(key.encode()) & 0xFF:02x}/{key}"


def reserve(directory: Directory, register: Register, key: str, message: str, box: Box, wait: Wait) -> None:
    """Take a key for a staged message, under the condition of its transaction.

    Raises:
        Taken: another message has it, or is about to.
        OSError: plain.
    """
    fd, folder = directory.fd, folder_of(key)
    fs.make_directory(box.path, fd)
    _link(message, f"{box.path}/{box.entry}", fd)
    for _ in range(TRIES):
        try:
            fs.rename_in(box.path, folder, fd)
            return
        except OSError as error:
            if error.errno == errno.ENOENT:
                if fs.exists(f"{folder}/{box.entry}", fd):
                    return  # NFS: done, reply lost
                fs.make_inner(SPACE, fd)
                fs.make_inner(IDS, fd)
                fs.make_inner(folder.rpartition("/")[0], fd)
                continue
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        holder = _holder(directory, register, folder, wait)
        if holder is not None:
            raise Taken(holder)
    raise Taken("")


def _link(message: str, entry: str, fd: int) -> None:
    try:
        fs.link(message, entry, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
    except FileExistsError:
        pass  # NFS: done, reply lost; the name is ours alone


def find(directory: Directory, register: Register, key: str) -> str | None:
    """Return the message that has a key, without changing anything; None if there is none."""
    folder = folder_of(key)
    for _ in range(TRIES):
        try:
            entries = fs.names_in(folder, directory.fd)
        except FileNotFoundError:
            return None
        for name in entries:
            condition = conditions.parse(name)
            if condition is not None and not conditions.here(condition, register.look(condition.txn)):
                continue
            try:
                if _is_live(directory, f"{folder}/{name}"):
                    return condition.base.id if condition else name
            except FileNotFoundError:
                break  # RACE: renamed or removed since it was listed: look again
        else:
            return None
    return None


def _holder(directory: Directory, register: Register, folder: str, wait: Wait) -> str | None:
    """Return the message that has a key; None if it is free now, or may be."""
    fd = directory.fd
    try:
        entries = fs.names_in(folder, fd)
    except FileNotFoundError:
        return None
    for name in entries:
        entry, id = f"{folder}/{name}", name
        condition = conditions.parse(name)
        try:
            if condition is not None:
                verdict = wait(folder + "/", condition)
                if verdict == OPEN:
                    return condition.base.id
                settle(fd, folder + "/", condition, verdict, register)
                if verdict == ABORTED:
                    continue
                entry, id = f"{folder}/{condition.base.text}", condition.base.id
            if _is_live(directory, entry):
                return id
            fs.unlink(entry, dir_fd=fd)  # its message is gone, and ids never recur
        except FileNotFoundError:
            continue
    return None


def _is_live(directory: Directory, entry: str) -> bool:
    """Return whether the message of an entry is there; FileNotFoundError if the entry is not.

    Its second name may be the register of a committed transaction that consumed it and has not come to its end.
    """
    for _ in range(TRIES):
        facts = fs.stat(entry, dir_fd=directory.fd, follow_symlinks=False)
        if facts.st_nlink == 1 or _is_register(directory, facts.st_ino):
            return False
        # RACE: the register may have been forgotten between the two looks.
        if fs.stat(entry, dir_fd=directory.fd, follow_symlinks=False).st_nlink > 1:
            return True
    return True


def _is_register(directory: Directory, inode: int) -> bool:
    """Return whether a file is the register of a transaction."""
    fd = directory.fd
    for _ in range(TRIES):
        fenced = False
        for process in _listed(REGISTERS, fd) or ():
            numbers = _listed(f"{REGISTERS}/{process}", fd)
            fenced = fenced or numbers is None
            if any(_inode(f"{REGISTERS}/{process}/{each}", fd) == inode for each in numbers or ()):
                return True
        if not fenced:  # else RACE: what was in P is in P.gone now
            break
    return False


def _inode(register: str, fd: int) -> int:
    try:
        return fs.stat(register, dir_fd=fd, follow_symlinks=False).st_ino
    except FileNotFoundError:
        return 0


def clean(directory: Directory) -> int:
    """Remove keys whose message is gone; return their number. Conditional entries are left to whoever resolves them."""
    fd = directory.fd
    gone = 0
    for part in _listed(IDS, fd) or ():
        for key in _listed(f"{IDS}/{part}", fd) or ():
            folder = f"{IDS}/{part}/{key}"
            for name in _listed(folder, fd) or ():
                entry = f"{folder}/{name}"
                try:
                    if conditions.parse(name) is None and not _is_live(directory, entry):
                        fs.unlink(entry, dir_fd=fd)
                        gone += 1
                except FileNotFoundError:
                    continue
            fs.remove_quietly(folder, fd)
    return gone


def _listed(path: str, fd: int) -> list[str] | None:
    """Return the names in a directory; None if there is no such directory."""
    try:
        return fs.names_in(path, fd)
    except (FileNotFoundError, NotADirectoryError):
        return None

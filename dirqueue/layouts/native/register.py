"""The registers of transactions: which of them are committed.

    .space/txn/P/n        the register of T = P-n: a directory is "aborted", anything else "committed", nothing "open"
    .space/txn/P.gone/    the registers of a process that a purge fenced: nothing in them can be committed any more

The owner commits by one rename onto the register, or by creating it exclusively; anybody aborts by mkdir. The kernel
lets exactly one of them succeed: no file is renamed onto a directory, and no directory is made over a file.

Layer: layouts.  Touches: .space/txn/P/n (mkdir only).
Invariant: a verdict other than "open" never changes, until the last name of the transaction has come to its end.
Addressed by path from a directory that is never renamed: through a descriptor of P a fence would not be noticed.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from stat import S_ISDIR
from typing import Protocol

from dirqueue.disk import fs
from dirqueue.disk.identity import ID_DIGITS
from dirqueue.layouts.native import names
from dirqueue.layouts.native.conditions import ABORTED, COMMITTED, OPEN, REGISTERS, UNKNOWN, register_of

#: How often a decision that others are making too is looked at again.
TRIES = 6


class Opened(Protocol):
    """An open directory."""

    fd: int


class Register:
    """The registers of a space, as they are reached from an open directory."""

    def __init__(self, directory: Opened, root: str) -> None:
        self._directory = directory
        #: The path of the registers from there.
        self.root = root

    def look(self, txn: str) -> str:
        """Return what is decided: a fact, or "open", which is a hint."""
        known = self._kind(register_of(txn))
        if known is None:
            # RACE: in this order. A fence renames P to P.gone, so what is in neither place is in none only if P was
            # seen to be away before P.gone is looked at.
            if fs.exists(f"{self.root}/{register_of(txn).partition('/')[0]}", self._directory.fd):
                return OPEN
            known = self._kind(register_of(txn, gone=True))
        if known is None and not fs.exists(self.root, self._directory.fd):
            return UNKNOWN
        # With P and P.gone away every name of T has come to its end: a wrong "aborted" finds nothing to undo.
        return known or ABORTED

    def _kind(self, place: str) -> str | None:
        try:
            # Never through a link: the consumed message, which becomes the register, may be one.
            facts = fs.stat(f"{self.root}/{place}", dir_fd=self._directory.fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return ABORTED if S_ISDIR(facts.st_mode) else COMMITTED

    def decide(self, txn: str) -> str:
        """Abort the transaction unless it is committed, and return the verdict; "open" if that is not ours to do."""
        for _ in range(TRIES):
            verdict = self.look(txn)
            if verdict != OPEN:
                return verdict
            try:
                fs.mkdir(f"{self.root}/{register_of(txn)}", fs.DIR_MODE, dir_fd=self._directory.fd)
            except (FileExistsError, FileNotFoundError):
                continue  # RACE: decided since the look (NFS: or by our own call, whose reply was lost); or fenced
            except PermissionError:
                return OPEN  # another user's
            return ABORTED
        return OPEN

    def beat(self, txn: str) -> float:
        """Return when the owner last showed that it is alive, in seconds; 0 if it never needed to."""
        try:
            return fs.mtime_of(f"{self.root}/{register_of(txn)}.alive", self._directory.fd)
        except (FileNotFoundError, NotADirectoryError):
            return 0.0

    def plan(self, txn: str) -> dict[str, str]:
        """Return where a committed transaction moves messages: id -> path in the space; nothing if it is forgotten."""
        import json

        for gone in (False, True):
            try:
                text = fs.read_file(f"{self.root}/{register_of(txn, gone=gone)}", self._directory.fd)
                moves = json.loads(text)["move"]
                return {str(id): str(path) for id, path in moves.items() if _is_inside(str(path))}
            except FileNotFoundError:
                continue
            except names.MALFORMED:
                return {}  # not as we write them: what it moves stays as it is, for `check` to report
        return {}

    def planned(self) -> Iterator[str]:
        """Yield the ids of messages that a transaction is about to move: open, or committed and not at its end."""
        fd = self._directory.fd
        # RACE: two renames, the commit and a fence, may each hide it from one look.
        for _ in range(3):
            for process in _listed(self.root, fd):
                for name in _listed(f"{self.root}/{process}", fd):
                    if name.isdigit() or name.endswith(".plan"):
                        yield from _moved(f"{self.root}/{process}/{name}", fd)


def _listed(path: str, fd: int) -> list[str]:
    try:
        return fs.names_in(path, fd)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _moved(path: str, fd: int) -> list[str]:
    """Return the ids in a plan, without their priorities; none if it is something else, or gone."""
    import json

    try:
        text = fs.read_file(path, fd)
        return [str(id)[-ID_DIGITS:] for id in json.loads(text)["move"]]
    except (FileNotFoundError, IsADirectoryError, *names.MALFORMED):
        return []
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return []  # a link: what was acknowledged


def register_beside(queue: Opened) -> Register:
    """Return the registers of the space that a queue lies in: beside it."""
    return Register(queue, f"../{REGISTERS}")


def _is_inside(path: str) -> bool:
    """Return whether a path of a plan stays in the space."""
    return not {"", ".", ".."} & set(path.split("/"))

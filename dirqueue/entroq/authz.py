"""Who may: what a request wants to do with which queues, and judges that allow it.

A request is turned into wishes, one for each queue: a claim wants CLAIM, an insert INSERT, a change in place CHANGE, a
move DELETE there and INSERT here, a delete DELETE, a dependency or a listing READ. A judge allows all of them or none.

Layer: edges.
Invariant: the queue that is judged is the one that the task is in: a named queue is part of what the store looks for,
and for a task without one it is looked up, judged, and named to the store.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from dirqueue.entroq.tasks import Access, Modification, Unauthenticated
from dirqueue.errors import SettingsError, access_error

CLAIM, DELETE, CHANGE, INSERT, READ = "CLAIM", "DELETE", "CHANGE", "INSERT", "READ"
#: The shortest secret that is taken for one, in characters.
SHORTEST = 16


class Caller(NamedTuple):
    """What a caller says of itself: the Authorization header, in two parts."""

    kind: str = ""
    credentials: str = ""

    @classmethod
    def read(cls, header: str | None) -> Caller:
        """Read the header; nobody if there is none."""
        kind, _, credentials = (header or "").strip().partition(" ")
        return cls(kind, credentials.strip())


class Judge(Protocol):
    """Allows or refuses what callers want."""

    #: Whether it makes a difference which queues they want it with.
    by_queue: bool

    async def check(self, caller: Caller, wishes: Sequence[Access], claimant: str = "") -> None:
        """Raise PermissionDenied, or Unauthenticated, unless all of it is allowed."""
        ...

    async def readable(self, caller: Caller, queues: Sequence[str]) -> set[str]:
        """Return which of the queues the caller may read; Unauthenticated if it may not even ask."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class Anybody:
    """Allows everything: for a service that only this machine can reach."""

    by_queue = False

    async def check(self, caller: Caller, wishes: Sequence[Access], claimant: str = "") -> None:
        """Allow it."""

    async def readable(self, caller: Caller, queues: Sequence[str]) -> set[str]:
        return set(queues)

    async def close(self) -> None:
        """Nothing to let go of."""


class Token(Anybody):
    """Allows everything to whoever has the secret."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    async def check(self, caller: Caller, wishes: Sequence[Access], claimant: str = "") -> None:
        """Compare the secret, in a time that does not tell how much of it was right."""
        right = hmac.compare_digest(caller.credentials.encode(), self._secret)
        if caller.kind.lower() != "bearer" or not right:
            raise Unauthenticated("the token is missing or wrong: send `Authorization: Bearer TOKEN`")

    async def readable(self, caller: Caller, queues: Sequence[str]) -> set[str]:
        await self.check(caller, ())
        return set(queues)


def read_token(path: str) -> str:
    """Return the secret in a file that nobody else may read."""
    try:
        with open(path, "rb") as file:
            facts = os.fstat(file.fileno())
            data = file.read(4097)
    except OSError as error:
        raise access_error(path, "read the token in", error) from error
    if stat.S_IMODE(facts.st_mode) & 0o077:
        raise SettingsError(
            f"the token in {path!r} can be read by others (mode {stat.S_IMODE(facts.st_mode):04o}): chmod 600 it"
        )
    secret = data.decode("ascii", "replace").strip()
    if not SHORTEST <= len(secret) <= 4096 or not secret.isascii() or len(secret.split()) != 1:
        raise SettingsError(
            f"the token in {path!r} must be one word of {SHORTEST} to 4096 ASCII characters; "
            "`openssl rand -hex 32` makes a good one"
        )
    return secret


def wishes(modification: Modification) -> list[Access]:
    """Return what a modification wants to do with which queues; tasks without a queue are left out."""
    wanted: dict[str, set[str]] = {}
    for data in modification.inserts:
        wanted.setdefault(data.queue, set()).add(INSERT)
    for change in modification.changes:
        source, target = change.old.queue, change.data.queue
        if source:
            wanted.setdefault(source, set()).add(DELETE if target and target != source else CHANGE)
        if target and target != source:
            wanted.setdefault(target, set()).add(INSERT)
    for old in modification.deletes:
        if old.queue:
            wanted.setdefault(old.queue, set()).add(DELETE)
    for old in modification.depends:
        if old.queue:
            wanted.setdefault(old.queue, set()).add(READ)
    return [Access(queue, tuple(sorted(actions))) for queue, actions in wanted.items()]


def each(queues: Iterable[str], action: str) -> list[Access]:
    """Return the wish to do the same with each of these queues."""
    return [Access(queue, (action,)) for queue in dict.fromkeys(queues)]

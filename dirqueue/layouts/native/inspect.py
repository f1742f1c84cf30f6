"""Looking at the whole queue: every name once, nothing kept.

Layer: layouts.  Touches: nothing.
A scan is a snapshot of names that others are renaming: it may miss a message, or see it twice, never invent one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dirqueue.disk import fs
from dirqueue.disk.directory import BALLAST, Directory
from dirqueue.errors import access_error
from dirqueue.layouts.base import Claim, bad_handle, lost
from dirqueue.layouts.native import names
from dirqueue.layouts.native.names import (
    ACKED,
    CONTAINERS,
    DELAYED,
    ERROR,
    ERROR_NEW,
    LEASED,
    NEW,
    READY,
    STAGING,
    Name,
)
from dirqueue.message import Entry
from dirqueue.settings import FILE

DEAD, DONE = "dead", "done"
#: What else is ours in a queue's directory.
FURNITURE = frozenset((FILE, FILE + ".new", BALLAST, DEAD, DONE, ".purge.lock", ".spark", ".txn"))
#: Files of a moment: a look at the clock, settings about to be published.
#: Exactly with a token of ours: what only looks like one is not ours to remove.
TEMPORARY = re.compile(r"\.(?:clock|create)-[A-Za-z0-9_-]{1,32}-[0-9]{1,10}-[0-9a-f]{10}-[0-9]{1,20}")
#: A part in a batch is as deep as messages lie.
DEPTH = 2
_MESSAGES = frozenset((READY, DELAYED, LEASED))


def entries(directory: Directory, states: frozenset[str]) -> Iterator[Entry]:
    """Yield what is in the queue, in no order; all states if none is named."""
    if not directory.find():
        return
    now = directory.clock.now()
    live = not states or not states.isdisjoint(("new", READY, DELAYED, LEASED, "foreign"))
    if live:
        yield from (entry for entry in _directory(directory, "", now) if not states or entry.state in states)
    if not states or LEASED in states:
        from dirqueue.layouts.native import pins

        yield from pins.entries(directory)
    for ended in (DONE, DEAD):
        if not states or ended in states:
            yield from _ended(directory, ended, now)


def _directory(directory: Directory, prefix: str, now: int) -> Iterator[Entry]:
    inner = []
    try:
        for found in fs.listing(prefix or ".", directory.fd):
            name = found.name
            parsed = names.parse(name)
            if parsed is None:
                inside = prefix not in ("", f"{DEAD}/", f"{DONE}/")
                if inside or (name not in FURNITURE and not TEMPORARY.fullmatch(name)):
                    yield Entry("", "foreign", prefix + name, 0)
            elif parsed.kind in CONTAINERS or parsed.kind == STAGING:
                if not found.is_dir(follow_symlinks=False):
                    yield Entry("", "foreign", prefix + name, 0)
                elif parsed.kind == STAGING:
                    yield Entry(parsed.id, "new", prefix + name, names.micros_of(parsed.id))
                else:
                    inner.append(f"{prefix}{name}/")
            elif not found.is_file(follow_symlinks=False):
                yield Entry("", "foreign", prefix + name, 0)
            elif parsed.kind in _MESSAGES or parsed.kind == NEW:
                yield entry_of(parsed, prefix, now)
            else:
                assert parsed.kind in (ACKED, ERROR, ERROR_NEW)  # noqa: S101 - notes and tombstones
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if not prefix or not isinstance(error, PermissionError):
            raise access_error(directory.path, "list", error) from error
        yield Entry("", "foreign", prefix[:-1], 0)  # another user's: what is in it cannot be known
    for each in inner:
        if each.count("/") <= DEPTH:
            yield from _directory(directory, each, now)


def _ended(directory: Directory, state: str, now: int) -> Iterator[Entry]:
    for entry in _directory(directory, state + "/", now):
        if entry.state in _MESSAGES:
            yield entry._replace(state=state)
        elif entry.state == "foreign":
            yield entry


def entry_of(name: Name, prefix: str, now: int) -> Entry:
    """Return what a parsed name says; a delay that is over is ready."""
    state = READY if name.kind == DELAYED and name.until <= now else name.kind
    return Entry(
        name.id,
        state,
        prefix + name.text,
        names.micros_of(name.id),
        name.until,
        name.attempts,
        name.token,
        names.priority_of(name.id),
    )


def held(directory: Directory, handle: str) -> Claim:
    """Return the lease that a handle names: the path inside the queue, parsed and rebuilt before it is used."""
    *above, last = str(handle).split("/")
    inside = [names.parse(each) for each in above]
    name = names.parse(last)
    if name is None or name.kind != LEASED or len(inside) > DEPTH:
        raise bad_handle(handle)
    if any(each is None or each.kind not in CONTAINERS for each in inside):
        raise bad_handle(handle)
    place = "/".join([*(each.text for each in inside if each), name.text])
    held = Claim(name.id, place, 0, name.until, name.attempts)
    directory.need()
    try:
        facts = fs.stat(place, dir_fd=directory.fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        raise lost(held, "take over") from None
    # The claim, or its last renewal, was the last rename.
    held.leased = facts.st_ctime_ns // 1000
    return held


def find(directory: Directory, id: str) -> Entry | None:
    """Return where a message is; its plain name is tried before the queue is searched."""
    if not directory.find():
        return None
    if fs.is_file(id, directory.fd):
        return entry_of(Name(id, READY, id), "", directory.clock.now())
    # A name being renamed may be missed by a listing: absence needs a second look.
    for _ in range(2):
        for entry in entries(directory, frozenset((READY, DELAYED, LEASED, DONE, DEAD))):
            if entry.id == id:
                return entry
    return None

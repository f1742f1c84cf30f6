"""What can be claimed now, in order, for callers that take many messages at once.

Layer: layouts.  Touches: nothing but emptied slices, batches and parts, which it removes.
Invariant: a hint, as every listing: a name given here may be gone, and only the rename that takes it is a fact.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from dirqueue.disk import fs
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.layouts.native import names
from dirqueue.layouts.native.names import CONTAINERS, DELAYED, LEASED, READY, SLICE, Name
from dirqueue.layouts.native.publish import SLICE_SECONDS
from dirqueue.settings import Settings


class Supply:
    """An iterator over (directory, name) that takes back what was not wanted yet."""

    def __init__(self, directory: Directory, found: Iterator[tuple[str, str]]) -> None:
        self._directory = directory
        self._found = found
        self._back: list[tuple[str, str]] = []

    def take(self) -> tuple[str, str] | None:
        """Return the next one; None if there is none."""
        return self._back.pop() if self._back else next(self._found, None)

    def size(self, item: tuple[str, str]) -> int:
        """Return the length of its body; -1 if it is gone."""
        try:
            return fs.size_of("".join(item), self._directory.fd)
        except FileNotFoundError:
            return -1

    def give_back(self, item: tuple[str, str]) -> None:
        """Make it the next one again."""
        self._back.append(item)


def claimable(directory: Directory, settings: Settings) -> Supply:
    """List the queue now; return what can be claimed, in the queue's order.

    Directories are listed when their turn comes, and removed when they turn out to be empty.
    """
    if not directory.find():
        return Supply(directory, iter(()))
    now = directory.clock.now()
    return Supply(directory, _walk(directory, settings, "", _list(directory, settings, "", now), now))


def _list(directory: Directory, settings: Settings, prefix: str, now: int) -> list[Name]:
    """Return what is claimable in one directory, and the directories in it, in order."""
    found: list[Name] = []
    for entry in fs.listing(prefix or ".", directory.fd):
        name = names.parse(entry.name)
        if name is None:
            continue
        if name.kind in CONTAINERS:
            if entry.is_dir(follow_symlinks=False) and prefix.count("/") < 2:
                found.append(name)
        elif _due(name, settings, now) and entry.is_file(follow_symlinks=False):
            found.append(name)
    found.sort(key=lambda name: names.order_key(name.id), reverse=settings.order == "lifo")
    if settings.order == "random":
        random.shuffle(found)
    return found


def _walk(
    directory: Directory, settings: Settings, prefix: str, found: list[Name], now: int
) -> Iterator[tuple[str, str]]:
    for name in found:
        if name.kind not in CONTAINERS:
            yield prefix, name.text
            continue
        inner = f"{prefix}{name.text}/"
        try:
            yield from _walk(directory, settings, inner, _list(directory, settings, inner, now), now)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        # Producers may still append to a young slice.
        if name.kind != SLICE or now >= names.micros_of(name.id) + micros(2 * SLICE_SECONDS):
            fs.remove_quietly(inner[:-1], directory.fd)


def _due(name: Name, settings: Settings, now: int) -> bool:
    if name.kind == READY:
        return True
    if name.kind == DELAYED:
        due = name.until <= now
    else:
        due = name.kind == LEASED and name.until <= now - micros(settings.margin)
    # What is out of attempts is buried by the next consumer or purge.
    return due and not 0 < settings.max_attempts <= name.attempts

"""How many messages are waiting or held, for a queue with a limit: asked before many puts, so it must be cheap.

Layer: layouts.  Touches: nothing.
What was counted in a directory holds while its time does not change. Of a deep queue, only the slices that producers
and consumers are working in change.
"""

from __future__ import annotations

from typing import NamedTuple

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.layouts.native import links, names
from dirqueue.layouts.native.due import Times
from dirqueue.layouts.native.names import DEPTH, LATER, LEASED_ROOM
from dirqueue.states import LIVE


class Counted(NamedTuple):
    """What one directory held when it had this time."""

    mtime: int
    messages: int
    inner: list[str]


class Counter:
    """Counts a queue again and again."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._times = Times(directory)
        self._known: dict[str, Counted] = {}

    def count(self) -> int:
        """Return how many messages are waiting or held; names that are being renamed may be missed."""
        if not self._directory.find():
            return 0
        from dirqueue.layouts.native import pins  # COST: it imports json and random

        before, self._known = self._known, {}
        total = self._below("", before, DEPTH) + self._below(f"{LEASED_ROOM}/", before, 0)
        total += self._below(f"{LATER}/", before, DEPTH + 1)
        return total + sum(1 for _ in pins.entries(self._directory))

    def _below(self, prefix: str, before: dict[str, Counted], depth: int) -> int:
        known = before.get(prefix)
        if known is None or not self._times.unchanged(prefix or ".", known.mtime):
            known = self._read(prefix)
        if known.mtime > 0:
            self._known[prefix] = known
        if depth == 0:
            return known.messages
        return known.messages + sum(self._below(each, before, depth - 1) for each in known.inner)

    def _read(self, prefix: str) -> Counted:
        settled = self._times.settled(self._times.of(prefix or "."))
        count, inner = 0, []
        try:
            with fs.entries(prefix or ".", self._directory.fd) as entries:
                for entry in entries:
                    name = entry.name
                    if entry.is_dir(follow_symlinks=False):
                        found = names.parse_directory(name)
                        if found is not None and found.kind != names.STAGING:
                            inner.append(f"{prefix}{name}/")
                    else:
                        parsed = names.parse(name)
                        live = parsed is not None and parsed.kind in LIVE
                        count += live and links.is_body(entry, prefix, self._directory.fd)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            if not prefix:
                raise
            settled = -1  # that we may list it some day will not show in its time
        return Counted(settled, count, inner)

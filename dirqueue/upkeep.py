"""Looking at a queue and keeping it tidy: all that needs no lease.

Layer: mechanisms.  The half of the queue object that operators use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from dirqueue.codecs import Codec
from dirqueue.errors import MessageNotFound, QueueError, SettingsError, access_error
from dirqueue.layouts.base import Layout, Purged, refuse
from dirqueue.message import STATES, Message
from dirqueue.settings import Settings, check_count
from dirqueue.stats import Stats, count

T = TypeVar("T")


class Upkeep(Generic[T]):
    """What one can see of a queue and do to messages that nobody holds."""

    path: str
    settings: Settings
    _layout: Layout
    _codec: Codec[T]

    # --- looking -------------------------------------------------------------------------------------------

    def peek(self, state: str = "ready", limit: int | None = None) -> Iterator[Message[T]]:
        """Yield messages in a state (ready, delayed, leased, dead, done), the oldest first; takes nothing."""
        if state not in STATES or state == "new":
            raise SettingsError(f"state must be one of {', '.join(STATES[1:])}, not {state!r:.60}")
        if limit is not None:
            check_count("limit", limit)
        found = (entry for entry in self._layout.entries((state,)) if entry.state == state)
        if limit is None:
            chosen = sorted(found, key=_age)
        else:
            import heapq

            chosen = heapq.nsmallest(limit, found, key=_age)
        return (Message(entry, self._layout, self._codec) for entry in chosen)

    def message(self, id: str) -> Message[T]:
        """Return the message of that id in whatever state; MessageNotFound if there is none."""
        entry = self._layout.find(self._layout.check_id(id))
        if entry is None:
            raise MessageNotFound(f"there is no message {id} in {self.path!r}", message_id=id)
        return Message(entry, self._layout, self._codec)

    def stats(self) -> Stats:
        """Count the messages by state: one pass over the names, a snapshot."""
        try:
            return count(self._layout)
        except OSError as error:
            raise self._failed("count", error) from error

    def __len__(self) -> int:
        """Messages that are waiting or held."""
        try:
            return self._layout.count()
        except OSError as error:
            raise self._failed("count", error) from error

    def __bool__(self) -> bool:
        """A queue is true, empty or not: `if queue` asks whether there is one."""
        return True

    def _failed(self, doing: str, error: OSError) -> OSError | QueueError:
        return error if isinstance(error, QueueError) else access_error(self.path, doing, error)

    # --- the dead -----------------------------------------------------------------------------------------------

    def redrive(
        self,
        ids: str | Iterable[str] | None = None,
        *,
        match: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        progress: Callable[[], None] | None = None,
    ) -> list[str]:
        """Make dead messages ready again with their attempts reset; return the ids that were.

        Args:
            ids: These only (one id or several); all if None.
            match: Only those whose error this regular expression finds.
            limit: At most so many, the oldest first.
            dry_run: Change nothing, return what would be.
            progress: Called once per message.
        """
        if "dead" in self._layout.lacks:
            refuse(self._layout, "dead", "redrive dead messages")
        if limit is not None:
            check_count("limit", limit)
        wanted = (
            None
            if ids is None
            else {self._layout.check_id(id) for id in ([ids] if isinstance(ids, str) else ids)}
        )
        try:
            pattern = re.compile(match) if match is not None else None
        except re.error as error:
            raise SettingsError(f"match={match!r:.60} is not a regular expression: {error}") from None
        driven: list[str] = []
        for message in self.peek("dead"):
            if limit is not None and len(driven) >= limit:
                break
            if wanted is not None and message.id not in wanted:
                continue
            if pattern is not None and not pattern.search(message.error or ""):
                continue
            if dry_run or self._layout.redrive(message.entry):
                driven.append(message.id)
            if progress:
                progress()
        if wanted is not None and len(wanted) == 1 and not driven and pattern is None:
            raise MessageNotFound(f"there is no dead message {ids} in {self.path!r}", message_id=str(ids))
        return driven

    # --- cleaning ------------------------------------------------------------------------------------------

    def purge(self, *, progress: Callable[[], None] | None = None) -> Purged:
        """Remove what crashes and time left behind; safe beside everything, never needed for correctness."""
        from dirqueue.purge import purge

        return purge(self._layout, progress)

    def clear(self) -> int:
        """Remove the messages kept in done/; how many."""
        return self._remove(("done",))

    def flush(self) -> int:
        """Remove every message in every state, held ones too (their holders get LeaseLost); how many."""
        return self._remove(("ready", "delayed", "leased", "dead", "done"))

    def _remove(self, states: tuple[str, ...]) -> int:
        gone = sum(
            self._layout.remove(entry) for entry in self._layout.entries(states) if entry.state in states
        )
        if gone and self.settings.sync:
            self._layout.home.sync()
        return gone


def _age(entry: Any) -> tuple[int, int, str]:
    return entry.priority or 0, entry.put, entry.id

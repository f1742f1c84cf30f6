"""Which dead messages are meant, and making them ready again.

Layer: mechanisms.  Touches: dead messages, by the layout's redrive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from dirqueue import states
from dirqueue.errors import LeaseLost, MessageNotFound, QueueError, SettingsError, access_error
from dirqueue.layouts.base import Claim, Layout, refuse
from dirqueue.message import Message
from dirqueue.settings import check_count


def redrive(
    layout: Layout,
    peek: Callable[[str], Iterable[Message[Any]]],
    ids: str | Iterable[str] | None,
    *,
    match: str | None,
    limit: int | None,
    dry_run: bool,
    progress: Callable[[], None] | None,
) -> list[str]:
    """Make dead messages ready again; the arguments are those of `Queue.redrive`."""
    if "dead" in layout.lacks:
        refuse(layout, "dead", "redrive dead messages")
    if limit is not None:
        check_count("limit", limit)
    wanted = None if ids is None else {layout.check_id(id) for id in ([ids] if isinstance(ids, str) else ids)}
    try:
        pattern = re.compile(match) if match is not None else None
    except re.error as error:
        raise SettingsError(f"match={match!r:.60} is not a regular expression: {error}") from None
    driven: list[str] = []
    for message in peek("dead"):
        if limit is not None and len(driven) >= limit:
            break
        if wanted is not None and message.id not in wanted:
            continue
        if pattern and not ((why := message.failure) and pattern.search(why.text)):
            continue
        if dry_run or layout.redrive(message.entry):
            driven.append(message.id)
        if progress:
            progress()
    if driven and not dry_run and layout.settings.sync:
        try:
            layout.directory.sync()
        except QueueError:
            raise
        except OSError as error:
            raise access_error(layout.directory.path, "make durable a change in", error) from error
    if wanted is not None and len(wanted) == 1 and not driven and pattern is None:
        raise MessageNotFound(
            f"there is no dead message {ids} in {layout.directory.path!r}", message_id=str(ids)
        )
    return driven


def expire(layout: Layout, age: float) -> int:
    """Move ready messages that were put longer ago to dead/; return their number."""
    last = layout.directory.clock.now() - int(age * 1_000_000)
    ready = states.READY
    gone = 0
    for entry in [each for each in layout.entries((ready,)) if each.state == ready and each.put < last]:
        held = Claim(entry.id, entry.place, 0, entry.until, entry.attempts)
        try:
            layout.bury(held, f"expired: put more than {age:g} s ago")
            gone += 1
        except LeaseLost:
            pass
    return gone

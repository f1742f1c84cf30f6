"""Copies of a space: one line of JSON for each message.

Layer: objects.  Touches: nothing when it exports; puts when it imports.
A copy is of one moment if no directory has changed while it was made; that is tried a few times, and reported.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from dirqueue import states
from dirqueue.admission import check_attributes
from dirqueue.codecs import BYTES
from dirqueue.disk.directory import Directory
from dirqueue.errors import MessageNotFound, SettingsError
from dirqueue.layouts.native.names import MALFORMED
from dirqueue.message import Extras, Message
from dirqueue.space import naming, reads
from dirqueue.space.transaction import Transaction, carry

if TYPE_CHECKING:
    from dirqueue.space.ground import Ground
    from dirqueue.space.space import Space

#: How often a copy is begun again because the space changed meanwhile.
TRIES = 5
#: What is copied: what waits, or is held. Holders of the original are not holders of the copy.
STATES = states.LIVE


class Exported(NamedTuple):
    """What an export wrote."""

    messages: int
    #: Whether nothing changed while it was made, so that all of it is of one moment.
    exact: bool


class Imported(NamedTuple):
    """What an import put."""

    messages: int
    #: Messages left out because the space has one with the same id of the user's own.
    skipped: int


def export(space: Space[Any], directory: Directory, file: IO[str]) -> Exported:
    """Write every message that waits or is held."""
    lines: list[str] = []
    exact = False
    for _ in range(TRIES):
        before = _times(space)
        try:
            lines = list(_lines(space))
        except MessageNotFound:
            continue  # claimed or finished since it was listed
        exact = before == _times(space) and not directory.mount.attributes_are_cached
        if exact:
            break
    else:
        lines = list(_lines(space, forgiving=True))
    file.writelines(lines)
    return Exported(len(lines), exact)


def _times(space: Space[Any]) -> list[tuple[str, list[int]]]:
    return [(name, reads.times(space.queue(name).layout)) for name in space.names()]


def _lines(space: Space[Any], *, forgiving: bool = False) -> Iterator[str]:
    for name in space.names():
        layout = space.queue(name).layout
        for entry in sorted(layout.entries(STATES), key=lambda entry: (entry.put, entry.id)):
            if entry.state not in STATES:
                continue
            message = Message(entry, layout, BYTES)
            try:
                body = base64.b64encode(message.data).decode()
            except MessageNotFound:
                if forgiving:
                    continue
                raise
            record = {"queue": name, **message.to_dict(), "own_id": message.own_id, "body": body}
            yield json.dumps(record) + "\n"


def _extras(record: dict[str, Any]) -> Extras | None:
    attributes, expires = check_attributes(record.get("attributes") or {}), record.get("expires_at")
    until = round(datetime.fromisoformat(expires).timestamp() * 1_000_000) if expires else 0
    return Extras(attributes, until) if attributes or until else None


def import_(space: Space[Any], ground: Ground, file: Iterable[str]) -> Imported:
    """Put what an export wrote, each message by itself."""
    put = skipped = 0
    for number, line in enumerate(file, 1):
        try:
            record = json.loads(line)
            queue, id = record["queue"], record["own_id"]
            failures = int(record.get("failures") or 0)
            why = str(record["error"]) if failures and record.get("error") else None
            body = base64.b64decode(record["body"], validate=True)
            extras = _extras(record)
            naming.encode(queue)
        except KeyError as error:
            raise SettingsError(f"line {number} is not as `export` writes them: it has no {error}") from None
        except (*MALFORMED, SettingsError) as error:
            raise SettingsError(f"line {number} is not as `export` writes them: {error}") from None
        target = space.queue(queue)
        priority = record.get("priority") if target.settings.priorities else None
        if id is None and not failures:
            (target.layout if extras is None else target.layout.carrying(extras)).put(body, 0, priority)
            put += 1
            continue
        t = Transaction(ground, codec=BYTES)
        t.put(queue, body, id=id, priority=priority, skip_existing=True, failures=max(0, failures), error=why)
        carry(t, extras)
        done = t.commit()
        skipped += len(done.skipped)
        put += not done.skipped
    return Imported(put, skipped)

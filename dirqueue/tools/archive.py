"""Export and import of one queue: a JSON object per line, the settings first, then every message.

Layer: tools.  Touches: on import, ID.new and the names that the messages get; their notes and attributes.
Invariant: a message keeps its id, so that what is in the queue already is skipped: an interrupted import is run again.
Crash: an ID.new is left, which purge removes; what was imported stays.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dirqueue import states, stored_settings
from dirqueue.admission import check_attributes
from dirqueue.disk import fs
from dirqueue.errors import (
    DirQueueError,
    LayoutError,
    MessageNotFound,
    QueueError,
    Unsupported,
    access_error,
)
from dirqueue.failure import Reason
from dirqueue.layouts.native import names, staging
from dirqueue.layouts.native.extras import ExtrasStore
from dirqueue.layouts.native.rooms import Rooms
from dirqueue.layouts.native.side import note_of, note_text
from dirqueue.message import Extras, Message
from dirqueue.queue import Queue
from dirqueue.settings import StrPath

#: The format of the lines.
FORMAT = 1
#: Layouts whose ids say where a message lies.
OWN_IDS = ("dirq-simple", "dirq-normal", "text")


class Imported(NamedTuple):
    """What an import did."""

    imported: int = 0
    #: Messages whose ids the queue had already.
    skipped: int = 0


def export(queue: Queue[Any], progress: Callable[[], None] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the settings, then every message, the oldest of each state first; a snapshot, which claims nothing."""
    native = queue.layout.name == "native"  # those of other layouts mean nothing elsewhere
    stored = stored_settings.stored(queue.layout.directory) if native else None
    yield {"export": FORMAT, "layout": queue.layout.name, "settings": stored or {}}
    for state in states.VISIBLE:
        if state in queue.layout.lacks:
            continue
        for message in queue.peek(state):
            try:
                yield _described(message)
            except MessageNotFound:
                continue  # RACE: it was claimed or has ended since the look
            if progress:
                progress()


def _described(message: Message[Any]) -> dict[str, Any]:
    data = message.data
    fields = message.to_dict()
    try:
        fields["body"] = data.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(data).decode()
    return fields


def load(path: StrPath, lines: Iterable[bytes], progress: Callable[[], None] | None = None) -> Imported:
    """Import what `export` wrote into the queue at `path`, which is created with the same settings if it is new.

    Messages keep their ids, states and attempts; what was leased is ready. Nobody should consume meanwhile: what has
    ended since the first run would be imported again by a second one.
    """
    numbered = enumerate(lines, 1)
    with _target(path, next(numbered, (1, b""))[1]) as queue:
        importer = _Importer(queue)
        for number, line in numbered:
            try:
                importer.add(json.loads(line))
            except (DirQueueError, OSError):
                raise
            except (*names.MALFORMED, binascii.Error) as error:
                raise QueueError(
                    f"line {number} is not a message that export wrote ({error}); what was imported before it stays",
                    path=queue.path,
                ) from None
            if progress:
                progress()
        importer.finish()
        return Imported(importer.imported, importer.skipped)


def _target(path: StrPath, first: bytes) -> Queue[bytes]:
    try:
        head = json.loads(first)
        version, settings = head["export"], dict(head["settings"])
    except names.MALFORMED:
        raise QueueError(
            "this is not what export wrote: its first line has the settings", path=str(path)
        ) from None
    if version != FORMAT:
        raise LayoutError(f"this is an export of format {version!r:.20}: upgrade dirqueue", path=str(path))
    if head.get("layout") in OWN_IDS:
        raise Unsupported(
            f"this is an export of the {head['layout']} layout, whose ids no other queue can keep; nothing was "
            "imported: `dirqueue convert` that queue to native first, then export it",
            path=str(path),
        )
    queue: Queue[bytes] = Queue.create(path, **settings) if settings else Queue(path)  # type: ignore[assignment]
    if queue.layout.name != "native":
        raise Unsupported(
            f"cannot import into {queue.path!r}: only the native layout keeps ids; import elsewhere, then convert",
            path=queue.path,
        )
    return queue


class _Importer:
    def __init__(self, queue: Queue[bytes]) -> None:
        self.imported = self.skipped = 0
        self._queue = queue
        self._directory = queue.layout.directory
        queue.layout.create()
        self._rooms = Rooms(self._directory, sync=queue.settings.sync)
        self._extras = ExtrasStore(self._directory, self._rooms, sync=queue.settings.sync)
        self._seen = {entry.id for entry in queue.layout.entries(states.VISIBLE)}
        self._entered: set[str] = set()

    def add(self, fields: dict[str, Any]) -> None:
        """Import one message, unless the queue has it."""
        settings = self._queue.settings
        id, state = names.check_id(fields["id"]), states.check(fields["state"])
        if settings.priorities != (names.priority_of(id) is not None):
            id = names.with_priority(id, settings.default_priority if settings.priorities else None)
        if id in self._seen:
            self.skipped += 1
            return
        data = fields["body"].encode() if "body" in fields else base64.b64decode(fields["body_base64"])
        self._queue._admission.check_size(len(data))  # noqa: SLF001
        place = self._place(id, state, int(fields["attempts"]), _micros(fields.get("until")))
        extras = Extras(check_attributes(fields.get("attributes") or {}), _micros(fields.get("expires_at")))
        try:
            self._write(id, place, data, extras)
            if fields.get("error") is not None and place != id:
                reason = Reason(str(fields["error"]), fields.get("trace"))
                note = note_text(reason, _micros(fields.get("failed_at")), _micros(fields.get("leased_at")))
                staging.replace(self._directory, note_of(place, id), note, sync=False)
        except OSError as error:
            raise access_error(self._queue.path, f"import message {id} into", error) from error
        self._seen.add(id)
        self._entered.add(names.folder_of(place)[:-1] or ".")
        self.imported += 1

    def _place(self, id: str, state: str, attempts: int, until: int) -> str:
        if state in states.ENDED:
            place = names.ended(state, id, until, attempts)
        elif state == states.DELAYED:
            place = names.later(id, until, attempts)
        else:
            place = names.later(id, self._directory.clock.now(), attempts) if attempts else id
        if names.parse(place.rpartition("/")[2]) is None:
            raise ValueError(f"there is no name for {state} with attempts={attempts} and until={until}")
        return place

    def _write(self, id: str, place: str, data: bytes, extras: Extras) -> None:
        new, fd = f"{id}.{names.NEW}", self._directory.fd
        fs.discard(new, fd)  # of an import that was interrupted here
        fs.create(new, data, fd, sync=self._queue.settings.sync)
        if extras != Extras({}):
            self._extras.write(id, extras)
        if "/" in place:
            self._rooms.make(names.folder_of(place)[:-1])
        try:
            self._directory.mount.publish(new, place, fd)
        except OSError:
            fs.discard(new, fd)
            raise

    def finish(self) -> None:
        """Make all of it durable."""
        if not self._queue.settings.sync:
            return
        try:
            for folder in sorted(self._entered):
                self._directory.sync(folder)
        except OSError as error:
            raise access_error(self._queue.path, "make durable an import into", error) from error


def _micros(text: str | None) -> int:
    """Return an instant of the lines in microseconds; 0 if there is none."""
    if text is None:
        return 0
    return round(
        (datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000
    )

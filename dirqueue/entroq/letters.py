"""EntroQ's requests and answers as JSON, as its HTTP interface writes them, protocols 1 and 2.

Names are taken as camelCase and as snake_case, numbers of 64 bits as text and as numbers. A field that is not known is
refused, since to drop it would do something else than was asked. Protocol 1 says when a task arrives (atMs), protocol 2
in how long (byMs), and has modes of a change.

Layer: edges.  Pure values, no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dirqueue.entroq import values
from dirqueue.entroq.tasks import (
    DURATION,
    Change,
    ClaimQuery,
    DependencyError,
    InvalidArgument,
    Mode,
    Modification,
    Modified,
    QueuesQuery,
    QueueStat,
    Task,
    TaskData,
    TaskId,
    TasksQuery,
    Unimplemented,
)

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_SNAKE = re.compile(r"_([a-z])")
_DOCS = ("docInserts", "docChanges", "docDeletes", "docDepends")
INT64 = 2**63

Reader = Callable[[Any, str], Any]


# --- fields ------------------------------------------------------------------------------------------------


def fields(given: Any, what: str, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Return the fields of an object, each read; null is as good as absent."""
    if not isinstance(given, dict):
        raise InvalidArgument(f"{what} is an object, not {_shown(given)}")
    found = {}
    for key, value in given.items():
        name = _SNAKE.sub(lambda match: match[1].upper(), key)
        reader = readers.get(name)
        if reader is None:
            raise InvalidArgument(f"{what} has no field {key!r:.60}")
        if name in found:
            raise InvalidArgument(f"{what} has the field {name} twice")
        if value is not None or name == "value":
            found[name] = reader(value, name)
    return found


def text(value: Any, name: str) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is a text, not {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} holds half a character: {ascii(value)[:60]}") from None
    return value


def number(value: Any, name: str) -> int:
    """Read a whole number, or a text of one."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -INT64 <= value < INT64:
        raise InvalidArgument(f"{name} is a whole number of 64 bits, not {_shown(value)}")
    return value


def several(read: Reader) -> Reader:
    """Return a reader of a list."""

    def read_all(value: Any, name: str) -> list[Any]:
        if not isinstance(value, list):
            raise InvalidArgument(f"{name} is a list, not {_shown(value)}")
        return [read(each, name) for each in value]

    return read_all


def _mode(value: Any, name: str) -> Mode:
    names: dict[Any, Mode] = {mode.value: mode for mode in Mode}
    if not isinstance(value, str) or value not in names:
        raise InvalidArgument(f"{name} is one of {', '.join(names)}, not {_shown(value)}")
    return names[value]


def _anything(value: Any, _: str) -> Any:
    return value


def _no_documents(value: Any, name: str) -> None:
    if value:
        raise Unimplemented(f"{name}: dirqueue has no documents, only tasks")


def _shown(value: Any) -> str:
    return f"{value!r:.60}"


# --- requests ----------------------------------------------------------------------------------------------


def read_claim(given: Any) -> ClaimQuery:
    """Read the body of a claim."""
    found = fields(
        given,
        "a claim",
        {"claimantId": text, "queues": several(text), "durationMs": number, "pollMs": number},
    )
    return ClaimQuery(
        queues=list(dict.fromkeys(found.get("queues", ()))),
        claimant=found.get("claimantId", ""),
        duration=found.get("durationMs", 0) or DURATION,
    )


def read_modification(given: Any, protocol: int) -> Modification:
    """Read the body of a modification."""
    reader = _Reader(protocol)
    found = fields(
        given,
        "a modification",
        {
            "claimantId": text,
            "inserts": several(reader.data),
            "changes": several(reader.change),
            "deletes": several(read_id),
            "depends": several(read_id),
            **dict.fromkeys(_DOCS, _no_documents),
        },
    )
    return Modification(
        claimant=found.get("claimantId", ""),
        inserts=found.get("inserts", ()),
        changes=found.get("changes", ()),
        deletes=found.get("deletes", ()),
        depends=found.get("depends", ()),
    )


def read_id(given: Any, name: str) -> TaskId:
    """Read which version of a task is meant."""
    found = fields(given, f"one of {name}", {"id": text, "version": number, "queue": text})
    return TaskId(found.get("id", ""), found.get("version", 0), found.get("queue", ""))


class _Reader:
    """Reads what is different in the two protocols."""

    def __init__(self, protocol: int) -> None:
        self._protocol = protocol

    def data(self, given: Any, name: str) -> TaskData:
        found = fields(
            given,
            f"one of {name}",
            {
                "queue": text,
                "value": _anything,
                "id": text,
                "attempt": number,
                "err": text,
                "atMs": number,
                "byMs": number,
            },
        )
        at, by = found.get("atMs", 0), found.get("byMs", 0)
        if at and self._protocol >= 2:
            raise InvalidArgument(
                "atMs names an instant: protocol 2 says byMs, how long from the service's now on"
            )
        return TaskData(
            queue=found.get("queue", ""),
            value=values.from_json(found.get("value")),
            id=found.get("id", ""),
            attempt=found.get("attempt", 0),
            err=found.get("err", ""),
            at=at if at > 0 and not by else None,
            by=by,
        )

    def change(self, given: Any, name: str) -> Change:
        found = fields(given, f"one of {name}", {"oldId": read_id, "newData": self.data, "mode": _mode})
        if "oldId" not in found or "newData" not in found:
            raise InvalidArgument("a change has oldId and newData")
        mode = found.get("mode", Mode.DEFAULT)
        if mode is not Mode.DEFAULT and self._protocol < 2:
            raise InvalidArgument(
                f"{mode.value} is of protocol 2, and the request is of protocol 1 (header entroq-protocol)"
            )
        return Change(found["oldId"], found["newData"], mode)


def read_tasks(query: Iterable[tuple[str, str]]) -> TasksQuery:
    """Read the parameters of a listing of tasks."""
    found = _parameters(query, ("queue", "limit", "omitValues", "taskId", "claimantId"))
    return TasksQuery(
        queue=_last(found, "queue"),
        ids=found.get("taskId", ()),
        limit=number(_last(found, "limit") or "0", "limit"),
        omit_values=_flag(_last(found, "omitValues")),
        claimant=_last(found, "claimantId"),
    )


def read_queues(query: Iterable[tuple[str, str]]) -> QueuesQuery:
    """Read the parameters of a listing of queues."""
    found = _parameters(query, ("matchPrefix", "matchExact", "limit"))
    return QueuesQuery(
        prefixes=found.get("matchPrefix", ()),
        exact=found.get("matchExact", ()),
        limit=number(_last(found, "limit") or "0", "limit"),
    )


def _parameters(query: Iterable[tuple[str, str]], known: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, value in query:
        name = _SNAKE.sub(lambda match: match[1].upper(), key)
        if name not in known:
            raise InvalidArgument(f"there is no parameter {key!r:.60}: there are {', '.join(known)}")
        found.setdefault(name, []).append(value)
    return found


def _last(found: dict[str, list[str]], name: str) -> str:
    return found[name][-1] if name in found else ""


def _flag(value: str) -> bool:
    if value not in ("", "true", "false", "1", "0"):
        raise InvalidArgument(f"omitValues is true or false, not {_shown(value)}")
    return value in ("true", "1")


# --- answers -----------------------------------------------------------------------------------------------


def task(found: Task) -> dict[str, Any]:
    """Write a task."""
    return {
        "queue": found.queue,
        "id": found.id,
        "version": found.version,
        "atMs": str(found.at),
        "claimantId": found.claimant,
        "value": values.to_json(found.value),
        "createdMs": str(found.created),
        "modifiedMs": str(found.modified),
        "claims": found.claims,
        "attempt": found.attempt,
        "err": found.err,
    }


def modified(found: Modified) -> dict[str, Any]:
    """Write what came of a modification."""
    return {
        "inserted": [task(each) for each in found.inserted],
        "changed": [task(each) for each in found.changed],
        "insertedDocs": [],
        "changedDocs": [],
    }


def stat(found: QueueStat) -> dict[str, Any]:
    """Write how full a queue is."""
    return {
        "name": found.name,
        "numTasks": found.size,
        "numClaimed": found.claimed,
        "numAvailable": found.available,
        "numFuture": found.future,
        "maxClaims": found.max_claims,
    }


def dependency(error: DependencyError) -> list[dict[str, Any]]:
    """Write what was in the way of a modification: first a sentence, then each task."""
    kind = "type.googleapis.com/api.ModifyDep"
    details: list[dict[str, Any]] = [{"@type": kind, "type": "DETAIL", "msg": error.text}]
    for what, old in error.details():
        details.append(
            {
                "@type": kind,
                "type": what,
                "id": {"id": old.id, "version": old.version, "queue": old.queue},
            }
        )
    return details

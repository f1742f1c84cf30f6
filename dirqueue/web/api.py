"""What the page can ask: queues, messages, one message; and the three things it can do.

Layer: edges.
A key from outside is only compared with the keys of queues that were found; an id is checked before it is a path.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

from dirqueue import states
from dirqueue.errors import DirQueueError, LeaseLost, MessageNotFound, SettingsError
from dirqueue.layouts.base import Claim
from dirqueue.message import Message
from dirqueue.queue import Queue
from dirqueue.stats import LIMIT, take_sample
from dirqueue.tools.monitor import Monitor, Reading

#: Pages that ask within so many seconds share one look at the queues.
FRESH_SECONDS = 1.0
#: Messages in one list, bytes of one body, ids in one order.
LIST_LIMIT = 100
BODY_LIMIT = 64 << 10
ORDER_LIMIT = 1000

#: Does a thing to the messages of those ids in one pass; returns the ids done, and why others were not.
Verb = Callable[[Queue[bytes], set[str]], tuple[set[str], list[str]]]


class Api:
    """Answers and orders, as plain values."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._monitor = Monitor(root)
        self._lock = threading.Lock()
        self._looks: list[Reading] = []
        self._looked = 0.0

    def close(self) -> None:
        """Close all directories."""
        with self._lock:
            self._monitor.close()

    def queues(self) -> dict[str, Any]:
        """Return every queue with its counts, rates and series."""
        with self._lock:
            described = [self._described(look) for look in self._look()]
        return {"root": shown(self.root), "queues": described}

    def _look(self) -> list[Reading]:
        if not self._looked or time.monotonic() - self._looked >= FRESH_SECONDS:
            self._looks = self._monitor.read()
            self._looked = time.monotonic()
        return self._looks

    def _described(self, look: Reading) -> dict[str, Any]:
        series = self._monitor.series[look.path]
        return look.to_dict() | {
            "queue": shown(look.path),
            "name": shown(look.name),
            "key": key_of(look.name),
            "series": {name: list(getattr(series, name)) for name in ("depth", "put", "ack", "error")},
        }

    def messages(self, key: str, state: str) -> dict[str, Any]:
        """Return the oldest messages in a state, of those that a bounded look sees."""
        states.check(state)
        queue = self._queue(key)
        sample = take_sample(queue.layout, LIMIT)
        entries = sorted(
            (e for e in sample.entries if e.state == state), key=lambda e: (e.priority or 0, e.put)
        )
        described = []
        for entry in entries[:LIST_LIMIT]:
            try:
                described.append(Message(entry, queue.layout, queue._codec).to_dict())  # noqa: SLF001
            except MessageNotFound:
                continue  # RACE: claimed or finished since the look
        return {"messages": described, "seen": len(entries), "sampled": sample.sampled}

    def message(self, key: str, id: str) -> dict[str, Any]:
        """Return one message with its body, or the beginning of a long one."""
        message = self._queue(key).message(id)
        described = message.to_dict()
        with message.open() as file:
            data = file.read(BODY_LIMIT + 1)
        described["truncated"] = len(data) > BODY_LIMIT
        data = data[:BODY_LIMIT]
        try:
            # A cut may go through a character; that is not what makes a body binary.
            described["body"] = data.decode("utf-8", "ignore" if described["truncated"] else "strict")
        except UnicodeDecodeError:
            described["body_base64"] = base64.b64encode(data).decode()
        return described

    def act(self, order: Any) -> dict[str, Any]:
        """Redrive or delete dead messages, or reject waiting ones; return how many were, and why others were not."""
        if not isinstance(order, dict):
            raise SettingsError("an order is a JSON object with queue, verb and ids")
        key, verb, ids = order.get("queue"), order.get("verb"), order.get("ids")
        if not isinstance(verb, str) or verb not in VERBS:
            raise SettingsError(f"verb must be one of {', '.join(VERBS)}, not {verb!r:.60}")
        if not isinstance(ids, list) or not 0 < len(ids) <= ORDER_LIMIT:
            raise SettingsError(f"ids must be a list of 1 to {ORDER_LIMIT} message ids")
        if not isinstance(key, str):
            raise SettingsError(f"queue must be the key of a queue, not {key!r:.60}")
        queue = self._queue(key)
        wanted = {queue.layout.check_id(id) for id in ids}
        done, failed = VERBS[verb](queue, wanted)
        with self._lock:
            self._looked = 0.0
        return {"done": len(done), "failed": failed}

    def _queue(self, key: str) -> Queue[bytes]:
        with self._lock:
            found = (look.name for look in self._look() if key_of(look.name) == key)
            queue = self._monitor.queue(next(found, ""))
        if queue is None:
            raise UnknownQueue(f"there is no queue {key!r:.80} under {self.root!r}")
        return queue


class UnknownQueue(DirQueueError):
    """No queue of that key was found under the root."""


def key_of(name: str) -> str:
    """Return what addresses a queue: the bytes of its name, percent-encoded, since a name need not be UTF-8."""
    return quote(os.fsencode(name))


def shown(path: str) -> str:
    r"""Return a path or a name as text that is valid Unicode; bytes that are not UTF-8 become \xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


# --- verbs -------------------------------------------------------------------------------------------------


def _redrive(queue: Queue[bytes], wanted: set[str]) -> tuple[set[str], list[str]]:
    try:
        done = set(queue.redrive(wanted))
    except MessageNotFound:  # the only one wanted
        done = set()
    return done, _missing(wanted - done, "dead")


def _delete(queue: Queue[bytes], wanted: set[str]) -> tuple[set[str], list[str]]:
    with queue.dead as dead:
        return _each(dead, wanted, "dead", lambda message: message.cancel())


def _reject(queue: Queue[bytes], wanted: set[str]) -> tuple[set[str], list[str]]:
    def bury(message: Message[bytes]) -> None:
        entry = message.entry
        held = Claim(entry.id, entry.place, 0, entry.until, entry.attempts)
        # The exact name that was seen goes to dead/; LeaseLost if it is not there any more.
        queue.layout.bury(held, "rejected by hand on the web page")

    return _each(queue, wanted, "ready or delayed", bury)


def _each(
    queue: Queue[bytes], wanted: set[str], state: str, do: Callable[[Message[bytes]], None]
) -> tuple[set[str], list[str]]:
    """Do a thing to each unclaimed message wanted. COST: one listing for all, since finding one may take a listing."""
    entries = queue.layout.entries(states.UNCLAIMED)
    found = [entry for entry in entries if entry.id in wanted and entry.state in states.UNCLAIMED]
    done, failed = set(), []
    for entry in found:
        try:
            do(Message(entry, queue.layout, queue._codec))  # noqa: SLF001
            done.add(entry.id)
        except (MessageNotFound, LeaseLost) as error:
            failed.append(str(error))
    return done, failed + _missing(wanted.difference(entry.id for entry in found), state)


def _missing(ids: Iterable[str], state: str) -> list[str]:
    return [f"message {id} is not {state} any more" for id in sorted(ids)]


VERBS: dict[str, Verb] = {"redrive": _redrive, "delete": _delete, "reject": _reject}

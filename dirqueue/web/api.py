"""What the page can ask: queues, messages, one message; and the three things it can do.

Layer: edges.
A name from outside is only compared with the names of queues that were found; an id is checked before it is a path.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from typing import Any

from dirqueue import states
from dirqueue.errors import DirQueueError, LeaseLost, MessageNotFound, SettingsError
from dirqueue.layouts.base import Claim
from dirqueue.message import Message
from dirqueue.queue import Queue
from dirqueue.stats import LIMIT, take_sample
from dirqueue.tools.monitor import Look, Monitor

#: A look is shared by all pages that ask within so many seconds.
FRESH_SECONDS = 1.0
#: Messages in one list, bytes of one body, ids in one order.
LIST_LIMIT = 100
BODY_LIMIT = 64 << 10
ORDER_LIMIT = 1000


class Api:
    """Answers and orders, as plain values."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._monitor = Monitor(root)
        self._lock = threading.Lock()
        self._looks: list[Look] = []
        self._looked = 0.0

    def close(self) -> None:
        """Let go of all directories."""
        with self._lock:
            self._monitor.close()

    def queues(self) -> dict[str, Any]:
        """Return every queue with its counts, rates and series."""
        with self._lock:
            looks = self._look()
            told = [self._described(look) for look in looks]
        return {"root": self.root, "queues": told}

    def _look(self) -> list[Look]:
        if not self._looked or time.monotonic() - self._looked >= FRESH_SECONDS:
            self._looks = self._monitor.look()
            self._looked = time.monotonic()
        return self._looks

    def _described(self, look: Look) -> dict[str, Any]:
        series = self._monitor.series[look.path]
        return look.to_dict() | {
            "name": look.name,
            "series": {name: list(getattr(series, name)) for name in ("depth", "put", "ack", "error")},
        }

    def messages(self, name: str, state: str) -> dict[str, Any]:
        """Return the oldest messages in a state, of those that a bounded look sees."""
        states.check(state)
        queue = self._queue(name)
        sample = take_sample(queue.layout, LIMIT)
        entries = sorted(
            (e for e in sample.entries if e.state == state), key=lambda e: (e.priority or 0, e.put)
        )
        told = []
        for entry in entries[:LIST_LIMIT]:
            try:
                told.append(Message(entry, queue.layout, queue._codec).to_dict())  # noqa: SLF001 - as above
            except MessageNotFound:
                continue  # RACE: claimed or finished since the look
        return {"messages": told, "seen": len(entries), "sampled": sample.sampled}

    def message(self, name: str, id: str) -> dict[str, Any]:
        """Return one message with its body, or the beginning of a long one."""
        message = self._queue(name).message(id)
        told = message.to_dict()
        with message.open() as file:
            data = file.read(BODY_LIMIT + 1)
        told["truncated"] = len(data) > BODY_LIMIT
        data = data[:BODY_LIMIT]
        try:
            # A cut may go through a character; that is not what makes a body binary.
            told["body"] = data.decode("utf-8", "ignore" if told["truncated"] else "strict")
        except UnicodeDecodeError:
            told["body_base64"] = base64.b64encode(data).decode()
        return told

    def act(self, order: Any) -> dict[str, Any]:
        """Redrive or delete dead messages, or reject waiting ones; return how many were, and why others were not."""
        if not isinstance(order, dict):
            raise SettingsError("an order is a JSON object with queue, verb and ids")
        verbs: dict[object, Callable[[Queue[bytes], str], None]] = {
            "redrive": _redrive,
            "delete": _delete,
            "reject": _reject,
        }
        verb, ids = order.get("verb"), order.get("ids")
        if not isinstance(verb, str) or verb not in verbs:
            raise SettingsError(f"verb must be one of {', '.join(map(str, verbs))}, not {verb!r:.60}")
        if not isinstance(ids, list) or not 0 < len(ids) <= ORDER_LIMIT:
            raise SettingsError(f"ids must be a list of 1 to {ORDER_LIMIT} message ids")
        queue = self._queue(str(order.get("queue")))
        done, failed = 0, []
        for id in ids:
            try:
                verbs[verb](queue, id)
                done += 1
            except (MessageNotFound, LeaseLost) as error:
                failed.append(str(error))
        with self._lock:
            self._looked = 0.0
        return {"done": done, "failed": failed}

    def _queue(self, name: str) -> Queue[bytes]:
        with self._lock:
            self._look()
            queue = self._monitor.queue(name)
        if queue is None:
            raise UnknownQueue(f"there is no queue {name!r:.80} under {self.root!r}")
        return queue


class UnknownQueue(DirQueueError):
    """No queue of that name was found under the root."""


def _redrive(queue: Queue[bytes], id: str) -> None:
    queue.redrive(id)


def _delete(queue: Queue[bytes], id: str) -> None:
    queue.dead.message(id).cancel()


def _reject(queue: Queue[bytes], id: str) -> None:
    message = queue.message(id)
    if message.state not in states.UNCLAIMED:
        raise MessageNotFound(f"cannot reject {id}: it is {message.state} by now", message_id=id)
    entry = message.entry
    held = Claim(entry.id, entry.place, 0, entry.until, entry.attempts)
    # The exact name that was seen goes to dead/, or LeaseLost says that somebody was faster.
    queue.layout.bury(held, "rejected by hand on the web page")

"""What happens in a worker: hooks for programs, key=value lines for people, counts for both.

Layer: conveniences.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dirqueue.errors import SettingsError
from dirqueue.worker.outcome import check_hook

logger = logging.getLogger("dirqueue.worker")

#: Every event there is, and how loudly it is logged.
LEVELS = {
    "started": logging.INFO,
    "leased": logging.DEBUG,
    "acked": logging.INFO,
    "retried": logging.WARNING,
    "released": logging.INFO,
    "dead": logging.ERROR,
    "moved": logging.WARNING,
    "lost": logging.WARNING,
    "died": logging.WARNING,
    "refreshed": logging.INFO,
    "stuck": logging.ERROR,
    "error": logging.ERROR,
    "stopping": logging.INFO,
    "stopped": logging.INFO,
}


class Event(NamedTuple):
    """One thing that happened."""

    name: str
    queue: str = ""
    id: str = ""
    attempts: int = 0
    seconds: float | None = None
    error: str | None = None
    pid: int | None = None
    #: The traceback of a handler, the last call first, or the last output of a program.
    trace: str | None = None

    def line(self) -> str:
        """Return it as `event=acked queue=... id=...`, without the trace and the fields that are empty."""
        fields: dict[str, object] = {"event": self.name}
        for field, value in zip(self._fields[1:-1], self[1:-1], strict=True):
            if value not in ("", None) and not (field == "attempts" and not value):
                fields[field] = round(value, 3) if isinstance(value, float) else value
        return key_values(fields)


class Counts(NamedTuple):
    """The number of deliveries that ended in each way."""

    acked: int = 0
    retried: int = 0
    #: Those too that a claim found out of attempts, expired or unreadable: no handler had them.
    dead: int = 0
    released: int = 0
    lost: int = 0


Hook = Callable[[Event], object]


class Events:
    """Counts and logs what happens, and calls the hooks.

    With `traces` the trace of a failure follows its line in the log.
    """

    def __init__(self, hooks: Mapping[str, Hook] | None, *, traces: bool = True) -> None:
        self._traces = traces
        self._hooks = dict(hooks or {})
        for name, hook in self._hooks.items():
            if name not in LEVELS:
                raise SettingsError(f"there is no event {name!r}; there are {', '.join(LEVELS)}")
            check_hook(hook, f"hook for {name!r}")
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        """Count it, log it and call its hook; a hook that raises is logged and changes nothing."""
        with self._lock:
            self._counts[event.name] += 1
        level = LEVELS[event.name]
        if logger.isEnabledFor(level):
            record = logger.makeRecord(logger.name, level, __file__, 0, "%s", (event.line(),), None)
            if self._traces and event.trace:
                record.exc_text = printable(event.trace)  # formatters write it under the line
            logger.handle(record)
        hook = self._hooks.get(event.name)
        if hook is not None:
            try:
                hook(event)
            except Exception:
                logger.exception("event=error error=%s", quote(f"the hook for {event.name} raised"))

    def counts(self) -> Counts:
        """Return the number of deliveries that ended in each way so far."""
        with self._lock:
            return Counts(*(self._counts[name] for name in Counts._fields))


def key_values(fields: Mapping[str, object]) -> str:
    """Return `key=value key="two words"`: one line, whatever is in the values."""
    return " ".join(f"{key}={quote(value)}" for key, value in fields.items())


def printable(trace: str) -> str:
    """Return a trace without characters that would steer a terminal, and without lines that look like ours."""
    text = "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape", "replace").decode()
        for each in trace
    )
    return "\n".join(line if line.startswith(" ") else f"  {line}" for line in text.split("\n"))


def quote(value: object) -> str:
    """Return a value that stays one word, or one quoted string, on one line."""
    text = str(value)
    if text and text.isprintable() and not set(text) & set(" \"'=\\"):
        return text
    import json

    return json.dumps(text, ensure_ascii=not text.isprintable())

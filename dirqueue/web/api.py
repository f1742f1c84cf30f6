"""What the page can ask: queues, messages, errors, workers, one message; and what it can do to messages and queues.

Layer: edges.
A key from outside is only compared with the keys of queues that were found; an id is checked before it is a path.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from dirqueue import states
from dirqueue.errors import DirQueueError, LeaseLost, MessageNotFound, SettingsError
from dirqueue.layouts.base import Claim
from dirqueue.message import Entry, Message
from dirqueue.queue import Queue
from dirqueue.stats import LIMIT, take_sample
from dirqueue.tools.failures import kind_of, kinds
from dirqueue.tools.holders import holders
from dirqueue.tools.monitor import Monitor, Reading, arranged
from dirqueue.tools.removal import make_durable

#: Pages that ask within so many seconds share one look at the queues; a look that takes long is shared for longer.
FRESH_SECONDS = 1.0
FRESH_SHARE = 2
#: How long an answer waits for a look before it is given without; and the first one, which has nothing else.
LOOK_SECONDS = 5.0
FIRST_SECONDS = 15.0
#: Queues and messages on one page, bytes of one body, ids in one order.
QUEUES_LIMIT = 50
LIST_LIMIT = 100
BODY_LIMIT = 64 << 10
ORDER_LIMIT = 1000
#: Messages that a search opens, and how much of each body it reads; dead letters whose errors are counted.
SEARCH_LIMIT = 2_000
SEARCH_BYTES = 4096
ERRORS_LIMIT = 5_000
#: Messages that one order for all of a kind deals with; the page asks again while there are more.
WHOLE_LIMIT = 5_000
#: Kinds of errors that are shown.
KINDS_LIMIT = 50

#: Does a thing to the messages of those ids in one pass; returns the ids done, and why others were not.
Verb = Callable[[Queue[bytes], set[str]], tuple[set[str], list[str]]]
#: What a list of messages can be sorted by: what a name tells.
SORTS: dict[str, Callable[[Entry], Any]] = {
    "put": lambda entry: (entry.put, entry.id),
    "until": lambda entry: (entry.until, entry.id),
    "attempts": lambda entry: (entry.attempts, entry.put),
    "priority": lambda entry: (entry.priority or 0, entry.put),
}


class Listing(NamedTuple):
    """Which messages a page wants to see."""

    state: str = states.READY
    sort: str = "put"
    backwards: bool = False
    offset: int = 0
    search: str = ""

    @classmethod
    def read(cls, words: dict[str, str]) -> Listing:
        """Return what the words of a question ask for; SettingsError for what cannot be."""
        sort = words.get("sort", "put")
        if sort not in SORTS:
            raise SettingsError(f"sort must be one of {', '.join(SORTS)}, not {sort!r:.60}")
        state = states.check(words.get("state", states.READY))
        return cls(state, sort, backwards(words), offset_of(words), words.get("search", "")[:200])


class Api:
    """Answers and orders, as plain values."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._monitor = Monitor(root)
        self._lock = threading.Lock()
        self._looks: list[Reading] = []
        #: When the last look ended, by the monotonic clock; and the one that is being made, if there is one.
        self._looked = 0.0
        self._looking: threading.Thread | None = None
        self._asked_again = False
        self._fresh = FRESH_SECONDS

    def close(self) -> None:
        """Close all directories."""
        looking = self._looking
        if looking is not None:
            looking.join(LOOK_SECONDS)
        self._monitor.close()

    # --- answers -------------------------------------------------------------------------------------------

    def queues(self, words: dict[str, str]) -> dict[str, Any]:
        """Return a page of queues with their counts, rates and series, and the sums of all."""
        offset = offset_of(words)
        looks = self._look()
        found = arranged(
            looks, words.get("sort", "sick"), words.get("search", ""), backwards=backwards(words)
        )
        offset = min(offset, max(0, (len(found) - 1) // QUEUES_LIMIT * QUEUES_LIMIT))
        described = [self._described(look) for look in found[offset : offset + QUEUES_LIMIT]]
        return {
            "root": shown(self.root),
            "age": self._age(),
            "queues": described,
            "found": len(found),
            "offset": offset,
            "limit": QUEUES_LIMIT,
            "totals": _totals(looks),
        }

    def queue(self, key: str) -> dict[str, Any]:
        """Return one queue as `queues` does."""
        for look in self._look():
            if key_of(look.name) == key:
                return {
                    "root": shown(self.root),
                    "age": self._age(),
                    "states": states.VISIBLE,
                    "queue": self._described(look),
                }
        raise self._unknown(key)

    def _look(self) -> list[Reading]:
        """Return the last look at the queues, a new one if it is due.

        It is made in a thread of its own: where a filesystem hangs, the page goes on with what it knew.
        """
        with self._lock:
            looking = self._looking
            if looking is None and time.monotonic() - self._looked >= self._fresh:
                looking = threading.Thread(target=self._look_anew, name="dirqueue-look", daemon=True)
                self._looking = looking
                looking.start()
            known = self._looked
        if looking is not None:
            looking.join(LOOK_SECONDS if known else FIRST_SECONDS)
        if not self._looked:
            raise DirQueueError(
                f"the queues under {self.root!r} cannot be read yet: their filesystem does not answer"
            )
        return self._looks

    def _look_anew(self) -> None:
        try:
            began = time.monotonic()
            self._looks = self._monitor.read()
            self._looked = time.monotonic()
            self._fresh = max(FRESH_SECONDS, FRESH_SHARE * (self._looked - began))
        finally:
            with self._lock:
                self._looking = None
                if self._asked_again:
                    self._asked_again, self._fresh = False, 0.0

    def _age(self) -> float:
        """Return for how many seconds there was no look."""
        return round(time.monotonic() - self._looked, 1)

    def _described(self, look: Reading) -> dict[str, Any]:
        series = self._monitor.series[look.path]
        return look.to_dict() | {
            "queue": shown(look.path),
            "name": shown(look.name),
            "key": key_of(look.name),
            "series": {name: list(getattr(series, name)) for name in ("at", "depth", "put", "ack", "error")},
        }

    def messages(self, key: str, listing: Listing) -> dict[str, Any]:
        """Return a page of the messages in a state, of those that a bounded look sees."""
        queue = self._queue(key)
        entries, sampled = _entries(queue, listing.state)
        entries.sort(key=SORTS[listing.sort], reverse=listing.backwards)
        seen = len(entries)
        if listing.search:
            entries = [entry for entry in entries[:SEARCH_LIMIT] if _holds(queue, entry, listing.search)]
        offset = min(listing.offset, max(0, (len(entries) - 1) // LIST_LIMIT * LIST_LIMIT))
        described = []
        for entry in entries[offset : offset + LIST_LIMIT]:
            try:
                row = _message(queue, entry).to_dict()
                row.pop("trace")  # up to 4,000 characters each; one message has it
                described.append(row)
            except MessageNotFound:
                continue  # RACE: claimed or finished since the look
        return {
            "messages": described,
            "seen": seen,
            "found": len(entries),
            "searched": min(seen, SEARCH_LIMIT) if listing.search else None,
            "offset": offset,
            "limit": LIST_LIMIT,
            "sampled": sampled,
        }

    def errors(self, key: str) -> dict[str, Any]:
        """Return how often which error is among the dead letters, the most frequent first."""
        queue = self._queue(key)
        entries, sampled = _entries(queue, states.DEAD)
        looked = entries[:ERRORS_LIMIT]
        counts = kinds(queue, looked)
        shown_kinds = [{"error": error, "count": count} for error, count in counts.most_common(KINDS_LIMIT)]
        return {
            "errors": shown_kinds,
            "kinds": len(counts),
            "looked": len(looked),
            "sampled": sampled or looked != entries,
        }

    def workers(self, key: str = "") -> dict[str, Any]:
        """Return who holds what of one queue or of all, whoever holds it for the longest time first."""
        named = [(look.name, self._monitor.queue(look.name)) for look in self._look() if look.stats.leased]
        found = []
        for name, queue in named:
            if queue is not None and key in ("", key_of(name)):
                found += [
                    {"queue": shown(name), "key": key_of(name), **each.to_dict()} for each in holders(queue)
                ]
        found.sort(key=lambda each: each["since"] or "")
        return {"root": shown(self.root), "workers": found[:LIST_LIMIT], "found": len(found)}

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

    # --- orders --------------------------------------------------------------------------------------------

    def act(self, order: Any) -> dict[str, Any]:
        """Redrive or delete dead messages, or reject waiting ones; return how many were, and why others were not.

        Or pause or resume the queue: then `done` is 1 if that changed something.

        `ids` names them. For dead ones `all`, `error` (its first line) or `search` may stand instead; then `more` says
        whether the same order would find others.
        """
        if not isinstance(order, dict):
            raise SettingsError("an order is a JSON object with queue, verb and ids")
        key, verb = order.get("queue"), order.get("verb")
        if not isinstance(verb, str) or verb not in (*VERBS, *WHOLE):
            raise SettingsError(f"verb must be one of {', '.join((*VERBS, *WHOLE))}, not {verb!r:.60}")
        if not isinstance(key, str):
            raise SettingsError(f"queue must be the key of a queue, not {key!r:.60}")
        if verb in WHOLE:
            changed = WHOLE[verb](self._queue(key))
            self._look_again()
            return {"done": int(changed), "failed": [], "more": False}
        which = _which(order)
        if which != "ids" and verb == "reject":
            raise SettingsError(f"reject takes ids, not {which}")
        queue = self._queue(key)
        wanted, more = _chosen(queue, which, order[which])
        done, failed = VERBS[verb](queue, wanted) if wanted else (set[str](), list[str]())
        self._look_again()
        return {"done": len(done), "failed": failed, "more": more and bool(done)}

    def _look_again(self) -> None:
        """What was known is not so any more: the next answer needs a look that begins after this."""
        with self._lock:
            self._fresh, self._asked_again = 0.0, self._looking is not None

    def _queue(self, key: str) -> Queue[bytes]:
        found = (look.name for look in self._look() if key_of(look.name) == key)
        queue = self._monitor.queue(next(found, ""))
        if queue is None:
            raise self._unknown(key)
        return queue

    def _unknown(self, key: str) -> UnknownQueue:
        return UnknownQueue(f"there is no queue {key!r:.80} under {self.root!r}")


class UnknownQueue(DirQueueError):
    """No queue of that key was found under the root."""


def key_of(name: str) -> str:
    """Return what addresses a queue: the bytes of its name, percent-encoded, since a name need not be UTF-8."""
    return quote(os.fsencode(name))


def shown(path: str) -> str:
    r"""Return a path or a name as text that is valid Unicode; bytes that are not UTF-8 become \xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def offset_of(words: dict[str, str]) -> int:
    """Return how many are left out before the first that is shown."""
    text = words.get("offset", "0")
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise SettingsError(f"offset must be a whole number of at least 0, not {text!r:.60}")


def backwards(words: dict[str, str]) -> bool:
    """Return whether the order is turned around."""
    return words.get("order") == "desc"


def _totals(looks: list[Reading]) -> dict[str, Any]:
    oldest: list[datetime] = [look.stats.oldest_ready for look in looks if look.stats.oldest_ready]
    return {
        "queues": len(looks),
        "sick": sum(look.severity > 0 for look in looks),
        **{
            state: sum(getattr(look.stats, state) for look in looks) for state in (*states.VISIBLE, "expired")
        },
        "oldest_ready": min(oldest).isoformat() if oldest else None,
    }


# --- messages ----------------------------------------------------------------------------------------------


def _message(queue: Queue[bytes], entry: Entry) -> Message[bytes]:
    return Message(entry, queue.layout, queue._codec)  # noqa: SLF001


def _entries(queue: Queue[bytes], state: str) -> tuple[list[Entry], bool]:
    """Return the messages in a state that a bounded look sees, and whether there are more."""
    sample = take_sample(queue.layout, LIMIT)
    return [entry for entry in sample.entries if entry.state == state], sample.sampled


def _holds(queue: Queue[bytes], entry: Entry, search: str) -> bool:
    """Return whether the id, the holder, the error, an attribute or the beginning of the body holds a text."""
    wanted = search.lower()
    if wanted in entry.id or wanted in entry.token.lower():
        return True
    message = _message(queue, entry)
    try:
        if entry.attempts and wanted in (message.error or "").lower():
            return True
        if any(wanted in f"{name}={value}".lower() for name, value in message.attributes.items()):
            return True
        with message.open() as body:
            return wanted in body.read(SEARCH_BYTES).decode("utf-8", "replace").lower()
    except MessageNotFound:
        return False  # RACE: it moved on


def _which(order: dict[str, Any]) -> str:
    """Return by what an order names its messages; SettingsError unless it is exactly one well-formed thing."""
    given = [name for name in ("ids", "all", "error", "search") if name in order]
    if len(given) != 1:
        raise SettingsError("an order has one of ids, all, error and search")
    (which,) = given
    value = order[which]
    if which == "ids" and not (isinstance(value, list) and 0 < len(value) <= ORDER_LIMIT):
        raise SettingsError(f"ids must be a list of 1 to {ORDER_LIMIT} message ids")
    if which == "all" and value is not True:
        raise SettingsError("all must be true")
    if which in ("error", "search") and not (isinstance(value, str) and (value or which == "error")):
        raise SettingsError(f"{which} must be a text")
    return which


def _chosen(queue: Queue[bytes], which: str, value: Any) -> tuple[set[str], bool]:
    """Return the ids that an order means, and whether there may be more than one order can deal with."""
    if which == "ids":
        return {queue.layout.check_id(id) for id in value}, False
    dead = (entry for entry in queue.layout.entries((states.DEAD,)) if entry.state == states.DEAD)
    matching: Iterator[Entry] = dead
    if which == "error":
        matching = (entry for entry in dead if kind_of(queue, entry) == value)
    elif which == "search":
        matching = (entry for entry in dead if _holds(queue, entry, value))
    chosen: set[str] = set()
    for entry in matching:
        if len(chosen) == WHOLE_LIMIT:
            return chosen, True
        chosen.add(entry.id)
    return chosen, False


# --- verbs -------------------------------------------------------------------------------------------------


def _redrive(queue: Queue[bytes], wanted: set[str]) -> tuple[set[str], list[str]]:
    try:
        done = set(queue.redrive(wanted))
    except MessageNotFound:  # the only one wanted
        done = set()
    return done, _missing(wanted - done, "dead")


def _delete(queue: Queue[bytes], wanted: set[str]) -> tuple[set[str], list[str]]:
    removed: list[Entry] = []

    def remove(message: Message[bytes]) -> None:
        if not queue.layout.remove(message.entry):
            raise MessageNotFound(f"message {message.id} is not dead any more", message_id=message.id)
        removed.append(message.entry)

    done, failed = _each(queue, wanted, (states.DEAD,), remove)
    if queue.settings.sync:
        make_durable(queue.layout, removed)
    return done, failed


def _reject(queue: Queue[bytes], wanted: set[str]) -> tuple[set[str], list[str]]:
    def bury(message: Message[bytes]) -> None:
        entry = message.entry
        held = Claim(entry.id, entry.place, 0, entry.until, entry.attempts)
        # The exact name that was seen goes to dead/; LeaseLost if it is not there any more.
        queue.layout.bury(held, "rejected by hand on the web page")

    return _each(queue, wanted, states.UNCLAIMED, bury)


def _each(
    queue: Queue[bytes], wanted: set[str], within: tuple[str, ...], do: Callable[[Message[bytes]], None]
) -> tuple[set[str], list[str]]:
    """Do a thing to each message wanted. COST: one listing for all, since finding one may take a listing."""
    entries = queue.layout.entries(within)
    found = [entry for entry in entries if entry.id in wanted and entry.state in within]
    done, failed = set(), []
    for entry in found:
        try:
            do(_message(queue, entry))
            done.add(entry.id)
        except (MessageNotFound, LeaseLost) as error:
            failed.append(str(error))
    return done, failed + _missing(wanted.difference(entry.id for entry in found), " or ".join(within))


def _missing(ids: Iterable[str], state: str) -> list[str]:
    return [f"message {id} is not {state} any more" for id in sorted(ids)]


VERBS: dict[str, Verb] = {"redrive": _redrive, "delete": _delete, "reject": _reject}
#: What can be done to a queue; returns whether it was not so before.
WHOLE: dict[str, Callable[[Queue[bytes]], bool]] = {"pause": Queue.pause, "resume": Queue.resume}

"""The grammar of native names: what a file name says about a message, and in which room it lies.

    ID                   ready                 ID.new            being written
    ID.UNTIL.N           delayed               ID.error          why ID failed last (JSON)
    ID.UNTIL.N.TOKEN     leased                ID.batch.new/     being staged
    ID.UNTIL             leased, VSQS peer     ID.batch/ ID.slice/ ID.part/   directories of messages
    ID.UNTIL.N.TOKEN.ack acknowledged, about to vanish (network filesystems only)

    ID.UNTIL.N~V~S[~KEY]         a task that nobody holds: its card says its version, side file and own id
    ID.UNTIL.N.TOKEN~V~S[~KEY]   a task that is leased;  with N = 0 put by the holder TOKEN, claimable from UNTIL on

    the top              what can be claimed now, and what is being written
    leased/              held
    later/BUCKET/        delayed or backing off; BUCKET is the start of the minute of UNTIL
    dead/BUCKET/ done/BUCKET/   ended; BUCKET is the start of the hour in which it ended

The name says all; the room only says where to look. Names of an earlier format, which had all live states at the top
and no buckets, are read wherever they lie.

To change the format, change in this order: this page and its pattern; docs/protocol.md and protocol.sh; `entries` and
`find` (inspect.py); what listings sort out (cursor.py, supply.py); what is stale (purge.py, staged.py); the findings of
tools/check; recognition (description.py); the golden directories in tests/peers; and FORMAT in stored_settings.py if
older programs must not touch the queue any more.

Layer: pure values, no I/O.
Invariant: what `parse` accepts, `Name.text` rebuilds letter for letter; nothing else ever becomes a path. Every rename
of a name with a card raises V, so that no version of a task comes twice. The longest name, conditional, has 255 bytes.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from dirqueue.disk import ballast
from dirqueue.disk.identity import ID_DIGITS, TIME_DIGITS
from dirqueue.errors import InvalidId
from dirqueue.message import Card
from dirqueue.settings import FILE

#: VSQS peers write bare times: microseconds (16 digits) or, to the letter of its document, milliseconds (13).
VSQS_DIGITS = (13, 16)
#: What the digits for deliveries can say; a message without a limit stays at it.
MAX_ATTEMPTS = 999_999

#: What reading a small JSON file raises when it is not as we write them: wrong types, 200,000 brackets, 400 digits.
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)

_ID = r"[1-9][0-9]{12}|[1-9][0-9]{15}|[1-9][0-9]{24,33}"
_CARD = r"~(?:0|[1-9][0-9]{0,8})~(?:0|[1-9][0-9]{0,8})(?:~(?:[A-Za-z0-9_-]{1,36}|=[a-z2-7]{32}))?"
_CARD_AT_END = re.compile(rf"({_CARD})(?:\.ack|\.(?:if|un|mv)\.[0-9]+-[0-9]+)?$")
_NAME = re.compile(
    rf"({_ID})"
    r"(?:\.([1-9][0-9]{12}|[1-9][0-9]{15})(?:\.(0|[1-9][0-9]{0,5})(?:\.([A-Za-z0-9_-]{1,100}))?"
    rf"({_CARD})?(\.ack)?)?"
    r"|\.(new|error|error\.new|batch|batch\.new|slice|part))?"
)

#: States in which a name alone says what the message is doing.
READY, DELAYED, LEASED, ACKED = "ready", "delayed", "leased", "acked"
#: Suffixes of everything else that is ours.
NEW, ERROR, ERROR_NEW, BATCH, STAGING, SLICE, PART = (
    "new",
    "error",
    "error.new",
    "batch",
    "batch.new",
    "slice",
    "part",
)
#: Rooms: what cannot be claimed now, and what ended.
LEASED_ROOM, LATER, DEAD, DONE = LEASED, "later", "dead", "done"
LEASED_PREFIX = f"{LEASED_ROOM}/"
#: A file at the top: while it is there nothing is claimed.
PAUSED = "paused"
#: What messages carry beside their bodies, by id.
ATTRIBUTES = "attributes"
#: What consumers of lots and identities of batches keep.
SPARK = ".spark"
#: A directory in a room, named by a time.
BUCKET = "bucket"
MINUTE, HOUR = 60_000_000, 3_600_000_000
#: Directories that hold messages, as the last part of their name.
CONTAINERS = frozenset((BATCH, SLICE, PART))
#: What else is ours in a queue's directory: with `parse`, the one list of what files are ours.
ROOMS = frozenset((LEASED_ROOM, LATER, DEAD, DONE))
FURNITURE = ROOMS | {FILE, ballast.NAME, ".purge.lock", SPARK, PAUSED, ATTRIBUTES}
#: Files of a moment: a look at the clock, settings about to be published.
#: Exactly with a token of ours: what only looks like one is not ours to remove.
TEMPORARY = re.compile(r"\.(?:clock|create)-[A-Za-z0-9_-]{1,32}-[0-9]{1,10}-[0-9a-f]{10}-[0-9]{1,20}")
#: As deep as messages lie in the top or in a bucket: a part of a batch.
DEPTH = 2


class Name(NamedTuple):
    """A parsed name. `kind` is a state (ready, delayed, leased, acked) or a suffix (new, batch, ...)."""

    text: str
    kind: str
    id: str
    until: int = 0
    attempts: int = 0
    token: str = ""
    card: Card | None = None


def parse(text: str) -> Name | None:
    """Return what the name says, or None if it is not one of ours."""
    match = _NAME.fullmatch(text)
    if match is None or not text.isascii():
        return None
    id, until, attempts, token, card, ack, suffix = match.groups()
    if suffix:
        return Name(text, suffix, id)
    if until is None:
        return Name(text, READY, id)
    when = int(until) * (1000 if len(until) == VSQS_DIGITS[0] else 1)
    if attempts is None:
        # COMPAT: a literal VSQS peer holds this one; it counts nothing, but it did deliver once.
        return Name(text, LEASED, id, when, 1)
    if card is not None:
        return _with_card(match, when)
    if token is None:
        return Name(text, DELAYED, id, when, int(attempts)) if ack is None else None
    return Name(text, ACKED if ack else LEASED, id, when, int(attempts), token)


def _with_card(match: re.Match[str], until: int) -> Name | None:
    """Return what the name of a task says."""
    id, _, attempts, token, card, ack, _ = match.groups()
    if ack and not token:
        return None
    kind = ACKED if ack else LEASED if token and attempts != "0" else DELAYED
    return Name(match[0], kind, id, until, int(attempts), token or "", parse_card(card))


def parse_card(text: str) -> Card:
    """Return what a card says; it has the right form."""
    _, version, side, *key = text.split("~")
    return Card(int(version), int(side), *key)


def card_at(place: str) -> Card | None:
    """Return the card of the name at a place, which may be a conditional one; None if it has none."""
    if "~" not in place:
        return None
    found = _CARD_AT_END.search(place)
    return parse_card(found[1]) if found else None


def raised(place: str) -> str:
    """Return the card for the next name of the message at a place, as it is written; nothing if it has none."""
    card = card_at(place)
    return card.raised().text if card is not None else ""


def is_plain(text: str) -> bool:
    """Return whether it is the name of a message that was never delivered: an id of ours without a priority."""
    return len(text) == ID_DIGITS and text.isdigit() and text.isascii() and text[0] != "0"


def are_ids(texts: list[str]) -> bool:
    """Return whether names of the right length are all ids. One test of all is cheaper than one of each."""
    together = "".join(texts)
    return together.isascii() and together.encode().isdigit() and "0" not in together[::ID_DIGITS]


def are_plain(texts: list[str]) -> bool:
    """Return whether is_plain is true of all of these. COST: 0.1 µs for each name, where is_plain takes 0.4."""
    return {*map(len, texts)} == {ID_DIGITS} and are_ids(texts)


def parse_bucket(text: str) -> Name | None:
    """Return what the name of a bucket says: when it begins. None if it is not one."""
    if len(text) == TIME_DIGITS and text.isascii() and text.isdigit() and text[0] != "0":
        return Name(text, BUCKET, text, int(text))
    return None


# COST: with 1,000 priorities a deep queue has 20,000 slices, and a look takes a tenth of the time.
@functools.lru_cache(maxsize=1 << 16)
def parse_directory(text: str) -> Name | None:
    """Return what the name of a directory that holds messages, or will, says; None if it is not one of ours."""
    bucket = parse_bucket(text)
    if bucket is not None:
        return bucket
    name = parse(text)
    return name if name is not None and (name.kind in CONTAINERS or name.kind == STAGING) else None


def waiting(id: str, until: int, attempts: int, card: str = "", token: str = "") -> str:
    """Return the name of a message that nobody holds; a task that can be claimed now lies at the top by it.

    Args:
        id: Its id.
        until: When it can be claimed.
        attempts: How often it was delivered.
        card: Its card, as it is written.
        token: Whoever put it, if it was never claimed and a holder did.
    """
    return f"{id}.{until}.{attempts}.{token}{card}" if token else f"{id}.{until}.{attempts}{card}"


def unclaimed(text: str) -> str:
    """Return the name of a message in a pinned lot: nobody else holds it, its deliveries are kept."""
    name = parse(text)
    if name is None or (name.kind != LEASED and name.card is None):
        return text
    return waiting(name.id, name.until, name.attempts, raised(text))


def leased(id: str, until: int, attempts: int, token: str, card: str = "") -> str:
    """Return where a message is held."""
    return f"{LEASED_PREFIX}{id}.{until}.{attempts}.{token}{card}"


def later(id: str, until: int, attempts: int, card: str = "", token: str = "") -> str:
    """Return where a message waits for its time."""
    return f"{LATER}/{until - until % MINUTE}/{waiting(id, until, attempts, card, token)}"


def free(id: str, until: int, attempts: int, card: str, now: int) -> str:
    """Return where a task is that nobody holds: at the top if it can be claimed now."""
    return later(id, until, attempts, card) if until > now else waiting(id, until, attempts, card)


def ended(room: str, id: str, at: int, attempts: int, card: str = "") -> str:
    """Return where a message that ended is kept."""
    return f"{room}/{at - at % HOUR}/{id}.{at}.{attempts}{card}"


def folder_of(place: str) -> str:
    """Return the directory of a place, with its slash; empty for the top."""
    return place[: place.rfind("/") + 1]


def check_id(text: object) -> str:
    """Return the id if it is one; nothing else from outside may reach a path."""
    if isinstance(text, str) and text.isascii() and re.fullmatch(_ID, text):
        return text
    shown = repr(text) if len(repr(text)) <= 60 else repr(text)[:57] + "..."
    raise InvalidId(f"{shown} is not a message id: ids are the digits that put() returned", message_id=shown)


def priority_of(id: str) -> int | None:
    """Return the priority written in the id, if it has one."""
    return int(id[:-ID_DIGITS]) if len(id) > ID_DIGITS else None


def micros_of(id: str) -> int:
    """Return when the message was put, in microseconds since the epoch."""
    if len(id) == VSQS_DIGITS[0]:
        return int(id) * 1000
    return int(id[-ID_DIGITS:][:TIME_DIGITS])


def order_key(id: str) -> tuple[int, str]:
    """Sort key: by priority, then time, then the unique digits; ids of VSQS peers by their time."""
    if len(id) <= ID_DIGITS:
        return 0, id.ljust(ID_DIGITS, "0")
    return int(id[:-ID_DIGITS]), id[-ID_DIGITS:]


def with_priority(id: str, priority: int | None) -> str:
    """Return the id with another priority and the same time and unique digits."""
    tail = id[-ID_DIGITS:]
    return tail if priority is None else f"{priority}{tail}"


def is_furniture(text: str) -> bool:
    """Return whether a name in the queue's directory is ours although it is no message and no directory of them."""
    return text in FURNITURE or TEMPORARY.fullmatch(text) is not None

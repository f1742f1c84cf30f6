"""The settings of a queue: their defaults, their checks, and their form in `queue.json`.

Layer: pure values, no I/O.
Invariant: every Settings object is valid; every refusal names the setting, the value and what is allowed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Self, TypedDict

from dirqueue.errors import LayoutError, SettingsError

StrPath = str | os.PathLike[str]
#: Version of the on-disk format, written to queue.json and checked when it is read.
FORMAT = 1
FILE = "queue.json"
ORDERS = ("fifo", "lifo", "random")
#: Room for priorities up to 999,999,999 in an id.
MAX_PRIORITY = 999_999_999


class _Settings(NamedTuple):
    #: The on-disk format; "auto" recognises it.
    layout: str = "auto"
    #: How long a claim holds a message before others may take it.
    lease: float = 30.0
    #: Deliveries before a message is dead; 0 = no limit.
    max_attempts: int = 5
    #: fsync the message and the directory before put and ack return.
    sync: bool = True
    #: fifo, lifo (a stack) or random (kind to many consumers).
    order: str = "fifo"
    #: Whether ids carry a priority (1 first).
    priorities: bool = False
    #: Priority of a put that names none, in a queue with priorities.
    default_priority: int = 5
    #: Write bodies of at most 1,000 bytes as symbolic links: one call instead of four, one flush instead of two.
    links: bool = False
    #: Keep acknowledged messages in done/.
    keep_done: bool = False
    #: put waits, then raises Full, when that many messages are in the queue; 0 = no limit.
    max_messages: int = 0
    #: Largest body that put takes; 0 = no limit.
    max_size: int = 0
    #: First pause after a failure; it doubles with each further one, with jitter.
    backoff: float = 1.0
    #: Longest pause after a failure.
    max_backoff: float = 300.0
    #: How long after its end a lease is still respected, because clocks disagree.
    margin: float = 1.0
    #: purge removes from done/ what ended longer ago; 0 = keep.
    keep_done_for: float = 7 * 86400.0
    #: purge removes from dead/ what ended longer ago; 0 = keep.
    keep_dead_for: float = 0.0
    #: Move messages that expire (put with a ttl) to dead/; if False, they are removed.
    keep_expired: bool = True
    #: purge removes unfinished files and staging directories older than this.
    stale: float = 3600.0
    #: dirq-normal: the schema of an element.
    schema: Mapping[str, str] | None = None
    #: dirq-simple: seconds that share a directory.
    granularity: int = 60
    #: dirq-normal: elements in a directory.
    maxelts: int = 16000
    #: text: write lines below each message that say who holds it, how often it was tried, and why it failed.
    annotate: bool = False
    #: vsqs: write times in milliseconds, as its document says, not in microseconds, as its code does.
    milliseconds: bool = False


class Given(TypedDict, total=False):
    """Settings as keyword arguments: a type checker knows their names and types."""

    layout: str
    lease: float
    max_attempts: int
    sync: bool
    order: Literal["fifo", "lifo", "random"]
    priorities: bool
    default_priority: int
    links: bool
    keep_done: bool
    max_messages: int
    max_size: int
    backoff: float
    max_backoff: float
    margin: float
    keep_done_for: float
    keep_dead_for: float
    keep_expired: bool
    stale: float
    schema: Mapping[str, str] | None
    granularity: int
    maxelts: int
    annotate: bool
    milliseconds: bool


class Settings(_Settings):
    """All settings of a queue. Durations are seconds, sizes are bytes."""

    # Not a dataclass: that module alone takes as long to import as all of this package.
    __slots__ = ()

    def __new__(cls, **given: Any) -> Self:
        """Check every value; SettingsError names the invalid one."""
        self = super().__new__(cls, **given)
        for name, check in _CHECKS.items():
            check(name, getattr(self, name))
        return self

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        """Let pickle and copy pass the values by their names, as `__new__` takes them."""
        return (), self._asdict()

    def pause(self, attempts: int) -> float:
        """Return how long to wait after the given number of failed deliveries, with jitter."""
        longest = min(self.max_backoff, self.backoff * 2.0 ** min(max(attempts, 1) - 1, 62))
        import random  # COST: it imports hashlib, which is slow; only failed deliveries pay for it.

        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret


#: No instant is later than a name can say (the year 2286).
MAX_SECONDS = 100 * 365.25 * 86400
MAX_INTEGER = 2**63 - 1


def check_seconds(name: str, value: object, *, above: bool = False) -> float:
    """Return a duration given as an argument; SettingsError if it is invalid."""
    kind = type(value)
    if (kind is float or kind is int) and (value > 0 or not above) and 0 <= value <= MAX_SECONDS:  # type: ignore[operator]
        return value  # type: ignore[return-value] # the quick way, on the path of every message
    _number(0, above=above)(name, value)
    if value > MAX_SECONDS:  # type: ignore[operator]
        raise SettingsError(f"{name} must be at most a hundred years in seconds, not {_shown(value)}")
    return float(value)  # type: ignore[arg-type]


def check_count(name: str, value: object, low: int = 0) -> int:
    """Return a number of things given as an argument; SettingsError if it is invalid."""
    _number(low, whole=True)(name, value)
    return int(value)  # type: ignore[call-overload, no-any-return]


def check_path(path: StrPath) -> str:
    """Return a path given as an argument, as text; SettingsError if it is invalid."""
    try:
        text = os.fspath(path)
    except TypeError:
        raise SettingsError(f"a path is a str or a pathlib.Path, not {type(path).__name__}") from None
    if not isinstance(text, str):
        raise SettingsError(f"a path is text, not {type(text).__name__}: decode it with os.fsdecode()")
    if not text or "\0" in text:
        raise SettingsError(f"{text!r:.60} is not a path: it is empty or holds a NUL")
    scheme, marked, rest = text.partition("://")
    if marked and scheme.replace("+", "").isalnum() and not scheme[0].isdigit():
        hint = f"give the path: /{rest.lstrip('/')}" if scheme == "file" else "give the path of a directory"
        raise SettingsError(
            f"{text!r:.120} is a URL; a queue is a directory, and no server is needed: {hint}"
        )
    return text


def _number(
    low: float, *, whole: bool = False, above: bool = False, high: float | None = None
) -> Callable[[str, object], None]:
    what = "a whole number" if whole else "a number"
    bound = f"{'above' if above else 'of at least'} {low:g}" + ("" if high is None else f", at most {high}")
    # Neither infinity nor a number that no file can hold; what is compared may be an int of any size.
    limit = high or (MAX_INTEGER if whole else sys.float_info.max)

    def check(name: str, value: object) -> None:
        kinds = int if whole else (int, float)
        good = isinstance(value, kinds) and not isinstance(value, bool)
        if not good or not low <= value <= limit or (above and value == low):  # type: ignore[operator]
            raise SettingsError(f"{name} must be {what} {bound}, not {_shown(value)}")

    return check


def _choice(allowed: tuple[str, ...]) -> Callable[[str, object], None]:
    def check(name: str, value: object) -> None:
        if value not in allowed:
            raise SettingsError(f"{name} must be one of {', '.join(allowed)}, not {_shown(value)}")

    return check


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise SettingsError(f"{name} must be text, not {_shown(value)}")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise SettingsError(f"{name} must be true or false, not {_shown(value)}")


def _schema(name: str, value: object) -> None:
    good = value is None or (
        isinstance(value, Mapping)
        and all(isinstance(key, str) and isinstance(kind, str) for key, kind in value.items())
    )
    if not good:
        raise SettingsError(f"{name} must map keys to types (binary, string, table), not {_shown(value)}")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - nested too deeply, or an int of too many digits, or somebody's own class
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 60 else text[:57] + "..."


_CHECKS: dict[str, Callable[[str, object], object]] = {
    "layout": _text,
    "lease": lambda name, value: check_seconds(name, value, above=True),
    "max_attempts": _number(0, whole=True),
    "sync": _flag,
    "order": _choice(ORDERS),
    "priorities": _flag,
    "default_priority": _number(1, whole=True, high=999_999_999),
    "links": _flag,
    "keep_done": _flag,
    "max_messages": _number(0, whole=True),
    "max_size": _number(0, whole=True),
    "backoff": check_seconds,
    "max_backoff": check_seconds,
    "margin": check_seconds,
    "keep_done_for": check_seconds,
    "keep_dead_for": check_seconds,
    "keep_expired": _flag,
    "stale": check_seconds,
    "schema": _schema,
    "granularity": _number(0, whole=True),
    "maxelts": _number(1, whole=True),
    "annotate": _flag,
    "milliseconds": _flag,
}
NAMES = tuple(_CHECKS)
_OF_OTHERS = "it belongs to layouts that keep no settings"
#: Settings that do not change as long as there is the queue, and why.
FIXED = {
    "layout": "it is how the directory is written: `dirqueue convert` writes it anew",
    "priorities": "either all ids carry a priority or none does: create another queue, and move the messages there",
    "schema": _OF_OTHERS,
    "granularity": _OF_OTHERS,
    "maxelts": _OF_OTHERS,
    "milliseconds": _OF_OTHERS,
}


def check_name(name: str) -> None:
    """Raise SettingsError for what is not the name of a setting, with the one that may be meant."""
    if name in _CHECKS:
        return
    import difflib

    meant = difflib.get_close_matches(name, NAMES, 1)
    raise SettingsError(
        f"there is no setting {name!r:.60}"
        + (f"; did you mean {meant[0]!r}?" if meant else f"; there are {', '.join(NAMES)}")
    )


def build(given: Mapping[str, Any], stored: Mapping[str, Any] | None = None, where: str = FILE) -> Settings:
    """Return the settings that the caller gave and those that the queue was created with; a conflict is an error."""
    for name in given:
        check_name(name)
    joined = dict(given)
    for name, value in (stored or {}).items():
        mine = given.get(name, value)
        if mine != value and not (name == "layout" and mine == "auto"):
            raise SettingsError(
                f"{name}={mine!r} was asked for, but {where} says {name}={value!r}: "
                f"leave the argument out, {_way_out(name)}"
            )
        joined[name] = value
    return Settings(**joined)


def _way_out(name: str) -> str:
    return "or create another queue" if name in FIXED else "or change the queue by `dirqueue settings`"


def dumps(given: Mapping[str, Any]) -> bytes:
    """Return the text of a queue.json with the given settings and the format."""
    settings = build(given)._asdict()
    kept = {name: settings[name] for name in given if (name, settings[name]) != ("layout", "auto")}
    import json

    return (json.dumps({"format": FORMAT, **kept}, indent=2, sort_keys=True) + "\n").encode()


def loads(text: bytes, where: str = FILE) -> dict[str, Any]:
    """Return the settings that a queue.json holds; LayoutError if it is damaged or of a later format."""
    import json

    try:
        stored = json.loads(text)
    except RecursionError:
        raise _damaged(where, "is nested too deeply") from None
    except ValueError as error:
        raise _damaged(where, f"is not JSON ({error})") from None
    if not isinstance(stored, dict):
        raise _damaged(where, f"must hold a JSON object, not {_shown(stored)}")
    version = stored.pop("format", FORMAT)
    if version != FORMAT:
        raise LayoutError(
            f"{where} says format {_shown(version)}; this dirqueue reads format {FORMAT}: upgrade dirqueue",
            path=where,
        )
    for name in stored:
        if name not in _CHECKS:
            raise _damaged(where, f"has a setting {_shown(name)} that this dirqueue does not know")
    try:
        build(stored)
    except SettingsError as error:
        raise _damaged(where, f"is invalid: {error}") from None
    return stored


def _damaged(where: str, what: str) -> LayoutError:
    return LayoutError(f"{where} {what}; fix it or remove it", path=where)


def check_priority(priority: object) -> int:
    """Return a priority given as an argument; SettingsError if it is invalid."""
    if type(priority) is int and 1 <= priority <= MAX_PRIORITY:
        return priority
    raise SettingsError(f"priority must be a whole number from 1 to {MAX_PRIORITY}, not {_shown(priority)}")

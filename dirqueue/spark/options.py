"""What a Spark job names: its options, the paths of its queues, and each queue opened once for each process.

Layer: edges.  Spark's workers live on between jobs, so an open queue is kept only while its directory is the same.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Mapping
from typing import Any, cast

from dirqueue.disk.directory import not_found
from dirqueue.errors import SettingsError, Unsupported
from dirqueue.layouts.native import Native
from dirqueue.layouts.native.names import LEASED_ROOM
from dirqueue.queue import Queue
from dirqueue.settings import check_path

#: Options that Spark itself adds.
SPARKS_OWN = frozenset(("path", "paths", "checkpointlocation", "queryname", "outputmode"))
#: The property that every table of a catalog has.
OWNER = "owner"
NO_TABLES = (
    "Spark does not pass the path of a CREATE TABLE to a source that is written in Python: use CREATE TEMPORARY VIEW "
    "name USING dirqueue OPTIONS (path '...')"
)
READ = ("state", "numPartitions", "layout", "pieces", "records")
#: For claim(): which lot of which consumer to read.
PINNED = "pinned"
SOURCE = (
    "numPartitions",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "ackMode",
    "failOnDataLoss",
    "claimTimeout",
    "records",
)
SINK = ("sync", "links", "recordsPerMessage", "recordBytes")
WRITE = ("txnAppId", "txnVersion", *SINK)


_URL = re.compile(r"(file):/+|([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def local(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a directory, also of a file:/ URL; SettingsError for URLs of other schemes."""
    text = str(path)
    url = _URL.match(text)
    if url is None:
        return os.path.abspath(check_path(path))
    if url[2]:
        raise SettingsError(
            f"{text!r:.80} is not a directory: mount {url[2]}, and give the path of the queue under it"
        )
    return os.path.abspath("/" + text[url.end() :])


class Options:
    """The options of one read or write; each error names the option and lists the allowed values."""

    def __init__(self, given: Mapping[str, str], allowed: tuple[str, ...]) -> None:
        self._given = {key.lower(): value for key, value in given.items()}
        known = {name.lower() for name in allowed}
        if OWNER in self._given:
            raise SettingsError(f"CREATE TABLE does not work with dirqueue. {NO_TABLES}")
        for key in self._given:
            if key not in known and key not in SPARKS_OWN and key != PINNED and "." not in key:
                raise SettingsError(f"dirqueue has no option {key!r} here; it has path, {', '.join(allowed)}")

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return an option as given, or the default."""
        return self._given.get(name.lower(), default)

    def choice(self, name: str, *allowed: str) -> str:
        """Return one of the allowed words; the first is the default."""
        value = self._given.get(name.lower(), allowed[0])
        if value not in allowed:
            raise SettingsError(f"option {name} must be one of {', '.join(allowed)}, not {value!r:.60}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return an option that is true or false."""
        value = self._given.get(name.lower(), str(default)).lower()
        if value not in ("true", "false"):
            raise SettingsError(f"option {name} must be true or false, not {value!r:.60}")
        return value == "true"

    def whole(self, name: str, low: int = 1) -> int | None:
        """Return a whole number of at least `low`, or None if the option is not given."""
        value = self._given.get(name.lower())
        if value is None:
            return None
        if not value.strip().isdecimal() or int(value) < low:
            raise SettingsError(f"option {name} must be a whole number of at least {low}, not {value!r:.60}")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        """Return a number of seconds above 0."""
        value = self._given.get(name.lower(), str(default))
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 < number < 1e10:
            raise SettingsError(f"option {name} must be a number of seconds above 0, not {value!r:.60}")
        return number

    def path(self) -> str:
        """Return the one path of a write, a stream or a claim; absolute, as executors run in other directories."""
        paths = self._paths()
        if len(paths) != 1:
            raise SettingsError(f"give the path of one queue, not {len(paths)}: {paths!r:.80}")
        return local(paths[0])

    def _paths(self) -> list[str]:
        if several := self._given.get("paths"):
            return [str(path) for path in json.loads(several)]
        path = self._given.get("path")
        if not path:
            raise SettingsError(
                f"no path: give the directory of a queue, as in load('spool/orders'). {NO_TABLES}"
            )
        return [path]

    def queues(self) -> list[str]:
        """Return the directories of a read: as given, or the queues that match a pattern such as spool/*."""
        found: list[str] = []
        for path in self._paths():
            text = local(path)
            if os.path.isdir(text):
                found.append(text)
                continue
            matches = sorted(each for each in glob.glob(text) if os.path.isdir(each) and _is_queue(each))
            if not matches:
                raise not_found(text)
            found += matches
        return list(dict.fromkeys(found))


_open: dict[tuple[str, str], tuple[tuple[int, int], Queue[bytes]]] = {}


def open_queue(path: str, *, create: bool = False, **settings: Any) -> Queue[bytes]:
    """Return the queue at a path, opened once for each process; QueueNotFound unless it exists or `create` is set.

    QueueError for a directory that is no queue, or with `create` for one that holds queues.
    """
    key = (path, repr(settings))
    known = _open.get(key)
    if known is not None and known[0] == _identity(path):
        return known[1]
    queue: Queue[bytes] = Queue(path, create=create, **settings)
    if not _is_native(path):
        from dirqueue.tools import discover

        (discover.refuse_root if create else discover.need_queue)(path)
    if create:
        queue.layout.create()
    identity = _identity(path)
    if identity is not None:
        _open[key] = (identity, queue)
    return queue


def _is_queue(path: str) -> bool:
    from dirqueue.layouts import signs

    return _is_native(path) or signs.is_queue(path)


def _is_native(path: str) -> bool:
    """Return whether it is plainly a native queue. COST: one call, where a look at the names reads up to 4,096."""
    return os.path.lexists(os.path.join(path, LEASED_ROOM))


def open_native(path: str, *, create: bool = False, **settings: Any) -> Native:
    """Return the layout of the queue at a path; Unsupported if it cannot pin messages and take batches."""
    layout = open_queue(path, create=create, **settings).layout
    if layout.name != "native":
        raise Unsupported(
            f"{path!r} is in the {layout.name} layout, which Spark can only read as a batch: streams, claims and "
            f"writes need the native layout",
            path=path,
            capability="batch",
        )
    return cast("Native", layout)


def _identity(path: str) -> tuple[int, int] | None:
    from dirqueue.disk import fs

    try:
        facts = fs.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino

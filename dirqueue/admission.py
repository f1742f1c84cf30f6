"""What a put has to satisfy before the layout sees it: its arguments, its size, and room in a bounded queue.

Layer: mechanisms.  Touches: nothing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from dirqueue.bounds import Bound, too_large
from dirqueue.errors import SettingsError
from dirqueue.layouts.base import Layout, refuse
from dirqueue.message import Extras
from dirqueue.settings import check_priority, check_seconds

#: The most that the names and values of attributes may take together, in characters.
MAX_ATTRIBUTES = 16_384


class PutOptions(TypedDict, total=False):
    """The options of a put: see `Queue.put`."""

    delay: float
    at: datetime | None
    ttl: float | None
    priority: int | None
    attributes: Mapping[str, str] | None
    timeout: float | None


class Admission:
    """The limits of one queue."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._settings = settings = layout.settings
        self._path = layout.directory.path
        self.bound = Bound(layout, settings.max_messages)
        #: Whether a put without arguments has anything to satisfy.
        self.limited = bool(settings.max_size or settings.max_messages or settings.priorities)

    def check_size(self, size: int) -> None:
        """Raise MessageTooLarge for a body of so many bytes, if it is."""
        limit = self._settings.max_size
        if 0 < limit < size:
            raise too_large(size, limit)

    def check(self, delay: float, priority: int | None, timeout: float | None, wanted: int = 1) -> int | None:
        """Check the arguments of a put, wait until so many fit, and return the priority."""
        if check_seconds("delay", delay) and "delay" in self._layout.lacks:
            refuse(self._layout, "delay", "delay a message")
        if timeout is not None:
            check_seconds("timeout", timeout)
        priority = self._priority(priority)
        if self._settings.max_messages:
            self.bound.reserve(wanted, timeout)
        return priority

    def delay(self, delay: float, at: datetime | None) -> float:
        """Return the delay of a put: as given, or until that instant by the file server's clock."""
        if at is None:
            return delay
        if delay != 0:
            raise SettingsError("give delay= or at=, not both")
        if getattr(at, "tzinfo", None) is None:
            raise SettingsError(
                f"at={at!r:.60} is not an instant: give a datetime with a time zone, as datetime.now(UTC) has"
            )
        directory = self._layout.directory
        now = directory.clock.now() / 1e6 if directory.find() else time.time()
        return max(0.0, at.timestamp() - now)

    def extras(self, attributes: Mapping[str, str] | None, ttl: float | None) -> Extras | None:
        """Return what a message is to carry beside its body; None if that is nothing."""
        if not attributes and ttl is None:
            return None
        if "attributes" in self._layout.lacks:
            refuse(self._layout, "attributes", "carry attributes, nor let a message expire")
        carried = check_attributes({} if attributes is None else attributes)
        if ttl is None:
            return Extras(carried)
        directory = self._layout.directory
        now = directory.clock.now() if directory.find() else time.time_ns() // 1000
        return Extras(carried, now + int(check_seconds("ttl", ttl, above=True) * 1_000_000))

    def _priority(self, priority: int | None) -> int | None:
        if not self._settings.priorities:
            if priority is None:
                return None
            if "priority" in self._layout.lacks:
                refuse(self._layout, "priority", "order by priority")
            raise SettingsError(
                f"priority={priority!r} needs a queue with priorities: Queue.create({self._path!r}, priorities=True)"
            )
        if priority is None:
            return self._settings.default_priority
        return check_priority(priority)


def check_attributes(given: Mapping[Any, Any]) -> dict[str, str]:
    """Return attributes given as an argument; SettingsError if they are invalid."""
    if not isinstance(given, Mapping):
        raise SettingsError(f"attributes must be a mapping of text to text, not {type(given).__name__}")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str) or not name:
            raise SettingsError(f"attribute {name!r:.60}={value!r:.60} must be text, with a name")
    size = sum(len(name) + len(value) for name, value in given.items())
    if size > MAX_ATTRIBUTES:
        raise SettingsError(
            f"attributes of {size} characters are too long: {MAX_ATTRIBUTES} fit; put the rest into the body"
        )
    return dict(given)

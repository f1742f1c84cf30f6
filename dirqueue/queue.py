"""The queue: what people use.

Layer: public objects.  The layout does everything on disk; here are arguments, waiting and policy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeVar, overload

from dirqueue import codecs, states, stored_settings
from dirqueue import settings as settings_
from dirqueue.codecs import Codec
from dirqueue.consumer import Consumer
from dirqueue.disk.directory import Directory, not_found
from dirqueue.errors import (
    CodecError,
    Empty,
    Full,
    MessageNotFound,
    MessageTooLarge,
    QueueError,
    SettingsError,
    access_error,
)
from dirqueue.interrupts import INTERRUPTS, check_interrupt
from dirqueue.layouts import open_layout
from dirqueue.layouts.base import Claim, Layout, Purged, refuse
from dirqueue.lease import Lease
from dirqueue.message import Message
from dirqueue.settings import Settings, StrPath, check_count, check_path, check_priority, check_seconds
from dirqueue.stats import Stats, count
from dirqueue.waiting import Waiter

T = TypeVar("T")
R = TypeVar("R")

#: A bounded queue is counted again when one part in so many of the room that was found is used up.
TRUST_ROOM = 4


class Queue(Consumer[T]):
    """A work queue in the directory at `path`, created by the first put, or by `Queue.create` with settings."""

    @overload
    def __init__(
        self: Queue[str], path: StrPath, *, codec: Literal["text"], create: bool = ..., **settings: Any
    ) -> None: ...
    @overload
    def __init__(
        self: Queue[T], path: StrPath, *, codec: Codec[T] | type[T], create: bool = ..., **settings: Any
    ) -> None: ...
    @overload
    def __init__(
        self: Queue[Any], path: StrPath, *, codec: str, create: bool = ..., **settings: Any
    ) -> None: ...
    @overload  # last: its **settings would match a codec too
    def __init__(self: Queue[bytes], path: StrPath, *, create: bool = ..., **settings: Any) -> None: ...

    def __init__(
        self, path: StrPath, *, codec: Any = codecs.BYTES, create: bool = True, **settings: Any
    ) -> None:
        """Open the queue.

        Args:
            path: The directory.
            codec: How bodies become bytes: "bytes", "text", "json", a dataclass, or an object with encode and decode.
            create: Whether a put may create the directory; if False, it must exist now.
            settings: See `dirqueue.settings.Settings`. Those that the queue was created with hold; giving another value
                for one of them is a SettingsError.
        """
        self.path = check_path(path)
        self._codec: Codec[Any] = codec if codec is codecs.BYTES else codecs.find(codec)
        directory = Directory(self.path, create=create)
        if not directory.find() and not create:
            raise not_found(self.path)
        stored = stored_settings.stored(directory) or {}
        joined = settings_.build(settings, stored, f"{self.path}/{settings_.FILE}")
        #: The on-disk format: `queue.layout.name`, `queue.layout.lacks`, and the methods of `Layout`.
        self.layout: Layout = open_layout(directory, joined, given={*settings, *stored})
        self.settings: Settings = self.layout.settings
        self._room = 0
        # Bound once: these are looked up for every message.
        self._plain = self._codec is codecs.BYTES
        self._lease = float(self.settings.lease)
        self._limited = bool(self.settings.max_size or self.settings.max_messages or self.settings.priorities)

    @overload
    @classmethod
    def create(cls, path: StrPath, *, codec: Literal["text"], **settings: Any) -> Queue[str]: ...
    @overload
    @classmethod
    def create(cls, path: StrPath, *, codec: Codec[R] | type[R], **settings: Any) -> Queue[R]: ...
    @overload
    @classmethod
    def create(cls, path: StrPath, *, codec: str, **settings: Any) -> Queue[Any]: ...
    @overload
    @classmethod
    def create(cls, path: StrPath, **settings: Any) -> Queue[bytes]: ...

    @classmethod
    def create(cls, path: StrPath, *, codec: Any = codecs.BYTES, **settings: Any) -> Any:
        """Create a queue with settings that hold for whoever opens it; SettingsError if it exists with others."""
        where = check_path(path)
        if stored_settings.create(where, settings):
            return cls(where, codec=codec, layout=settings.get("layout", "auto"))
        return cls(where, codec=codec, **settings)

    def __repr__(self) -> str:
        return f"Queue({self.path!r}, layout={self.layout.name!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Queue cannot be pickled: send its path, and open Queue(path) where it is used")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory's descriptor; the next use opens it again."""
        self.layout.close()

    # --- putting -------------------------------------------------------------------------------------------

    @overload
    def put(
        self: Queue[bytes],
        body: bytes | str,
        *,
        delay: float = ...,
        priority: int | None = ...,
        timeout: float | None = ...,
    ) -> str: ...
    @overload
    def put(
        self, body: T, *, delay: float = ..., priority: int | None = ..., timeout: float | None = ...
    ) -> str: ...

    def put(
        self, body: Any, *, delay: float = 0, priority: int | None = None, timeout: float | None = None
    ) -> str:
        """Put one message; it is on disk and visible when this returns its id.

        Args:
            body: bytes or str, or what the codec takes.
            delay: Seconds before anybody may get it.
            priority: 1 is the most urgent; only in a queue created with priorities.
            timeout: Seconds to wait for room in a queue with max_messages before Full is raised; without limit if None.
        """
        if INTERRUPTS:
            check_interrupt()
        data: bytes = body if self._plain and type(body) is bytes else codecs.encode(self._codec, body)
        if self._limited or delay != 0 or priority is not None or timeout is not None:
            self._check_size(len(data))
            priority = self._check_put(delay, priority, timeout)
        return self.layout.put(data, delay, priority)

    def put_many(
        self,
        bodies: Iterable[T | str],
        *,
        delay: float = 0,
        priority: int | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Put many messages that become visible all at once, or not at all; return their ids."""
        if INTERRUPTS:
            check_interrupt()
        if isinstance(bodies, (str, bytes, bytearray, memoryview)):
            raise SettingsError(
                f"put_many takes an iterable of bodies, not one {type(bodies).__name__}: use put()"
            )
        wanted = 1
        if self.settings.max_messages:
            bodies = list(bodies)
            wanted = len(bodies)
        priority = self._check_put(delay, priority, timeout, wanted)
        return self.layout.put_many(map(self._encode, bodies), delay=delay, priority=priority)

    def put_path(
        self,
        file: StrPath,
        *,
        delay: float = 0,
        priority: int | None = None,
        timeout: float | None = None,
        link: bool = False,
    ) -> str:
        """Put a file of the same filesystem by moving it: nothing is copied, and it is gone from its old place.

        With `link` it stays there too, as a second name of the same bytes, and must not be written to any more.
        """
        path = check_path(file)
        if link and "link" in self.layout.lacks:
            refuse(self.layout, "link", "link a file in")
        priority = self._check_put(delay, priority, timeout)
        return self.layout.put_path(path, delay=delay, priority=priority, link=link)

    def _encode(self, body: Any) -> bytes:
        data = codecs.encode(self._codec, body)
        self._check_size(len(data))
        return data

    def _check_size(self, size: int) -> None:
        if 0 < self.settings.max_size < size:
            raise too_large(size, self.settings.max_size)

    def _check_put(
        self, delay: float, priority: int | None, timeout: float | None, wanted: int = 1
    ) -> int | None:
        """Check the arguments of a put, wait until so many fit, and return the priority."""
        if check_seconds("delay", delay) and "delay" in self.layout.lacks:
            refuse(self.layout, "delay", "delay a message")
        if timeout is not None:
            check_seconds("timeout", timeout)
        priority = self._check_priority(priority)
        if self.settings.max_messages:
            self._wait_for_room(wanted, timeout)
        return priority

    def _check_priority(self, priority: int | None) -> int | None:
        if not self.settings.priorities:
            if priority is None:
                return None
            if "priority" in self.layout.lacks:
                refuse(self.layout, "priority", "order by priority")
            raise SettingsError(
                f"priority={priority!r} needs a queue with priorities: Queue.create({self.path!r}, priorities=True)"
            )
        if priority is None:
            return self.settings.default_priority
        return check_priority(priority)

    def _wait_for_room(self, wanted: int, timeout: float | None) -> None:
        """Wait until so many fit. RACE: others put too, so the limit may be exceeded by what they put meanwhile."""
        if self._room >= wanted:
            self._room -= wanted
            return
        limit = self.settings.max_messages
        if wanted > limit:
            raise Full(f"{wanted} messages never fit into a queue of max_messages={limit}", path=self.path)
        with Waiter((self.layout,), timeout, for_room=True) as waiter:
            while True:
                free = limit - self.layout.count()
                if free >= wanted:
                    self._room = (free - wanted) // TRUST_ROOM
                    return
                if not waiter.pause():
                    raise Full(
                        f"{self.path!r} holds max_messages={limit} and no room came free in time",
                        path=self.path,
                    )

    # --- getting -------------------------------------------------------------------------------------------

    def get(self, *, timeout: float | None = None, lease: float | None = None) -> Lease[T]:
        """Claim the next message.

        Args:
            timeout: Seconds to wait before Empty is raised; without limit if None, one look if 0.
            lease: Seconds to hold it; the queue's setting if None.
        """
        if INTERRUPTS:
            check_interrupt()
        seconds = self._lease if lease is None else check_seconds("lease", lease, above=True)
        if timeout is not None and timeout != 0:
            timeout = check_seconds("timeout", timeout)
        layout = self.layout
        while True:
            claim = layout.claim(seconds)
            if claim is None:
                claim = self._again(seconds) if timeout == 0 else self._wait(seconds, timeout)
                if claim is None:
                    raise self._empty(timeout)
            lease_ = Lease(layout, claim, seconds, self._codec)
            if self._plain or self._decodes(lease_):
                return lease_

    def _wait(self, seconds: float, timeout: float | None) -> Claim | None:
        with Waiter((self.layout,), timeout) as waiter:
            while True:
                claim = self.layout.claim(seconds) or self._again(seconds)
                if claim is not None or not waiter.pause():
                    return claim

    def _again(self, seconds: float) -> Claim | None:
        """Nothing was found: claim from the queue that is at the path now, if this one was removed."""
        directory = self.layout.directory
        if directory.fd >= 0 and directory.removed() and directory.reopen():
            return self.layout.claim(seconds)
        return None

    def _decodes(self, lease: Lease[T]) -> bool:
        """Decode the body. If that fails the message goes to dead/, and False is returned."""
        try:
            lease.message.body  # noqa: B018 - decoded here, and kept
        except CodecError as error:
            if "dead" in self.layout.lacks:
                lease.retry(self.settings.max_backoff, error)
                raise
            lease.reject(str(error))
            return False
        return True

    def _empty(self, timeout: float | None) -> Empty:
        found = "" if self.layout.directory.find() else " (there is no such directory yet)"
        waited = f" in {timeout:g} s" if timeout else ""
        return Empty(f"nothing to get from {self.path!r}{waited}{found}", path=self.path)

    def lease(self, handle: str, seconds: float | None = None) -> Lease[T]:
        """Take over a lease by its `handle`, whichever process claimed it; LeaseLost if it is not held any more.

        Args:
            handle: The value of `Lease.handle`.
            seconds: How long a renewal without an argument holds it; the queue's setting if None.
        """
        claim = self.layout.hold(handle)
        duration = self._lease if seconds is None else check_seconds("seconds", seconds, above=True)
        return Lease(self.layout, claim, duration, self._codec)

    # --- the dead and the done -----------------------------------------------------------------------------

    @property
    def dead(self) -> Queue[T]:
        """The rejected messages, as a queue."""
        return self._beside("dead")

    @property
    def done(self) -> Queue[T]:
        """The acknowledged messages, as a queue (with keep_done)."""
        return self._beside("done")

    def _beside(self, name: str) -> Queue[T]:
        if name in self.layout.lacks:
            refuse(self.layout, name, f"keep {name} messages")
        return Queue(
            os.path.join(self.path, name),
            codec=self._codec,
            layout="native",
            sync=self.settings.sync,
            max_attempts=0,
        )

    # --- looking -------------------------------------------------------------------------------------------

    def peek(self, state: str = "ready", limit: int | None = None) -> Iterator[Message[T]]:
        """Yield messages in a state (ready, delayed, leased, dead, done), the oldest first, without claiming them."""
        states.check(state)
        if limit is not None:
            check_count("limit", limit)
        found = (entry for entry in self.layout.entries((state,)) if entry.state == state)
        if limit is None:
            chosen = sorted(found, key=_age)
        else:
            import heapq

            chosen = heapq.nsmallest(limit, found, key=_age)
        return (Message(entry, self.layout, self._codec) for entry in chosen)

    def message(self, id: str) -> Message[T]:
        """Return the message of that id, in any state; MessageNotFound if there is none."""
        entry = self.layout.find(self.layout.check_id(id))
        if entry is None:
            raise MessageNotFound(f"there is no message {id} in {self.path!r}", message_id=id)
        return Message(entry, self.layout, self._codec)

    def stats(self) -> Stats:
        """Count the messages by state: one pass over the names, a snapshot."""
        try:
            return count(self.layout)
        except OSError as error:
            self._fail("count", error)

    def __len__(self) -> int:
        """Return the number of messages that are waiting or leased."""
        try:
            return self.layout.count()
        except OSError as error:
            self._fail("count", error)

    def __bool__(self) -> bool:
        """Return True, even for an empty queue: `if queue` asks whether there is one."""
        return True

    def _fail(self, doing: str, error: OSError) -> NoReturn:
        """Raise the error that says what could not be done; one of ours says it already."""
        try:
            if isinstance(error, QueueError):
                raise error
            raise access_error(self.path, doing, error) from error
        finally:
            del error  # its traceback holds this frame: a cycle would keep the descriptors in it open

    # --- redriving -----------------------------------------------------------------------------------------

    def redrive(
        self,
        ids: str | Iterable[str] | None = None,
        *,
        match: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        progress: Callable[[], None] | None = None,
    ) -> list[str]:
        """Make dead messages ready again, with their attempts reset; return their ids.

        Args:
            ids: These only (one id or several); all if None.
            match: Only those whose error this regular expression finds.
            limit: At most so many, the oldest first.
            dry_run: Change nothing; return the ids of those that would be made ready.
            progress: Called once per message.
        """
        if "dead" in self.layout.lacks:
            refuse(self.layout, "dead", "redrive dead messages")
        if limit is not None:
            check_count("limit", limit)
        wanted = (
            None
            if ids is None
            else {self.layout.check_id(id) for id in ([ids] if isinstance(ids, str) else ids)}
        )
        try:
            pattern = re.compile(match) if match is not None else None
        except re.error as error:
            raise SettingsError(f"match={match!r:.60} is not a regular expression: {error}") from None
        driven: list[str] = []
        for message in self.peek("dead"):
            if limit is not None and len(driven) >= limit:
                break
            if wanted is not None and message.id not in wanted:
                continue
            if pattern is not None and not pattern.search(message.error or ""):
                continue
            if dry_run or self.layout.redrive(message.entry):
                driven.append(message.id)
            if progress:
                progress()
        if wanted is not None and len(wanted) == 1 and not driven and pattern is None:
            raise MessageNotFound(f"there is no dead message {ids} in {self.path!r}", message_id=str(ids))
        return driven

    # --- cleaning ------------------------------------------------------------------------------------------

    def purge(self, *, progress: Callable[[], None] | None = None) -> Purged:
        """Remove what crashes and time left behind; safe beside everything, never needed for correctness.

        Only one purger works at a time; while another one does, nothing is done and `busy` is 1. A directory that
        shows no sign of a queue is refused, unless the layout was named.
        """
        from filelock import FileLock, Timeout

        from dirqueue.layouts import signs

        if not self.layout.directory.find():
            return Purged()
        if self.settings.layout == "auto":  # whoever names the layout knows that it is a queue
            signs.need_queue(self.layout.directory.path, "purged")
        try:
            with FileLock(self.layout.purge_lock(), timeout=0):
                return self.layout.purge(progress)
        except Timeout:
            return Purged(busy=1)
        except OSError as error:
            self._fail("purge", error)

    def clear(self) -> int:
        """Remove the messages kept in done/; return their number."""
        return self._remove(("done",))

    def flush(self) -> int:
        """Remove every message in every state, leased ones too (their holders get LeaseLost); return their number."""
        return self._remove(states.VISIBLE)

    def _remove(self, states: tuple[str, ...]) -> int:
        gone = sum(
            self.layout.remove(entry) for entry in self.layout.entries(states) if entry.state in states
        )
        if gone and self.settings.sync:
            self.layout.directory.sync()
        return gone


def too_large(size: int, limit: int) -> MessageTooLarge:
    """Return the error for a body above max_size."""
    text = f"the body has {size} bytes; this queue takes at most max_size={limit}"
    return MessageTooLarge(text, message_id="", size=size, limit=limit)


def _age(entry: Any) -> tuple[int, int, str]:
    return entry.priority or 0, entry.put, entry.id

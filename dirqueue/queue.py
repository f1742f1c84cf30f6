"""The queue: what people use.

Layer: public objects.  The layout does everything on disk; here are arguments, waiting and policy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TypeVar, Unpack, overload

from dirqueue import cleaning, codecs, dead_letters, states, stored_settings, waiting
from dirqueue import settings as settings_
from dirqueue.admission import Admission, PutOptions
from dirqueue.codecs import Codec
from dirqueue.consumer import Consumer
from dirqueue.disk.directory import not_found
from dirqueue.errors import CodecError, Empty, MessageNotFound, QueueError, SettingsError, access_error
from dirqueue.interrupts import INTERRUPTS, check_interrupt
from dirqueue.layouts import locate, open_layout
from dirqueue.layouts.base import Claim, Layout, Producer, Purged, refuse, remove_all
from dirqueue.lease import Lease
from dirqueue.message import Message, oldest
from dirqueue.settings import Given, Settings, StrPath, check_count, check_path, check_seconds
from dirqueue.stats import Stats, count
from dirqueue.waiting import Waiter

T = TypeVar("T")
R = TypeVar("R")


class Queue(Consumer[T]):
    """A work queue in the directory at `path`, created by the first put, or by `Queue.create` with settings."""

    @overload
    def __init__(
        self: Queue[str],
        path: StrPath,
        *,
        codec: Literal["text"],
        create: bool = ...,
        **settings: Unpack[Given],
    ) -> None: ...
    @overload
    def __init__(
        self: Queue[T],
        path: StrPath,
        *,
        codec: Codec[T] | type[T],
        create: bool = ...,
        **settings: Unpack[Given],
    ) -> None: ...
    @overload
    def __init__(
        self: Queue[Any], path: StrPath, *, codec: str, create: bool = ..., **settings: Unpack[Given]
    ) -> None: ...
    @overload  # last: its **settings would match a codec too
    def __init__(
        self: Queue[bytes], path: StrPath, *, create: bool = ..., **settings: Unpack[Given]
    ) -> None: ...

    def __init__(
        self,
        path: StrPath,
        *,
        codec: Any = codecs.BYTES,
        create: bool = True,
        **settings: Unpack[Given],
    ) -> None:
        """Open the queue.

        Args:
            path: The directory.
            codec: "bytes", "text", "json", "records", a dataclass, pydantic model, msgspec struct, or a `Codec`.
            create: Whether a put may create the directory; if False, it must exist now.
            settings: See `dirqueue.settings.Settings`. They hold for this object. Those that the queue keeps (see
                `create` and `configure`) hold for all; giving another value for one of them is a SettingsError.
        """
        self.path = check_path(path)
        self._codec: Codec[Any] = codec if codec is codecs.BYTES else codecs.find(codec)
        directory = locate(self.path, create=create, layout=settings.get("layout", "auto"))
        if not directory.find() and not create:
            raise not_found(self.path)
        stored = stored_settings.stored(directory) or {}
        self._given: dict[str, Any] = {**settings}
        joined = settings_.build(settings, stored, f"{self.path}/{settings_.FILE}")
        #: The on-disk format: `queue.layout.name`, `queue.layout.lacks`, and the methods of `Layout`.
        self.layout: Layout = open_layout(directory, joined, given={*settings, *stored})
        self._unbound = stored_settings.unbound(settings, stored)
        self._version: object = ...  # not looked at yet
        self._plain = self._codec is codecs.BYTES
        self._go_by(self.layout.settings)

    def _go_by(self, settings: Settings) -> None:
        self.settings: Settings = settings
        # Bound once: these are looked up for every message.
        self._admission = Admission(self.layout)
        self._lease = float(settings.lease)
        self._limited = self._admission.limited

    @overload
    @classmethod
    def create(cls, path: StrPath, *, codec: Literal["text"], **settings: Unpack[Given]) -> Queue[str]: ...
    @overload
    @classmethod
    def create(cls, path: StrPath, *, codec: Codec[R] | type[R], **settings: Unpack[Given]) -> Queue[R]: ...
    @overload
    @classmethod
    def create(cls, path: StrPath, *, codec: str, **settings: Unpack[Given]) -> Queue[Any]: ...
    @overload
    @classmethod
    def create(cls, path: StrPath, **settings: Unpack[Given]) -> Queue[bytes]: ...

    @classmethod
    def create(cls, path: StrPath, *, codec: Any = codecs.BYTES, **settings: Unpack[Given]) -> Any:
        """Create a queue with settings that hold for whoever opens it; SettingsError if it exists with others."""
        where = check_path(path)
        if stored_settings.create(where, {**settings}):
            return cls(where, codec=codec, layout=settings.get("layout", "auto"))
        return cls(where, codec=codec, **settings)

    def configure(self, *, reset: Iterable[str] = (), **settings: Unpack[Given]) -> Settings:
        """Change settings that the queue keeps, for everybody; those in `reset` go back to their defaults.

        Workers and `consume` take the change up within a second; other objects by `refresh`, or when they are opened.
        """
        stored_settings.change(self.layout, {**settings}, reset)
        self.refresh()
        return self.settings

    def refresh(self) -> bool:
        """Go by the settings that the queue keeps now, which win over given ones; return whether they have changed."""
        directory = self.layout.directory
        version = stored_settings.version(self.layout)
        if version == self._version:
            return False
        joined = self._given | (stored_settings.stored(directory) or {})
        layout = open_layout(directory, Settings(**joined), joined)
        self._version = version
        if layout.settings == self.settings:
            return False
        layout.buried.extend(self.layout.buried)
        layout.space = self.layout.space
        self.layout.settings = layout.settings  # of the leases that are held, and of whoever is waiting
        self.layout = layout
        self._go_by(layout.settings)
        return True

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
    def put(self: Queue[bytes], body: bytes | str, **how: Unpack[PutOptions]) -> str: ...
    @overload
    def put(self, body: T, **how: Unpack[PutOptions]) -> str: ...

    def put(
        self,
        body: Any,
        *,
        delay: float = 0,
        at: datetime | None = None,
        ttl: float | None = None,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> str:
        """Put one message; it is on disk and visible when this returns its id.

        Args:
            body: bytes or str, or what the codec takes.
            delay: Seconds before anybody may get it.
            at: The instant from which anybody may get it, instead of a delay: an aware datetime.
            ttl: Seconds from now after which it is not delivered any more, but goes to dead/ (see `keep_expired`).
            priority: 1 is the most urgent; only in a queue created with priorities.
            attributes: A small map of text that it carries beside its body.
            timeout: Seconds to wait for room in a queue with max_messages before Full is raised; without limit if None.
        """
        if INTERRUPTS:
            check_interrupt()
        if self._unbound is not None:
            self._unbound.put(self)
        data: bytes = body if self._plain and type(body) is bytes else codecs.encode(self._codec, body)
        if self._limited or delay != 0 or at is not None or priority is not None or timeout is not None:
            delay = self._admission.delay(delay, at)
            self._admission.check_size(len(data))
            priority = self._admission.check(delay, priority, timeout)
        if (attributes or ttl is not None) and (extras := self._admission.extras(attributes, ttl)):
            return self.layout.carrying(extras).put(data, delay, priority)
        return self.layout.put(data, delay, priority)

    def put_many(
        self,
        bodies: Iterable[T | str],
        *,
        delay: float = 0,
        at: datetime | None = None,
        ttl: float | None = None,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Put many messages that become visible all at once, or not at all; return their ids. Options as in `put`."""
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
        if self._unbound is not None:
            self._unbound.put(self)
        delay = self._admission.delay(delay, at)
        layout = self._producer(attributes, ttl)
        priority = self._admission.check(delay, priority, timeout, wanted)
        return layout.put_many(map(self._encode, bodies), delay=delay, priority=priority)

    def put_path(
        self,
        file: StrPath,
        *,
        delay: float = 0,
        at: datetime | None = None,
        ttl: float | None = None,
        priority: int | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout: float | None = None,
        link: bool = False,
    ) -> str:
        """Put a file of the same filesystem by moving it: nothing is copied, and it is gone from its old place.

        With `link` it stays there too, as a second name of the same bytes, and must not be written to any more.
        """
        path = check_path(file)
        if link and "link" in self.layout.lacks:
            refuse(self.layout, "link", "link a file in")
        if self._unbound is not None:
            self._unbound.put(self)
        delay = self._admission.delay(delay, at)
        layout = self._producer(attributes, ttl)
        priority = self._admission.check(delay, priority, timeout)
        return layout.put_path(path, delay=delay, priority=priority, link=link)

    def _producer(self, attributes: Mapping[str, str] | None, ttl: float | None) -> Producer:
        extras = self._admission.extras(attributes, ttl)
        return self.layout if extras is None else self.layout.carrying(extras)

    def _encode(self, body: Any) -> bytes:
        data = codecs.encode(self._codec, body)
        self._admission.check_size(len(data))
        return data

    # --- getting -------------------------------------------------------------------------------------------

    def get(
        self, *, timeout: float | None = None, lease: float | None = None, holder: str | None = None
    ) -> Lease[T]:
        """Claim the next message.

        Args:
            timeout: Seconds to wait before Empty is raised; without limit if None, one look if 0.
            lease: Seconds to hold it; the queue's setting if None.
            holder: Who holds it: any text, which `Message.holder` gives back.
        """
        if INTERRUPTS:
            check_interrupt()
        if self._unbound is not None:
            self._unbound.drop()
            self._unbound = None
        seconds = self._lease if lease is None else check_seconds("lease", lease, above=True)
        if timeout is not None and timeout != 0:
            timeout = check_seconds("timeout", timeout)
        layout = self.layout
        while True:
            claim = layout.claim(seconds) if holder is None else layout.claim_for(holder, seconds)
            if claim is None:
                claim = self._again(seconds, holder) if timeout == 0 else self._wait(seconds, timeout, holder)
                if claim is None:
                    raise self._empty(timeout)
            lease_ = Lease(layout, claim, seconds, self._codec)
            if self._plain or self._decodes(lease_):
                return lease_

    def _claim(self, seconds: float, holder: str | None) -> Claim | None:
        return self.layout.claim(seconds) if holder is None else self.layout.claim_for(holder, seconds)

    def _wait(self, seconds: float, timeout: float | None, holder: str | None) -> Claim | None:
        with Waiter((self.layout,), timeout) as waiter:
            while True:
                claim = self._claim(seconds, holder) or self._again(seconds, holder)
                if claim is not None or not waiter.pause():
                    return claim

    def _again(self, seconds: float, holder: str | None) -> Claim | None:
        """Nothing was found: claim from the queue that is at the path now, if this one was removed."""
        directory = self.layout.directory
        if directory.fd >= 0 and directory.removed() and directory.reopen():
            return self._claim(seconds, holder)
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
            self.layout.buried.append(lease.message.id)
            return False
        return True

    def _empty(self, timeout: float | None) -> Empty:
        found = "" if self.layout.directory.find() else " (there is no such queue yet)"
        found = " (it is paused)" if self.layout.paused() else found
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

    def join(self, id: str | None = None, *, timeout: float | None = None) -> bool:
        """Wait until the queue is empty: nothing ready, delayed or leased. Return False if it is not in time.

        Args:
            id: Wait for this message only: until it is acknowledged, cancelled or dead.
            timeout: Seconds to wait; without limit if None, one look if 0.
        """
        if timeout is not None:
            check_seconds("timeout", timeout)
        try:
            return waiting.join(self.layout, None if id is None else self.layout.check_id(id), timeout)
        except OSError as error:
            self._fail("count", error)

    # --- pausing -------------------------------------------------------------------------------------------

    def pause(self) -> bool:
        """Give nothing to anybody until `resume`, within about a second; return False if it was paused already."""
        cleaning.need_sign(self.layout, "paused")
        return self.layout.pause()

    def resume(self) -> bool:
        """End a pause: consumers that wait are woken. Return False if there was none."""
        return self.layout.resume()

    @property
    def paused(self) -> bool:
        """Whether the queue gives nothing until it is resumed."""
        return self.layout.paused()

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
        needs = {name: f"keep {name} messages", "apart": f"give its {name} messages as a queue"}
        for need, what in needs.items():
            if need in self.layout.lacks:
                refuse(self.layout, need, what)
        where = os.path.join(self.path, name)
        return Queue(where, codec=self._codec, layout="native", sync=self.settings.sync, max_attempts=0)

    # --- looking -------------------------------------------------------------------------------------------

    def peek(self, state: str = "ready", limit: int | None = None) -> Iterator[Message[T]]:
        """Yield messages in a state (ready, delayed, leased, dead, done), the oldest first, without claiming them."""
        states.check(state)
        if limit is not None:
            check_count("limit", limit)
        found = (entry for entry in self.layout.entries((state,)) if entry.state == state)
        return (Message(entry, self.layout, self._codec) for entry in oldest(found, limit))

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
            match: Only those whose error or trace this regular expression matches.
            limit: At most so many, the oldest first.
            dry_run: Change nothing; return the ids of those that would be made ready.
            progress: Called once per message.
        """
        return dead_letters.redrive(
            self.layout, self.peek, ids, match=match, limit=limit, dry_run=dry_run, progress=progress
        )

    # --- cleaning ------------------------------------------------------------------------------------------

    def purge(self, *, older_than: float | None = None, progress: Callable[[], None] | None = None) -> Purged:
        """Remove what crashes and time left behind; safe beside everything, never needed for correctness.

        Only one purger works at a time; while another one does, nothing is done and `busy` is 1. A directory that
        shows no sign of a queue is refused, unless the layout was named.

        Args:
            older_than: Move ready messages that were put longer ago, in seconds, to dead/ with that reason.
            progress: Called once per name that is looked at.
        """
        try:
            return cleaning.purge(self.layout, older_than, progress)
        except OSError as error:
            self._fail("purge", error)

    def clear(self) -> int:
        """Remove the messages kept in done/; return their number."""
        return self._remove(("done",))

    def flush(self) -> int:
        """Remove every message in every state, leased ones too (their holders get LeaseLost); return their number."""
        return self._remove(states.VISIBLE)

    def _remove(self, states: tuple[str, ...]) -> int:
        gone = remove_all(self.layout, states)
        if gone and self.settings.sync:
            self.layout.directory.sync()
        return gone

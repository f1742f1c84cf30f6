"""Queues that keep one file for each message: the bare calls, this library, and its relatives."""

from __future__ import annotations

import mailbox
import os
import tempfile
import time
from typing import Any, ClassVar

from peer import Got, Peer


class Floor(Peer):
    """The same system calls as the C floor; one flat directory, one listing, names in order."""

    title = "bare os calls"
    CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC

    def __init__(self, path: str) -> None:
        self._path = path
        os.makedirs(path, exist_ok=True)
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._names: list[str] = []
        self._inotify: Any = None
        self._last = 0
        self._unique = f"{os.getpid():09d}"
        self._suffix = f".1700000000000000.1.host-{os.getpid()}-abcdef-1"

    def put(self, body: bytes) -> None:
        fd = self.fd
        self._last = now = max(time.time_ns() // 1000, self._last + 1)
        name = f"{now}{self._unique}"
        new = name + ".new"
        file = os.open(new, self.CREATE, 0o666, dir_fd=fd)
        os.write(file, body)
        os.close(file)
        os.rename(new, name, src_dir_fd=fd, dst_dir_fd=fd)

    def get(self) -> Got:
        fd = self.fd
        for _ in range(2):
            while self._names:
                name = self._names.pop()
                held = name + self._suffix
                try:
                    os.rename(name, held, src_dir_fd=fd, dst_dir_fd=fd)
                except FileNotFoundError:
                    continue
                file = os.open(held, self.READ, dir_fd=fd)
                body = os.read(file, 65536)
                while len(body) >= 65536 and (more := os.read(file, 1 << 20)):
                    body += more
                os.close(file)
                return held, body
            self._names = sorted((name for name in os.listdir(fd) if name.isdigit()), reverse=True)
        return None

    def ack(self, handle: str) -> None:
        os.unlink(handle, dir_fd=self.fd)

    def wait(self, seconds: float) -> Got:
        from inotify_simple import INotify, flags

        if self._inotify is None:
            self._inotify = INotify()
            self._inotify.add_watch(self._path, flags.MOVED_TO)
        deadline = time.monotonic() + seconds
        while (found := self.get()) is None and (left := deadline - time.monotonic()) > 0:
            self._inotify.read(timeout=int(left * 1000) + 1)
        return found

    def close(self) -> None:
        os.close(self.fd)
        if self._inotify is not None:
            self._inotify.close()


class DirQueue(Peer):
    """sync=False, because most peers do not sync either; the durable workload has its own rows."""

    title = "dirqueue"
    module = package = "dirqueue"
    layout: ClassVar[str] = "auto"
    sync: ClassVar[bool] = False

    def __init__(self, path: str) -> None:
        from dirqueue import Empty, Lease, Queue

        self.queue: Any = Queue(path, layout=self.layout, sync=self.sync, lease=self.lease)
        self._empty = Empty
        self.put = self.queue.put  # type: ignore[method-assign]
        self.ack = Lease.ack  # type: ignore[method-assign]

    def get(self) -> Got:
        try:
            lease = self.queue.get(timeout=0)
        except self._empty:
            return None
        return lease, lease.message.body

    def wait(self, seconds: float) -> Got:
        try:
            lease = self.queue.get(timeout=seconds)
        except self._empty:
            return None
        return lease, lease.message.body

    def close(self) -> None:
        self.queue.close()


class DirQueueDurable(DirQueue):
    title = "dirqueue, sync"
    sync = True
    syncs = "all"


class DirQueueSimple(DirQueue):
    title = "dirqueue, dirq-simple"
    layout = "dirq-simple"


class DirQueueNormal(DirQueue):
    title = "dirqueue, dirq-normal"
    layout = "dirq-normal"


class DirQueueVsqs(DirQueue):
    title = "dirqueue, vsqs"
    layout = "vsqs"


class DirqSimple(Peer):
    title = "dirq QueueSimple"
    module = package = "dirq"

    def __init__(self, path: str) -> None:
        from dirq.QueueSimple import QueueSimple

        self._queue = QueueSimple(path)
        self.put = self._queue.add
        self.ack = self._queue.remove
        self._next = self._queue.first

    def recover(self) -> None:
        self._queue.purge(maxlock=int(self.lease))

    def get(self) -> Got:
        queue = self._queue
        for _ in range(2):
            while name := self._next():
                self._next = queue.next
                if queue.lock(name):
                    return name, queue.get(name)
            self._next = queue.first
        return None


class DirqNormal(Peer):
    title = "dirq Queue"
    module = package = "dirq"

    def __init__(self, path: str) -> None:
        from dirq.queue import Queue

        self._queue = Queue(path, schema={"body": "binary"})
        self.ack = self._queue.remove
        self._next = self._queue.first

    def put(self, body: bytes) -> None:
        self._queue.add({"body": body})

    def recover(self) -> None:
        self._queue.purge(maxlock=int(self.lease))

    def get(self) -> Got:
        queue = self._queue
        for _ in range(2):
            while name := self._next():
                self._next = queue.next
                if queue.lock(name):
                    return name, queue.get(name)["body"]
            self._next = queue.first
        return None


class Vsqs(Peer):
    title = "vsqs"
    module = package = "vsqs"
    syncs = "file"
    linear = True

    def __init__(self, path: str) -> None:
        import threading
        import warnings

        warnings.simplefilter("ignore", DeprecationWarning)
        from vsqs.queue import QueueManager

        if not hasattr(threading.Condition, "notifyAll"):  # gone from newer Pythons
            threading.Condition.notifyAll = threading.Condition.notify_all  # type: ignore[attr-defined]
        self._path = path
        self._manager = QueueManager(path)
        self._queue = self._manager.get_queue("q")
        self.put = self._queue.publish
        self.ack = self._queue.delete

    def get(self) -> Got:
        id, body = self._queue._get_oldest_message(visibility_timeout=int(self.lease))
        return None if id is None else (id, body)

    def wait(self, seconds: float) -> Got:
        id, body = self._queue.receive(visibility_timeout=int(self.lease), timeout=seconds)
        return None if id is None else (id, body)

    def preload(self, bodies: list[bytes]) -> bool:
        start = time.time_ns() // 1000 - len(bodies)
        for number, body in enumerate(bodies):
            with open(f"{self._path}/q/{start + number}", "wb") as file:
                file.write(body)
        return True

    def close(self) -> None:
        self._manager.close()
        self._manager.observer.join()


class Maildir(Peer):
    """Delivery by mailbox.Maildir; the taking by hand, as mail readers do: new/ to cur/, read, unlink."""

    title = "mailbox.Maildir"
    syncs = "file"

    def __init__(self, path: str) -> None:
        self._path = path
        self._box = mailbox.Maildir(path)
        self.put = self._box.add
        self._names: list[str] = []

    def get(self) -> Got:
        for _ in range(2):
            while self._names:
                name = self._names.pop()
                held = f"{self._path}/cur/{name}:2,S"
                try:
                    os.rename(f"{self._path}/new/{name}", held)
                except FileNotFoundError:
                    continue
                with open(held, "rb") as file:
                    return held, file.read()
            self._names = sorted(os.listdir(f"{self._path}/new"), reverse=True)
        return None

    def ack(self, handle: str) -> None:
        os.unlink(handle)


class HueyFile(Peer):
    title = "huey FileStorage"
    module = package = "huey"
    acks = False
    linear = True

    def __init__(self, path: str) -> None:
        from huey.storage import FileStorage

        os.makedirs(path, exist_ok=True)
        self._storage = FileStorage("bench", path)
        self.put = self._storage.enqueue

    def get(self) -> Got:
        body = self._storage.dequeue()
        return None if body is None else (None, body)


class Kombu(Peer):
    """Processed files are moved to the temporary directory: one on the same filesystem, to be kind to it."""

    title = "kombu filesystem"
    module = package = "kombu"
    linear = True

    def __init__(self, path: str) -> None:
        from kombu import Connection

        for part in ("data", "control", "tmp"):
            os.makedirs(f"{path}/{part}", exist_ok=True)
        tempfile.tempdir = f"{path}/tmp"
        folders = {
            "data_folder_in": f"{path}/data",
            "data_folder_out": f"{path}/data",
            "control_folder": f"{path}/control",
        }
        self._connection = Connection("filesystem://", transport_options=folders)
        self._queue = self._connection.SimpleQueue("bench")

    def put(self, body: bytes) -> None:
        self._queue.put(body.decode())

    def get(self) -> Got:
        try:
            message = self._queue.get_nowait()
        except self._queue.Empty:
            return None
        return message, message.payload.encode()

    def wait(self, seconds: float) -> Got:
        try:
            message = self._queue.get(timeout=seconds)
        except self._queue.Empty:
            return None
        return message, message.payload.encode()

    def ack(self, handle: Any) -> None:
        handle.ack()

    def close(self) -> None:
        self._connection.release()

"""The queues that are compared: one adapter each, with put, get and ack.

`get` returns (handle, body), or None when there is nothing now; `wait` blocks, for those that know how to.
Each is used as its own documentation says, with its own defaults, unless the class says otherwise.
"""

from __future__ import annotations

import importlib.util
import mailbox
import os
import tempfile
import time
from importlib import metadata
from typing import Any, ClassVar

Got = tuple[Any, bytes] | None


class Peer:
    """One queue, open at one path."""

    title: ClassVar[str]
    #: What must be importable, and the distribution that says its version.
    module: ClassVar[str] = ""
    package: ClassVar[str] = ""
    #: Whether several processes may use it at once, by its own word.
    shared: ClassVar[bool] = True
    #: Whether a message that was got and not acked comes again (or at least stays on disk).
    acks: ClassVar[bool] = True
    #: What reaches the disk before put returns: nothing, the file, all.
    syncs: ClassVar[str] = "no"
    #: Whether one receive looks at every message, so that it is measured only as long as time allows.
    linear: ClassVar[bool] = False

    def __init__(self, path: str) -> None:
        raise NotImplementedError

    def put(self, body: bytes) -> Any:
        raise NotImplementedError

    def get(self) -> Got:
        raise NotImplementedError

    def ack(self, handle: Any) -> None:
        """Nothing to do where get already removed it."""

    def wait(self, seconds: float) -> Got:
        """Poll each 10 ms, as a user of a queue without a blocking get would."""
        deadline = time.monotonic() + seconds
        while (found := self.get()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return found

    def preload(self, bodies: list[bytes]) -> bool:
        """Fill the queue by a shorter way than put, if put is too slow; whether that was done."""
        return False

    def close(self) -> None:
        """Let go."""


# --- the floor, in Python -----------------------------------------------------------------------------------


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

        with INotify() as inotify:
            inotify.add_watch(self._path, flags.MOVED_TO | flags.CREATE)
            deadline = time.monotonic() + seconds
            while (found := self.get()) is None and (left := deadline - time.monotonic()) > 0:
                inotify.read(timeout=int(left * 1000) + 1)
        return found

    def close(self) -> None:
        os.close(self.fd)


# --- this library ---------------------------------------------------------------------------------------------


class DirQueue(Peer):
    """sync=False, because most peers do not sync either; the durable workload has its own rows."""

    title = "dirqueue"
    module = package = "dirqueue"
    layout: ClassVar[str] = "auto"
    sync: ClassVar[bool] = False

    def __init__(self, path: str) -> None:
        from dirqueue import Empty, Queue

        self.queue: Any = Queue(path, layout=self.layout, sync=self.sync)
        self._empty = Empty
        self.put = self.queue.put  # type: ignore[method-assign]

    def get(self) -> Got:
        try:
            lease = self.queue.get(timeout=0)
        except self._empty:
            return None
        return lease, lease.message.body

    def ack(self, handle: Any) -> None:
        handle.ack()

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


# --- one file for each message --------------------------------------------------------------------------------


class DirqSimple(Peer):
    title = "dirq QueueSimple"
    module = package = "dirq"

    def __init__(self, path: str) -> None:
        from dirq.QueueSimple import QueueSimple

        self._queue = QueueSimple(path)
        self.put = self._queue.add
        self.ack = self._queue.remove
        self._next = self._queue.first

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
        id, body = self._queue._get_oldest_message(visibility_timeout=600)
        return None if id is None else (id, body)

    def wait(self, seconds: float) -> Got:
        id, body = self._queue.receive(visibility_timeout=600, timeout=seconds)
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


# --- one process, append logs --------------------------------------------------------------------------------


class PersistFile(Peer):
    title = "persist-queue Queue"
    module, package = "persistqueue", "persist-queue"
    shared = False

    def __init__(self, path: str) -> None:
        from persistqueue import Empty, Queue

        os.makedirs(path, exist_ok=True)
        # Its index is renamed into place, so the temporary directory must be on the same filesystem.
        self._queue = Queue(path, tempdir=path, autosave=True)
        self._empty = Empty
        self.put = self._queue.put

    def get(self) -> Got:
        try:
            return None, self._queue.get_nowait()
        except self._empty:
            return None


class QueueLib(Peer):
    title = "queuelib FifoDiskQueue"
    module = package = "queuelib"
    shared = acks = False

    def __init__(self, path: str) -> None:
        from queuelib import FifoDiskQueue

        self._queue = FifoDiskQueue(path)
        self.put = self._queue.push

    def get(self) -> Got:
        body = self._queue.pop()
        return None if body is None else (None, body)

    def close(self) -> None:
        self._queue.close()


class TextQueue(Peer):
    """It has no writer: a message is a line appended to its file."""

    title = "textqueue"
    module = package = "textqueue"
    shared = False

    def __init__(self, path: str) -> None:
        from textqueue import TextQueue as Text

        os.makedirs(path, exist_ok=True)
        self._file = open(f"{path}/q.tq", "a", encoding="ascii")  # noqa: SIM115
        self._queue = Text()
        self._queue.add_input(f"{path}/q.tq")

    def put(self, body: bytes) -> None:
        self._file.write(f"-{body.decode('ascii')}\n")
        self._file.flush()

    def get(self) -> Got:
        item = self._queue.get_next()
        return None if item is None else (item, item.value.encode())

    def ack(self, handle: Any) -> None:
        handle.mark_as_cleared()

    def close(self) -> None:
        self._queue.close()
        self._file.close()


# --- SQLite ---------------------------------------------------------------------------------------------------


class PersistSqlite(Peer):
    title = "persist-queue SQLiteQueue"
    module, package = "persistqueue", "persist-queue"
    acks = False
    syncs = "all"

    def __init__(self, path: str) -> None:
        import persistqueue

        self._queue: Any = self.open(path)
        self._empty = persistqueue.Empty
        self.put = self._queue.put

    def open(self, path: str) -> Any:
        from persistqueue import SQLiteQueue

        return SQLiteQueue(path, auto_commit=True, multithreading=True, timeout=30.0)

    def get(self) -> Got:
        try:
            body = self._queue.get(block=False)
        except self._empty:
            return None
        return body, body

    def wait(self, seconds: float) -> Got:
        try:
            body = self._queue.get(timeout=seconds)
        except self._empty:
            return None
        return body, body


class PersistAck(PersistSqlite):
    title = "persist-queue SQLiteAckQueue"
    acks = True

    def open(self, path: str) -> Any:
        from persistqueue import SQLiteAckQueue

        return SQLiteAckQueue(path, multithreading=True, timeout=30.0)

    def ack(self, handle: Any) -> None:
        self._queue.ack(handle)


class LiteQueue(Peer):
    title = "litequeue"
    module = package = "litequeue"
    linear = True

    def __init__(self, path: str) -> None:
        from litequeue import LiteQueue as Lite

        os.makedirs(path, exist_ok=True)
        self._queue = Lite(f"{path}/q.db", timeout=30)

    def put(self, body: bytes) -> None:
        self._queue.put(body.decode())

    def get(self) -> Got:
        message = self._queue.pop()
        return None if message is None else (message.message_id, message.data.encode())

    def ack(self, handle: Any) -> None:
        self._queue.done(handle)


class LocalQueue(Peer):
    title = "localqueue"
    module = package = "localqueue"
    linear = True

    def __init__(self, path: str) -> None:
        from localqueue import Empty, SimpleQueue

        class Raw:
            dumps = loads = staticmethod(bytes)

        self._queue: Any = SimpleQueue(path, serializer=Raw())
        self._empty = Empty
        self.put = self._queue.put
        self.ack = self._queue.ack

    def get(self) -> Got:
        try:
            job = self._queue.get_nowait()
        except self._empty:
            return None
        return job, job.data

    def wait(self, seconds: float) -> Got:
        try:
            job = self._queue.get(timeout=seconds)
        except self._empty:
            return None
        return job, job.data

    def close(self) -> None:
        self._queue.close()


class DiskCache(Peer):
    title = "diskcache Deque"
    module = package = "diskcache"
    acks = False

    def __init__(self, path: str) -> None:
        from diskcache import Deque

        self._queue = Deque(directory=path)
        self.put = self._queue.append

    def get(self) -> Got:
        try:
            return None, self._queue.popleft()
        except IndexError:
            return None


class HueySqlite(Peer):
    title = "huey SqliteStorage"
    module = package = "huey"
    acks = False
    syncs = "all"

    def __init__(self, path: str) -> None:
        from huey.storage import SqliteStorage

        os.makedirs(path, exist_ok=True)
        self._storage = SqliteStorage("bench", filename=f"{path}/q.db", timeout=30)
        self.put = self._storage.enqueue

    def get(self) -> Got:
        body = self._storage.dequeue()
        return None if body is None else (None, bytes(body))


#: By a short name, in the order in which tables show them.
PEERS: dict[str, type[Peer]] = {
    "floor": Floor,
    "dirqueue": DirQueue,
    "dirqueue-sync": DirQueueDurable,
    "dirqueue-dirq-simple": DirQueueSimple,
    "dirqueue-dirq-normal": DirQueueNormal,
    "dirqueue-vsqs": DirQueueVsqs,
    "dirq-simple": DirqSimple,
    "dirq-normal": DirqNormal,
    "vsqs": Vsqs,
    "maildir": Maildir,
    "huey-file": HueyFile,
    "kombu": Kombu,
    "persist-file": PersistFile,
    "queuelib": QueueLib,
    "textqueue": TextQueue,
    "persist-sqlite": PersistSqlite,
    "persist-ack": PersistAck,
    "litequeue": LiteQueue,
    "localqueue": LocalQueue,
    "diskcache": DiskCache,
    "huey-sqlite": HueySqlite,
}


def available(name: str) -> bool:
    """Whether this peer is installed (and, of our own layouts, built)."""
    peer = PEERS[name]
    if peer.module and importlib.util.find_spec(peer.module) is None:
        return False
    if issubclass(peer, DirQueue) and peer.layout != "auto":
        from dirqueue import DirQueueError

        with tempfile.TemporaryDirectory() as path:
            try:
                peer(f"{path}/q").close()
            except (DirQueueError, ImportError, KeyError):
                return False
    return True


def version(name: str) -> str:
    """The version of the distribution a peer comes from."""
    package = PEERS[name].package
    try:
        return metadata.version(package) if package else "Python's own"
    except metadata.PackageNotFoundError:
        return "source tree"


def of_our_kind(name: str) -> bool:
    """Several processes, at least once: what this library is to be compared with first."""
    return PEERS[name].shared and PEERS[name].acks

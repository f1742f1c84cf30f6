"""Queues that keep their messages in one file: append logs of one process, and SQLite."""

from __future__ import annotations

import os
from typing import Any

from peer import Got, Peer


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

    def recover(self) -> None:
        for message in list(self._queue.list_locked(int(self.lease))):
            self._queue.retry(message.message_id)


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

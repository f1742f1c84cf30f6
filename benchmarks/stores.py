"""Putting and taking in one process: publish and drain, durable puts, batches."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import floor
from cell import Cell, Result, body_of, tally, timed, warm_up
from peer import Got, Peer
from peers import PEERS
from peers_files import DirQueue, Floor


def store(cell: Cell) -> Result:
    """Put `count` messages, then take `take` of them: for growth, payload sizes and the million."""
    take = cell.take or cell.count
    if cell.peer in floor.TITLES:
        return floor.run(cell.peer, cell.binary, "store", cell.path, cell.count, cell.size, take)
    peer = PEERS[cell.peer](cell.path)
    warm_up(peer, cell.size)
    bodies = [body_of(n, cell.size) for n in range(cell.count)] if cell.size > 4096 else []
    one = putting(peer.put, cell.size, bodies)
    answer: Result = {}
    preloaded = PEERS[cell.peer].linear and cell.count > 1000
    if not (preloaded and peer.preload([body_of(n, cell.size) for n in range(cell.count)])):
        own = idle(putting(len, cell.size, bodies), cell.count)
        answer["put"] = timed(one, cell.count, cell.cap) | {"own": own}
        if answer["put"]["count"] < cell.count:
            return answer | {"capped": "put"}
    return answer | drain(peer, cell, take)


def putting(put: Callable[[bytes], object], size: int, bodies: list[bytes]) -> Callable[[int], bool]:
    """Return what the harness calls to put one message."""

    def one(number: int) -> bool:
        put(bodies[number] if bodies else body_of(number, size))
        return True

    return one


def taking(
    get: Callable[[], Got], ack: Callable[[Any], object], note: Callable[[bytes], object]
) -> Callable[[int], bool]:
    """Return what the harness calls to take one message."""

    def one(_: int) -> bool:
        found = get()
        if found is None:
            return False
        ack(found[0])
        note(found[1][:12])
        return True

    return one


def idle(step: Callable[[int], bool], count: int) -> float:
    """Return the CPU seconds of the harness for one message: the same loop around a queue that does nothing."""
    some = min(count, 1000)
    return min(timed(step, some)["cpu"] for _ in range(3)) / some


def drain(peer: Peer, cell: Cell, take: int) -> Result:
    heads: list[bytes] = []
    one = taking(peer.get, peer.ack, heads.append)
    nothing = itertools.repeat((None, b"x" * cell.size))
    own = idle(taking(nothing.__next__, id, len), take)
    if isinstance(peer, Floor) and take < cell.count:
        # Of the one listing, the part of those that are taken.
        spent = time.process_time()
        peer._names = sorted(os.listdir(peer.fd), reverse=True)
        listed = (time.process_time() - spent) * take / cell.count
    else:
        listed = 0.0
    taken = timed(one, take, cell.cap) | {"own": own}
    taken["cpu"] += listed
    answer: Result = {"get": taken}
    if taken["count"] == cell.count:
        answer |= tally([int(head) for head in heads], cell.count)
        answer["lost"] += sum(1 for _ in iter(peer.get, None))  # what is left was not numbered by us
    elif taken["count"] < take:
        if not cell.cap or taken["wall"] < cell.cap:
            answer |= tally([int(head) for head in heads], cell.count)
        answer["capped"] = "get"
    peer.close()
    return answer


def durable(cell: Cell) -> Result:
    """Put one message at a time, each on disk when put returns (as far as the peer promises that)."""
    peer = PEERS[cell.peer](cell.path)
    warm_up(peer, cell.size)
    if isinstance(peer, Floor):
        return {"put": timed(lambda n: _floor_durable(peer, body_of(n, cell.size)), cell.count, cell.cap)}
    return {"put": timed(lambda n: (peer.put(body_of(n, cell.size)), True)[1], cell.count, cell.cap)}


def _floor_durable(peer: Any, body: bytes) -> bool:
    name = f"{time.time_ns() // 1000}123456789"
    file = os.open(name + ".new", peer.CREATE, 0o666, dir_fd=peer.fd)
    os.write(file, body)
    os.fsync(file)
    os.close(file)
    os.rename(name + ".new", name, src_dir_fd=peer.fd, dst_dir_fd=peer.fd)
    os.fsync(peer.fd)
    return True


def batch(cell: Cell) -> Result:
    """Put `take` messages at a time with put_many, until `count` are there."""
    peer = PEERS[cell.peer](cell.path)
    assert isinstance(peer, DirQueue)
    warm_up(peer, cell.size)
    many = peer.queue.put_many

    def one(number: int) -> bool:
        first = number * cell.take
        many([body_of(first + n, cell.size) for n in range(cell.take)])
        return True

    put = timed(one, max(1, cell.count // cell.take), cell.cap)
    put["count"] *= cell.take
    return {"put": put} | drain(peer, dataclasses.replace(cell, count=put["count"], cap=0), put["count"])

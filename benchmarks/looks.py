"""The cost of looking: at a hundred thousand names, at an empty queue, after a million; and of starting."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import floor
from cell import Cell, Result, body_of, resident, warm_up
from peer import Peer
from peers import PEERS
from peers_files import Floor


def scan(cell: Cell) -> Result:
    """Find the one in a hundred whose lease has expired: what a consumer does, and what a purge does."""
    from dirqueue import Queue

    peer = Floor(cell.path)
    long_ago = time.time_ns() // 1000 - 3_600_000_000
    for number in range(cell.count):
        name = f"{long_ago + number}123456789"
        late = f"{name}.{long_ago + 60_000_000}.1.host-1-abcdef-{number}"
        os.close(os.open(late if number % 100 == 0 else name, Floor.CREATE, 0o666, dir_fd=peer.fd))
    queue = Queue(cell.path, sync=False, margin=0.0)
    cursor = queue.layout._cursor
    now = queue.layout.directory.clock.now

    def look() -> None:
        cursor.stale()
        if not cursor.fill(now()):
            raise RuntimeError("nothing was found")

    answer = _best(
        listdir=lambda: os.listdir(peer.fd),
        scandir=lambda: _typed(peer.fd),
        look=look,
        purge=queue.purge,
        stats=queue.stats,
    )
    if cell.binary:
        answer["c"] = floor.run("c", cell.binary, "list", cell.path)["cpu"]
    if PEERS["dirq-simple"].module and cell.peer == "dirq-simple":
        answer |= _dirq_purge(cell)
    return answer


def _typed(fd: int) -> list[str]:
    """Return the least that a queue must know: the names of the regular files."""
    with os.scandir(fd) as found:
        return [entry.name for entry in found if entry.is_file(follow_symlinks=False)]


def _best(**actions: Callable[[], Any]) -> Result:
    """Return the CPU seconds of each, the best of five, taken in turn so that a slower machine slows all of them."""
    spent: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(5):
        for name, action in actions.items():
            began = time.process_time()
            action()
            spent[name].append(time.process_time() - began)
    return {name: min(each) for name, each in spent.items()}


def _dirq_purge(cell: Cell) -> Result:
    from dirq.QueueSimple import QueueSimple

    queue = QueueSimple(cell.path + ".dirq")
    for _ in range(cell.count):
        queue.add(b"")
    for number, name in enumerate(queue):
        if number % 100 == 0:
            queue.lock(name)
    time.sleep(2.1)
    return _best(dirq=lambda: queue.purge(maxlock=1))


def backlog(cell: Cell) -> Result:
    """Compare an empty look after `count` messages have come and gone with one at a queue that never held any."""
    peer = PEERS[cell.peer](cell.path)
    fresh = _empty_look(PEERS[cell.peer](cell.path + ".fresh"))
    for number in range(cell.count):
        peer.put(body_of(number, 64))
    while found := peer.get():
        peer.ack(found[0])
    again = PEERS[cell.peer](cell.path)
    time.sleep(2.5)  # emptied directories are removed when no producer can be on its way to them any more
    again.get()
    return {"fresh": fresh, "after": _empty_look(again)}


def _empty_look(peer: Peer) -> float:
    peer.get()
    time.sleep(0.05)
    began = time.process_time()
    for _ in range(200):
        peer.get()
    return (time.process_time() - began) / 200


def memory(cell: Cell) -> Result:
    """Measure how much one get raises the peak memory of a consumer; the queue must be filled."""
    peer = PEERS[cell.peer](cell.path)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(cell.path)) as other:
        small = PEERS[cell.peer](other + "/q")
        warm_up(small, cell.size)
    before = resident()
    began = time.perf_counter()
    found = peer.get()
    first = time.perf_counter() - began
    if found is None:
        raise RuntimeError("the queue was empty")
    return {"memory": resident() - before, "first": first}


def startup(cell: Cell) -> Result:
    """Measure the CPU time of a bare interpreter, of importing the library, and of one put and one get from the shell."""
    env = os.environ | {"DIRQUEUE_DIR": cell.path}
    command = [sys.executable, "-m", "dirqueue"]
    runs = {
        "python": [sys.executable, "-c", "pass"],
        "import": [sys.executable, "-c", "import dirqueue; dirqueue.Queue"],
        "version": [*command, "--version"],
        "put": [*command, "put", cell.path, "hello"],
        "get": [*command, "get", cell.path],
    }
    answer: Result = {}
    for name, words in runs.items():
        spent = []
        for _ in range(5):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(words, check=True, env=env, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        answer[name] = sorted(spent)[2]
    return answer

"""Put a mount under load and count every message: what the fault laboratory does, as far as it is safe anywhere.

Layer: tools.  Touches: one directory `.doctor-TOKEN` in the directory that is named, removed at the end.
Two producers and two consumers in processes of their own, one of each by the second path if there is one; one consumer
is killed on the way. Crash: the directory stays, and can be removed by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from dirqueue.disk import fs, identity
from dirqueue.disk.directory import Directory
from dirqueue.errors import DirQueueError, Empty, LeaseLost, access_error
from dirqueue.queue import Queue
from dirqueue.settings import check_seconds
from dirqueue.tools.doctor.probes import check_shared

#: A killed consumer's lease must end while we wait, also where every call takes a while.
LEASE, MARGIN = 5.0, 1.0
#: Extra seconds for a worker to end.
GRACE = 60.0
#: Bodies are shorter than this.
LONGEST = 10_000


class Finding(NamedTuple):
    """One promise, whether it held, and the figures."""

    promise: str
    held: bool
    detail: str


def stress(
    path: str,
    also: str | None = None,
    seconds: float = 5.0,
    progress: Callable[[], None] | None = None,
    layout: str = "native",
) -> list[Finding]:
    """Put the directory at `path` under load; return for each promise whether it held.

    Args:
        path: An existing directory.
        also: The same directory by another mount (two mounts of one export are two hosts).
        seconds: How long producers produce.
        progress: Called about once a second.
        layout: The layout of the queue that is made for it.
    """
    check_seconds("seconds", seconds, above=True)
    directory = Directory(path, create=False)
    directory.need()
    name = f".doctor-{identity.new_token()}"
    paths = [os.path.join(each, name) for each in ((path, also) if also else (path, path))]
    try:
        fs.mkdir(name, fs.DIR_MODE, dir_fd=directory.fd)
    except OSError as error:
        raise access_error(path, "work in", error) from error
    try:
        check_shared(path, also, name)
        return _judge(paths[0], layout, _run(paths, layout, seconds, progress or (lambda: None)))
    finally:
        fs.remove_tree(name, directory.fd)
        directory.close()


def _run(paths: list[str], layout: str, seconds: float, progress: Callable[[], None]) -> list[str]:
    """Start all processes, kill one consumer half-way, wait; return the lines that they printed."""
    roles = [("put", 0), ("put", 1), ("get", 0), ("get", 1), ("get", 0)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, role, paths[host], layout, str(number), str(seconds)],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        for number, (role, host) in enumerate(roles)
    ]
    try:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(1.0, left))
            progress()
            if left < seconds / 2:
                workers[-1].kill()
        lines: list[str] = []
        for worker in workers:
            lines += worker.communicate(timeout=seconds + GRACE)[0].splitlines()
        return lines
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _judge(path: str, layout: str, lines: Iterable[str]) -> list[Finding]:
    words = ("trying", "put", "got", "torn", "acking", "acked", "lost", "error")
    events: dict[str, Counter[str]] = {word: Counter() for word in words}
    for line in lines:
        word, _, rest = line.partition(" ")
        if word in events:
            events[word][rest] += 1
    left: Counter[str] = Counter()
    # dirq: how long a lock is honoured is decided by each consumer, so it must be the same for all.
    with Queue(path, layout=layout, lease=LEASE, margin=MARGIN) as queue:
        deadline = time.monotonic() + LEASE + MARGIN + GRACE
        while len(queue) and time.monotonic() < deadline:  # a killed consumer's lease must run out first
            for lease in queue.consume(timeout=0.2):
                name, whole = _name(lease.message.body)
                left[name] += 1
                events["torn"][name] += not whole
                lease.ack()
    seen = events["acked"] + left
    lost = [name for name in events["put"] if not seen[name] and not events["acking"][name]]
    twice = [name for name, count in seen.items() if count > 1]
    strange = [
        name
        for name in (+events["torn"] | events["got"] | left)
        if name not in events["trying"] or events["torn"][name]
    ]
    total = f"of {len(events['put'])} messages"
    return [
        Finding("nothing is lost", not lost, f"{len(lost)} {total}"),
        Finding("nothing is acknowledged twice", not twice, f"{len(twice)} {total}"),
        Finding("nothing is torn or from nowhere", not strange, f"{len(strange)} {total}"),
        Finding("no live lease is called lost", not events["lost"], f"{len(events['lost'])} {total}"),
        Finding("no call fails", not events["error"], "; ".join(list(events["error"])[:3]) or "none did"),
    ]


def _body(name: str) -> bytes:
    """Return a body that shows what is missing: its name, and as many letters as the name says."""
    return f"{name} {'x' * (int(name.rpartition('-')[2]) * 37 % LONGEST)}".encode()


def _name(body: bytes) -> tuple[str, bool]:
    """Return the name in a body, and whether the body is whole."""
    name = body.partition(b" ")[0].decode(errors="replace")
    return name, name.rpartition("-")[2].isdigit() and body == _body(name)


def _work(role: str, path: str, layout: str, number: str, seconds: str) -> None:
    queue = Queue(path, layout=layout, lease=LEASE, margin=MARGIN)
    end = time.monotonic() + float(seconds)
    count = 0
    while time.monotonic() < end:
        try:
            if role == "put":
                some = [f"{number}-{count + each}" for each in range(1, 2 if count % 10 else 4)]
                count += len(some)
                _print("trying", *some)
                if len(some) == 1:
                    queue.put(_body(some[0]))
                else:
                    queue.put_many(map(_body, some))
                _print("put", *some)
                continue
            lease = queue.get(timeout=0.1)
            body, whole = _name(lease.message.body)
            _print("got" if whole else "torn", body)
            _print("acking", body)
            began = time.time()
            try:
                lease.ack()
            except LeaseLost:
                if began < lease.until.timestamp() - MARGIN:
                    _print("lost", body)
            else:
                _print("acked", body)
        except Empty:
            pass
        except DirQueueError as error:
            _print("error", str(error))
            return


def _print(word: str, *texts: str) -> None:
    sys.stdout.write("".join(f"{word} {text}\n" for text in texts))
    sys.stdout.flush()


if __name__ == "__main__":
    _work(*sys.argv[1:])

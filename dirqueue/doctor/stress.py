"""Put a mount under load and count every message: what the fault laboratory does, as far as it is safe anywhere.

Layer: edges.  Touches: one directory `.doctor-TOKEN` where it is told to, removed at the end.
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

from dirqueue import fs, names
from dirqueue.errors import DirQueueError, Empty, LeaseLost, QueueError, access_error
from dirqueue.home import Home
from dirqueue.layouts.native.publish import remove_tree
from dirqueue.queue import Queue

#: A killed consumer's lease must end while we wait, also where every call takes a while.
LEASE, MARGIN = 3.0, 1.0
#: Extra seconds for a worker to end.
GRACE = 60.0


class Finding(NamedTuple):
    """One promise, whether it held, and the figures."""

    promise: str
    held: bool
    detail: str


def stress(
    path: str, also: str | None = None, seconds: float = 5.0, progress: Callable[[], None] | None = None
) -> list[Finding]:
    """Run for so many seconds in the directory at `path`; say of each promise whether it held.

    Args:
        path: An existing directory.
        also: The same directory by another mount (two mounts of one export are two hosts).
        seconds: How long producers produce.
        progress: Called about once a second.
    """
    home = Home(path, create=False)
    home.need()
    name = f".doctor-{names.new_token()}"
    paths = [os.path.join(each, name) for each in ((path, also) if also else (path, path))]
    try:
        fs.mkdir(name, fs.DIR_MODE, dir_fd=home.fd)
    except OSError as error:
        raise access_error(path, "work in", error) from error
    try:
        if also and not os.path.isdir(paths[1]):
            raise QueueError(
                f"{also!r} is not the same directory as {path!r}: they do not share files", path=also
            )
        return _judge(paths, _run(paths, seconds, progress or (lambda: None)))
    finally:
        remove_tree(name, home.fd)
        home.close()


def _run(paths: list[str], seconds: float, progress: Callable[[], None]) -> list[str]:
    """Start everybody, kill one consumer half-way, wait; return all that they said."""
    roles = [("put", 0), ("put", 1), ("get", 0), ("get", 1), ("get", 0)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "dirqueue.doctor.stress", role, paths[host], str(number), str(seconds)],
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
        said: list[str] = []
        for worker in workers:
            said += worker.communicate(timeout=seconds + GRACE)[0].splitlines()
        return said
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _judge(paths: list[str], said: Iterable[str]) -> list[Finding]:
    told: dict[str, Counter[str]] = {
        word: Counter() for word in ("put", "got", "acking", "acked", "lost", "error")
    }
    for line in said:
        word, _, rest = line.partition(" ")
        if word in told:
            told[word][rest] += 1
    left: Counter[str] = Counter()
    queue = Queue(paths[0], lease=60.0, margin=MARGIN)
    while True:
        try:
            lease = queue.get(timeout=LEASE + 2 * MARGIN)
        except Empty:
            break
        left[lease.message.body.decode()] += 1
        lease.ack()
    queue.close()
    seen = told["acked"] + left
    lost = [body for body in told["put"] if not seen[body] and not told["acking"][body]]
    twice = [body for body, count in seen.items() if count > 1]
    total = f"of {len(told['put'])} messages"
    return [
        Finding("nothing is lost", not lost, f"{len(lost)} {total}"),
        Finding("nothing is acknowledged twice", not twice, f"{len(twice)} {total}"),
        Finding("no live lease is called lost", not told["lost"], f"{len(told['lost'])} {total}"),
        Finding("no call fails", not told["error"], "; ".join(list(told["error"])[:3]) or "none did"),
    ]


def _work(role: str, path: str, number: str, seconds: str) -> None:
    queue = Queue(path, lease=LEASE, margin=MARGIN)
    end = time.monotonic() + float(seconds)
    count = 0
    while time.monotonic() < end:
        try:
            if role == "put":
                count += 1
                body = f"{number}-{count}"
                queue.put(body.encode())
                _say("put", body)
                continue
            lease = queue.get(timeout=0.1)
            body = lease.message.body.decode()
            _say("got", body)
            _say("acking", body)
            began = time.time()
            try:
                lease.ack()
            except LeaseLost:
                if began < lease.until.timestamp() - MARGIN:
                    _say("lost", body)
            else:
                _say("acked", body)
        except Empty:
            pass
        except DirQueueError as error:
            _say("error", str(error))
            return


def _say(word: str, text: str) -> None:
    sys.stdout.write(f"{word} {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _work(*sys.argv[1:])

"""Producers, consumers and a purger for as long as one likes, and a killer among them; then the account.

Each worker writes what it was promised to a log of its own, one write a line, so that a SIGKILL tears nothing. At the
end the queue is drained and everything is compared.
"""

import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import dirqueue
from lab.census import Census

ROLES = ("producer", "producer", "consumer", "consumer", "purger")


@dataclass
class Account:
    """What a soak did, and what was wrong."""

    seconds: float = 0.0
    kills: int = 0
    put: int = 0
    acked: int = 0
    delivered: int = 0
    wrong: list = field(default_factory=list)

    def __str__(self):
        verdict = "0 violations" if not self.wrong else f"{len(self.wrong)} VIOLATIONS: {self.wrong[:5]}"
        return (
            f"{self.seconds:.0f} s, {self.kills} kills, {self.put} put, {self.delivered} delivered, "
            f"{self.acked} acknowledged, {verdict}"
        )


class Worker:
    """One process; its memory is lost when it is killed, its log is not."""

    def __init__(self, paths, log, number, settings):
        self.queues = [dirqueue.Queue(path, **settings) for path in paths]
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.number = number
        self.dice = random.Random(number)
        self.stopping = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_):
        self.stopping = True

    def say(self, word, body=b""):
        os.write(self.log, b"%s %s\n" % (word.encode(), body))

    def producer(self):
        count = 0
        while not self.stopping:
            count += 1
            queue = self.dice.choice(self.queues)
            bodies = [
                b"%d-%d-%d" % (self.number, count, each) for each in range(self.dice.choice((1, 1, 1, 4)))
            ]
            for body in bodies:
                self.say("trying", body)
            if len(bodies) == 1:
                queue.put(bodies[0])
            else:
                queue.put_many(bodies)
            for body in bodies:
                self.say("put", body)
            time.sleep(self.dice.random() * 0.004)

    def consumer(self):
        while not self.stopping:
            queue = self.dice.choice(self.queues)
            try:
                lease = queue.get(timeout=0.05)
            except dirqueue.Empty:
                continue
            body = lease.message.body
            self.say("got", body)
            fate = self.dice.random()
            try:
                if fate < 0.05:
                    lease.retry(0.0, "bad luck")
                elif fate < 0.1:
                    lease.release()
                elif fate < 0.12:
                    lease.renew()
                    self.ack(lease, body)
                else:
                    self.ack(lease, body)
            except dirqueue.LeaseLost:
                self.say("lost", body)

    def ack(self, lease, body):
        self.say("acking", body)
        lease.ack()
        self.say("acked", body)

    def purger(self):
        while not self.stopping:
            for queue in self.queues:
                queue.purge()
            time.sleep(0.1)


def run(place, seconds, *, paths=None, settings=None, progress=None, seed=0):
    """Run for so many seconds; return the account. `paths`: the queue, once for each "host" that mounts it."""
    place = Path(place)
    paths = [str(place / "queue")] if paths is None else paths
    settings = {
        "sync": False,
        "lease": 1.0,
        "margin": 0.2,
        "stale": 5.0,
        "max_attempts": 0,
        **(settings or {}),
    }
    logs = place / "logs"
    logs.mkdir(parents=True)
    dice = random.Random(seed)
    account = Account()
    workers, number = {}, 0
    start = time.monotonic()
    deadline = start + seconds
    try:
        for role in ROLES:
            number += 1
            workers[_fork(role, paths, logs, number, settings)] = role
        while time.monotonic() < deadline:
            time.sleep(dice.uniform(0.1, 0.5))
            victim = dice.choice(list(workers))
            os.kill(victim, signal.SIGKILL)
            _, status = os.waitpid(victim, 0)
            role = workers.pop(victim)
            if not os.WIFSIGNALED(status):
                account.wrong.append(f"a {role} ended by itself with {status}: see {logs}")
            account.kills += 1
            number += 1
            workers[_fork(role, paths, logs, number, settings)] = role
            if progress:
                progress(time.monotonic() - start, account)
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        for pid in workers:
            _reap(pid)
    account.seconds = time.monotonic() - start
    _settle(account, paths, logs, settings)
    return account


def _fork(role, paths, logs, number, settings):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        worker = Worker(paths, logs / f"{number}.log", number, settings)
        try:
            getattr(worker, role)()
            code = 0
        except BaseException as error:  # noqa: BLE001
            worker.say("raised", f"{role}: {type(error).__name__}: {error}".encode().replace(b"\n", b" "))
    finally:
        os._exit(code)


def _reap(pid, patience=60.0):
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _settle(account, paths, logs, settings):
    """Drain the queue and compare it with the logs."""
    told = {word: Counter() for word in ("trying", "put", "got", "acking", "acked", "lost", "raised")}
    for log in logs.iterdir():
        for line in log.read_bytes().splitlines():
            word, _, body = line.partition(b" ")
            told[word.decode()][body] += 1
    account.put, account.delivered = sum(told["put"].values()), sum(told["got"].values())
    account.acked = sum(told["acked"].values())
    wrong = [f"raised: {text.decode()}" for text in told["raised"]]
    wrong += [f"acked twice: {body!r}" for body, times in told["acked"].items() if times > 1]
    wrong += [f"from nowhere: {body!r}" for body in told["got"] if body not in told["trying"]]
    queue = dirqueue.Queue(paths[0], **settings)
    census = Census(paths[0])
    wrong += census.complaints(
        known=set(told["trying"]),
        promised=list(told["put"]),
        acked=list(told["acked"]),
        maybe_acked=list(told["acking"]),
    )
    left, deadline = Counter(), time.monotonic() + 60.0
    while sum(left.values()) < len(census.waiting) and time.monotonic() < deadline:
        try:
            lease = queue.get(timeout=2.0)
        except dirqueue.Empty:
            break
        left[lease.message.body] += 1
        lease.ack()
    wrong += [f"left {times} times: {body!r}" for body, times in left.items() if times > 1]
    wrong += [f"not delivered: {body!r}" for body in set(census.waiting) - set(left)]
    account.wrong += wrong


def main():
    """Run by `make soak`: hours, with a live line, and an account at the end."""
    import argparse
    import tempfile

    parser = argparse.ArgumentParser(
        description="Producers, consumers, a purger and a killer; then the account."
    )
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, help="instead of hours")
    parser.add_argument("--sync", action="store_true", help="with fsync, as by default in the library")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "paths", nargs="*", help="one queue directory, or the same one as mounted by several hosts"
    )
    options = parser.parse_args()
    place = tempfile.mkdtemp(prefix="dirqueue-soak-")

    def progress(seconds, account):
        end = "\r" if sys.stderr.isatty() else "\n"
        if sys.stderr.isatty() or account.kills % 200 == 0:
            print(f"{seconds:8.0f} s  {account.kills} kills", end=end, file=sys.stderr, flush=True)

    try:
        account = run(
            place,
            options.seconds or options.hours * 3600,
            paths=options.paths or None,
            settings={"sync": options.sync},
            progress=progress,
            seed=options.seed,
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(account)
    return 1 if account.wrong else 0

"""Run producers, consumers, purgers and a killer for a given time, then compare what was put, delivered and left.

Each worker logs what the queue promised to its own file, one write per line, so that a SIGKILL tears nothing. At the
end the queues are read without the library, then drained with it, and both are compared with the logs.

The real dirq adds, locks, gets and removes in the shared queues. It does not purge, because its purge removes what
others are writing. Locks are valid for 600 seconds, as in dirq itself: it locks first and sets the time of the lock
later, so with short leases a fresh lock of dirq could look like an old one.
"""

import os
import random
import signal
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import dirqueue
from lab.census import Census, expire

ROLES = ("producer", "producer", "consumer", "consumer", "purger")
PEERS = ("dirq_producer", "dirq_consumer")
WORDS = ("trying", "put", "got", "acking", "acked", "lost", "raised")
SHORT = {"sync": False, "lease": 1.0, "margin": 0.2, "stale": 5.0}
#: The lock times of the real dirq.
SHARED = {**SHORT, "lease": 600.0, "stale": 60.0}


@dataclass
class Site:
    """One queue: its paths, one per host, and its settings."""

    paths: list
    layout: str = "native"
    settings: dict = field(default_factory=dict)
    dirq: bool = False
    #: Bodies are filled up to one of these lengths, with what is easily damaged; none: they are not.
    lengths: tuple = ()

    def open(self, host=0):
        more = {"max_attempts": 0} if self.layout == "native" else {}
        settings = {**(SHARED if self.dirq else SHORT), **more, **self.settings}
        return dirqueue.Queue(self.paths[host % len(self.paths)], layout=self.layout, **settings)

    def dressed(self, name, dice):
        """Return a body that begins with a name, of one of the lengths, perhaps with a NUL or not UTF-8.

        Logs have one body in a line, so there is no newline in it.
        """
        if not self.lengths:
            return name
        body = name + b" " + dice.choice((b"\xff\xfe", b":", b"/../etc/passwd ", b"\0"))
        return body.ljust(dice.choice(self.lengths), b"x")


def every_layout(place, *, dirq=True, **settings):
    """Return a queue of each layout, and two shared with the real dirq."""
    sites = [
        Site([str(Path(place, layout))], layout, settings)
        for layout in ("native", "vsqs", "dirq-simple", "dirq-normal")
    ]
    for layout in ("dirq-simple", "dirq-normal") if dirq else ():
        sites.append(Site([str(Path(place, f"{layout}-shared"))], layout, settings, dirq=True))
    return sites


@dataclass
class Account:
    """The totals and the violations of a soak."""

    seconds: float = 0.0
    kills: int = 0
    put: int = 0
    acked: int = 0
    delivered: int = 0
    by_dirq: int = 0
    wrong: list = field(default_factory=list)

    def __str__(self):
        verdict = "0 violations" if not self.wrong else f"{len(self.wrong)} VIOLATIONS: {self.wrong[:5]}"
        return (
            f"{self.seconds:.0f} s, {self.kills} kills, {self.put} put, {self.delivered} delivered, "
            f"{self.acked} acknowledged, {self.by_dirq} of that by dirq 1.8, {verdict}"
        )

    def __add__(self, other):
        return Account(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


class Worker:
    """One process; its log survives when it is killed."""

    def __init__(self, sites, log, number, pace):
        self.sites = sites
        self.queues = [site.open(number) for site in sites]
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.number = number
        self.pace = pace
        self.dice = random.Random(number)
        self.stopping = False
        self.count = 0
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_):
        self.stopping = True

    def say(self, word, *bodies):
        os.write(self.log, b"".join(b"%s %s\n" % (word.encode(), body) for body in bodies))

    def choose(self):
        return self.dice.randrange(len(self.queues))

    def bodies(self, place, count):
        self.count += 1
        names = [b"%d-%d-%d-%d" % (place, self.number, self.count, each) for each in range(count)]
        return [self.sites[place].dressed(name, self.dice) for name in names]

    def producer(self):
        while not self.stopping:
            place = self.choose()
            bodies = self.bodies(place, self.dice.choice((1, 1, 1, 4)))
            self.say("trying", *bodies)
            if len(bodies) == 1:
                self.queues[place].put(bodies[0])
            else:
                self.queues[place].put_many(bodies)
            self.say("put", *bodies)
            time.sleep(self.dice.random() * self.pace)

    def consumer(self):
        while not self.stopping:
            place = self.choose()
            try:
                lease = self.queues[place].get(timeout=0.05 if len(self.queues) == 1 else 0)
            except dirqueue.Empty:
                time.sleep(self.pace / 4)
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
                    self.ack(body, lease.ack)
                else:
                    self.ack(body, lease.ack)
            except dirqueue.LeaseLost:
                self.say("lost", body)

    def ack(self, body, verb):
        self.say("acking", body)
        verb()
        self.say("acked", body)

    def purger(self):
        while not self.stopping:
            for queue in self.queues:
                queue.purge()
            time.sleep(0.1)

    # --- real dirq -----------------------------------------------------------------------------------------

    def _dirq(self):
        """Return (place, queue) of the shared queues, as objects of dirq."""
        warnings.simplefilter("ignore")  # dirq is old
        from dirq.queue import Queue
        from dirq.QueueSimple import QueueSimple

        shared = [(place, site) for place, site in enumerate(self.sites) if site.dirq]
        return [
            (
                place,
                QueueSimple(path) if site.layout == "dirq-simple" else Queue(path, schema={"body": "binary"}),
            )
            for place, site in shared
            for path in site.paths[:1]
        ]

    def dirq_producer(self):
        shared = self._dirq()
        while not self.stopping:
            place, queue = self.dice.choice(shared)
            (body,) = self.bodies(place, 1)
            self.say("trying", body)
            try:
                queue.add(body if self.sites[place].layout == "dirq-simple" else {"body": body})
            except OSError:
                continue  # its directory was removed at that moment: add raises, and nothing was promised
            self.say("put", body)
            time.sleep(self.dice.random() * self.pace)

    def dirq_consumer(self):
        shared = self._dirq()
        while not self.stopping:
            _, queue = self.dice.choice(shared)
            try:
                name = queue.first()
                while name and not queue.lock(name):
                    name = queue.next()
                if not name:
                    time.sleep(self.pace)
                    continue
                data = queue.get(name)
            except OSError:
                continue  # another client was faster, where dirq does not expect it
            body = data if isinstance(data, bytes) else data["body"]
            self.say("got", body)
            self.ack(body, lambda queue=queue, name=name: queue.remove(name))


def run(place, seconds, *, sites=None, progress=None, pace=0.004, seed=0):
    """Run for `seconds`; return the account. `progress(seconds, account)` is called after each kill."""
    place = Path(place)
    sites = [Site([str(place / "queue")])] if sites is None else sites
    logs = place / "logs"
    logs.mkdir(parents=True)
    dice = random.Random(seed)
    account = Account()
    ledger = Ledger(logs)
    workers, number = {}, 0
    start = time.monotonic()
    deadline = start + seconds
    roles = ROLES + (PEERS if any(site.dirq for site in sites) else ())
    try:
        for role in roles:
            number += 1
            workers[_fork(role, sites, logs, number, pace)] = role
        while time.monotonic() < deadline:
            time.sleep(dice.uniform(0.1, 0.5))
            victim = dice.choice(list(workers))
            os.kill(victim, signal.SIGKILL)
            _, status = os.waitpid(victim, 0)
            role = workers.pop(victim)
            if not os.WIFSIGNALED(status):
                account.wrong.append(f"a {role} ended by itself with {status}: {ledger.raised()}")
            account.kills += 1
            number += 1
            workers[_fork(role, sites, logs, number, pace)] = role
            if progress:
                ledger.read()
                account.put, account.acked = ledger.words["put"], ledger.words["acked"]
                progress(time.monotonic() - start, account)
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        for pid in workers:
            _reap(pid)
    account.seconds = time.monotonic() - start
    _settle(account, sites, logs)
    return account


class Ledger:
    """Counts the lines of the growing logs."""

    def __init__(self, logs):
        self._logs = logs
        self._read = {}
        self.words = Counter()

    def read(self):
        for log in self._logs.iterdir():
            with log.open("rb") as file:
                file.seek(self._read.get(log.name, 0))
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[log.name] = self._read.get(log.name, 0) + len(whole)
            self.words.update(line.partition(b" ")[0].decode() for line in whole.splitlines())

    def raised(self):
        text = b"".join(log.read_bytes() for log in self._logs.iterdir())
        return [line for line in text.splitlines() if line.startswith(b"raised")]


def _fork(role, sites, logs, number, pace):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        kind = "dirq" if role in PEERS else "ours"
        worker = Worker(sites, logs / f"{number}.{kind}", number, pace)
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


def _settle(account, sites, logs):
    """Read and drain the queues and compare them with the logs."""
    logged = {word: Counter() for word in WORDS}
    for log in logs.iterdir():
        for line in log.read_bytes().splitlines():
            word, _, body = line.partition(b" ")
            logged[word.decode()][body] += 1
            account.by_dirq += log.suffix == ".dirq" and word == b"acked"
    account.put, account.delivered = sum(logged["put"].values()), sum(logged["got"].values())
    account.acked = sum(logged["acked"].values())
    account.wrong += [f"raised: {text.decode()}" for text in logged["raised"]]
    account.wrong += [f"acked twice: {body!r}" for body, times in logged["acked"].items() if times > 1]
    account.wrong += [f"unknown: {body!r}" for body in logged["got"] if body not in logged["trying"]]
    for place, site in enumerate(sites):
        mine = {word: [body for body in logged[word] if body.startswith(b"%d-" % place)] for word in WORDS}
        account.wrong += [f"{site.layout}: {each}" for each in _settle_one(site, mine)]


def _settle_one(site, logged):
    if not os.path.isdir(site.paths[0]):
        return [f"lost: {body!r}" for body in logged["put"]]
    census = Census(site.paths[0], site.layout)
    wrong = census.complaints(
        known=set(logged["trying"]),
        promised=logged["put"],
        acked=logged["acked"],
        maybe_acked=logged["acking"],
    )
    expire(site.paths[0])
    left = Counter()
    with site.open() as queue:
        while sum(left.values()) < len(census.waiting):
            try:
                lease = queue.get(timeout=10.0)
            except dirqueue.Empty:
                break
            left[lease.message.body] += 1
            lease.ack()
    wrong += [f"left {times} times: {body!r}" for body, times in left.items() if times > 1]
    wrong += [f"not delivered: {body!r}" for body in set(census.waiting) - set(left)]
    return wrong

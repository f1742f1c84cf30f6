"""A stream with producers, plain consumers and a purger beside it, whose processes are killed at random.

Run as a program it is the driver: QUEUE OUTPUT CHECKPOINT, and `rest` to take what is there and end. Used by
tests/spark/test_faults.py and by scripts/campaign.py.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from dirqueue import Empty, LeaseLost, Queue

FORK = multiprocessing.get_context("fork")
#: Seconds that anything may take on a machine that does other things too.
PATIENCE = 900.0
#: Producers wait while so many messages lie there.
BACKLOG = 200
#: What is killed: the driver with all below it, its JVM alone, the process that pins, or one that runs tasks.
VICTIMS = ("driver", "jvm", "source", "worker")
#: A part of the command line of each.
MARKS = {"jvm": b"SparkSubmit", "source": b"streaming_source_runner", "worker": b"pyspark.daemon"}


class Account(NamedTuple):
    """What one run did."""

    put: int
    #: By plain consumers.
    acked: int
    #: Victims, in order.
    kills: list[str]
    drivers: int
    wrong: list[str]


def dead(pid):
    """Return whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def family(top):
    """Return the processes below this one, with their command lines."""
    parents = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with contextlib.suppress(OSError):
                parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
                parents[int(each.name)] = (parent, (each / "cmdline").read_bytes())
    mine = {top}
    while more := {pid for pid, (parent, _) in parents.items() if parent in mine and pid not in mine}:
        mine |= more
    return {pid: parents[pid][1] for pid in mine - {top} if pid in parents}


def kill(pids):
    """Kill these processes and wait until they are dead."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while not all(map(dead, pids)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes that were killed live on: {pids}")
        time.sleep(0.01)


# --- those beside the stream -----------------------------------------------------------------------------------


def produce(path, log, seed, over):
    """Put one, many, short and long ones, some of them late, until it is over; log what was put."""
    rng, number = random.Random(seed), 0
    queue = Queue(path, links=bool(seed % 2))
    with open(log, "w", encoding="ascii") as told:
        while not over.is_set():
            if len(queue) > BACKLOG:
                over.wait(0.2)
                continue
            some = [b"%d-%d" % (seed, number + each) for each in range(rng.choice((1, 1, 1, 5, 60)))]
            number += len(some)
            delay = rng.choice((0, 0, 0, 0.5))
            if len(some) == 1:
                queue.put(some[0], delay=delay)
            else:
                queue.put_many(some, delay=delay)
            told.writelines(f"{body.decode()}\n" for body in some)
            over.wait(rng.uniform(0.0, 0.3))


def consume(path, log, seed, over):
    """Take and acknowledge messages one by one, slowly enough that the stream gets most; log what was acknowledged."""
    rng, queue = random.Random(seed), Queue(path)
    with open(log, "w", encoding="ascii") as told:
        while not over.is_set():
            with contextlib.suppress(Empty):
                for lease in queue.get_many(rng.choice((1, 3)), timeout=0.2):
                    with contextlib.suppress(LeaseLost):
                        lease.ack()
                        told.write(f"{lease.message.body.decode()}\n")
            over.wait(rng.uniform(0.0, 4.0))


def purge(paths, _log, _seed, over):
    """Purge both queues again and again."""
    while not over.wait(0.2):
        for path in paths:
            Queue(path).purge()


class Beside:
    """The processes beside the stream."""

    def __init__(self, place, source, out, seed):
        self._over, self._place = FORK.Event(), place
        self.put = [place / f"put-{each}" for each in range(2)]
        self.acked = [place / f"acked-{each}" for each in range(2)]
        wanted = [(produce, source, log) for log in self.put]
        wanted += [(consume, source, log) for log in self.acked]
        wanted.append((purge, (source, out), ""))
        self._running = [
            FORK.Process(target=do, name=do.__name__, args=(path, str(log), seed * 10 + each, self._over))
            for each, (do, path, log) in enumerate(wanted)
        ]
        for process in self._running:
            process.start()

    def end(self):
        """Tell all that it is over; return what went wrong."""
        self._over.set()
        for process in self._running:
            process.join(PATIENCE)
        failed = [process for process in self._running if process.exitcode != 0]
        for process in failed:
            if process.exitcode is None:
                process.kill()
                process.join()
        return [f"{process.name} ended with {process.exitcode}" for process in failed]


def logged(logs):
    """Return the lines of these logs."""
    return [line for log in logs for line in log.read_text().splitlines()]


# --- the stream ------------------------------------------------------------------------------------------------


class Stream:
    """The driver of the stream, started again whenever it is dead."""

    def __init__(self, place, source, out):
        self._words = [source, out, str(place / "memory")]
        self._log = place / "log"
        self._process = None
        self.drivers = 0

    def start(self, *more):
        """Start a driver unless one is running."""
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self.drivers += 1
            env = os.environ | {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
            with self._log.open("a") as log:
                self._process = subprocess.Popen(
                    [sys.executable, __file__, *self._words, *more], stdout=log, stderr=log, env=env
                )

    def victims(self, kind):
        """Return the processes of a kind."""
        below = family(self._process.pid)
        if kind == "driver":
            return [self._process.pid, *below]
        return [pid for pid, line in below.items() if MARKS[kind] in line]

    def wait(self, kind):
        """Wait until there is a victim, starting drivers that have ended."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self.start()
            # A driver is at work when something pins for it.
            if self.victims("source") and (found := self.victims(kind)):
                return found
            time.sleep(0.1)
        raise TimeoutError(f"no {kind} came up: {self._log.read_text()[-2000:]}")

    def stop(self):
        """Kill the driver and all below it."""
        if self._process is not None:
            kill(self.victims("driver"))
            self._process.wait()

    def rest(self):
        """Take what is there, and end. Return whether that worked."""
        self.stop()
        self.start("rest")
        try:
            return self._process.wait(PATIENCE) == 0
        finally:
            self.stop()

    def words(self):
        """Return the end of the log."""
        return self._log.read_text()[-2000:]


def run(place, seed, kills=4):
    """Let it run until so many processes are killed, then to the end; return what happened."""
    rng = random.Random(seed)
    place.mkdir(parents=True)
    source, out = str(place / "in"), str(place / "out")
    for path in (source, out):
        Queue.create(path, stale=2.0, margin=0.5, sync=False).close()
    beside, stream, killed, wrong = Beside(place, source, out, seed), Stream(place, source, out), [], []
    try:
        for _ in range(kills):
            kind = rng.choice(VICTIMS)
            stream.wait(kind)
            time.sleep(rng.uniform(0.0, 3.0))
            kill(stream.victims(kind)[-1:] if kind == "worker" else stream.victims(kind))
            killed.append(kind)
    finally:
        wrong += beside.end()
        stream.stop()
    deadline = time.monotonic() + PATIENCE
    while Queue(source).stats().total and time.monotonic() < deadline:
        if not stream.rest():
            wrong.append(f"the last driver failed: {stream.words()}")
            break
    put, acked = logged(beside.put), logged(beside.acked)
    arrived = [message.body.decode() for message in Queue(out).peek()]
    wrong += differences(Counter(put), Counter(arrived + acked), stream)
    return Account(len(put), len(acked), killed, stream.drivers, wrong)


def differences(wanted, found, stream):
    """Return a line for each message that is not there once."""
    wrong = [f"{body}: {found[body]} times" for body in wanted | found if wanted[body] != found[body]]
    return [f"{len(wrong)} messages, e.g. {wrong[:3]}; {stream.words()}"] if wrong else []


def main():
    import dirqueue.spark

    queue, output, memory, *rest = sys.argv[1:]
    spark = dirqueue.spark.session("local[2,8]")  # a task is tried eight times
    frame = (
        spark.readStream.format("dirqueue").option("maxMessagesPerTrigger", 400 if rest else 100).load(queue)
    )
    writer = frame.select("value").writeStream.format("dirqueue").option("checkpointLocation", memory)
    when = {"availableNow": True} if rest else {"processingTime": "100 milliseconds"}
    writer.trigger(**when).start(output).awaitTermination()


if __name__ == "__main__":
    main()

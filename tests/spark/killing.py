"""A data source that kills the driver, its JVM and itself with SIGKILL at one named point, once.

Run as a program it is the driver: QUEUE OUTPUT CHECKPOINT. The point is in $KILL_AT, the mark that it was reached is
made at $KILL_MARK; worker processes inherit both.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

from dirqueue.disk import fs
from dirqueue.layouts.native import pins, staged
from dirqueue.spark import stream_sink, stream_source
from dirqueue.spark.source import DefaultSource


def kill_everything():
    """Kill all processes from this one up to the driver, the highest first; the mark names them."""
    mark = Path(os.environ["KILL_MARK"])
    if mark.exists():
        return
    line, pid, top = [], os.getpid(), int(os.environ["KILL_DRIVER"])
    while pid > 1:
        line.append(pid)
        if pid == top:
            break
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    mark.write_text(" ".join(map(str, line)))
    for each in reversed(line):
        with contextlib.suppress(ProcessLookupError):  # it ended when the one above it did
            os.kill(each, signal.SIGKILL)


def on_rename(matches, *, after=False, at=1):
    """Kill at the n-th rename whose names match, before or after it is done."""
    real, seen = fs.rename, [0]

    def rename(src, dst, **kwargs):
        hit = matches(str(src), str(dst))
        seen[0] += hit
        if hit and not after and seen[0] == at:
            kill_everything()
        real(src, dst, **kwargs)
        if hit and after and seen[0] == at:
            kill_everything()

    fs.rename = rename


def before(owner, name):
    """Kill before a function is called."""
    real = getattr(owner, name)

    def wrapped(*args, **kwargs):
        kill_everything()
        return real(*args, **kwargs)

    setattr(owner, name, wrapped)


stream_sink_commit = stream_sink.commit_parts

POINTS = {
    "a directory taken whole": lambda: on_rename(lambda _, dst: dst.endswith(".part"), after=True),
    "a lot half filled": lambda: on_rename(lambda _, dst: "/1.new/" in dst and ".part/" in dst, at=7),
    "a lot full and not sealed": lambda: on_rename(lambda src, _: src.endswith("/1.new")),
    "a lot sealed and not logged": lambda: on_rename(lambda src, _: src.endswith("/1.new"), after=True),
    "parts half written": lambda: on_create(5),
    "parts written and not committed": lambda: around_commit(before=True),
    "parts moved and not recorded": lambda: around_record(before=True),
    "recorded and not visible": lambda: around_record(before=False),
    "visible and not returned": lambda: on_rename(lambda _, dst: dst.endswith(".batch"), after=True),
    "committed and not logged": lambda: around_commit(before=False),
    "logged and not acknowledged": lambda: on_rename(lambda _, dst: dst.endswith("/1.ack")),
    "acknowledged and half removed": lambda: before(pins.Pins, "finish"),
}


def on_create(at):
    real, seen = fs.create, [0]

    def create(name, *args, **kwargs):
        seen[0] += 1
        if seen[0] == at:
            kill_everything()
        real(name, *args, **kwargs)

    fs.create = create
    staged.fs.create = create


def around_record(*, before):
    real = staged._record

    def record(directory, identity, name, *more):
        if name and before:
            kill_everything()
        done = real(directory, identity, name, *more)
        if name and not before:
            kill_everything()
        return done

    staged._record = record


def around_commit(*, before):
    def commit(queue, settings, staging, messages, identity):
        rows = any(message is not None and message.count for message in messages)
        if rows and before:
            kill_everything()
        stream_sink_commit(queue, settings, staging, messages, identity)
        if rows and not before:
            kill_everything()

    stream_sink.commit_parts = commit


def arm():
    """Set the trap in this process, once."""
    point = os.environ.get("KILL_AT")
    if point and "KILL_ARMED" not in os.environ:
        os.environ["KILL_ARMED"] = "1"
        POINTS[point]()


class Killing(DefaultSource):
    """The queue, with a trap in it."""

    @classmethod
    def name(cls):
        return "killing"

    def streamReader(self, schema):
        return KillingReader(self._given, schema)

    def streamWriter(self, schema, overwrite):
        return KillingWriter(self._given, schema, overwrite=overwrite)


class KillingReader(stream_source.StreamReader):
    def latestOffset(self, start, limit):
        arm()
        return super().latestOffset(start, limit)


class KillingWriter(stream_sink.StreamWriter):
    def write(self, iterator):
        arm()
        return super().write(iterator)

    def commit(self, messages, batchId):
        arm()
        super().commit(messages, batchId)


def main():
    import dirqueue.spark

    queue, output, checkpoint = sys.argv[1:]
    os.environ["KILL_DRIVER"] = str(os.getpid())
    spark = dirqueue.spark.session("local[2]")
    import killing

    spark.dataSource.register(killing.Killing)
    frame = spark.readStream.format("killing").option("maxMessagesPerTrigger", 20).load(queue).select("value")
    writer = frame.writeStream.format("killing").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start(output).awaitTermination()


if __name__ == "__main__":
    main()

"""Spark and the queue: what one message costs, against plain Python, Spark's own file source and plain Parquet.

Usage: python benchmarks/spark.py [MESSAGES] [DIRECTORY] [ROUNDS] [KIND,...]; prints a table and one JSON object.
Runs alone: local[2], bodies of 100 bytes, no fsync. After one warm-up with few messages come the rounds; seconds are
medians, and ratios are taken within each round. CPU is that of this process and all below it. Kinds are rows, links and
records; a run without all of them has fewer ratios. Streams ask for the column value alone, as those of Parquet do.
"""

import functools
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import dirqueue.spark
from dirqueue import Queue
from dirqueue.layouts.native import attempt, staged
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.spark.living import living
from dirqueue.spark.partitions import count_pinned

BODY = "cast(lpad(cast(id AS string), 100, 'x') AS binary) AS value"
#: Records in one message.
RECORDS = 1000
ROUNDS = 3
TICK = os.sysconf("SC_CLK_TCK")


def tree_cpu():
    """Return the CPU seconds of this process and of all that it started, also of those that ended."""
    stats = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended
            stats[int(each.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / TICK)
    mine = {os.getpid()}
    while more := {pid for pid, (parent, _) in stats.items() if parent in mine and pid not in mine}:
        mine |= more
    return sum(stats[pid][1] for pid in mine)


def timed(function):
    """Return the seconds by the clock and of CPU."""
    cpu, began = tree_cpu(), time.perf_counter()
    function()
    return time.perf_counter() - began, tree_cpu() - cpu


def alone(function):
    """Return the seconds of a step of this process alone."""
    cpu, began = time.process_time(), time.perf_counter()
    function()
    return time.perf_counter() - began, time.process_time() - cpu


def put_many(path, count):
    """Put the same messages in two processes that are already running."""
    barrier = multiprocessing.Barrier(3)

    def run():
        queue = Queue(path, sync=False)
        barrier.wait()
        queue.put_many([b"x" * 100] * (count // 2))

    children = [multiprocessing.Process(target=run) for _ in range(2)]
    for child in children:
        child.start()
    barrier.wait()
    return children


def consume(path):
    """Take and acknowledge all of it in two processes."""

    def run():
        for lease in Queue(path, sync=False).consume(timeout=0):
            lease.ack()

    return [multiprocessing.Process(target=run) for _ in range(2)]


def plain(path, count):
    """Return the seconds of put_many and of consume, two processes each."""
    children = put_many(path, count)
    put = timed(lambda: [child.join() for child in children])
    readers = consume(path)
    return put, timed(lambda: [child.start() for child in readers] + [child.join() for child in readers])


def write(spark, path, count, **options):
    frame = spark.range(0, count, 1, 2).selectExpr(BODY)
    frame.write.format("dirqueue").mode("append").options(sync="false", **options).save(str(path))


def noop(frame):
    frame.write.format("noop").mode("overwrite").save()


def stream(frame, sink, path, memory, **options):
    writer = frame.select("value").writeStream.format(sink).option("checkpointLocation", str(memory))
    if path is not None:
        writer = writer.option("path", str(path))
    writer.options(**options).trigger(availableNow=True).start().awaitTermination()


def driver(base, count):
    """Measure what the driver alone does: publishing a staged batch, pinning, and acknowledging."""
    queue = Queue(base / "driver", sync=False)
    directory, settings = queue.layout.directory, queue.settings
    staging = staged.begin(directory)
    writer = attempt.Writer(directory, settings, staging)
    for start in range(0, count, 4096):
        writer.add([b"x" * 100] * min(4096, count - start))
    parts = writer.finish()
    publish = alone(lambda: staged.commit(directory, settings, staging, parts))
    planning = planned(queue.path)
    pins = Pins(directory, settings, "bench")
    pins.register(600.0)

    def pin_and_count():
        pins.pin(1, living(queue.layout), Limit())
        count_pinned(directory, pins.parts(1))

    pin = alone(pin_and_count)
    ack = alone(lambda: pins.ack(1))
    return {
        "driver: publish": publish,
        "driver: plan a read": planning,
        "driver: pin": pin,
        "driver: ack": ack,
    }


def planned(path):
    """Measure the planning of a batch read in a process of its own, as Spark does; its memory goes to stderr."""
    receive, send = multiprocessing.Pipe()

    def run():
        from dirqueue.spark.columns import read_schema
        from dirqueue.spark.read import Reader

        reader = Reader({"path": str(path)}, read_schema(()))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        took = alone(reader.partitions)
        send.send((took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, before))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    took, most, before = receive.recv()
    child.join()
    print(f"planning: {most >> 10} MB at most, {before >> 10} MB before", file=sys.stderr)
    return took


def rows(spark, base, count, kind, options):
    """Yield the cases of one kind: rows, rows as links, or records."""
    q, read = str(base / kind), {"records": "true"} if kind == "records" else {}
    source = spark.readStream.format("dirqueue").schema("value binary").options(**read)
    yield f"batch write, {kind}", timed(lambda: write(spark, q, count, **options))
    yield f"batch read, {kind}", timed(lambda: noop(spark.read.format("dirqueue").options(**read).load(q)))
    yield (
        f"stream to noop, {kind}",
        timed(lambda: stream(source.load(q), "noop", None, base / f"{kind}-noop")),
    )
    for sink in ("dirqueue", "parquet"):
        write(spark, q, count, **options)
        more = {"sync": "false", **options} if sink == "dirqueue" else {}
        out, memory = base / f"{kind}-{sink}", base / f"{kind}-{sink}-memory"
        name = "queue" if sink == "dirqueue" else "Parquet"
        yield (
            f"stream to {name}, {kind}",
            timed(functools.partial(stream, source.load(q), sink, out, memory, **more)),
        )
        shutil.rmtree(out)


def parquet(spark, base, count):
    """Yield plain Parquet files, which are no queue, written, read and streamed."""
    files = str(base / "files")
    yield (
        "Parquet: batch write",
        timed(lambda: spark.range(0, count, 1, 2).selectExpr(BODY).write.parquet(files)),
    )
    yield "Parquet: batch read", timed(lambda: noop(spark.read.parquet(files)))
    source = spark.readStream.schema("value binary").parquet(files)
    yield (
        "Parquet: stream to Parquet",
        timed(lambda: stream(source, "parquet", base / "copy", base / "copy-memory")),
    )


def floor(spark, base, count):
    """Yield a stream from a source in Python to a sink in Python, with no queue at all."""
    from spark_floor import Floor

    spark.dataSource.register(Floor)
    source = spark.readStream.format("floor").option("rows", count).load()
    yield "Python, no queue: stream", timed(lambda: stream(source, "floor", None, base / "floor-memory"))


KINDS = {"rows": {}, "links": {"links": "true"}, "records": {"recordsPerMessage": RECORDS}}


def run(spark, base, count, kinds):
    """Return the seconds of each case, by the clock and of CPU."""
    took = dict(
        zip(("put_many, two processes", "consume, two processes"), plain(base / "plain", count), strict=True)
    )
    for kind in kinds:
        took |= dict(rows(spark, base, count, kind, KINDS[kind]))
    took |= dict(parquet(spark, base, count))
    took |= dict(floor(spark, base, count))
    took |= driver(base, count)
    if count <= 100_000:
        write(spark, base / "q", count)
        files = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        took["binaryFile, the same directory"] = timed(lambda: noop(files.load(str(base / "q"))))
    return took


#: What is compared by the clock within one round: the seconds of the first over those of the others.
COMPARED = {
    "write_over_put_many": ("batch write, rows", "put_many, two processes"),
    "queue_to_queue_over_noop": ("stream to noop, rows", "stream to queue, rows"),
    "queue_to_queue_over_plain": (
        "stream to queue, rows",
        "put_many, two processes",
        "consume, two processes",
    ),
    "records_over_parquet": ("Parquet: stream to Parquet", "stream to queue, records"),
    "records_to_parquet_over_parquet": ("Parquet: stream to Parquet", "stream to Parquet, records"),
    "records_over_floor": ("Python, no queue: stream", "stream to queue, records"),
    "floor_over_parquet": ("Parquet: stream to Parquet", "Python, no queue: stream"),
    "read_over_binaryFile": ("binaryFile, the same directory", "batch read, rows"),
}
#: And by CPU. Acknowledged lots are removed while the next batch runs: only the end of availableNow waits for that.
COMPARED_CPU = {
    "records_over_parquet_cpu": (("Parquet: stream to Parquet",), "stream to queue, records"),
    "driver_share_of_queue_to_queue": (("driver: pin",), "stream to queue, rows"),
    "driver_share_with_acks": (("driver: pin", "driver: ack"), "stream to queue, rows"),
}


def ratios(took):
    """Return what is compared, of what this round has measured."""
    found = {
        name: took[first][0] / sum(took[each][0] for each in others)
        for name, (first, *others) in COMPARED.items()
        if {first, *others} <= took.keys()
    }
    for name, (parts, whole) in COMPARED_CPU.items():
        if {*parts, whole} <= took.keys():
            found[name] = sum(took[each][1] for each in parts) / took[whole][1]
    return found


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    parent = sys.argv[2] if len(sys.argv) > 2 else None
    wanted = int(sys.argv[3]) if len(sys.argv) > 3 else ROUNDS
    kinds = sys.argv[4].split(",") if len(sys.argv) > 4 else list(KINDS)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    # As after pip install, which compiles: else each Python that Spark starts compiles what it imports, 70 ms of CPU.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    spark = dirqueue.spark.session("local[2]", **{"spark.driver.memory": "2g"})
    rounds = []
    for size in (min(10_000, count), *[count] * wanted):
        base = Path(tempfile.mkdtemp(prefix="dirqueue-bench-", dir=parent))
        try:
            rounds.append(run(spark, base, size, kinds))
        finally:
            shutil.rmtree(base)
    spark.stop()
    rounds = rounds[1:]
    took = {name: statistics.median(each[name][0] for each in rounds) for name in rounds[0]}
    cpu = {name: statistics.median(each[name][1] for each in rounds) for name in rounds[0]}
    print(f"{count} rows of 100 bytes, {len(rounds)} rounds: medians; the slowest and the fastest round")
    for name, seconds in took.items():
        each = [one[name][0] for one in rounds]
        spread = f"{count / max(each):>9.0f} to {count / min(each):.0f}" if len(each) > 1 else ""
        print(
            f"{name:<32} {seconds:>8.2f} s {cpu[name]:>8.2f} s CPU {count / seconds:>10.0f} rows/s {spread}"
        )
    compared = [ratios(each) for each in rounds]
    print(json.dumps({
        "messages": count,
        "rounds": len(rounds),
        "seconds": {name: round(seconds, 4) for name, seconds in took.items()},
        "cpu": {name: round(seconds, 4) for name, seconds in cpu.items()},
        **{name: round(statistics.median(each[name] for each in compared), 2) for name in compared[0]},
    }))  # fmt: skip


if __name__ == "__main__":
    main()

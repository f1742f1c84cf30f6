"""Spark and the queue: what one message costs, against plain Python and Spark's own file source.

Usage: python benchmarks/spark.py [MESSAGES] [DIRECTORY]; prints a table and one JSON object.
One run: local[2], bodies of 100 bytes, no fsync, each case once after one warm-up with a tenth of the messages.
"""

import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from pathlib import Path

import dirqueue.spark
from dirqueue import Queue
from dirqueue.layouts.native import staged
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.supply import claimable

BODY = "cast(lpad(cast(id AS string), 100, 'x') AS binary) AS value"


def timed(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def split(path, count):
    """Plain put_many of the same messages, in two processes that are running already."""
    barrier = multiprocessing.Barrier(3)

    def run():
        bodies = [b"x" * 100] * (count // 2)
        queue = Queue(path, sync=False)
        barrier.wait()
        queue.put_many(bodies)

    children = [multiprocessing.Process(target=run) for _ in range(2)]
    for child in children:
        child.start()
    barrier.wait()
    return timed(lambda: [child.join() for child in children])


def write(spark, path, count):
    frame = spark.range(0, count, 1, 2).selectExpr(BODY)
    frame.write.format("dirqueue").mode("append").option("sync", "false").save(str(path))


def noop(frame):
    frame.write.format("noop").mode("overwrite").save()


def stream(spark, source, sink, memory):
    frame = spark.readStream.format("dirqueue").load(str(source)).select("value")
    if sink is None:
        writer = frame.writeStream.format("noop")
    else:
        writer = frame.writeStream.format("dirqueue").option("sync", "false").option("path", str(sink))
    writer.option("checkpointLocation", str(memory)).trigger(availableNow=True).start().awaitTermination()


def driver(base, count):
    """What the driver alone does: publishing a staged batch, and pinning."""
    queue = Queue(base / "driver", sync=False)
    directory, settings = queue.layout.directory, queue.settings
    staging = staged.begin(directory)
    writer = staged.Writer(directory, settings, staging)
    writer.add([b"x" * 100] * count)
    parts = writer.finish()
    publish = timed(lambda: staged.commit(directory, settings, staging, parts))
    pins = Pins(directory, settings, "bench")
    pins.register(600.0)
    pin = timed(lambda: pins.pin(1, claimable(directory, settings), Limit(), pieces=2))
    ack = timed(lambda: pins.ack(1))
    return {"publish": publish, "pin": pin, "ack": ack}


def run(spark, base, count):
    """Return the seconds of each case."""
    took = {"put_many, two processes": split(base / "plain", count)}
    took["batch write"] = timed(lambda: write(spark, base / "q", count))
    took["batch read"] = timed(lambda: noop(spark.read.format("dirqueue").load(str(base / "q"))))
    files = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    took["binaryFile, the same directory"] = timed(lambda: noop(files.load(str(base / "q"))))
    took["driver"] = driver(base, count)
    took["stream to noop"] = timed(lambda: stream(spark, base / "q", None, base / "memory-1"))
    write(spark, base / "q", count)
    took["stream to queue"] = timed(lambda: stream(spark, base / "q", base / "out", base / "memory-2"))
    return took


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    spark = dirqueue.spark.session("local[2]")
    parent = sys.argv[2] if len(sys.argv) > 2 else None
    for size in (max(1000, count // 10), count):
        base = Path(tempfile.mkdtemp(prefix="dirqueue-bench-", dir=parent))
        try:
            took = run(spark, base, size)
        finally:
            shutil.rmtree(base)
    spark.stop()
    for name, seconds in took.items():
        if name == "driver":
            for step, cost in seconds.items():
                print(f"driver: {step:<24} {cost * 1000:>10.1f} ms")
        else:
            print(f"{name:<32} {seconds:>8.2f} s {count / seconds:>10.0f} messages/s")
    print(json.dumps({
        "messages": count,
        "seconds": took,
        "read_over_binaryFile": round(took["binaryFile, the same directory"] / took["batch read"], 2),
        "write_over_put_many": round(took["batch write"] / took["put_many, two processes"], 2),
        "queue_to_queue_over_noop": round(took["stream to noop"] / took["stream to queue"], 2),
    }))  # fmt: skip


if __name__ == "__main__":
    main()

"""What each version of pyspark can do with a queue. Run as a program by test_versions.py: SCRATCH; prints JSON."""

import json
import sys
from pathlib import Path

from dirqueue import DirQueueError, Queue


def batches(spark, scratch):
    """Write, read, claim, work and the jobs; return the names of those that did what they should."""
    from dirqueue.spark import claim, fill, report, work

    done = []
    rows = spark.range(0, 100, 1, 2).selectExpr("cast(id AS string) AS value")
    for name, options in (
        ("rows", {}),
        ("links", {"links": "true"}),
        ("records", {"recordsPerMessage": "30"}),
    ):
        path = str(scratch / name)
        rows.write.format("dirqueue").mode("append").options(**options).save(path)
        found = spark.read.format("dirqueue").option("records", str(name == "records").lower()).load(path)
        if sorted(int(row.value.decode()) for row in found.collect()) == list(range(100)):
            done.append(name)
    with claim(spark, scratch / "rows", limit=40) as frame:
        taken = frame.count()
    done += ["claim"] * (taken == 40 and len(Queue(scratch / "rows")) == 60)
    done += ["work"] * (work(2, scratch / "rows", lambda message: None, spark=spark).done == 60)
    done += ["fill"] * (fill(spark, rows, scratch / "filled").messages == 100)
    done += ["report"] * (report(spark, scratch / "filled").total.ready == 100)
    return done


def stream(spark, scratch):
    """Stream from queue to queue; return how that went. Spark allows 10 s for a start: a busy machine needs more."""
    for _ in range(5):
        found = stream_once(spark, scratch)
        if "failed to connect back" not in found:
            break
    return found


def stream_once(spark, scratch):
    writer = (
        spark.readStream.format("dirqueue")
        .load(str(scratch / "filled"))
        .select("value")
        .writeStream.format("dirqueue")
    )
    writer = writer.option("checkpointLocation", str(scratch / "memory")).trigger(availableNow=True)
    try:
        writer.start(str(scratch / "out")).awaitTermination()
    except Exception as error:  # noqa: BLE001 - each version has errors of its own
        return next((line for line in str(error).splitlines() if "needs pyspark" in line), str(error))
    return "works" if len(Queue(scratch / "out")) == 100 else "incomplete"


def main():
    import pyspark

    scratch = Path(sys.argv[1])
    found = {"version": pyspark.__version__}
    try:
        import dirqueue.spark

        spark = dirqueue.spark.session("local[2]")
    except DirQueueError as error:
        found["refused"] = str(error)
    else:
        found |= {"batches": batches(spark, scratch), "stream": stream(spark, scratch)}
        spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()

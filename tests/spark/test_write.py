"""Writing a table to a queue: all at once, once, or not at all."""

import os

import pytest
from pyspark.sql import functions as f
from support.kit import drain, files
from support.patience import until

from dirqueue import Queue


def save(frame, path, mode="append", **options):
    frame.write.format("dirqueue").mode(mode).options(**options).save(str(path))


def bodies(path, state="ready"):
    return sorted(message.data for message in Queue(path).peek(state))


def staged(path):
    return [name for name in files(path) if ".batch.new" in name]


def test_every_row_becomes_one_message(table, queue_dir):
    """Written by two tasks, visible as one batch, claimable like any other."""
    save(table(100), queue_dir)
    assert len([name for name in os.listdir(queue_dir) if name.endswith(".batch")]) == 1
    assert sorted(drain(Queue(queue_dir))) == sorted(b"%d" % i for i in range(100))
    assert not staged(queue_dir)


def test_a_failed_job_leaves_nothing(spark, table, queue_dir):
    """Neither visible nor behind, whatever its tasks had written."""

    def fail(id):
        if id == "150":
            raise ValueError("on purpose")
        return id

    frame = table(200).select(f.udf(fail)("value").alias("value"))
    with pytest.raises(Exception, match="on purpose"):
        save(frame, queue_dir)
    assert not staged(queue_dir)
    assert bodies(queue_dir) == []
    assert not staged(queue_dir)


def test_a_task_that_is_cancelled_late_brings_nothing_back(spark, table, queue_dir, tmp_path):
    """One task fails the job while another one is in the middle of a part: all is gone, and stays so."""
    over, staged_files = tmp_path / "over", f"{queue_dir}/*.batch.new/*.part/*"

    def slow_or_failing(batches):
        import glob
        import time

        import pyarrow as pa

        def wait(condition):
            deadline = time.monotonic() + 60
            while not condition() and time.monotonic() < deadline:
                time.sleep(0.01)

        for batch in batches:
            if batch.column(0).to_pylist() == ["1"]:
                wait(lambda: glob.glob(staged_files))
                raise ValueError(f"on purpose, with {bool(glob.glob(staged_files))} staged")
            large = pa.RecordBatch.from_pydict({"value": ["x" * 100_000]})
            yield from [large] * 50  # more than the buffers on its way hold
            wait(over.exists)
            yield large

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 1)
    try:
        with pytest.raises(Exception, match="on purpose, with True staged"):
            save(table(2).mapInArrow(slow_or_failing, "value string"), queue_dir)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert not staged(queue_dir)
    over.touch()
    tracker = spark.sparkContext.statusTracker()
    until(lambda: not tracker.getActiveStageIds(), "the end of the tasks")
    assert not staged(queue_dir)
    assert bodies(queue_dir) == []


def test_a_repeated_version_is_written_once(table, queue_dir):
    """With txnAppId and txnVersion a job may be run again, also after the messages are gone."""
    for _ in range(2):
        save(table(10), queue_dir, txnAppId="nightly", txnVersion=1)
    assert len(Queue(queue_dir)) == 10
    assert len(drain(Queue(queue_dir))) == 10
    save(table(10), queue_dir, txnAppId="nightly", txnVersion=1)
    assert len(Queue(queue_dir)) == 0
    assert not staged(queue_dir)


def test_a_write_takes_bytes_priorities_and_delays(spark, queue_dir):
    """Each row may have its own priority and delay."""
    Queue.create(queue_dir, priorities=True)
    rows = [(b"\x00\xff", 7, 0.0), (b"urgent", 1, None), (b"default", None, None), (b"later", 1, 3600.0)]
    save(spark.createDataFrame(rows, "value binary, priority int, delay double").coalesce(1), queue_dir)
    assert drain(Queue(queue_dir)) == [b"urgent", b"default", b"\x00\xff"]
    assert bodies(queue_dir, "delayed") == [b"later"]


def carried_files(path):
    return [name for name in files(path) if name.startswith("attributes/") and name.count("/") == 2]


def carried(path):
    """Return the body, the attributes and the end of life of each message."""
    found = [(each.data, dict(each.attributes), each.expires_at) for each in Queue(path).peek()]
    return sorted(found, key=lambda each: each[0])


TAGGED = "value string, attributes map<string,string>, expires_at timestamp"


@pytest.mark.parametrize("options", [{}, {"recordsPerMessage": 1}, {"links": "true"}])
def test_what_a_queue_gives_can_be_written_to_another(spark, queue_dir, tmp_path, options):
    """Attributes and the end of life go from queue to queue; a row without them has none."""
    first = Queue(queue_dir, codec="records" if "recordsPerMessage" in options else "bytes", create=True)
    wrap = (lambda body: [body]) if "recordsPerMessage" in options else (lambda body: body)
    first.put(wrap(b"both"), attributes={"to": "ann", "kind": "letter"}, ttl=3600)
    first.put(wrap(b"neither"))
    first.put(wrap(b"one"), attributes={"to": "bob"})
    reader = spark.read.format("dirqueue").schema(TAGGED)
    if "recordsPerMessage" in options:
        reader = reader.option("records", "true")
    save(reader.load(str(queue_dir)), tmp_path / "second", **options)
    assert carried(tmp_path / "second") == carried(queue_dir)
    assert len(carried_files(tmp_path / "second")) == 2


def test_a_stream_takes_attributes_along(spark, queue_dir, tmp_path):
    """From queue to queue, exactly once; the second queue has them all."""
    first = Queue(queue_dir)
    for number in range(20):
        first.put(b"%d" % number, attributes={"number": str(number)}, ttl=3600 + number)
    wanted = carried(queue_dir)
    source = spark.readStream.format("dirqueue").schema(TAGGED).option("maxMessagesPerTrigger", 7)
    sink = source.load(str(queue_dir)).writeStream.format("dirqueue").trigger(availableNow=True)
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "second"))
    query.awaitTermination()
    assert carried(tmp_path / "second") == wanted


def test_rows_that_carry_the_same_share_a_message_of_records(spark, queue_dir):
    """Four rows of two kinds are two messages; a ttl counts from the write."""
    rows = [("a", {"k": "1"}, 60), ("b", {"k": "2"}, 60), ("c", {"k": "1"}, 60), ("d", {"k": "2"}, 60)]
    frame = spark.createDataFrame(rows, "value string, attributes map<string,string>, ttl int").coalesce(1)
    save(frame, queue_dir, recordsPerMessage=10)
    messages = sorted(Queue(queue_dir, codec="records").peek(), key=lambda each: each.attributes["k"])
    assert [each.body for each in messages] == [[b"a", b"c"], [b"b", b"d"]]
    assert all(0 < (each.expires_at - each.enqueued_at).total_seconds() < 61 for each in messages)


def test_a_failed_job_leaves_no_attributes(table, queue_dir):
    """Those of the task that had written its rows go too."""
    there = f"{queue_dir}/attributes/*/*"

    def fail(id):
        import glob
        import time

        if id == "150":
            deadline = time.monotonic() + 60
            while len(glob.glob(there)) < 100 and time.monotonic() < deadline:
                time.sleep(0.01)
            raise ValueError(f"on purpose, with {len(glob.glob(there))} written")
        return id

    frame = table(200).select(f.udf(fail)("value").alias("value"), f.expr("map('k', 'v') AS attributes"))
    with pytest.raises(Exception, match="on purpose, with 100 written"):
        save(frame, queue_dir)
    assert not staged(queue_dir)
    until(lambda: not carried_files(queue_dir), "the end of the attributes")


@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        ("'a' AS value, 1 AS colour", {}, "no column 'colour'"),
        ("'a' AS body", {}, "no column 'body'"),
        ("'a' AS value, map('k', 1) AS attributes", {}, "'attributes' must be map<string,string>"),
        ("'a' AS value, map('k', null::string) AS attributes", {}, "attribute 'k'=None must be text"),
        ("'a' AS value, map('', 'v') AS attributes", {}, "must be text, with a name"),
        ("'a' AS value, map('k', repeat('x', 20000)) AS attributes", {}, "too long"),
        ("'a' AS value, 'soon' AS expires_at", {}, "'expires_at' must be a timestamp"),
        ("'a' AS value, 0 AS ttl", {}, "ttl must be"),
        ("'a' AS value, 1 AS ttl, now() AS expires_at", {}, "drop one of them"),
        ("1 AS priority", {}, "needs a column value"),
        ("1 AS value", {}, "'value' must be a string or binary, not int"),
        ("'a' AS value, 'x' AS delay", {}, "'delay' must be a number"),
        ("cast(null AS string) AS value", {}, "holds a null"),
        ("'a' AS value, 3 AS priority", {}, "needs a queue with priorities"),
        ("'a' AS value, -1 AS delay", {}, "delay must be"),
        ("'a' AS value", {"colour": "red"}, "no option 'colour'"),
        ("'a' AS value", {"txnAppId": "x"}, "go together"),
        ("'a' AS value", {"txnAppId": "x", "txnVersion": "-1"}, "txnVersion must be a whole number"),
        ("'a' AS value", {"sync": "perhaps"}, "sync must be true or false"),
    ],
)
def test_a_write_with_invalid_columns_or_options_is_refused(spark, queue_dir, columns, options, text):
    """The error is raised in the driver, names the thing, and nothing is visible."""
    with pytest.raises(Exception, match=text):
        save(spark.sql(f"SELECT {columns}"), queue_dir, **options)
    assert not queue_dir.exists() or (bodies(queue_dir) == [] and not carried_files(queue_dir))


def test_a_write_with_mode_overwrite_is_refused(table, queue_dir):
    """Others may be working on what is there."""
    with pytest.raises(Exception, match="others are working on"):
        save(table(1), queue_dir, mode="overwrite")


def test_a_body_above_the_limit_of_the_queue_fails_the_job(table, queue_dir):
    """max_size and max_messages hold for Spark too."""
    Queue.create(queue_dir, max_size=2, max_messages=50)
    with pytest.raises(Exception, match="max_size=2"):
        save(table(101), queue_dir)
    with pytest.raises(Exception, match="max_messages=50"):
        save(table(60), queue_dir)
    assert bodies(queue_dir) == []
    assert not staged(queue_dir)


@pytest.mark.root
def test_a_write_to_a_file_is_refused(table, tmp_path):
    """A file where the directory should be."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(Exception, match="is a file"):
        save(table(1), tmp_path / "file")

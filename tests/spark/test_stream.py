"""Streams: pinned lots, offsets that replay, a sink that writes each batch once."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from support.kit import drain, files
from support.patience import until

from dirqueue import Queue


def start(spark, source, sink, checkpoint, *, schema=None, sink_format="dirqueue", **options):
    reader = spark.readStream.format("dirqueue").options(**options)
    if schema:
        reader = reader.schema(schema)
    writer = reader.load(str(source)).select("value").writeStream.format(sink_format)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return writer.start(str(sink)) if sink else writer.start()


def run(*arguments, **options):
    query = start(*arguments, **options)
    try:
        query.awaitTermination()
        return query.recentProgress
    finally:
        query.stop()


def test_every_message_goes_from_queue_to_queue_once(spark, tmp_path):
    """Several batches, a second run with nothing to do, a third with something new."""
    source, sink, memory = Queue(tmp_path / "in"), Queue(tmp_path / "out"), tmp_path / "memory"
    wanted = [b"%d" % i for i in range(50)]
    source.put_many(wanted)
    progress = run(spark, source.path, sink.path, memory, maxMessagesPerTrigger=20)
    assert [each["numInputRows"] for each in progress if each["numInputRows"]] == [20, 20, 10]
    backlog = [each["sources"][0]["latestOffset"] for each in progress]
    assert all("ready" in each and "oldest_s" in each for each in backlog)
    run(spark, source.path, sink.path, memory)
    source.put(b"more")
    run(spark, source.path, sink.path, memory)
    assert not [name for name in files(sink.path) if ".batch.new" in name]
    assert sorted(drain(sink)) == sorted([*wanted, b"more"])
    assert source.stats().total == 0


def test_a_stream_that_fails_leaves_nothing_and_goes_on(spark, tmp_path):
    """Nothing of the failed batch is visible or staged; the next run writes it, once."""
    source, sink, mark = Queue(tmp_path / "in"), tmp_path / "out", tmp_path / "mark"
    source.put_many([b"1", b"2"])

    def fail_once(batches):
        for batch in batches:
            if not mark.exists():
                mark.touch()
                raise ValueError("on purpose")
            yield batch

    def run_once():
        frame = spark.readStream.format("dirqueue").load(source.path).select("value")
        writer = frame.mapInArrow(fail_once, "value binary").writeStream.format("dirqueue")
        writer = writer.option("checkpointLocation", str(tmp_path / "memory")).trigger(availableNow=True)
        query = writer.start(str(sink))
        try:
            query.awaitTermination()
        finally:
            query.stop()

    with pytest.raises(Exception, match="on purpose"):
        run_once()
    assert not [name for name in files(sink) if "batch" in name]
    run_once()
    assert sorted(drain(Queue(sink))) == [b"1", b"2"]
    assert not [name for name in files(sink) if ".batch.new" in name]


def test_available_now_takes_what_was_there_at_the_start_and_ends(spark, tmp_path):
    """Whoever puts while it runs does not keep it running; the next run takes that."""
    source, seen = Queue(tmp_path / "in"), []
    source.put_many([b"1", b"2", b"3", b"4"])

    def handle(frame, _):
        seen.extend(bytes(row.value) for row in frame.collect())
        source.put(b"meanwhile")

    stream = spark.readStream.format("dirqueue").option("maxMessagesPerTrigger", 2).load(source.path)
    writer = stream.writeStream.foreachBatch(handle).option("checkpointLocation", str(tmp_path / "memory"))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    assert sorted(seen) == [b"1", b"2", b"3", b"4"]
    assert source.stats().ready >= 2


def test_trigger_once_takes_what_is_there(spark, tmp_path):
    """In its first run too."""
    source = Queue(tmp_path / "in")
    source.put_many([b"1", b"2"])
    for body in (b"1", b"3"):
        frame = spark.readStream.format("dirqueue").load(source.path).select("value")
        writer = frame.writeStream.format("dirqueue").option("checkpointLocation", str(tmp_path / "memory"))
        query = writer.trigger(once=True).start(str(tmp_path / "out"))
        try:
            query.awaitTermination()
        finally:
            query.stop()
        assert body in drain(Queue(tmp_path / "out"))
        source.put(b"3")


def test_a_stream_whose_driver_was_stopped_for_longer_than_claim_timeout_fails(spark, tmp_path):
    """SIGSTOP for its source, a purge that gives the lot back, SIGCONT: the query ends with an error that says so."""
    source = Queue.create(tmp_path / "in", margin=0.0)
    source.put_many([b"1", b"2"])

    def handle(frame, _):
        (note,) = Path(source.path).glob(".spark/pins/*/owner")
        driver = json.loads(note.read_text())["pid"]
        os.kill(driver, signal.SIGSTOP)
        try:
            until(lambda: source.purge().released, "the lot to go back")
        finally:
            os.kill(driver, signal.SIGCONT)

    stream = spark.readStream.format("dirqueue").option("claimTimeout", 2).load(source.path)
    writer = stream.writeStream.foreachBatch(handle).option("checkpointLocation", str(tmp_path / "memory"))
    query = writer.trigger(availableNow=True).start()
    try:
        with pytest.raises(Exception, match="stopped for longer than claimTimeout"):
            query.awaitTermination()
    finally:
        query.stop()
    assert drain(source) == [b"1", b"2"]


def test_a_finished_batch_that_spark_repeats_is_written_once(spark, tmp_path):
    """The commit log of the last batch is lost: the batch runs again, its identity stops it."""
    source, sink, memory = Queue(tmp_path / "in"), Queue(tmp_path / "out"), tmp_path / "memory"
    source.put_many([b"1", b"2"])
    query = start(spark, source.path, sink.path, memory)
    query.awaitTermination()
    last = max(int(path.name) for path in (memory / "commits").iterdir() if path.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (memory / "commits" / name).unlink(missing_ok=True)
    # Its lot is gone by now, as after a crash between Spark's log and the next batch; going on must be asked for.
    with pytest.raises(Exception, match="failOnDataLoss"):
        run(spark, source.path, sink.path, memory)
    run(spark, source.path, sink.path, memory, failOnDataLoss="false")
    assert sorted(drain(sink)) == [b"1", b"2"]


def test_a_stream_keeps_what_is_done_and_cuts_its_batches_by_size(spark, tmp_path):
    """AckMode keep moves what is done to done/; maxBytesPerTrigger cuts by size."""
    source, memory = Queue(tmp_path / "in"), tmp_path / "memory"
    source.put_many([b"x" * 100] * 6)
    progress = run(
        spark, source.path, None, memory, sink_format="noop", ackMode="keep", maxBytesPerTrigger=250
    )
    assert [each["numInputRows"] for each in progress if each["numInputRows"]] == [2, 2, 2]
    assert source.stats().done == 6


def test_a_checkpoint_of_another_queue_is_refused(spark, tmp_path):
    """By both names, before anything is taken."""
    Queue(tmp_path / "one").put(b"1")
    other = Queue(tmp_path / "two")
    other.put(b"2")
    run(spark, tmp_path / "one", None, tmp_path / "memory", sink_format="noop")
    with pytest.raises(Exception, match="belongs to another queue"):
        run(spark, tmp_path / "two", None, tmp_path / "memory", sink_format="noop")
    assert other.stats().ready == 1


def test_a_queue_that_vanishes_is_named(spark, tmp_path):
    """Between two runs of a stream."""
    Queue(tmp_path / "one").put(b"1")
    run(spark, tmp_path / "one", None, tmp_path / "memory", sink_format="noop")
    shutil.rmtree(tmp_path / "one")
    with pytest.raises(Exception, match="there is no queue at"):
        run(spark, tmp_path / "one", None, tmp_path / "memory", sink_format="noop")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param({"ackMode": "burn"}, "ackMode must be one of delete, keep", marks=pytest.mark.slow),
        pytest.param({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger must be", marks=pytest.mark.slow),
        pytest.param({"claimTimeout": "soon"}, "claimTimeout must be", marks=pytest.mark.slow),
        ({"startingOffsets": "earliest"}, "no option 'startingoffsets'"),
    ],
)
def test_a_wrong_option_of_a_stream_is_named(spark, tmp_path, options, text):
    """When the query starts."""
    Queue(tmp_path / "in").put(b"1")
    with pytest.raises(Exception, match=text):
        run(spark, tmp_path / "in", None, tmp_path / "memory", sink_format="noop", **options)


def test_the_offset_is_the_number_of_the_lot(spark, tmp_path):
    """What the checkpoint holds is small and readable."""
    Queue(tmp_path / "in").put(b"1")
    run(spark, tmp_path / "in", None, tmp_path / "memory", sink_format="noop")
    last = max(int(path.name) for path in (tmp_path / "memory" / "offsets").iterdir() if path.name.isdigit())
    offset = json.loads((tmp_path / "memory" / "offsets" / str(last)).read_text().splitlines()[-1])
    assert offset["lot"] == 1
    assert offset["queue"] == str(tmp_path / "in")

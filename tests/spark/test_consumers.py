"""Who speaks for a stream's checkpoint: the source itself, as Spark's driver calls it, without a JVM."""

import json
import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import MapType, StringType, StructType
from support.kit import FORK, PATIENCE, drain, files
from support.patience import until

from dirqueue import DirQueueError, Queue, QueueError
from dirqueue.layouts.native import pins, staged
from dirqueue.spark import stream_source, write
from dirqueue.spark.columns import read_schema
from dirqueue.spark.living import living
from dirqueue.spark.options import open_native
from dirqueue.spark.rows import Rows
from dirqueue.spark.stream_source import StreamReader
from dirqueue.spark.task import write_parts
from dirqueue.spark.write import BatchWriter, How, commit_parts

START = {"lot": 0}
ALL = ReadAllAvailable()


def source(queue, **options):
    return StreamReader({"path": queue.path, "numPartitions": "1", **options}, read_schema(()))


def rows(reader, start, end):
    """Return the bodies that the tasks of a batch read."""
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return sorted(body for batch in batches for body in batch.column("value").to_pylist())


def receive(pipe):
    """Return what a child sends; fail if it sends nothing."""
    assert pipe.poll(PATIENCE), "the child sent nothing"
    return pipe.recv()


def sent_by(die):
    """Run `die(pipe)` in a child that dies in it; return what it has sent."""
    here, there = FORK.Pipe(duplex=False)
    child = FORK.Process(target=die, args=(there,))
    child.start()
    sent = receive(here)
    child.join()
    return sent


@pytest.fixture
def queue(queue_dir):
    queue = Queue(queue_dir)
    queue.put_many([b"1", b"2", b"3"])
    return queue


def test_the_first_offset_holds_messages(queue):
    """Trigger.Once asks for one offset and reads up to it."""
    reader = source(queue)
    end = reader.latestOffset(START, ALL)
    assert (end["lot"], end["messages"]) == (1, 3)
    assert rows(reader, START, end) == [b"1", b"2", b"3"]


def test_a_source_that_dies_before_its_offset_is_logged_gives_its_messages_back(queue):
    """Killed after the first lot was sealed: no checkpoint knows it, and the next source on this host reads it."""

    def die():
        source(queue).latestOffset(START, ALL)
        os.kill(os.getpid(), signal.SIGKILL)

    child = FORK.Process(target=die)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert queue.stats().leased == 3
    reader = source(queue)
    reader.prepareForTriggerAvailableNow()
    assert rows(reader, START, reader.latestOffset(START, ALL)) == [b"1", b"2", b"3"]


def test_a_source_whose_offset_is_logged_keeps_its_messages(queue):
    """Killed after Spark has asked for the partitions: the checkpoint gets the messages, another source nothing."""

    def die(there):
        reader = source(queue)
        end = reader.latestOffset(START, ALL)
        reader.partitions(START, end)
        there.send(end)
        os.kill(os.getpid(), signal.SIGKILL)

    end = sent_by(die)
    assert source(queue).latestOffset(START, ALL) == START
    assert rows(source(queue), START, end) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("now", [True, False], ids=["availableNow", "endless"])
def test_a_source_that_dies_while_its_offset_is_logged_goes_on(queue, now):
    """Killed after Spark has logged the first offset and before it asked for the partitions.

    A restart prepares the trigger, reads the batch that is logged, and asks for another offset.
    """

    def die(there):
        there.send(source(queue).latestOffset(START, ALL))
        os.kill(os.getpid(), signal.SIGKILL)

    end = sent_by(die)
    reader = source(queue)
    if now:
        reader.prepareForTriggerAvailableNow()
    assert rows(reader, START, end) == [b"1", b"2", b"3"]
    assert reader.latestOffset(end, ALL) == end


def test_messages_of_a_killed_driver_come_back_to_plain_consumers(queue_dir):
    """After claimTimeout, without a purge."""
    queue = Queue.create(queue_dir, margin=0.0)
    queue.put_many([b"1", b"2"])

    def die():
        reader = source(queue, claimTimeout="0.5")
        reader.partitions(START, reader.latestOffset(START, ALL))
        os.kill(os.getpid(), signal.SIGKILL)

    child = FORK.Process(target=die)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    directory = queue.layout.directory
    (lost,) = pins.consumers(directory)
    until(lambda: pins.owner(directory, lost).until < directory.clock.now(), "the end of the timeout")
    assert queue.stats().leased == 2
    with Queue(queue_dir) as consumer:
        for body in (b"1", b"2"):
            lease = consumer.get(timeout=PATIENCE)
            assert lease.message.body == body
            lease.ack()
    assert queue.stats().total == 0


def test_a_running_stream_takes_what_lost_consumers_had_pinned(queue, monkeypatch):
    """Not only when it starts: a queue that nobody else reads needs no purge either."""
    monkeypatch.setattr(stream_source, "RELEASE_SECONDS", 0.0)
    monkeypatch.setattr(stream_source, "IDLE_TIMES", 0.0)
    monkeypatch.setattr(stream_source, "IDLE_SECONDS", 0.0)
    lost, reader = source(queue), source(queue)
    lost.partitions(START, lost.latestOffset(START, ALL))
    assert reader.latestOffset(START, ALL) == START
    os.utime(Path(queue.path, pins.PINS, lost._consumer.name, pins.OWNER), (0, 0))
    assert reader.latestOffset(START, ALL)["messages"] == 3


def test_two_queries_of_one_checkpoint_are_refused(queue):
    """The one that came first learns which process has taken over; it changes nothing any more."""
    first, second = source(queue, maxMessagesPerTrigger="1"), source(queue)
    logged = first.latestOffset(START, first.getDefaultReadLimit())
    second.partitions(START, logged)
    text = f"another query uses the same checkpoint of '{queue.path}'.*process {os.getpid()}"
    for call in (
        lambda: first.latestOffset(logged, ALL),
        lambda: first.partitions(START, logged),
        lambda: first.commit(logged),
    ):
        with pytest.raises(QueueError, match=text):
            call()
    assert rows(second, START, logged) == [b"1"]


@pytest.mark.parametrize("left", [0, 2])
def test_files_gone_from_a_sealed_lot_are_data_loss(queue, left):
    """After a restart the offset is the proof; failOnDataLoss=false reads what is left."""
    end = source(queue).latestOffset(START, ALL)
    (part,) = Path(queue.path).glob(".spark/pins/*/1/*.part")
    for path in sorted(part.iterdir())[left:]:
        path.unlink()
    with pytest.raises(QueueError, match=f"{3 - left} of 3 messages of lot 1 of '{queue.path}' disappeared"):
        source(queue).partitions(START, end)
    with pytest.warns(UserWarning, match="disappeared"):
        assert len(rows(source(queue, failOnDataLoss="false"), START, end)) == left


def test_a_file_that_goes_while_a_task_reads_is_data_loss(queue):
    """After the task has listed its part, so that nothing but the read of the body can notice it."""
    reader = source(queue)
    (partition,) = reader.partitions(START, reader.latestOffset(START, ALL))
    _, layout, entries = partition.open(sure=True)
    listed = list(entries)
    Path(queue.path, listed[0].place).unlink()
    table = Rows(read_schema(()), layout, queue.path)
    with pytest.raises(QueueError, match=f"1 message \\({listed[0].id}\\) of .* disappeared"):
        list(table.batches(listed, strict=True))
    assert sum(batch.num_rows for batch in table.batches(listed)) == 2


def test_a_source_that_was_stopped_for_longer_than_claim_timeout_fails(queue_dir):
    """SIGSTOP, a purge that gives the lot back, SIGCONT: the next step of the query is an error, not silence."""
    queue = Queue.create(queue_dir, margin=0.0)
    queue.put_many([b"1", b"2"])

    def run(there, go):
        reader = source(queue, claimTimeout="0.5")
        end = reader.latestOffset(START, ALL)
        reader.partitions(START, end)
        there.send(end)
        go.recv()
        try:
            reader.latestOffset(end, ALL)
        except DirQueueError as error:
            there.send(str(error))
        else:
            there.send("no error")

    here, there = FORK.Pipe(duplex=False)
    wait, go = FORK.Pipe(duplex=False)
    child = FORK.Process(target=run, args=(there, wait))
    child.start()
    receive(here)
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: queue.purge().released, "the lot to go back")
    os.kill(child.pid, signal.SIGCONT)
    go.send("go on")
    assert "stopped for longer than claimTimeout (0.5 s), and the messages of lot 1" in receive(here)
    child.join()
    assert drain(queue) == [b"1", b"2"]


def test_a_write_whose_first_row_is_late_keeps_its_staging(queue_dir):
    """Later than `stale`, with a purge at every look: the task renews the directory, and the batch is committed."""
    Queue.create(queue_dir, stale=8.0)
    native = open_native(str(queue_dir))
    staging = staged.begin(native.directory)
    place = Path(queue_dir, f"{staging}.batch.new")

    def late():
        seen = set()

        def renewed_for_long():
            Queue(queue_dir).purge()
            seen.add(place.stat().st_mtime_ns)
            return len(seen) > 6

        until(renewed_for_long, "renewals of the staging directory")
        yield pa.RecordBatch.from_pydict({"value": ["late"]})

    how = How({}, None, carrying=False)
    written = write_parts(str(queue_dir), how, staging, late())
    commit_parts(str(queue_dir), how, staging, [written], None)
    assert drain(Queue(queue_dir)) == [b"late"]
    assert not [name for name in files(queue_dir) if ".batch.new" in name]


def test_a_write_none_of_whose_tasks_runs_for_long_keeps_its_staging(queue_dir):
    """Before the first task, and between the last one and the commit, nothing of the job runs that could renew it."""
    Queue.create(queue_dir, stale=0.05)
    writer = BatchWriter({"path": str(queue_dir)}, StructType().add("value", "string"), overwrite=False)

    def wait_and_purge():
        time.sleep(0.1)
        return Queue(queue_dir).purge().new

    assert wait_and_purge() == 0
    written = writer.write(iter([pa.RecordBatch.from_pydict({"value": ["x"]})]))
    assert wait_and_purge() == 0
    writer.commit([written])
    assert drain(Queue(queue_dir)) == [b"x"]


def test_a_staging_of_a_dead_driver_is_purged_when_nobody_can_be_waiting_any_more(queue_dir, monkeypatch):
    """Kept for PATIENCE_SECONDS, then as long as any other that is being written."""
    monkeypatch.setattr(write, "PATIENCE_SECONDS", 0.0)
    Queue.create(queue_dir, stale=0.05)
    BatchWriter({"path": str(queue_dir)}, StructType().add("value", "string"), overwrite=False)
    until(lambda: Queue(queue_dir).purge().new == 1, "the staging directory to be stale")


def test_a_note_that_nobody_can_read_is_left_alone(queue):
    """Whatever the file holds, another consumer can start."""
    directory = queue.layout.directory
    for number, text in enumerate((b"\xff", b"[1]", b'{"provisional": true, "pid": "x"}')):
        base = Path(queue.path, pins.PINS, f"stream-{number}")
        base.mkdir(parents=True)
        (base / pins.OWNER).write_bytes(text)
    assert source(queue).latestOffset(START, ALL)["messages"] == 3
    assert len(pins.consumers(directory)) == 4


def test_a_dead_process_whose_number_is_another_s_gives_its_messages_back(queue):
    """Numbers of processes are used again; the time at which it began tells them apart."""
    lost = source(queue)
    lost.latestOffset(START, ALL)
    note = Path(queue.path, pins.PINS, lost._consumer.name, pins.OWNER)
    about = json.loads(note.read_text())
    assert (about["pid"], about["provisional"]) == (os.getpid(), True)
    assert source(queue).latestOffset(START, ALL) == START  # it is this process, which lives
    note.write_text(json.dumps(about | {"started": about["started"] - 1}))
    assert source(queue).latestOffset(START, ALL)["messages"] == 3


@pytest.mark.parametrize("keep", [False, True])
def test_a_message_whose_life_is_over_is_not_read(queue_dir, keep):
    """Not by a stream, and it ends as if a consumer had met it; one in a directory does not take the others along."""
    queue = Queue.create(queue_dir, keep_expired=keep, margin=0.0)
    queue.put_many([b"1", b"2"])
    short = queue.put(b"short", ttl=0.05)
    queue.put(b"long", ttl=3600)
    (batch,) = queue_dir.glob("*.batch")
    (found,) = (path for path in queue_dir.rglob(short) if "attributes" not in path.parts)
    found.rename(batch / short)
    time.sleep(0.1)
    reader = source(queue)
    end = reader.latestOffset(START, ALL)
    assert end["messages"] == 3
    assert rows(reader, START, end) == [b"1", b"2", b"long"]
    assert [(message.id, message.failure.error) for message in queue.peek("dead")] == [
        (short, "expired")
    ] * keep
    assert queue.stats().ready == 0


def test_a_message_that_comes_while_the_queue_is_listed_is_not_read_after_its_life(queue_dir):
    """RACE: put into a directory that was found and not listed yet, the first of the queue with an end of life."""
    queue = Queue.create(queue_dir, margin=0.0)
    queue.put(b"first")
    now = time.time_ns() // 1000
    young = queue_dir / f"{now}000000000.slice"
    young.mkdir()
    (young / f"{now}000000001").write_bytes(b"second")
    supply = living(open_native(queue.path))
    assert supply.take()[0] == ""
    short = queue.put(b"short", ttl=0.001)
    (queue_dir / short).rename(young / short)
    time.sleep(0.01)
    assert supply.take() == (f"{young.name}/", f"{now}000000001")
    assert supply.take() is None
    assert queue.stats().ready == 2


def test_attributes_and_the_end_of_life_are_columns(queue_dir):
    """Where a schema asks for them; messages without any have an empty map."""
    queue = Queue(queue_dir)
    queue.put(b"1", attributes={"kind": "order", "for": "Ann"}, ttl=3600)
    queue.put(b"2")
    texts = MapType(StringType(), StringType())
    schema = StructType().add("value", "binary").add("attributes", texts).add("expires_at", "timestamp")
    reader = StreamReader({"path": queue.path, "numPartitions": "1"}, schema)
    end = reader.latestOffset(START, ALL)
    (batch,) = [each for part in reader.partitions(START, end) for each in reader.read(part)]
    found = sorted(batch.to_pylist(), key=lambda row: row["value"])
    assert [dict(row["attributes"]) for row in found] == [{"kind": "order", "for": "Ann"}, {}]
    assert found[0]["expires_at"] is not None
    assert found[1]["expires_at"] is None

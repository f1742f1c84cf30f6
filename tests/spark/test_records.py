"""Rows packed into messages of records, and rows again."""

import pyarrow as pa
import pytest

from dirqueue import Queue
from dirqueue.records import RECORDS
from dirqueue.spark.records import Packer, unpacked
from dirqueue.spark.write import Packing


def write(frame, path, **options):
    frame.write.format("dirqueue").mode("append").options(**options).save(str(path))


def load(spark, path, **options):
    return spark.read.format("dirqueue").options(records="true", **options).load(str(path))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize(
    ("packing", "sizes"),
    [
        (Packing(4, 1000), [4, 4, 2]),
        (Packing(None, 12 + 3 * 9), [3, 3, 3, 1]),
        (Packing(2, 12 + 3 * 9), [2, 2, 2, 2, 2]),
        (Packing(None, 1), [1] * 10),
    ],
)
def test_rows_are_cut_by_number_and_by_size(kind, packing, sizes):
    """At least one record a message; what is left over waits for the next rows, wherever a batch of Arrow ends."""
    rows = [b"row-%d" % n for n in range(10)]
    for at in (0, 3, 10):
        packer = Packer(packing, 0)
        array = pa.array([b"before", *rows], kind)
        bodies = packer.add("a", array.slice(1, at)) + packer.add("a", array.slice(1 + at))
        bodies += [body for _, body in packer.rest()]
        assert [RECORDS.decode(body) for body in bodies] == [
            rows[sum(sizes[:n]) : sum(sizes[: n + 1])] for n in range(len(sizes))
        ]
        assert pa.concat_arrays(map(unpacked, bodies)).to_pylist() == rows
    assert unpacked(RECORDS.encode([])).to_pylist() == []


def test_a_queue_with_a_limit_gets_no_larger_messages():
    """And rows of different kinds share no message; too many kinds do not wait."""
    packer = Packer(Packing(None, 1000), 12 + 2 * 5)
    assert list(map(RECORDS.decode, packer.add("a", pa.array([b"1", b"2", b"3", b"4", b"5"])))) == [
        [b"1", b"2"],
        [b"3", b"4"],
    ]
    assert packer.add("b", pa.array([b"6"])) == []
    assert list(packer.rest(2)) == []
    assert [(kind, RECORDS.decode(body)) for kind, body in packer.rest(1)] == [("a", [b"5"]), ("b", [b"6"])]
    assert list(packer.rest()) == []


def test_damaged_lengths_are_not_read():
    """The checksum is right, the lengths are not."""
    from dirqueue.records import pack

    for lengths in ((3).to_bytes(4, "little"), (2**32 - 1).to_bytes(4, "little")):
        with pytest.raises(ValueError, match=r"add up|overflow|Integer value"):
            unpacked(pack(1, lengths, b"ab"))


def test_rows_are_written_as_records_and_are_rows_again(spark, table, queue_dir):
    """With the number of the record and all columns; and a message that holds no records is one row."""
    write(table(1000), queue_dir, recordsPerMessage=100, links="true")
    queue = Queue(queue_dir, codec="records")
    assert len(queue) == 10
    assert sorted(len(message.body) for message in queue.peek()) == [100] * 10
    plain = Queue(queue_dir).put(b"plain")
    frame = load(spark, queue_dir)
    assert frame.columns[:3] == ["id", "record", "value"]
    assert frame.count() == 1001
    rows = frame.collect()
    assert sorted(int(row.value.decode()) for row in rows if row.record is not None) == list(range(1000))
    assert {row.record for row in rows} == {None, *range(100)}
    assert len({row.id for row in rows}) == 11
    assert {row.size for row in rows} == {1, 2, 3, 5}
    (row,) = frame.where("record IS NULL").collect()
    assert (row.id, bytes(row.value), row.state, row.queue) == (plain, b"plain", "ready", str(queue_dir))
    text = spark.read.format("dirqueue").option("records", "true").schema("record int, value string")
    assert {row.value for row in text.load(str(queue_dir)).collect()} == {"plain", *map(str, range(1000))}


def test_records_of_one_message_have_one_priority_and_one_delay(spark, queue_dir):
    """Rows of others go to other messages."""
    Queue.create(queue_dir, priorities=True)
    rows = [(f"{n}", 1 + n % 2, 3600.0 * (n % 3 == 0)) for n in range(60)]
    frame = spark.createDataFrame(rows, "value string, priority int, delay double").coalesce(1)
    write(frame, queue_dir, recordsPerMessage=1000)
    queue = Queue(queue_dir, codec="records")
    messages = [message for state in ("ready", "delayed") for message in queue.peek(state)]
    found = {(message.priority, message.state): message.body for message in messages}
    assert len(found) == len(queue) == 4
    for (priority, state), records in found.items():
        mine = [v.encode() for v, p, d in rows if p == priority and bool(d) == (state == "delayed")]
        assert records == mine


def test_records_go_from_queue_to_queue_once(spark, table, tmp_path):
    """Read as rows, written as other records, each row once; lots count messages."""
    write(table(500), tmp_path / "in", recordsPerMessage=7)
    query = (
        spark.readStream.format("dirqueue")
        .option("records", "true")
        .option("maxMessagesPerTrigger", 30)
        .load(str(tmp_path / "in"))
        .select("value")
        .writeStream.format("dirqueue")
        .option("recordBytes", 200)
        .option("checkpointLocation", str(tmp_path / "memory"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    out = Queue(tmp_path / "out", codec="records")
    values = [int(record) for message in out.peek() for record in message.body]
    assert sorted(values) == list(range(500))
    assert max(message.size for message in out.peek()) <= 200
    assert len(Queue(tmp_path / "in")) == 0


@pytest.mark.parametrize(
    ("records", "schema", "text"),
    [
        ("true", None, "damaged: its checksum does not agree. Without the option records"),
        ("true", "value string", "a record of message .* is not UTF-8 text"),
        ("false", "record int", "the column record needs option"),
    ],
)
def test_records_that_cannot_be_read_are_named(spark, queue_dir, records, schema, text):
    """With the message and the way out."""
    queue = Queue(queue_dir)
    queue.put(RECORDS.encode([b"1", b"\xff"]))
    if schema is None:
        queue.put(RECORDS.encode([b"2"])[:-1] + b"?")
    reader = spark.read.format("dirqueue").option("records", records)
    with pytest.raises(Exception, match=text):
        (reader if schema is None else reader.schema(schema)).load(str(queue_dir)).collect()


def test_jobs_understand_records(spark, tmp_path):
    """A fill packs rows, a report counts them, a drain writes them, a replay chooses by one of them."""
    from dirqueue.spark import drain, fill, replay, report

    path = tmp_path / "q"
    numbers = spark.range(0, 90, 1, 1).selectExpr("cast(id AS string) AS value")
    assert fill(spark, numbers, path, records=30).messages == 90
    queue = Queue(path, codec="records", max_attempts=1)
    for lease in queue.get_many(3):
        lease.reject("all of them")
    assert replay(spark, path, "value = '5' OR value = '7'", records=True, dry_run=True).matched == 1
    done = replay(spark, path, "value = '5' OR (value = '77' AND record = 17)", records=True)
    assert (done.matched, done.redriven) == (2, 2)
    assert [(line.ready, line.dead, line.records) for line in report(spark, path, records=True).lines] == [
        (2, 1, 60)
    ]
    assert report(spark, path).total.records is None
    drained = drain(spark, path, tmp_path / "out", format="json", records=True)
    assert (drained.messages, drained.left) == (60, 0)
    rows = spark.read.json(str(tmp_path / "out")).collect()
    assert sorted(int(row.value) for row in rows) == [*range(30), *range(60, 90)]
    assert sorted({row.record for row in rows}) == list(range(30))


def test_a_report_keeps_a_bounded_number_of_reasons(queue_dir, monkeypatch):
    """However many there are: the rest is counted together."""
    import json

    from dirqueue.spark.jobs import report as module

    monkeypatch.setattr(module, "REASONS", 3)
    queue = Queue(queue_dir)
    queue.put_many([b"x"] * 10)
    for number, lease in enumerate(queue.get_many(10)):
        lease.reject(f"reason {number % 9}")
    (line,) = module._count(str(queue_dir), records=False)
    failures = json.loads(line[-2])
    assert len(failures) == 4
    assert failures[module.OTHER] == sum(failures.values()) - sum(list(failures.values())[:3])
    assert sum(failures.values()) == 10

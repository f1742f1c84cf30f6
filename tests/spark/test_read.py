"""Reading queues as a table: a snapshot that takes nothing."""

from datetime import UTC, datetime

import pytest

from dirqueue import Queue


def load(spark, *paths, **options):
    reader = spark.read.format("dirqueue").options(**options)
    return reader.load(str(paths[0]) if len(paths) == 1 else [str(path) for path in paths])


@pytest.fixture
def queue(queue_dir):
    """A queue with a message in each state."""
    queue = Queue.create(queue_dir, keep_done=True, priorities=True)
    for body in (b"done", b"dead", b"leased"):
        queue.put(body, priority=1)
    leases = queue.get_many(3, lease=600)
    leases[0].ack()
    leases[1].reject("bad input")
    queue.put(b"delayed", delay=3600)
    queue.put(b"ready", priority=3)
    return queue


def test_a_row_holds_what_the_name_holds(spark, queue):
    """id, value, enqueued_at, attempts, priority, size, state, queue; and the message is still there."""
    (row,) = load(spark, queue.path).collect()
    (message,) = queue.peek()
    assert (row.id, bytes(row.value), row.attempts, row.priority, row.size, row.state, row.queue) == (
        message.id, b"ready", 0, 3, 5, "ready", queue.path,
    )  # fmt: skip
    assert abs(row.enqueued_at.astimezone(UTC) - datetime.now(UTC)).total_seconds() < 3600
    assert len(queue) == 3


@pytest.mark.parametrize("state", ["ready", "delayed", "leased", "dead", "done"])
def test_each_state_can_be_read(spark, queue, state):
    """The option `state` chooses."""
    assert [bytes(row.value) for row in load(spark, queue.path, state=state).collect()] == [state.encode()]


def test_a_schema_chooses_columns_of_several_states(spark, queue):
    """A schema leaves columns out, gives text instead of bytes, and adds error, token and until."""
    reader = spark.read.format("dirqueue").option("state", "all")
    rows = reader.schema("value string, error string, state string").load(queue.path).collect()
    assert {row.value for row in rows} == {"ready", "delayed", "leased", "dead", "done"}
    assert {row.error for row in rows} == {None, "bad input"}
    names_only = reader.schema("id string, state string, size long").load(queue.path)
    assert names_only.count() == 5


def test_many_queues_are_one_table(spark, tmp_path):
    """Several paths, or the queues that match a pattern; the column `queue` tells them apart."""
    for name in ("a", "b", "c"):
        Queue(tmp_path / "spool" / name).put(name)
    (tmp_path / "spool/logs").mkdir()
    (tmp_path / "spool/logs/today.log").write_text("not ours")
    every = load(spark, tmp_path / "spool" / "*")
    assert sorted(row.queue[-1] + row.value.decode() for row in every.collect()) == ["aa", "bb", "cc"]
    assert load(spark, tmp_path / "spool" / "a", tmp_path / "spool" / "c").count() == 2


def test_a_read_is_spread_over_tasks(spark, queue_dir):
    """NumPartitions says over how many, and every message is in one of them."""
    Queue(queue_dir).put_many([b"x"] * 300)
    frame = load(spark, queue_dir, numPartitions=3)
    assert frame.rdd.getNumPartitions() == 3
    assert frame.select("id").distinct().count() == 300


def test_a_message_taken_meanwhile_is_left_out(spark, queue_dir):
    """The snapshot is of names; a body that is gone when it is read is no row, and no error."""
    queue = Queue(queue_dir)
    queue.put_many([b"1", b"2", b"3"])
    frame = load(spark, queue_dir)
    assert frame.count() == 3
    queue.get().ack()
    assert sorted(bytes(row.value) for row in frame.collect()) == [b"2", b"3"]


def test_a_frame_used_twice_with_two_filters_is_right_twice(spark, queue):
    """No filter is pushed down: Spark would keep the last one for both."""
    frame = load(spark, queue.path, state="all")
    assert frame.where("state = 'dead'").count() == 1
    assert frame.where("state = 'done'").count() == 1
    assert frame.count() == 5


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"state": "asleep"}, "option state must be"),
        ({"numPartitions": "many"}, "numPartitions must be a whole number"),
        ({"colour": "red"}, "no option 'colour'"),
    ],
)
def test_a_wrong_option_is_named(spark, queue_dir, options, text):
    """In the driver, when the read is planned."""
    Queue(queue_dir).put(b"x")
    with pytest.raises(Exception, match=text):
        load(spark, queue_dir, **options).collect()


@pytest.mark.parametrize(
    ("schema", "text"),
    [("colour string", "no column 'colour'"), ("value int", "'value' is binary or string")],
)
def test_a_wrong_column_is_named(spark, queue_dir, schema, text):
    """And the columns that there are."""
    Queue(queue_dir).put(b"x")
    with pytest.raises(Exception, match=text):
        spark.read.format("dirqueue").schema(schema).load(str(queue_dir)).collect()


def test_a_body_that_is_not_text_is_named(spark, queue_dir):
    """Read as a string: the error has the id of the message and the way out."""
    queue = Queue(queue_dir)
    queue.put(b"text")
    id = queue.put(b"\xff\xfe")
    reader = spark.read.format("dirqueue")
    with pytest.raises(
        Exception, match=f"the value of message {id} in .* is not UTF-8 text: read value as binary"
    ):
        reader.schema("id string, value string").load(str(queue_dir)).collect()
    assert len(reader.schema("value binary").load(str(queue_dir)).collect()) == 2


def test_a_path_may_be_a_file_url_and_nothing_else(spark, queue_dir, monkeypatch):
    """file:/ is what Spark's own sources take; hdfs:// would have to be mounted, and the error says so."""
    Queue(queue_dir).put(b"x")
    for prefix in ("file:", "file://"):
        assert load(spark, f"{prefix}{queue_dir}").count() == 1
    with pytest.raises(Exception, match="'hdfs://host/q' is not a directory: mount hdfs, and give the path"):
        load(spark, "hdfs://host/q").collect()
    frame = spark.sql("SELECT 'y' AS value")
    frame.write.format("dirqueue").mode("append").save(f"file://{queue_dir}")
    assert len(Queue(queue_dir)) == 2
    with pytest.raises(Exception, match="'s3a://bucket/q' is not a directory: mount s3a"):
        frame.write.format("dirqueue").mode("append").save("s3a://bucket/q")


def test_a_missing_queue_is_named(spark, tmp_path):
    """A path or a pattern that finds nothing."""
    for name in ("nowhere", "no*where"):
        with pytest.raises(Exception, match="there is no queue at"):
            load(spark, tmp_path / name).collect()

"""What people do with Spark around a queue: JSON bodies, foreachBatch, a trigger by time; and which Spark it takes."""

import pytest
from support.kit import wait_until

from dirqueue import Queue, SettingsError
from dirqueue.spark.versions import BATCHES, STREAMS, check_version


def test_json_bodies_are_columns(spark, queue_dir):
    """from_json with a schema; a body that is no such JSON is nulls, kept beside, and stops nothing."""
    from pyspark.sql import functions as f

    queue = Queue(queue_dir, codec="json")
    queue.put({"item": "lamp", "price": 10.5})
    queue.put({"item": "bulb", "price": 1.5, "more": [1, 2]})
    Queue(queue_dir).put(b"not JSON")
    frame = spark.read.format("dirqueue").load(str(queue_dir))
    order = f.from_json(f.col("value").cast("string"), "item string, price double")
    parsed = frame.withColumn("order", order).select("id", "order.*", "value")
    assert sorted((row.item, row.price) for row in parsed.where("item IS NOT NULL").collect()) == [
        ("bulb", 1.5),
        ("lamp", 10.5),
    ]
    assert [bytes(row.value) for row in parsed.where("item IS NULL").collect()] == [b"not JSON"]
    (kind,) = spark.range(1).select(f.schema_of_json(f.lit('{"item": "lamp", "price": 10.5}'))).first()
    assert kind == "STRUCT<item: STRING, price: DOUBLE>"


def test_a_stream_by_time_with_a_function_for_each_batch(spark, tmp_path):
    """It may use the batch twice; a trigger that finds nothing makes no batch."""
    queue = Queue(tmp_path / "in")
    queue.put_many([b"%d" % n for n in range(100)])
    seen, batches = [], []

    def each(frame, batch):
        batches.append((batch, frame.count()))
        seen.extend(int(bytes(row.value)) for row in frame.collect())

    query = (
        spark.readStream.format("dirqueue")
        .option("maxMessagesPerTrigger", 60)
        .load(queue.path)
        .writeStream.foreachBatch(each)
        .option("checkpointLocation", str(tmp_path / "memory"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
        queue.put(b"100")
        wait_until(lambda: len(seen) > 100, "the late message")
    finally:
        query.stop()
    assert sorted(seen) == list(range(101))
    assert [count for _, count in batches if count] == [60, 40, 1]
    assert [batch for batch, _ in batches] == sorted({batch for batch, _ in batches})


def test_an_old_pyspark_is_refused_in_one_sentence(monkeypatch):
    """Which one it is, which one it takes, and how to get it."""
    import pyspark

    for version, needed, refused in (
        ("3.5.1", BATCHES, True),
        ("4.0.0", BATCHES, False),
        ("4.1.4", STREAMS, True),
        ("4.2.0.dev1", STREAMS, False),
        ("4.10.0", STREAMS, False),
    ):
        monkeypatch.setattr(pyspark, "__version__", version)
        if refused:
            with pytest.raises(SettingsError, match=f"and this is {version}: pip install 'pyspark>=4.2,<5'"):
                check_version(needed, "this")
        else:
            check_version(needed, "this")

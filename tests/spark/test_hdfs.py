"""Spark on an imitation of HDFS behind fuse, mounted twice: no links, old attributes, late closes."""

import pytest
from lab import hdfsfs

import dirqueue.spark
from dirqueue import Queue

pytestmark = [pytest.mark.needs("fuse"), pytest.mark.slow]
BODY = "all of it " * 20


@pytest.fixture
def hosts(tmp_path):
    """One directory, mounted twice; attributes and names may be a minute old."""
    source = tmp_path / "source"
    source.mkdir()
    with hdfsfs.mounted(source, tmp_path / "one") as one, hdfsfs.mounted(source, tmp_path / "two") as two:
        yield one, two


def bodies(rows):
    return sorted(bytes(row.value).decode() for row in rows)


def test_a_table_written_on_one_host_is_read_and_claimed_on_another(spark, hosts):
    """Each message is there once and whole; claimed there, it is gone here; a repeated version adds nothing."""
    one, two = (str(host / "q") for host in hosts)
    frame = spark.range(0, 60, 1, 2).selectExpr(f"concat(id, ' {BODY}') AS value")
    wanted = sorted(f"{number} {BODY}" for number in range(60))
    for path in (one, two):
        writer = frame.write.format("dirqueue").mode("append")
        writer.option("txnAppId", "app").option("txnVersion", 1).save(path)
    assert bodies(spark.read.format("dirqueue").load(two).collect()) == wanted
    with dirqueue.spark.claim(spark, two, limit=40) as some:
        first = bodies(some.collect())
        assert len(first) == 40
        assert Queue(one).stats().ready == 20
    with dirqueue.spark.claim(spark, one) as rest:
        assert sorted(first + bodies(rest.collect())) == wanted
    assert Queue(two).stats().total == 0


def test_a_stream_runs_from_queue_to_queue_across_hosts(spark, hosts, tmp_path):
    """The source on one mount, the sink on the other, put to from both: each message arrives once and whole."""
    source, sink = str(hosts[0] / "in"), str(hosts[1] / "out")
    wanted = [f"{number} {BODY}" for number in range(40)]
    for run, host in enumerate(hosts):
        Queue(host / "in").put_many(body.encode() for body in wanted[run * 20 : run * 20 + 20])
        frame = spark.readStream.format("dirqueue").option("maxMessagesPerTrigger", 15).load(source)
        writer = frame.select("value").writeStream.format("dirqueue")
        writer = writer.option("checkpointLocation", str(tmp_path / "memory")).trigger(availableNow=True)
        query = writer.start(sink)
        try:
            query.awaitTermination()
        finally:
            query.stop()
    out = Queue(hosts[0] / "out")
    assert sorted(message.data.decode() for message in out.peek()) == sorted(wanted)
    assert Queue(source).stats().total == 0

"""Processes killed at random beside others that use the queue, and a disk that is full in mid-write."""

import contextlib
import subprocess

import pytest
from lab import stream_faults
from support.kit import drain, files

from dirqueue import Queue

#: Runs of the short version; scripts/campaign.py has more of the same.
SEEDS = (1,)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_each_message_arrives_once_whoever_is_killed(without_java, tmp_path, seed):
    """In the output of the stream, or acknowledged by a plain consumer: never both, never neither."""
    account = stream_faults.run(tmp_path / "run", seed, kills=2)
    assert account.wrong == []
    assert len(account.kills) == 2
    assert 0 < account.acked < account.put


@contextlib.contextmanager
def small_disk(place):
    """Mount a filesystem of one megabyte; yield its path."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M,nr_inodes=10k", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def long_rows(spark, count):
    """Return rows of a thousand bytes."""
    return spark.range(0, count, 1, 2).selectExpr("lpad(cast(id AS string), 1000, ' ') AS value")


@pytest.mark.needs("mount")
def test_a_disk_that_is_full_in_mid_write_leaves_nothing_behind(spark, tmp_path):
    """A batch fails in one sentence and takes its staging along; what was there can still be used."""
    with small_disk(tmp_path / "disk") as disk:
        queue = Queue(disk / "q")
        queue.put_many([b"first", b"second"])
        with pytest.raises(Exception, match=r"cannot put to .*the disk is full"):
            long_rows(spark, 3000).write.format("dirqueue").mode("append").save(queue.path)
        assert not [name for name in files(queue.path) if ".batch.new" in name]
        assert drain(queue) == [b"first", b"second"]
        long_rows(spark, 50).write.format("dirqueue").mode("append").save(queue.path)
        assert len(queue) == 50


@pytest.mark.needs("mount")
def test_a_stream_goes_on_when_there_is_room_again(spark, tmp_path):
    """The sink is full in mid-batch: the query fails, and its checkpoint brings each message once."""
    source = Queue(tmp_path / "in")
    source.put_many([b"%1000d" % number for number in range(400)])

    def run(out):
        frame = spark.readStream.format("dirqueue").option("maxMessagesPerTrigger", 100).load(source.path)
        writer = frame.select("value").writeStream.format("dirqueue")
        writer = writer.option("checkpointLocation", str(tmp_path / "memory"))
        writer.trigger(availableNow=True).start(out).awaitTermination()

    with small_disk(tmp_path / "disk") as disk:
        out = Queue(disk / "out")
        with pytest.raises(Exception, match="the disk is full"):
            run(out.path)
        assert 0 < len(out) < 400
        subprocess.run(["mount", "-o", "remount,size=20M", str(disk)], check=True)
        run(out.path)
        assert sorted(map(int, drain(out))) == list(range(400))
        assert source.stats().total == 0

"""An error on an executor reaches the driver: it names the queue and what to do."""

import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from spark.restricted import Restricted
from support.kit import files

import dirqueue.spark
from dirqueue import Queue


def sentence(error):
    """Return what a person would look for in the page that Spark shows."""
    (ours,) = {line for line in str(error).splitlines() if line.startswith("dirqueue.errors.")}
    return ours


def claim(spark, path):
    with dirqueue.spark.claim(spark, path):
        raise AssertionError


def work(spark, path):
    dirqueue.spark.work(1, path, print, spark=spark)


def read(spark, path, format="restricted"):
    spark.read.format(format).load(path).collect()


def write(spark, path):
    spark.sql("SELECT 'x' AS value").write.format("restricted").mode("append").save(path)


def stream(spark, path):
    frame = spark.readStream.format("restricted").load(path)
    writer = frame.writeStream.format("noop").option("checkpointLocation", f"{path}.memory")
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


@pytest.fixture
def open_dir():
    """A directory that everybody can reach, unlike pytest's."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o755)
        yield Path(path)


@pytest.mark.root
@pytest.mark.parametrize("job", [read, write, pytest.param(stream, marks=pytest.mark.slow)])
@pytest.mark.parametrize("closed", ["the queue", pytest.param("what is in it", marks=pytest.mark.slow)])
def test_a_permission_error_on_an_executor_reaches_the_driver(spark, open_dir, job, closed):
    """The driver may do everything, its tasks run as nobody: one sentence with the path, nothing left of a write."""
    queue = Queue(open_dir / "q")
    queue.put_many([b"1", b"2"])
    os.chmod(queue.path, 0o700 if closed == "the queue" else 0o755)
    for path in Path(queue.path).rglob("*"):
        os.chmod(path, 0o700)
    spark.dataSource.register(Restricted)
    with pytest.raises(Exception, match="Python") as failed:
        job(spark, queue.path)
    wanted = rf"QueueAccess: cannot .*'{queue.path}.*no permission; check owner.*\[EACCES\]"
    assert re.search(wanted, sentence(failed.value))
    assert not [name for name in files(queue.path) if ".batch.new" in name]


@pytest.mark.parametrize("job", [read, write, stream, claim, work])
def test_a_directory_of_queues_is_no_queue(spark, tmp_path, job):
    """It was read as an empty one, and a write made it a queue."""
    Queue(tmp_path / "root/orders").put(b"1")
    spark.dataSource.register(Restricted)
    with pytest.raises(
        Exception, match="is not a queue: nothing in it is dirqueue's; there is one queue below it"
    ):
        job(spark, str(tmp_path / "root"))
    assert os.listdir(tmp_path / "root") == ["orders"]


def test_a_queue_that_vanishes_before_its_messages_are_read_is_named(spark, queue_dir):
    """Between the listing in the driver and the task."""
    Queue(queue_dir).put(b"1")
    frame = spark.read.format("dirqueue").load(str(queue_dir))
    assert frame.count() == 1
    shutil.rmtree(queue_dir)
    with pytest.raises(Exception, match="Python") as failed:
        frame.collect()
    assert f"QueueNotFound: there is no queue at '{queue_dir}'" in sentence(failed.value)


def test_a_queue_that_vanishes_while_it_is_written_to_is_named(spark, table, queue_dir):
    """The job fails, and does not make the queue again."""
    path = str(queue_dir)

    def vanish(batches):
        shutil.rmtree(path, ignore_errors=True)
        yield from batches

    Queue(queue_dir).put(b"1")
    with pytest.raises(Exception, match="Python") as failed:
        table(1, 1).mapInArrow(vanish, "value string").write.format("dirqueue").mode("append").save(path)
    assert f"QueueNotFound: there is no queue at '{queue_dir}'" in sentence(failed.value)
    assert not queue_dir.exists()

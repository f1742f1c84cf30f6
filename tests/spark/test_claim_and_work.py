"""Claiming a batch for a block, and executors as workers."""

import pytest
from support.kit import drain
from support.patience import until

import dirqueue.spark
from dirqueue import LeaseLost, Queue, QueueNotFound, Reject, SettingsError
from dirqueue.layouts.native import pins


def test_a_claimed_batch_is_acknowledged_at_the_end_of_the_block(spark, queue_dir):
    """The same messages at every look, nobody else's meanwhile, gone afterwards."""
    queue = Queue(queue_dir)
    queue.put_many([b"%d" % i for i in range(10)])
    with dirqueue.spark.claim(spark, queue_dir, limit=8) as frame:
        assert frame.count() == 8
        assert frame.select("attempts", "state").distinct().collect() == [(1, "leased")]
        assert drain(queue) == [b"8", b"9"]
        assert frame.count() == 8
    assert queue.stats().total == 0
    assert pins.consumers(queue.layout.directory) == []


def test_a_claimed_batch_goes_back_on_an_exception(spark, queue_dir):
    """Uncounted, and in order."""
    queue = Queue(queue_dir)
    queue.put_many([b"1", b"2"])
    with pytest.raises(ZeroDivisionError), dirqueue.spark.claim(spark, queue_dir) as frame:
        1 // (frame.count() - 2)
    assert [message.attempts for message in queue.peek()] == [0, 0]
    assert drain(queue) == [b"1", b"2"]


def test_a_claimed_batch_cannot_be_read_after_its_block(spark, queue_dir):
    """The error says where the DataFrame works."""
    Queue(queue_dir).put(b"1")
    with dirqueue.spark.claim(spark, queue_dir) as frame:
        planned = frame.select("value")
        assert planned.count() == 1
    for late in (frame, planned):
        with pytest.raises(Exception, match="works inside its `with` block only"):
            late.collect()


def test_a_claim_of_an_empty_queue_is_an_empty_frame(spark, queue_dir):
    """No error: there is nothing to do."""
    Queue.create(queue_dir)
    with dirqueue.spark.claim(spark, queue_dir) as frame:
        assert frame.count() == 0


def test_a_claim_that_was_given_back_raises_lease_lost(spark, queue_dir):
    """A driver that was away too long learns it at the end of the block."""
    queue = Queue(queue_dir)
    queue.put(b"1")

    def give_away():
        (consumer,) = pins.consumers(queue.layout.directory)
        pins.Pins(queue.layout.directory, queue.settings, consumer).release(1)

    with pytest.raises(LeaseLost), dirqueue.spark.claim(spark, queue_dir):
        give_away()
    assert drain(queue) == [b"1"]


def signs_of_life(directory, times):
    """Return a condition that comes true when the one consumer has given so many signs of life from now on."""
    seen = set()

    def enough():
        (consumer,) = pins.consumers(directory)
        seen.add(pins.owner(directory, consumer).until)
        return len(seen) > times

    return enough


#: Signs of life in the time of four leases.
FOUR_LEASES = 16


def test_a_claim_is_renewed_while_the_job_is_longer_than_its_lease(spark, queue_dir):
    """Four leases long, with a purge at every look: the messages stay with the driver, and are acknowledged."""
    queue = Queue(queue_dir, margin=40.0)  # a stalled machine is not what is tried here
    queue.put_many([b"1", b"2"])
    with dirqueue.spark.claim(spark, queue_dir, timeout=0.4) as frame:
        enough = signs_of_life(queue.layout.directory, FOUR_LEASES)
        until(lambda: (queue.purge().released == 0) and enough(), "signs of life")
        assert frame.count() == 2
        assert drain(queue) == []
    assert queue.stats().total == 0


@pytest.mark.slow
def test_a_stream_renews_its_claims_while_a_batch_is_longer_than_its_lease(spark, tmp_path):
    """The source gives signs of life while a batch is worked on for four times claimTimeout."""
    queue, seen = Queue(tmp_path / "q", margin=40.0), []
    queue.put_many([b"1", b"2"])

    def handle(frame, _):
        enough = signs_of_life(queue.layout.directory, FOUR_LEASES)
        until(lambda: (queue.purge().released == 0) and enough(), "signs of life")
        seen.extend(bytes(row.value) for row in frame.collect())

    stream = spark.readStream.format("dirqueue").option("claimTimeout", 0.4).load(queue.path)
    writer = stream.writeStream.foreachBatch(handle).option("checkpointLocation", str(tmp_path / "memory"))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    assert sorted(seen) == [b"1", b"2"]
    assert queue.stats().ready == 0


def test_a_claim_with_invalid_arguments_is_refused(spark, tmp_path):
    """A missing queue, a wrong limit."""
    with pytest.raises(QueueNotFound), dirqueue.spark.claim(spark, tmp_path / "nowhere"):
        pass
    Queue.create(tmp_path / "q")
    with pytest.raises(SettingsError, match="limit"), dirqueue.spark.claim(spark, tmp_path / "q", limit=0):
        pass


def handle(message):
    """Fail for one, refuse another."""
    if message.body == b"3":
        raise ValueError("three")
    if message.body == b"4":
        raise Reject("never")


def test_executors_work_and_acknowledge(spark, queue_dir):
    """Over a number of workers, a DataFrame and an RDD; failures go back to the queue, the refused die."""
    queue = Queue.create(queue_dir, backoff=3600.0)
    queue.put_many([b"%d" % i for i in range(40)])
    done = dirqueue.spark.work(2, queue_dir, handle, spark=spark, limit=5)
    assert done.workers == 2
    worked = dirqueue.spark.work(spark.range(0, 2, 1, 2), queue_dir, handle, limit=5)
    rest = dirqueue.spark.work(spark.sparkContext.parallelize([1, 2], 2), queue_dir, handle)
    every = (done, worked, rest)
    assert sum(each.done for each in every) == 38
    assert sum(each.failed for each in every) == 2
    assert "ValueError: three" in {each.first_error for each in every}
    stats = queue.stats()
    assert (stats.ready, stats.delayed, stats.dead) == (0, 1, 1)


async def wait_for(message):
    """Do nothing that anybody would await."""


def test_work_refuses_a_handler_that_would_not_run(spark, queue_dir):
    """An async handler before anything is claimed; a coroutine that a plain one returns fails the message."""
    queue = Queue.create(queue_dir, backoff=3600.0)
    queue.put(b"1")
    with pytest.raises(SettingsError, match="is async"):
        dirqueue.spark.work(1, queue_dir, wait_for, spark=spark)
    done = dirqueue.spark.work(1, queue_dir, lambda message: wait_for(message), spark=spark)  # noqa: PLW0108
    assert (done.done, done.failed) == (0, 1)
    assert "returned a coroutine" in done.first_error
    assert queue.stats().delayed == 1


def test_work_with_invalid_arguments_is_refused(spark, tmp_path):
    """A missing queue, no workers, something that has no partitions."""
    with pytest.raises(QueueNotFound):
        dirqueue.spark.work(1, tmp_path / "nowhere", handle, spark=spark)
    Queue.create(tmp_path / "q")
    for wrong in (0, "many"):
        with pytest.raises(SettingsError):
            dirqueue.spark.work(wrong, tmp_path / "q", handle, spark=spark)

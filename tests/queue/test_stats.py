"""Counting: the whole of a queue, and a sample of it."""

from support.kit import SHORT, wait_until

from dirqueue.stats import take_sample


def test_sample_of_a_small_queue_is_its_count(make_queue, given):
    """One way of adding up: by state, the oldest, the lease that ends first, the next delay."""
    queue = make_queue(**({"keep_done": True} if given["layout"] == "native" else {}))
    for number in range(6):
        queue.put(f"{number}")
    if "delay" not in queue.layout.lacks:
        queue.put(b"later", delay=600)
        queue.put(b"last", delay=1200)
    queue.get(timeout=0).ack()
    kept = queue.get(timeout=0, lease=100)
    short = queue.get(timeout=0, lease=SHORT)
    if "dead" not in queue.layout.lacks:
        queue.get(timeout=0).reject("no")
    wait_until(lambda: queue.layout.directory.clock.now() >= short.until.timestamp() * 1e6, "its end")
    counted, sample = queue.stats(), take_sample(queue.layout)
    assert sample.stats == counted
    assert not sample.sampled
    assert counted.leased == 2
    if given["layout"] == "native":
        assert (counted.ready, counted.delayed, counted.expired, counted.dead, counted.done) == (
            2,
            2,
            1,
            1,
            1,
        )
        assert counted.next_due == min(message.until for message in queue.peek("delayed"))
        assert (counted.oldest_lease, counted.oldest_lease_token) == (short.until, short.token)
        assert counted.oldest_ready == min(message.enqueued_at for message in queue.peek())
    kept.ack()


def test_layout_is_shown_by_its_name(queue, given):
    assert str(queue.layout) == queue.layout.name == given["layout"]

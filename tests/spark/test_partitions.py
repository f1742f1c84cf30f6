"""What a task carries: names packed so that a million of them stay far below Spark's limit of 128 MiB a task."""

import pickle
import random

from dirqueue.message import Entry
from dirqueue.spark.partitions import MOST, split

#: spark.rpc.message.maxSize, which a serialised task may not exceed.
LIMIT = 128 << 20


def listing(count, state):
    """Yield what a queue of many producers lists: the worst case, as no two ids end alike."""
    chance = random.Random(1)
    put = 1_789_000_000_000_000
    for _ in range(count):
        put += chance.randrange(1, 2000)
        id = f"{put}{chance.randrange(10**9):09}"
        if state == "leased":
            until, token = (
                put + 30_000_000,
                f"host-{chance.randrange(10**5)}-{chance.randrange(16**10):010x}-1",
            )
            yield Entry(id, state, f"leased/{id}.{until}.1.{token}", put, until, 1, token)
        else:
            yield Entry(id, state, f"{str(put)[:8]}.batch/{str(put)[:10]}.part/{id}", put)


def test_many_names_travel_in_small_tasks():
    """At most 20 bytes a message, at most 2 MB a task, even if one task is asked for; and nothing is left out."""
    entries = list(listing(3 * MOST, "ready"))
    tasks = split("/spool/q", "native", entries, 1)
    sizes = [len(pickle.dumps(task)) for task in tasks]
    assert len(tasks) == 3
    assert max(sizes) < LIMIT // 64
    assert sum(sizes) < 20 * len(entries)


def test_leased_names_travel_in_small_tasks():
    """Their tokens are random: 50 bytes a message."""
    tasks = split("/spool/q", "native", list(listing(200_000, "leased")), 1)
    sizes = [len(pickle.dumps(task)) for task in tasks]
    assert max(sizes) <= 50 * MOST


def test_messages_are_the_same_in_the_task(queue_dir):
    """Pickled, sent and opened: every field, in order, each message in one task."""
    from dirqueue import Queue

    Queue.create(queue_dir)
    entries = [*listing(500, "ready"), *listing(500, "leased")]
    tasks = pickle.loads(pickle.dumps(split(str(queue_dir), "native", entries, 3)))
    assert len(tasks) == 3
    assert [entry for task in tasks for entry in task.open(sure=True)[2]] == entries

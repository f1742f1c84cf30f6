"""What a type checker must see; checked by mypy in test_typing.py, never run."""

from dataclasses import dataclass
from typing import assert_type

from dirqueue import Lease, Message, Queue


@dataclass
class Job:
    """A typed body."""

    name: str


def plain(queue: Queue[bytes]) -> None:
    """Bytes by default."""
    assert_type(queue.put(b"x"), str)
    lease = queue.get()
    assert_type(lease, Lease[bytes])
    assert_type(lease.message, Message[bytes])
    assert_type(lease.message.body, bytes)
    with lease as message:
        assert_type(message.body, bytes)
    for each in queue.consume():
        assert_type(each, Lease[bytes])
    assert_type(queue.get_many(3), list[Lease[bytes]])
    assert_type(len(queue), int)
    assert_type(queue.dead, Queue[bytes])


def typed() -> None:
    """The codec decides."""
    assert_type(Queue("q"), Queue[bytes])
    assert_type(Queue("q", codec="text"), Queue[str])
    jobs = Queue("q", codec=Job)
    assert_type(jobs, Queue[Job])
    assert_type(jobs.get().message.body, Job)
    jobs.put(Job("a"))

"""What a type checker must see; checked by mypy in test_typing.py, never run."""

from dataclasses import dataclass
from typing import Any, Literal, assert_type

from dirqueue import Full, Lease, LeaseLost, Message, Queue, SettingsError, Unsupported
from dirqueue.aio import AsyncLease, AsyncQueue


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
    jobs.put("oops")  # type: ignore[arg-type]
    assert_type(Queue("q", codec="json"), Queue[Any])
    with Queue("q", codec=Job) as opened:
        assert_type(opened, Queue[Job])
    assert_type(jobs.dead, Queue[Job])


def created() -> None:
    """As opened."""
    assert_type(Queue.create("q"), Queue[bytes])
    assert_type(Queue.create("q", lease=5), Queue[bytes])
    assert_type(Queue.create("q", codec="text"), Queue[str])
    assert_type(Queue.create("q", codec="json"), Queue[Any])
    assert_type(Queue.create("q", codec=Job), Queue[Job])


def configured(queue: Queue[bytes]) -> None:
    """A misspelt setting, or one of the wrong type, is an error."""
    Queue("q", lease=5, max_attempts=3, order="lifo")
    Queue("q", max_atempts=3)  # type: ignore[call-overload]
    Queue("q", lease="5")  # type: ignore[call-overload]
    Queue("q", order="newest")  # type: ignore[call-overload]
    Queue.create("q", leese=5)  # type: ignore[call-overload]
    AsyncQueue("q", leese=5)  # type: ignore[call-overload]
    queue.configure(max_attempts=3, reset=["lease"])
    queue.configure(max_atempts=3)  # type: ignore[call-arg]
    assert_type(queue.refresh(), bool)


async def awaited() -> None:
    """The same for asyncio."""
    queue = AsyncQueue("q")
    assert_type(queue, AsyncQueue[bytes])
    assert_type(await queue.put("text"), str)
    assert_type(AsyncQueue("q", codec="text"), AsyncQueue[str])
    assert_type(await AsyncQueue.create("q"), AsyncQueue[bytes])
    jobs = await AsyncQueue.create("q", codec=Job)
    assert_type(jobs, AsyncQueue[Job])
    await jobs.put("oops")  # type: ignore[arg-type]
    lease = await jobs.get()
    assert_type(lease, AsyncLease[Job])
    async with lease as message:
        assert_type(message.body, Job)
    assert_type(lease.message.body, Job)
    await queue.close()


def errors(lost: LeaseLost, full: Full, refused: Unsupported) -> None:
    """Their fields have types, and no others are taken."""
    assert_type(lost.reason, Literal["gone", "ended", "forked"])
    assert_type(full.path, str)
    assert_type(refused.capability, str)
    SettingsError("text", colour="red")  # type: ignore[call-arg]

"""The shell script of docs/ and the library share a queue."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dirqueue import LeaseLost, Queue

SCRIPT = Path(__file__).parents[2] / "docs" / "protocol.sh"


def shell(*words: str, body: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the script."""
    return subprocess.run([SCRIPT, *words], input=body, capture_output=True, check=False)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A queue that does not exist yet."""
    return str(tmp_path / "queue")


def test_the_script_is_short() -> None:
    """A protocol that needs more than 60 lines of shell is not simple."""
    assert len(SCRIPT.read_text().splitlines()) <= 60


def test_what_the_shell_puts_the_library_gets(path: str) -> None:
    """Body and id arrive as they were put."""
    id = shell("put", path, body=b"from \0 the shell\n").stdout.decode().strip()
    lease = Queue(path).get(timeout=0)
    assert (lease.message.id, lease.message.body) == (id, b"from \0 the shell\n")
    lease.ack()


@pytest.mark.parametrize("many", [False, True], ids=["flat", "batch"])
def test_what_the_library_puts_the_shell_gets_in_order(path: str, many: bool) -> None:
    """Flat messages and batches alike."""
    queue = Queue(path)
    bodies = [b"one", b"two", b"three"]
    if many:
        queue.put_many(bodies)
    else:
        for body in bodies:
            queue.put(body)
    got = []
    for _ in bodies:
        handle = shell("get", path).stdout.decode().strip()
        got.append(Path(path, handle).read_bytes())
        assert shell("ack", path, handle).returncode == 0
    assert got == bodies
    assert shell("get", path).returncode == 3
    assert queue.stats().total == 0


def test_a_message_held_by_the_shell_is_not_given_to_the_library(path: str) -> None:
    """And is, with one more attempt, when the lease is over."""
    Queue(path).put(b"a")
    handle = shell("get", path, "1").stdout.decode().strip()
    queue = Queue(path, margin=0)
    assert queue.stats().leased == 1
    lease = queue.get(timeout=30)
    assert lease.message.attempts == 2
    assert shell("ack", path, handle).returncode == 4
    lease.ack()


def test_the_shell_takes_over_an_expired_lease_of_the_library(path: str) -> None:
    """The late holder is told."""
    queue = Queue(path)
    queue.put(b"a")
    lease = queue.get(timeout=0, lease=0.01)
    for _ in range(300):
        handle = shell("get", path).stdout.decode().strip()
        if handle:
            break
    assert handle.split(".")[2] == "2"
    with pytest.raises(LeaseLost):
        lease.ack()
    assert shell("ack", path, handle).returncode == 0

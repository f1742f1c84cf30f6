"""The client of docs/ for Node, written from docs/protocol.md alone, shares queues with the library."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from support import checker
from support.clients import DOCS, run, shell

from dirqueue import LeaseLost, Queue, settings

pytestmark = pytest.mark.needs("node")

CLIENT = DOCS / "protocol.mjs"


def node(*words: str, body: bytes = b"", status: int = 0) -> str:
    """Run one verb; return what it printed."""
    done = run(CLIENT, *words, body=body)
    assert done.returncode == status, done.stderr
    return done.stdout.decode("utf-8", "surrogateescape").strip()


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A queue that does not exist yet."""
    return str(tmp_path / "queue")


def test_the_client_is_short_and_knows_every_setting() -> None:
    """A protocol that needs more than 320 lines of JavaScript is not simple."""
    text = CLIENT.read_text()
    assert len(text.splitlines()) <= 320
    block = text.split("const DEFAULTS = {")[1].split("\n}")[0]
    known = dict(re.findall(r"(\w+): ([^,]+),", block))
    assert known.pop("format") == "1"
    assert {name: json.loads(value) for name, value in known.items()} == settings.Settings()._asdict()


@pytest.mark.parametrize("link", ["", "link=1"])
def test_what_node_puts_the_library_gets(path: str, link: str) -> None:
    """As a file and as a link, byte for byte; a NUL and a long body are files whatever is asked for."""
    for body in (b"", b"gr\xfcn\n", b":", b"x" * 1000, b"x" * 1001, b"\0"):
        id = node("put", path, *filter(None, [link]), body=body)
        linked = bool(link) and len(body) <= 1000 and b"\0" not in body
        assert os.path.islink(os.path.join(path, id)) == linked
        with Queue(path).get(timeout=0) as message:
            assert (message.id, message.body) == (id, body)
    assert checker.problems(path) == []


@pytest.mark.parametrize("links", [False, True])
def test_what_the_library_puts_node_gets_in_order(path: str, links: bool) -> None:
    """Flat, delayed, in a batch and in a part; it leaves a link to elsewhere alone."""
    queue = Queue(path, sync=False, links=links)
    bodies = [b"one", b"two", b"three"]
    queue.put(b"one", delay=0.01)
    queue.put_many(bodies[1:])
    queue.put(b"not yet", delay=3600)
    Path(path, "1500000000000000000000001").symlink_to("/etc/hostname")
    time.sleep(0.02)
    got = []
    for _ in bodies:
        handle = node("get", path)
        assert os.path.islink(os.path.join(path, handle)) == links
        got.append(node("body", path, handle).encode())
        node("ack", path, handle)
        node("ack", path, handle, status=4)
    assert got == bodies
    node("get", path, status=3)
    assert (queue.stats().total, queue.stats().foreign) == (1, 1)


def test_a_delivery_that_fails_in_node_is_a_retry_and_then_a_dead_letter_of_the_library(path: str) -> None:
    """With the reason and the attempts; notes lie where the protocol wants them."""
    queue = Queue(path, links=True, backoff=0, max_attempts=2)
    id = queue.put(b"poison")
    node("retry", path, node("get", path), "error=no luck", "backoff=0", "max_attempts=2")
    [message] = queue.peek()
    assert (message.body, message.attempts, message.error) == (b"poison", 1, "no luck")
    handle = node("get", path)
    assert os.path.exists(os.path.join(path, "leased", f"{id}.error"))
    node("retry", path, handle, "error=never", "max_attempts=2")
    [dead] = queue.peek("dead")
    assert (dead.id, dead.attempts, dead.error) == (id, 2, "never")
    assert checker.problems(path) == []
    assert checker.orphans(path) == []
    queue.redrive()
    node("reject", path, node("get", path), "error=bad")
    assert [message.error for message in queue.peek("dead")] == ["bad"]


def test_a_message_out_of_attempts_is_buried_by_node(path: str) -> None:
    """Its holder died: whoever meets it moves it to dead/."""
    queue = Queue(path, max_attempts=1)
    queue.put(b"poison")
    queue.get(timeout=0, lease=0.001)
    time.sleep(0.01)
    node("get", path, "max_attempts=1", "margin=0", status=3)
    [dead] = queue.peek("dead")
    assert dead.error
    assert dead.error.startswith("delivered 1 times and never acknowledged, last held by ")


def test_node_renews_and_releases_and_takes_over_what_expired(path: str) -> None:
    """The old handle is gone with the renewal, and the late holder finds the lease lost."""
    queue = Queue(path, margin=0)
    queue.put(b"a")
    first = node("get", path)
    second = node("renew", path, first, "lease=60")
    node("ack", path, first, status=4)
    assert queue.lease(second).message.body == b"a"
    node("release", path, second)
    [message] = queue.peek()
    assert message.attempts == 0
    lease = queue.get(timeout=0, lease=0.001)
    time.sleep(0.01)
    handle = node("get", path, "margin=0")
    assert handle.split(".")[2] == "2"
    with pytest.raises(LeaseLost):
        lease.ack()
    node("ack", path, handle)
    assert checker.problems(path) == []


def test_node_heeds_the_settings_of_the_queue(path: str) -> None:
    """Priorities, history and links; it refuses a queue whose settings it does not know."""
    queue = Queue.create(path, priorities=True, keep_done=True, links=True)
    queue.put(b"later", priority=9)
    id = node("put", path, "priority=1", body=b"first")
    assert os.readlink(os.path.join(path, id)) == ":first"
    node("ack", path, node("get", path))
    [done] = queue.peek("done")
    assert (done.body, done.priority) == (b"first", 1)
    assert done.leased_at
    assert abs((done.leased_at - done.enqueued_at).total_seconds()) < 3600
    Path(path, "queue.json").write_text('{"format": 1, "rooms": true}')
    node("put", path, body=b"x", status=1)
    node("get", path, status=1)


def test_node_hides_what_the_umask_hides(path: str) -> None:
    """A link has no mode: where the directory lets others in, a hidden body is a file."""
    os.mkdir(path)
    os.chmod(path, 0o755)
    command = ["/bin/sh", "-c", f'umask 077; printf secret | "{CLIENT}" put "{path}" link=1']
    id = subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    assert os.lstat(os.path.join(path, id)).st_mode & 0o777 == 0o600


def test_node_refuses_what_is_no_handle(path: str) -> None:
    """Nothing outside the queue is reached."""
    Queue(path).put(b"x")
    for handle in ("../x", "/etc/passwd", "leased/../x", "1794971944379840925103648"):
        node("ack", path, handle, status=2)
    node("dance", path, status=2)


def test_node_shell_and_python_share_a_queue(path: str) -> None:
    """Each message is had by one of them, once."""
    queue = Queue(path, sync=False, links=True)
    script = f"""
        import {{ Queue }} from {json.dumps(CLIENT.as_uri())}
        const queue = new Queue({json.dumps(path)}, {{ sync: false }}), got = []
        for (let number = 0; number < 100; number++) queue.put(`node ${{number}}`, {{ link: number % 2 === 1 }})
        for (let lease; got.length < 80 && (lease = queue.get()); ) {{ got.push(String(lease.body)); lease.ack() }}
        console.log(JSON.stringify(got))
    """
    process = subprocess.Popen(
        ["node", "--input-type=module", "-e", script], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    for number in range(100):
        queue.put(f"python {number}")
    got = []
    for _ in range(5):
        handle = shell("get", path).stdout.decode().strip()
        got.append(checker.body_of(os.path.join(path, handle)).decode())
        assert shell("ack", path, handle).returncode == 0
    for lease in queue.consume(timeout=0):
        got.append(lease.message.body.decode())
        lease.ack()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    got += json.loads(out)
    for lease in queue.consume(timeout=0):
        got.append(lease.message.body.decode())
        lease.ack()
    assert sorted(got) == sorted(f"{who} {number}" for who in ("node", "python") for number in range(100))
    assert checker.problems(path) == []


def test_node_gets_nothing_from_a_queue_that_is_paused(path: str) -> None:
    """Until it is resumed."""
    queue = Queue(path)
    queue.put(b"x")
    queue.pause()
    node("get", path, status=3)
    queue.resume()
    assert node("get", path)

"""The clients of docs/, written in shell and in Perl from docs/protocol.md alone, share queues with the library."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from support import checker
from support.clients import PERL, SCRIPT, Perl, needs_perl, perl, run, shell

from dirqueue import LeaseLost, Queue


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A queue that does not exist yet."""
    return str(tmp_path / "queue")


# --- shell ---------------------------------------------------------------------------------------------------


def test_the_clients_are_short() -> None:
    """A protocol that needs more than 60 lines of shell, or 340 of Perl for all of it, is not simple."""
    assert len(SCRIPT.read_text().splitlines()) <= 60
    assert len(PERL.read_text().splitlines()) <= 340


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
    """The late holder gets LeaseLost."""
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


def test_the_shell_moves_a_message_out_of_attempts_to_dead(path: str) -> None:
    """The fifth delivery was the last one."""
    queue = Queue(path, backoff=0)
    queue.put(b"poison")
    for _ in range(4):
        queue.get(timeout=5).retry(0)
    queue.get(timeout=5, lease=0.001)
    for _ in range(300):
        assert shell("get", path).returncode == 3
        if queue.stats().dead:
            break
    [dead] = queue.peek("dead")
    assert (dead.body, dead.attempts) == (b"poison", 5)


def test_messages_that_are_links_go_both_ways(path: str) -> None:
    """The shell and the library make links; each reads those of the other, and nobody takes a link to elsewhere."""
    queue = Queue(path, links=True, sync=False)
    queue.put(b"of the library")
    id = run(SCRIPT, "put", path, "--link", "of the shell").stdout.decode().strip()
    Path(path, f"{int(id) + 1}").symlink_to("/etc/hostname")
    assert os.readlink(Path(path, id)) == ":of the shell"
    handle = shell("get", path).stdout.decode().strip()
    assert os.readlink(Path(path, handle)) == ":of the library"
    assert shell("ack", path, handle).returncode == 0
    with queue.get(timeout=0) as message:
        assert (message.id, message.data) == (id, b"of the shell")
    assert shell("get", path).returncode == 3
    assert Path(path, f"{int(id) + 1}").is_symlink()


@needs_perl
def test_perl_reads_messages_that_are_links(path: str) -> None:
    """And leaves a link to elsewhere alone."""
    queue = Queue(path, links=True, sync=False)
    id = queue.put(b"short")
    Path(path, f"{int(id) + 1}").symlink_to("/etc/hostname")
    handle = perl("get", path)
    assert os.readlink(Path(path, handle)) == ":short"
    perl("retry", path, handle, "error=no", "backoff=0")
    assert [(message.data, message.attempts, message.error) for message in queue.peek()] == [
        (b"short", 1, "no")
    ]
    assert perl("get", path).startswith(f"leased/{id}.")


def test_the_shell_takes_what_is_due_with_its_note_and_leaves_the_rest(path: str) -> None:
    """Delays that are over, alone or in a batch, from later/; a note goes along, and ack removes it."""
    queue = Queue(path)
    queue.put(b"not yet", delay=3600)
    queue.put_many([b"nor this", b"nor that"], delay=3600)
    queue.put(b"failed")
    queue.get(timeout=0).retry(0.01, error="no luck")
    queue.put_many([b"one", b"two"], delay=0.01)
    time.sleep(0.05)
    got = []
    for _ in range(3):
        handle = shell("get", path).stdout.decode().strip()
        assert handle.startswith("leased/")
        got.append(Path(path, handle).read_bytes())
        note = Path(path, "leased", f"{handle.split('/')[1].split('.')[0]}.error")
        assert note.exists() == (got[-1] == b"failed")
        assert shell("ack", path, handle).returncode == 0
        assert not note.exists()
    assert got == [b"failed", b"one", b"two"]
    assert shell("get", path).returncode == 3
    assert queue.stats().delayed == 3
    assert checker.problems(path) == []


@pytest.mark.parametrize("client", [SCRIPT, pytest.param(PERL, marks=needs_perl)], ids=["shell", "perl"])
@pytest.mark.parametrize(
    "settings",
    ['{"format": 2}', '{"format": 1, "rooms": true}', "[]", "{"],
    ids=["format", "key", "list", "torn"],
)
def test_a_client_refuses_a_queue_whose_settings_it_does_not_know(
    path: str, client: Path, settings: str
) -> None:
    """And touches nothing."""
    Queue(path).put(b"a")
    Path(path, "queue.json").write_text(settings)
    before = sorted(os.listdir(path))
    for verb in ("put", "get"):
        assert run(client, verb, path).returncode == 1
    assert sorted(os.listdir(path)) == before


# --- perl ----------------------------------------------------------------------------------------------------


@needs_perl
def test_perl_and_the_library_exchange_messages(path: str) -> None:
    """Both ways, flat, delayed, in slices, batches and parts, with the empty body."""
    id = perl("put", path, body=b"from \0 perl\n")
    with Queue(path).get(timeout=0) as message:
        assert (message.id, message.body) == (id, b"from \0 perl\n")
    perl("put", path, "delay=0.01", body=b"")
    with Queue(path).get(timeout=5) as message:
        assert message.body == b""
    Path(path, "1700000000000000000000000.slice").mkdir()
    Path(path, "1700000000000000000000000.slice", "1700000000000000123456789").write_bytes(b"in a slice")
    handle = perl("get", path)
    assert Path(path, handle).read_bytes() == b"in a slice"
    perl("ack", path, handle)
    assert perl("purge", path) == "1"  # the slice
    bodies = [b"%d" % number for number in range(4100)]  # the last ones lie in a part
    Queue(path, sync=False).put_many(bodies)
    client = Perl(path)
    for body in bodies[:2]:
        status, handle = client.ask("get")
        assert (status, Path(path, handle).read_bytes()) == (0, body)
        assert client.ask("ack", handle) == (0, "")
    part = next(Path(path).glob("*.batch/*.part"))
    for each in part.parent.glob("[0-9]*"):
        if each.is_file():
            each.unlink()
    status, handle = client.ask("get")
    assert Path(path, handle).read_bytes() == bodies[4096]
    assert client.ask("ack", handle) == (0, "")
    client.close()


@needs_perl
def test_perl_and_the_library_agree_on_priorities(path: str) -> None:
    """Lower numbers first, then by time; a message without one goes before all of them."""
    queue = Queue.create(path, priorities=True, default_priority=7)
    for number in (9, 1, 10):
        queue.put(b"library %d" % number, priority=number)
    for number in ("2", "9"):
        perl("put", path, f"priority={number}", f"body=perl {number}")
    perl("put", path, "body=perl 7")
    Path(path, "1700000000000000123456789").write_bytes(b"without")
    want = [b"without", b"library 1", b"perl 2", b"perl 7", b"library 9", b"perl 9", b"library 10"]
    assert [queue.get(timeout=0).message.body for _ in want] == want
    for entry in list(queue.layout.entries(["leased"])):
        os.rename(f"{path}/{entry.place}", f"{path}/{entry.id}")
    assert [Path(path, perl("get", path)).read_bytes() for _ in want] == want


@needs_perl
def test_a_message_rejected_by_perl_is_a_dead_letter_of_the_library(path: str) -> None:
    """With its error and the time of its claim; and the other way round perl redrives it."""
    queue = Queue(path)
    queue.put(b"bad")
    perl("reject", path, perl("get", path), "error=no such customer")
    [dead] = queue.peek("dead")
    assert (dead.body, dead.attempts, dead.error) == (b"bad", 1, "no such customer")
    assert dead.failure
    assert dead.failure.leased_at
    assert dead.enqueued_at <= dead.failure.leased_at <= dead.failure.at
    assert perl("redrive", path) == dead.id
    queue.get(timeout=0).reject("still bad")
    assert perl("redrive", path, dead.id) == dead.id
    [ready] = queue.peek()
    assert (ready.attempts, ready.error) == (0, None)
    assert checker.problems(path) == []


@needs_perl
def test_directories_made_by_perl_have_the_mode_of_the_queue(path: str) -> None:
    """So that a group that shares the queue shares them too, whatever the umask."""
    os.mkdir(path)
    os.chmod(path, 0o2770)
    perl("put", path, "body=a")
    perl("reject", path, perl("get", path))
    assert os.stat(f"{path}/dead").st_mode & 0o7777 == 0o2770


@needs_perl
def test_perl_retries_with_a_note_and_ends_among_the_dead(path: str) -> None:
    """Each failure is noted beside the message; the last one goes to dead/ instead of coming back."""
    queue = Queue.create(path, max_attempts=2, backoff=0.001)
    queue.put(b"bad")
    perl("retry", path, perl("get", path), "error=first")
    lease = queue.get(timeout=5)
    assert (lease.message.attempts, lease.message.error) == (2, "first")
    lease.release()
    handle = perl("get", path)
    perl("retry", path, handle, "error=second")
    [dead] = queue.peek("dead")
    assert (dead.attempts, dead.error) == (2, "second")
    assert list(Path(path).glob("[0-9]*")) == []


@needs_perl
@pytest.mark.parametrize("verb", ["get", "purge"])
def test_perl_moves_what_is_out_of_attempts_to_dead(path: str, verb: str) -> None:
    """An expired lease with a note about its holder, a delayed message with the note it had."""
    queue = Queue.create(path, max_attempts=1, margin=0.0)
    queue.put(b"killed its consumer")
    expired = queue.get(timeout=0, lease=0.001)
    id = queue.put(b"failed")
    Path(path, id).rename(Path(path, f"{id}.{int(time.time() * 1e6)}.1"))
    Path(path, f"{id}.error").write_text(json.dumps({"error": "it failed", "at": 10**15, "leased_at": None}))
    perl(verb, path, status=3 if verb == "get" else 0)
    errors = {message.body: message.error for message in queue.peek("dead")}
    assert errors == {
        b"killed its consumer": f"delivered 1 times and never acknowledged, last held by {expired.message.token}",
        b"failed": "it failed",
    }
    assert checker.problems(path) == []
    assert not list(Path(path).glob("*.error"))


@needs_perl
def test_an_ack_of_perl_is_history_where_it_is_kept(path: str) -> None:
    """The library knows when it was put, claimed and acknowledged."""
    queue = Queue.create(path, keep_done=True)
    queue.put(b"a payment")
    perl("ack", path, perl("get", path))
    [done] = queue.peek("done")
    assert (done.body, done.attempts) == (b"a payment", 1)
    assert done.leased_at
    assert done.until
    assert done.enqueued_at <= done.leased_at <= done.until


@needs_perl
def test_perl_renews_to_a_later_time_only(path: str) -> None:
    """The handle changes, the old one is lost, and a shorter time does not shorten the lease."""
    Queue(path).put(b"a")
    first = perl("get", path, "lease=60")
    second = perl("renew", path, first, "lease=1")
    assert int(second.split(".")[1]) == int(first.split(".")[1]) + 1
    perl("ack", path, first, status=4)
    perl("release", path, second)
    assert Queue(path).get(timeout=0).message.attempts == 1


@needs_perl
def test_a_purge_by_perl_removes_what_is_stale_and_nothing_else(path: str) -> None:
    """Unfinished files, notes and tombstones that are old by their ids and their times; young ones stay."""
    queue = Queue(path, keep_done=True)
    for body in (b"waits", b"done", b"dead"):
        queue.put(body)
    queue.get(timeout=0).release()
    old = "1700000000000000123456789"
    gone = [f"{old}.new", f"{old}.error", f"{old}.error.new", f"{old}.1700000000000001.1.t.ack"]
    stay = ["1800000000000000123456789.new", "my notes"]
    for name in gone + stay:
        Path(path, name).write_text("{}")
        os.utime(Path(path, name), (0, 0))
    young = [f"{old[:-1]}8.new", f"{old[:-1]}8.error"]  # by their own times
    for name in young:
        Path(path, name).write_text("{}")
    Path(path, f"{old}.slice").mkdir()
    assert perl("purge", path) == str(len(gone) + 1)
    left = set(os.listdir(path))
    assert left.isdisjoint([*gone, f"{old}.slice"])
    assert left.issuperset(stay + young)
    assert queue.stats().ready == 3


@needs_perl
def test_a_purge_by_perl_removes_done_and_dead_by_when_they_ended(path: str) -> None:
    """Not by when they were put."""
    queue = Queue.create(path, keep_done=True, keep_done_for=60.0, keep_dead_for=60.0)
    for name in ("done", "dead"):
        os.makedirs(f"{path}/{name}", exist_ok=True)
        now = int(time.time() * 1e6)
        Path(path, name, f"1700000000000000000000001.{now - 90_000_000}.1").write_bytes(b"ended long ago")
        Path(path, name, f"1700000000000000000000002.{now - 1_000_000}.1").write_bytes(b"ended just now")
    assert perl("purge", path) == "2"
    assert [message.body for message in queue.peek("done")] == [b"ended just now"]
    assert [message.body for message in queue.peek("dead")] == [b"ended just now"]


@pytest.mark.parametrize("client", [SCRIPT, pytest.param(PERL, marks=needs_perl)], ids=["shell", "perl"])
def test_a_paused_queue_gives_the_clients_nothing(path: str, client: Path) -> None:
    """Until it is resumed."""
    queue = Queue(path)
    queue.put(b"a")
    queue.pause()
    assert run(client, "get", path).returncode == 3
    queue.resume()
    assert run(client, "get", path).returncode == 0

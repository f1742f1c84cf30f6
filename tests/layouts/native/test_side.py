"""What is kept beside and after messages: notes of failures, records of identities, done files."""

import contextlib
import json
import os

import pytest
from support.kit import drain, files

from dirqueue import Queue
from dirqueue.layouts.native import staged
from dirqueue.layouts.native.staged import Identity

#: JSON that no program of ours writes: too deep, too large, of other types.
MALFORMED = [
    "[" * 200_000,
    '{"a":' * 200_000,
    '{"error": "x", "at": 1e999}',
    '{"error": "x", "at": [1]}',
    "[]",
    "1" * 5000,
]


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: text[:12])
def test_note_that_is_not_as_we_write_them_is_no_note(queue_dir, text):
    """The message is there, its reason is not known; all that reads notes goes on."""
    queue = Queue(queue_dir, backoff=0.0)
    queue.put(b"x")
    queue.get(timeout=0).retry(0.0, "why")
    (note,) = queue_dir.glob("later/*/*.error")
    note.write_text(text)
    (message,) = queue.peek()
    assert (message.error, message.leased_at) == (None, None)
    queue.purge()
    assert drain(queue) == [b"x"]


@pytest.mark.parametrize(
    "text",
    [*MALFORMED, '{"batch": 1e999}', '{"batch": "../x"}', '{"batch": null}'],
    ids=lambda text: text[:12],
)
def test_record_that_is_not_as_we_write_them_names_no_batch(queue_dir, text):
    """It counts as written, shows nothing, and stops neither purge nor consumers nor the next version."""
    queue = Queue(queue_dir, stale=0.0)
    directory, settings = queue.layout.directory, queue.settings
    staged.commit(directory, settings, staged.begin(directory), [], Identity("app", 1))
    (queue_dir / ".spark" / "txn" / "app" / "1").write_text(text)
    os.mkdir(queue_dir / "1700000000000000000000001.batch.new")
    os.utime(queue_dir / "1700000000000000000000001.batch.new", (0, 0))
    assert drain(queue) == []
    queue.purge()
    assert not [name for name in files(queue_dir) if name.endswith(".batch.new")]
    assert staged.newest(directory, "app") == 1
    assert staged.commit(directory, settings, staged.begin(directory), [], Identity("app", 2))


def test_an_ack_that_keeps_a_message_leaves_the_times_of_a_linked_file_alone(queue_dir, tmp_path):
    """It is somebody's own file too; of others the time of the claim is kept."""
    queue = Queue(queue_dir, keep_done=True)
    file = tmp_path / "file"
    file.write_bytes(b"linked")
    os.utime(file, (1_000_000_000, 1_000_000_000))
    queue.put_path(file, link=True)
    queue.put(b"own")
    for lease in queue.get_many(2, timeout=0):
        lease.ack()
    assert file.stat().st_mtime == 1_000_000_000
    linked, own = sorted(queue.peek("done"), key=lambda message: message.body)
    assert linked.leased_at is None
    assert own.leased_at is not None


def test_a_leased_message_tells_when_it_was_claimed_or_renewed(tmp_path):
    """By the last change of its file; nothing, if it was ended meanwhile."""
    queue = Queue(tmp_path / "q", sync=False)
    queue.put(b"x")
    lease = queue.get(timeout=0)
    held = queue.message(lease.message.id)
    assert held.enqueued_at <= held.leased_at <= lease.until
    lease.renew()
    assert held.leased_at is None
    renewed = queue.message(lease.message.id)
    assert renewed.enqueued_at <= renewed.leased_at
    lease.ack()
    assert renewed.leased_at is None


def test_a_note_keeps_the_trace_of_an_exception(queue_dir):
    """Retried or dead, in a key of its own; a text without a trace has no such key."""
    queue = Queue(queue_dir, backoff=0.0, max_attempts=2)
    id = queue.put(b"x")
    queue.get(timeout=0).retry(0.0, "why")
    (note,) = queue_dir.rglob("*.error")
    assert "trace" not in json.loads(note.read_text())
    with contextlib.suppress(ZeroDivisionError), queue.get(timeout=10):
        1 / 0  # noqa: B018 - the failure
    dead = queue.message(id)
    assert (dead.state, dead.error) == ("dead", "ZeroDivisionError: division by zero")
    assert dead.trace.startswith(f'  File "{__file__}"')
    assert dead.failure.text == f"{dead.error}\n{dead.trace}"
    assert dead.to_dict()["trace"] == dead.trace
    assert queue.redrive(match="test_a_note_keeps") == [id]

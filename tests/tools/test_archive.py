"""Export and import: every message of a queue as a line, and back."""

import json
import os
from pathlib import Path

import pytest
from support import checker
from support.commandline import dq

from dirqueue import InvalidId, Queue, QueueError, SettingsError, Unsupported
from dirqueue.failure import Reason
from dirqueue.tools import archive

BINARY = bytes(range(256))


@pytest.fixture(name="queue")
def _queue(tmp_path):
    """Give a queue with a message in every state."""
    queue = Queue.create(tmp_path / "old", sync=False, keep_done=True, max_attempts=3)
    queue.put(b"done", attributes={"a": "1"})
    queue.get(timeout=0).ack()
    queue.put(BINARY)
    queue.get(timeout=0).reject(Reason("bad", "line 1\nline 2"))
    queue.put(b"leased")
    queue.get(timeout=0)
    queue.put(b"retried")
    queue.get(timeout=0).retry(0, "once more")
    queue.put(b"delayed", delay=3600, attributes={"a": "2"}, ttl=7200)
    queue.put_many([b"ready", "grün".encode(), b""])
    return queue


def lines(queue):
    return [json.dumps(record).encode() for record in archive.export(queue)]


def described(queue):
    """Return all that counts of every message, by id."""
    return {
        record["id"]: {name: record.get(name) for name in (
            "state", "attempts", "enqueued_at", "error", "trace", "failed_at", "attributes", "expires_at", "body",
            "body_base64", "size",
        )} | {"until": record["until"] if record["state"] in ("delayed", "dead", "done") else None}
        for record in archive.export(queue) if "id" in record
    }  # fmt: skip


def test_imported_queue_is_the_exported_one(queue, tmp_path):
    """Ids, states, bodies, attempts, errors, attributes and settings; what was held is ready."""
    wanted = described(queue)
    done = archive.load(tmp_path / "new", lines(queue))
    with Queue(tmp_path / "new") as copy:
        assert done == archive.Imported(8, 0)
        for fields in wanted.values():
            fields["state"] = fields["state"].replace("leased", "ready")
        assert described(copy) == wanted
        assert (copy.settings.max_attempts, copy.settings.keep_done) == (3, True)
        assert {message.body for message in copy.peek()} == {
            b"leased", b"retried", b"ready", "grün".encode(), b"",
        }  # fmt: skip
    assert checker.problems(tmp_path / "new") == []


def test_import_that_was_interrupted_is_run_again(queue, tmp_path):
    """What is there is skipped, whatever its state is by now."""
    text = lines(queue)
    assert archive.load(tmp_path / "new", text[:5]) == archive.Imported(4, 0)
    Path(tmp_path / "new", f"{json.loads(text[5])['id']}.new").write_bytes(b"half")  # it died while it wrote
    assert archive.load(tmp_path / "new", text) == archive.Imported(4, 4)
    assert archive.load(tmp_path / "new", text) == archive.Imported(0, 8)


def test_import_keeps_the_order_and_takes_the_target_priority(tmp_path):
    """A queue with priorities gives each the default one."""
    queue = Queue(tmp_path / "old", sync=False)
    for body in (b"a", b"b", b"c"):
        queue.put(body)
    Queue.create(tmp_path / "new", priorities=True, sync=False).close()
    text = lines(queue)
    archive.load(tmp_path / "new", text)
    assert archive.load(tmp_path / "new", text) == archive.Imported(0, 3)
    with Queue(tmp_path / "new") as copy:
        assert [lease.message.body for lease in copy.consume(timeout=0)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("line", "error", "said"),
    [
        (b"no json", QueueError, "line 2"),
        (b"[]", QueueError, "line 2"),
        (b'{"id": "../../etc/passwd", "state": "ready", "attempts": 0, "body": ""}', InvalidId, "not a message id"),
        (b'{"id": "1789000000000000000000001", "state": "odd", "attempts": 0, "body": ""}', SettingsError, "odd"),
        (b'{"id": "1789000000000000000000001", "state": "delayed", "attempts": 0, "body": ""}', QueueError, "line 2"),
        (b'{"id": "1789000000000000000000001", "state": "ready", "attempts": -1, "body": ""}', QueueError, "line 2"),
        (b'{"id": "1789000000000000000000001", "state": "ready", "attempts": 0}', QueueError, "line 2"),
    ],
)  # fmt: skip
def test_line_that_is_no_message_is_told(tmp_path, line, error, said):
    """And nothing of it is in the queue."""
    head = b'{"export": 1, "settings": {}}'
    with pytest.raises(error, match=said):
        archive.load(tmp_path / "new", [head, line])
    assert len(Queue(tmp_path / "new")) == 0
    assert os.listdir(tmp_path) == ["new"]


def test_what_is_no_export_is_refused(tmp_path):
    """Before anything is made."""
    for text in ([], [b"hello"], [b'{"export": 2, "settings": {}}']):
        with pytest.raises(QueueError):
            archive.load(tmp_path / "new", text)
    assert os.listdir(tmp_path) == []


def test_only_a_layout_that_keeps_ids_takes_an_import(queue, tmp_path):
    """The others are reached by convert; their own messages can be exported."""
    Queue.create(tmp_path / "other", layout="vsqs").close()
    Queue(tmp_path / "other", layout="vsqs").put(b"a")
    head = b'{"export": 1, "settings": {}}'
    with pytest.raises(Unsupported, match="keeps ids"):
        archive.load(tmp_path / "other", [head])
    with Queue(tmp_path / "other") as other:
        archive.load(tmp_path / "new", lines(other))
    assert Queue(tmp_path / "new").get(timeout=0).message.body == b"a"


def test_commands_are_the_two_ends_of_a_pipe(queue, tmp_path):
    """What export prints, import reads."""
    text = dq("export", queue.path, cwd=tmp_path).stdout
    assert text.startswith(b'{"export":1')
    done = dq("import", "new", cwd=tmp_path, input=text)
    assert (done.returncode, done.stdout) == (0, b"8 imported, 0 skipped\n"), done.stderr
    done = dq("import", "new", "--json", cwd=tmp_path, input=text)
    assert json.loads(done.stdout) == {"imported": 0, "skipped": 8}
    assert dq("export", "missing", cwd=tmp_path).returncode == 1
    done = dq("import", "other", cwd=tmp_path, input=b"hello")
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1), done.stderr


@pytest.mark.parametrize("layout", archive.OWN_IDS)
def test_export_with_ids_that_no_other_queue_can_keep_is_refused(tmp_path, layout):
    """Before a queue is made; the sentence names the way round."""
    with Queue(tmp_path / "old", layout=layout, sync=False) as old:
        old.put(b"x")
        exported = lines(old)
    with pytest.raises(Unsupported, match="dirqueue convert"):
        archive.load(tmp_path / "new", exported)
    assert not (tmp_path / "new").exists()


def test_export_of_vsqs_is_imported(tmp_path):
    """Its ids are native ones too."""
    with Queue(tmp_path / "old", layout="vsqs", sync=False) as old:
        id = old.put(b"x")
        assert archive.load(tmp_path / "new", lines(old)) == archive.Imported(1, 0)
    with Queue(tmp_path / "new") as new:
        assert new.message(id).body == b"x"

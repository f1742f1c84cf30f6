"""What the layouts write, byte for byte, and how they are told apart."""

import os
import re
import stat
import time

import pytest
from support.kit import drain, files

import dirqueue
from dirqueue import LeaseLost, Queue, Unsupported
from dirqueue.layouts.dirq.schema import Schema, read_table, write_table

OLD = time.time() - 10_000


def shape(path):
    """Return what lies in a directory with every digit made alike."""
    return [
        re.sub(r"\d", "#", re.sub(r"[0-9a-f]{14}", "ELEMENT", re.sub(r"\b[0-9a-f]{8}\b", "DIR", each)))
        for each in files(path)
    ]


def test_dirq_simple_writes_what_dirq_writes(tmp_path):
    """An element is a plain file of nothing but the body; a lock is a second name of it."""
    queue = Queue(tmp_path / "q", layout="dirq-simple", sync=False)
    name = queue.put(b"body \x00\xff")
    assert shape(tmp_path / "q") == ["DIR", "DIR/ELEMENT"]
    assert (tmp_path / "q" / name).read_bytes() == b"body \x00\xff"
    lease = queue.get(timeout=0)
    assert shape(tmp_path / "q") == ["DIR", "DIR/ELEMENT", "DIR/ELEMENT.lck"]
    assert (tmp_path / "q" / name).samefile(tmp_path / "q" / f"{name}.lck")
    lease.ack()
    assert shape(tmp_path / "q") == ["DIR"]
    queue.close()


def test_dirq_normal_writes_what_dirq_writes(tmp_path):
    """An element is a directory with a file for each piece; a lock is a directory in it."""
    schema = {"body": "string", "header": "table?", "raw": "binary?"}
    queue = Queue(tmp_path / "q", layout="dirq-normal", schema=schema, codec=Schema(schema), sync=False)
    name = queue.put({"body": "grüße", "header": {"b": "2", "a\t": "\\\n"}, "raw": b"\xff\x00"})
    assert name.startswith("00000000/")
    assert {each.name: each.read_bytes() for each in (tmp_path / "q" / name).iterdir()} == {
        "body": "grüße".encode(),
        "header": b"a\\t\t\\\\\\n\nb\t2\n",
        "raw": b"\xff\x00",
    }
    lease = queue.get(timeout=0)
    assert lease.message.body == {"body": "grüße", "header": {"b": "2", "a\t": "\\\n"}, "raw": b"\xff\x00"}
    assert (tmp_path / "q" / name / "locked").is_dir()
    lease.ack()
    assert files(tmp_path / "q") == ["00000000", "obsolete", "temporary"]
    queue.close()


@pytest.mark.parametrize(("milliseconds", "digits"), [(False, 16), (True, 13)])
def test_vsqs_writes_what_vsqs_writes(tmp_path, milliseconds, digits):
    """A message is a file named by its time; in flight it is named by its end too, in the same unit."""
    queue = Queue(tmp_path / "q", layout="vsqs", milliseconds=milliseconds, sync=False)
    id = queue.put(b"body")
    assert files(tmp_path / "q") == [id]
    assert len(id) == digits
    lease = queue.get(timeout=0)
    (name,) = files(tmp_path / "q")
    assert re.fullmatch(rf"{id}\.[0-9]{{{digits}}}", name)
    lease.release()
    assert files(tmp_path / "q") == [id]
    queue.close()


def test_null_queue_keeps_nothing(tmp_path):
    """Not even a directory is made."""
    queue = Queue(tmp_path / "q", layout="null")
    queue.put(b"x")
    assert len(queue) == 0
    with pytest.raises(dirqueue.Empty):
        queue.get(timeout=0)
    assert not (tmp_path / "q").exists()


def test_put_path_of_dirq_simple_keeps_the_file_itself(tmp_path):
    """Mode and inode are those of the file that was given."""
    queue = Queue(tmp_path / "q", layout="dirq-simple", sync=False)
    file = tmp_path / "file"
    file.write_bytes(b"x")
    file.chmod(0o640)
    inode = file.stat().st_ino
    facts = (tmp_path / "q" / queue.put_path(file)).stat()
    assert (facts.st_ino, stat.S_IMODE(facts.st_mode)) == (inode, 0o640)
    assert not file.exists()
    queue.close()


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_unsupported_call_names_the_layout_and_the_reason(tmp_path, layout):
    """The error names the layout and the reason."""
    queue = Queue(tmp_path / "q", layout=layout, sync=False)
    with pytest.raises(Unsupported, match=layout):
        queue.put(b"x", delay=1)
    queue.put(b"x")
    lease = queue.get(timeout=0)
    with pytest.raises(Unsupported, match="dead"):
        lease.reject("bad")
    lease.release()
    with pytest.raises(Unsupported, match="priority"):
        Queue(tmp_path / "other", layout=layout, priorities=True)
    with pytest.raises(Unsupported, match=r"max_attempts=3.*no place to count"):
        Queue(tmp_path / "other", layout=layout, max_attempts=3)
    Queue(tmp_path / "other", layout=layout, max_attempts=0).close()
    queue.close()


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
@pytest.mark.parametrize("wrong", [{"max_attempts": 3}, {"priorities": True}, {"keep_done": True}], ids=str)
def test_create_with_unsupported_settings_makes_nothing(tmp_path, layout, wrong):
    """A create that is refused leaves nothing that would refuse the next; another leaves no file of our own."""
    with pytest.raises(Unsupported, match=layout):
        Queue.create(tmp_path / "q", layout=layout, **wrong)
    assert os.listdir(tmp_path) == []
    with Queue.create(tmp_path / "q", layout=layout, lease=50) as queue:
        queue.put(b"x")
        assert drain(queue) == [b"x"]
    assert not [name for name in files(tmp_path / "q") if name.startswith(".")]


@pytest.mark.parametrize("layout", ["dirq-simple", "dirq-normal"])
def test_stale_lock_is_taken_over_once(tmp_path, layout):
    """The element of a consumer that died comes again, to one, and the dead one's lease is worth nothing."""
    dead, one, two = (Queue(tmp_path / "q", layout=layout, sync=False) for _ in range(3))
    name = dead.put(b"x")
    lost = dead.get(timeout=0)
    with pytest.raises(dirqueue.Empty):
        one.get(timeout=0)
    os.utime(tmp_path / "q" / name, (OLD, OLD))
    second = Queue(tmp_path / "q", layout=layout, sync=False)
    lease = second.get(timeout=0)
    with pytest.raises(dirqueue.Empty):
        two.get(timeout=0)
    with pytest.raises(LeaseLost):
        lost.ack()
    lease.ack()
    for queue in (dead, one, two, second):
        assert len(queue) == 0
        queue.close()


@pytest.mark.parametrize("layout", ["dirq-simple", "dirq-normal"])
def test_purge_takes_only_what_is_old(tmp_path, layout):
    """Young unfinished elements, young locks and live elements stay; strangers always do."""
    queue = Queue(tmp_path / "q", layout=layout, sync=False)
    names = [queue.put(b"x") for _ in range(3)]
    held = [queue.get(timeout=0) for _ in range(2)]
    os.utime(tmp_path / "q" / names[0], (OLD, OLD))
    (tmp_path / "q" / "stranger.txt").write_text("x")
    where = tmp_path / "q" / ("temporary" if layout == "dirq-normal" else names[0][:8])
    suffix = "" if layout == "dirq-normal" else ".tmp"
    for name in ("00000000000000", "00000000000001"):
        (where / (name + suffix)).mkdir() if layout == "dirq-normal" else (where / (name + suffix)).touch()
    os.utime(where / ("00000000000000" + suffix), (OLD, OLD))
    purged = queue.purge()
    assert (purged.new, purged.released) == (1, 1)
    assert not (where / ("00000000000000" + suffix)).exists()
    assert (where / ("00000000000001" + suffix)).exists()
    assert (tmp_path / "q" / "stranger.txt").exists()
    assert len(queue) == 3
    held[1].ack()
    with pytest.raises(LeaseLost):
        held[0].ack()
    queue.close()


def test_tables_survive_the_round_trip():
    """Escapes are undone in one pass; what dirq cannot read is an error."""
    table = {"": "", "\\t": "\t", "a\nb": "\\", "é": "\r"}
    assert read_table(write_table(table)) == table
    assert write_table({}) == ""
    assert read_table("a\\x\tb\\\n") == {"a\\x": "b\\"}
    with pytest.raises(ValueError, match="unexpected line"):
        read_table("no tab\n")

"""Every verb takes a text file as it takes a directory."""

import json
import os
import stat

import pytest
from support.commands import _plain_environment, dq, real
from support.kit import drain

from dirqueue import Queue, QueueSet, Worker
from dirqueue.tools import transfer
from dirqueue.tools.check import check

__all__ = ["_plain_environment", "dq", "real"]


@pytest.fixture
def jobs(make, path):
    """Give a file with two messages that wait, one that is done and one that is dead."""
    queue = make()
    queue.put_many([b"done", b"dead", b"one", b"two\nlines"])
    queue.get(timeout=0).ack()
    queue.get(timeout=0).reject("broken")
    return queue


def test_put_get_and_end(dq, path):
    assert dq("create", path, "--layout", "text").status == 0
    id = dq("put", path, "hello").out.strip()
    assert dq("cat", path, id).out == "hello"
    handle = json.loads(dq("get", path, "--hold", "--json").out)["handle"]
    assert dq("renew", path, handle).status == 0
    handle = json.loads(dq("ls", path, "--state", "leased", "--json").out)["handle"]
    assert dq("ack", path, handle).status == 0
    assert dq("get", path).status == 3
    assert b"\n=hello\n" in path.read_bytes()


def test_looking(dq, jobs, path):
    assert dq("peek", path).out == "one"
    assert dq("peek", path, "--state", "dead").out == "dead"
    assert len(dq("ls", path, "--state", "all").out.splitlines()) == 4
    row = json.loads(dq("stat", path, "--json").out)
    assert (row["layout"], row["ready"], row["dead"], row["done"]) == ("text", 2, 1, 1)
    assert dq("cat", path).out == path.read_text()
    assert dq("shape", path).status == 0


def test_changing(dq, jobs, path):
    assert dq("redrive", path).status == 0
    assert dq("clear", path).out.strip() == "1"
    assert dq("purge", path).status == 0
    assert dq("check", path).status == 0
    assert dq("flush", path, "--yes").out.strip() == "3"
    assert jobs.stats().total == 0
    assert dq("delete", path, "--yes").status == 0
    assert os.listdir(path.parent) == []


def test_text_files_are_found_under_a_root(dq, jobs, path, tmp_path):
    """Those with a journal beside them whatever their name, others by their name and their lines."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "plain.tq").write_bytes(b"-a\n")
    (tmp_path / "sub" / "other.tq").write_bytes(b"no queue\n")
    (tmp_path / "sub" / "notes.txt").write_bytes(b"-a\n")
    Queue(tmp_path / "named", layout="text", sync=False).put(b"x")
    found = {json.loads(line)["queue"] for line in dq("list", tmp_path, "--json").out.splitlines()}
    assert found == {str(tmp_path / name) for name in ("jobs.tq", "sub/plain.tq", "named", "sub")} - {
        str(tmp_path / "sub")
    }
    assert len(dq("monitor", tmp_path, "--once", "--json").out.splitlines()) == 3
    assert 'state="ready"} 2' in dq("metrics", path).out


def test_work(dq, jobs, path):
    done = dq("work", path, "--until-empty", "--", "cat")
    assert done.status == 0, done.err
    assert jobs.stats().done == 3


def test_move_and_transfer(dq, jobs, path, tmp_path, make):
    """Between a file and a directory, both ways."""
    assert dq("mv", path, tmp_path / "directory").status == 0
    with Queue(tmp_path / "directory", sync=False) as directory:
        assert len(directory) == 2
        other = make(tmp_path / "other.tq")
        moved = [transfer.move(directory, other) for _ in range(1)]
        assert moved
    assert drain(other) == [b"one", b"two\nlines"]


def editor(tmp_path, script):
    """Return the path of an editor that runs a script."""
    program = tmp_path / "editor"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_edit_merges_what_happened_meanwhile(dq, jobs, path, tmp_path, monkeypatch):
    """The editor is open while others put and finish."""
    for n in range(2):
        (tmp_path / f"in{n}").write_bytes(b"x")
    script = f"""
        python3 - <<'END'
import sys
sys.path[:0] = {os.sys.path!r}
from dirqueue import Queue
queue = Queue({str(path)!r}, sync=False)
queue.get(timeout=0).ack()
queue.put(b"meanwhile")
END
        sed -i -e 's/^-two/-typed\\n-two/' -e 's/^!dead/-dead/' "$1"
    """
    monkeypatch.setenv("VISUAL", editor(tmp_path, script.replace("python3", os.sys.executable)))
    done = dq("edit", path)
    assert (done.status, done.err) == (0, "")
    assert drain(jobs) == [b"dead", b"typed", b"two\nlines", b"meanwhile"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize(("script", "status"), [("exit 1", 2), ("true", 0)])
def test_edit_that_fails_or_changes_nothing_leaves_the_file(
    dq, jobs, path, tmp_path, monkeypatch, script, status
):
    before, facts = path.read_bytes(), path.stat()
    monkeypatch.setenv("EDITOR", editor(tmp_path, script))
    monkeypatch.delenv("VISUAL", raising=False)
    done = dq("edit", path)
    assert done.status == status
    assert "nothing was changed" in done.err
    assert (path.read_bytes(), path.stat().st_ino) == (before, facts.st_ino)


def test_edit_beside_a_program_that_has_the_file_open_keeps_what_was_written(
    dq, jobs, path, tmp_path, monkeypatch
):
    monkeypatch.setenv("VISUAL", editor(tmp_path, 'echo "-typed" >> "$1"'))
    with open(path, "rb"):
        done = dq("edit", path)
    assert done.status == 1
    assert "has it open" in done.err
    kept = path.with_name("jobs.tq.edited")
    assert kept.read_bytes().endswith(b"-typed\n")
    assert b"-typed" not in path.read_bytes()


def test_edit_of_a_directory_and_a_missing_editor_are_refused(dq, jobs, path, tmp_path, monkeypatch):
    Queue(tmp_path / "d", sync=False).put(b"x")
    done = dq("edit", tmp_path / "d")
    assert "only a text file can be edited" in done.err
    assert "shown without ids" in dq("cat", tmp_path / "d").err
    monkeypatch.setenv("VISUAL", "/nowhere/editor")
    done = dq("edit", path)
    assert (done.status, "cannot run the editor" in done.err) == (2, True)


def test_states_have_colours_on_a_terminal(dq, jobs, path, monkeypatch):
    from dirqueue.cli import output

    monkeypatch.setattr(output, "coloured", lambda *_: True)
    shown = dq("cat", path).out
    assert "\x1b[32m=done\x1b[0m" in shown
    assert "\x1b[31m!dead\x1b[0m" in shown
    assert "\x1b[1m lines\x1b[0m" in shown


def test_set_and_worker(make, path, tmp_path):
    """A set of a file and a directory; a worker on a file."""
    queue = make()
    queue.put(b"text")
    other = Queue(tmp_path / "directory", sync=False)
    other.put(b"native")
    both = QueueSet([queue, other])
    assert sorted(drain(both)) == [b"native", b"text"]
    queue.put_many([b"a", b"b"])
    seen = []
    Worker(queue, lambda message: seen.append(message.body)).run_until_empty()
    assert seen == [b"a", b"b"]


ODD = {
    "T01": lambda path, data: path.write_bytes(data + b"odd\n"),
    "T02": lambda path, data: path.write_bytes(data + b"-a\r\n"),
    "T03": lambda path, data: path.write_bytes(b"\xef\xbb\xbf" + data),
    "T04": lambda path, data: path.write_bytes(data + b"-\xff\n"),
    "T05": lambda path, data: path.write_bytes(data + b"\0\0\0-a\n"),
    "T06": lambda path, data: path.write_bytes(data + b"-a"),
    "T08": lambda path, data: path.write_bytes(b"\n".join(data.split(b"\n")[2:])),
    "T09": lambda path, data: path.write_bytes(data + data),
    "T10": lambda path, data: next(path.parent.glob(".jobs.tq.dirqueue/journal.*")).write_bytes(b"damaged\n"),
    "T11": lambda path, data: (path.parent / ".jobs.tq.dirqueue" / "new").write_bytes(b""),
}


@pytest.mark.parametrize("code", ODD)
def test_check_finds_it_and_changes_nothing(jobs, path, code):
    assert check(str(path)) == []
    ODD[code](path, path.read_bytes())
    before = path.read_bytes()
    assert code in [finding.code for finding in check(str(path))]
    assert path.read_bytes() == before
    found = check(str(path), repair=True)
    assert [finding.repaired for finding in found if finding.code == code] == [code == "T11"] * len(
        [finding for finding in found if finding.code == code]
    )


def test_check_finds_an_old_copy(jobs, path):
    copy = path.read_bytes()
    drain(jobs)
    path.write_bytes(copy)
    assert [finding.code for finding in check(str(path))] == ["T07"]
    drain(jobs)


def test_check_of_a_file_without_a_journal(path):
    path.write_bytes(b"-a\n")
    assert check(str(path)) == []
    assert os.listdir(path.parent) == ["jobs.tq"]

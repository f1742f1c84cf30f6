"""The verbs for messages: put, get, the ends of a lease, peek, cat, ls."""

import base64
import json
import os

import pytest
from support.running import sentence

from dirqueue import Queue
from dirqueue.failure import Reason


def bodies(queue):
    return [lease.message.data for lease in queue.consume(timeout=0)]


# --- put -----------------------------------------------------------------------------------------------------


def test_put_prints_the_id_of_each_argument(dq, queue):
    """Ids on stdout, in order, and nothing on stderr."""
    done = dq("put", queue.path, "one", "two")
    assert (done.status, done.err) == (0, "")
    assert [queue.message(id).data for id in done.lines] == [b"one", b"two"]


def test_put_takes_all_of_stdin_as_one_message(dq, queue):
    """Bytes stay as they are, line ends included."""
    assert dq("put", queue.path, stdin=b"a\nb\n\xff\x00").status == 0
    assert bodies(queue) == [b"a\nb\n\xff\x00"]


@pytest.mark.parametrize(
    ("option", "given"),
    [("--lines", b"a\n\nb"), ("--lines", b"a\n\nb\n"), ("-0", b"a\0\0b\0"), ("-0", b"a\0\0b")],
)
def test_put_splits_stdin(dq, queue, option, given):
    """A message for each line or NUL; the last needs no end, an empty one counts."""
    assert len(dq("put", queue.path, option, stdin=given).lines) == 3
    assert bodies(queue) == [b"a", b"", b"b"]


def test_put_of_many_lines_keeps_them_whole_and_in_order(dq, queue):
    """Lines longer than a read, and more lines than a directory of a batch holds."""
    long = b"x" * 200_000
    lines = [b"%d" % number for number in range(5000)]
    assert dq("put", queue.path, "-l", "-q", stdin=b"\n".join([long, *lines])).out == ""
    assert bodies(queue) == [long, *lines]


def test_put_of_no_lines_puts_nothing(dq, queue):
    """An empty stream of lines is no message and no error."""
    done = dq("put", queue.path, "--lines")
    assert (done.status, done.out) == (0, "")


def test_put_each_makes_flat_messages(dq, queue, tmp_path):
    """With --each there is no batch."""
    dq("put", queue.path, "--lines", "--each", stdin=b"a\nb\n")
    assert not list((tmp_path / "q").glob("*.batch"))
    assert bodies(queue) == [b"a", b"b"]


def test_put_files(dq, queue, tmp_path):
    """Each file is a message, also through a symbolic link; the files stay."""
    (tmp_path / "f1").write_bytes(b"1")
    (tmp_path / "f2").symlink_to("f1")
    assert dq("put", queue.path, "-f", tmp_path / "f1", "-f", tmp_path / "f2").status == 0
    assert bodies(queue) == [b"1", b"1"]
    assert (tmp_path / "f1").exists()


def test_put_moves_and_links_files_without_a_copy(dq, queue, tmp_path):
    """--move takes the file away, --link gives it a second name; both keep the inode."""
    for name, option in (("moved", "--move"), ("linked", "--link")):
        file = tmp_path / name
        file.write_text(name)
        inode = file.stat().st_ino
        (id,) = dq("put", queue.path, option, "--file", file).lines
        assert os.stat(os.path.join(queue.path, id)).st_ino == inode
        assert file.exists() == (name == "linked")


def test_put_with_delay_is_not_there_yet(dq, queue):
    """A delayed message is listed as delayed, and get finds nothing."""
    assert dq("put", queue.path, "later", "--delay", "2h").status == 0
    assert dq("get", queue.path, "-q").status == 3
    (message,) = queue.peek("delayed")
    assert 7100 < (message.until - message.enqueued_at).total_seconds() < 7300


def test_put_with_priority(dq, tmp_path):
    """1 comes before 2, in a queue that was created for it."""
    path = tmp_path / "q"
    assert dq("create", path, "--priorities", "--no-sync").status == 0
    dq("put", path, "second", "-p", "2")
    dq("put", path, "first", "-p", "1")
    assert dq("get", path, "-n", "2").lines == ["first", "second"]


def test_put_json_names_the_queue(dq, queue):
    """--json is one object per line."""
    (line,) = dq("put", queue.path, "x", "--json").lines
    assert json.loads(line) == {"id": next(queue.peek()).id, "queue": queue.path}


def test_put_keeps_bytes_of_arguments_that_are_not_utf8(real, queue):
    """An argument is bytes to the shell, and stays those bytes."""
    assert real("put", queue.path, os.fsdecode(b"\xff\xfe")).status == 0
    assert bodies(queue) == [b"\xff\xfe"]


# --- get -----------------------------------------------------------------------------------------------------


def test_get_writes_the_body_and_acknowledges(dq, queue):
    """The body as it is, and the message is gone."""
    queue.put(b"body")
    assert dq("get", queue.path).out == "body"
    assert len(queue) == 0


def test_get_of_nothing_is_status_3(dq, queue):
    """So that a loop over get ends; -q says nothing."""
    done = dq("get", queue.path)
    assert done.status == 3
    assert "nothing to get" in sentence(done)
    assert dq("get", queue.path, "-q").err == ""


def test_get_waits_for_a_queue_that_is_not_there_yet(start, real, tmp_path):
    """--wait starts before the first put, and gets it."""
    import subprocess

    waiting = start("get", tmp_path / "q", "--wait", stdout=subprocess.PIPE)
    assert real("put", tmp_path / "q", "hello").status == 0
    assert waiting.communicate(timeout=50)[0] == b"hello"
    assert waiting.returncode == 0


@pytest.mark.parametrize(
    ("words", "out"), [(["-n", "2"], "a\nb\n"), (["--all", "-0"], "a\0b\0c\0"), ([], "a")]
)
def test_get_several(dq, queue, words, out):
    """A line end or NUL after each if several may come, nothing added to a single one."""
    queue.put_many([b"a", b"b", b"c"])
    assert dq("get", queue.path, *words).out == out


def test_get_json_has_the_body_as_text_or_base64(dq, queue):
    """UTF-8 as `body`, anything else as `body_base64`."""
    queue.put("grüße")
    queue.put(b"\xff\x00")
    text, other = map(json.loads, dq("get", queue.path, "--all", "--json").lines)
    assert text["body"] == "grüße"
    assert base64.b64decode(other["body_base64"]) == b"\xff\x00"
    assert text["state"] == "leased"


def test_get_takes_a_body_larger_than_one_read(dq, queue):
    """A long body is read from the file."""
    queue.put(b"y" * 1_000_000)
    assert len(dq("get", queue.path).out) == 1_000_000


# --- leases across processes ---------------------------------------------------------------------------------


def hold(dq, queue, body=b"work"):
    queue.put(body)
    (handle,) = dq("get", queue.path, "--hold").lines
    return handle


def test_hold_keeps_the_message_for_a_later_command(dq, queue):
    """The handle reads the body and ends the lease; then it is of no use."""
    handle = hold(dq, queue)
    assert dq("get", queue.path, "-q").status == 3
    assert dq("cat", queue.path, handle).out == "work"
    assert dq("ack", queue.path, handle).status == 0
    assert queue.stats().total == 0
    done = dq("ack", queue.path, handle)
    assert done.status == 4
    assert "lost" in sentence(done)


def test_hold_works_between_real_processes(real, tmp_path):
    """Three processes, one lease."""
    real("put", tmp_path / "q", "a", "b")
    handle = real("get", tmp_path / "q", "--hold").lines[0]
    assert handle.startswith("leased/")
    assert real("retry", tmp_path / "q", handle, "--error", "no luck", "--delay", "1h").status == 0
    (row,) = map(json.loads, real("ls", tmp_path / "q", "--state", "delayed", "--json").lines)
    assert (row["attempts"], row["error"]) == (1, "no luck")


def test_renew_prints_the_new_handle_and_ends_the_old(dq, queue):
    """A renewal is a new name."""
    old = hold(dq, queue)
    (new,) = dq("renew", queue.path, old, "--lease", "1h").lines
    assert dq("release", queue.path, old).status == 4
    assert dq("release", queue.path, new).status == 0
    (message,) = queue.peek()
    assert message.attempts == 0


def test_reject_keeps_the_reason(dq, queue):
    """Dead, with why."""
    assert dq("reject", queue.path, hold(dq, queue), "--reason", "no such customer").status == 0
    assert [message.error for message in queue.peek("dead")] == ["no such customer"]


def test_retry_after_the_last_attempt_is_dead(dq, tmp_path):
    """max_attempts counts across processes."""
    queue = Queue.create(tmp_path / "q", max_attempts=1, sync=False)
    assert dq("retry", queue.path, hold(dq, queue)).status == 0
    assert queue.stats().dead == 1


def test_one_lost_lease_does_not_keep_the_others(dq, queue):
    """Each handle is ended; the status tells that one was lost."""
    lost, good = hold(dq, queue, b"1"), hold(dq, queue, b"2")
    dq("ack", queue.path, lost)
    assert dq("ack", queue.path, lost, good).status == 4
    assert queue.stats().total == 0


def test_ack_by_handle_keeps_when_it_was_claimed(dq, tmp_path):
    """In done/ the time of the claim is not lost between processes."""
    queue = Queue.create(tmp_path / "q", keep_done=True, sync=False)
    assert dq("ack", queue.path, hold(dq, queue)).status == 0
    (message,) = queue.peek("done")
    assert abs((message.leased_at - message.enqueued_at).total_seconds()) < 3600


@pytest.mark.parametrize(
    "handle",
    ["", "x", "../../etc/passwd", "/etc/passwd", "1794906871655342609277882",
     "dead/1794906871655342609277882.1794906871655342.1.t",
     "1794906871655342609277882.slice/../1794906871655342609277882.1794906871655342.1.t",
     "1794906871655342609277882.1794906871655342.1.t/x", "1794906871655342609277882.1794906871655342.1.t.ack",
     "1794906871655342609277882.1794906871655342.1.\u00e9"],
)  # fmt: skip
def test_what_is_no_handle_never_reaches_a_path(dq, queue, handle):
    """Anything but the exact grammar of a leased name is refused."""
    queue.put(b"x")
    done = dq("ack", queue.path, handle)
    assert done.status == 2
    assert "is not the handle" in sentence(done)
    assert len(queue) == 1


# --- looking -------------------------------------------------------------------------------------------------


def test_peek_takes_nothing(dq, queue):
    """The next bodies, and they are still there."""
    queue.put_many([b"a", b"b", b"c"])
    assert dq("peek", queue.path).out == "a"
    assert dq("peek", queue.path, "-n", "2").lines == ["a", "b"]
    assert dq("peek", queue.path, "--state", "dead").status == 3
    assert len(queue) == 3


def test_cat_shows_bodies_and_reports_missing_ones(dq, queue):
    """What is there is shown, what is not is said."""
    id = queue.put(b"here")
    gone = queue.put(b"gone")
    queue.message(gone).cancel()
    done = dq("cat", queue.path, gone, id)
    assert (done.status, done.out) == (1, "here")
    assert gone in sentence(done)


def test_ls_shows_states(dq, queue):
    """Tab-separated without a terminal; live messages unless a state is named."""
    ready, later = queue.put(b"xyz"), queue.put(b"", delay=1000)
    rows = [line.split("\t") for line in dq("ls", queue.path).lines]
    assert [(row[0], row[1], row[6]) for row in rows] == [(ready, "ready", "3"), (later, "delayed", "0")]
    assert [line.split("\t")[0] for line in dq("ls", queue.path, "--state", "delayed").lines] == [later]
    assert dq("ls", queue.path, "--state", "dead").status == 3
    assert len(dq("ls", queue.path, "--state", "all", "--limit", "1").lines) == 2


def test_ls_matches_errors_and_cannot_be_broken_by_them(dq, queue):
    """An error with tabs, line ends and escapes stays in its column."""
    for error in ("bad\tthing\nhappened\x1b[31m", "other"):
        queue.put(b"")
        queue.get(timeout=0).reject(error)
    (line,) = dq("ls", queue.path, "--state", "dead", "--match", "^bad").lines
    assert line.split("\t")[-1] == "bad\\tthing\\nhappened\\x1b[31m"
    assert len(dq("ls", queue.path, "--state", "dead", "--match", ".", "--limit", "1").lines) == 1


def test_ls_table_has_a_header(dq, queue):
    """--table shows what a terminal would."""
    queue.put(b"")
    head, row = dq("ls", queue.path, "--table").lines
    assert head.split()[:3] == ["ID", "STATE", "ATTEMPTS"]
    assert row.split()[1] == "ready"


def test_error_option_shows_why_a_message_failed_instead_of_its_body(dq, queue):
    """The error, then what explains it; a message that has not failed is reported, and shows nothing."""
    failed, fresh = queue.put(b"failed"), queue.put(b"fresh")
    queue.get(timeout=0).reject(Reason("ValueError: bad", "  File x\n    y"))
    whole = "ValueError: bad\n  File x\n    y\n"
    assert dq("cat", queue.path, "--error", failed).out == whole
    assert dq("peek", queue.path, "--state", "dead", "--error").out == whole
    assert json.loads(dq("cat", queue.path, "--json", failed).out)["trace"] == "  File x\n    y"
    assert "trace" not in json.loads(dq("ls", queue.path, "--state", "dead", "--json").out)
    assert len(dq("ls", queue.path, "--state", "dead", "--match", "File x").lines) == 1
    done = dq("cat", queue.path, "--error", fresh)
    assert (done.status, done.out) == (0, "")
    assert f"{fresh} has no failure on record" in done.err

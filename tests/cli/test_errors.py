"""Whatever goes wrong: one sentence, the documented exit status, no traceback, nothing half done."""

import errno
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from support.running import as_nobody, command, environment, sentence

from dirqueue import Queue
from dirqueue.cli.exits import Exit, status_of
from dirqueue.disk import fs

READERS = (
    "get --timeout 0",
    "peek",
    "ls",
    "cat {id}",
    "ack {handle}",
    "stat",
    "shape",
    "redrive",
    "check",
    "clear",
)


# --- one test per row of the table of exit statuses ------------------------------------------------------------


def test_0_it_worked(real, tmp_path):
    """The plain case, as a process."""
    assert real("put", tmp_path / "q", "x").status == Exit.OK == 0


def test_1_it_failed(real, tmp_path):
    """A queue that is not there."""
    done = real("ls", tmp_path / "nope")
    assert done.status == Exit.FAILED == 1
    assert "there is no queue" in sentence(done)


@pytest.mark.parametrize(
    "words",
    ["", "frobnicate", "put", "put q --delay soon", "put q x -f y", "put q --move", "get q -n 0", "get q -n x",
     "put q x --priority 0", "cat q notanid", "ls q --match (", "create q --type heap", "mv q", "put q --bogus"],
)  # fmt: skip
def test_2_an_invalid_command_line(dq, tmp_path, monkeypatch, words):
    """The usage is wrong: said in one sentence, and nothing is made."""
    monkeypatch.chdir(tmp_path)
    if words.split()[:1] in (["cat"], ["ls"]):
        Queue("q").put(b"")
        before = os.listdir("q")
    else:
        before = None
    done = dq(*words.split())
    assert done.status == Exit.USAGE == 2
    sentence(done)
    assert (os.listdir("q") if os.path.exists("q") else None) == before


def test_3_nothing_to_do(real, tmp_path):
    """An empty queue, so that a shell loop ends."""
    real("put", tmp_path / "q", "x")
    real("get", tmp_path / "q")
    assert real("get", tmp_path / "q", "--timeout", "0.01").status == Exit.EMPTY == 3


def test_4_a_lease_that_is_lost(dq, queue):
    """Ended by somebody else."""
    queue.put(b"")
    lease = queue.get(timeout=0)
    lease.release()
    done = dq("ack", queue.path, lease.handle)
    assert done.status == Exit.LEASE_LOST == 4
    sentence(done)


def test_5_problems_found(dq, tmp_path):
    """By check."""
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "1500000000000000000000001").mkdir()
    (tmp_path / "q" / "1500000000000000000000002").write_text("")
    assert dq("check", tmp_path / "q").status == Exit.PROBLEMS == 5


def test_69_a_missing_extra_is_one_sentence_with_the_cure(dq, monkeypatch):
    """What to install, and nothing else."""
    monkeypatch.setitem(sys.modules, "shtab", None)
    done = dq("completion", "bash")
    assert done.status == Exit.UNAVAILABLE == 69
    assert "pip install 'dirqueue[cli]'" in sentence(done)


def test_70_a_defect_is_reported_and_can_be_traced(dq, queue, monkeypatch):
    """No traceback, unless DIRQUEUE_TRACE asks for one."""

    def broken(*_, **__):
        raise RuntimeError("what is this")

    monkeypatch.setattr(Queue, "peek", broken)
    queue.put(b"")
    done = dq("peek", queue.path)
    assert done.status == Exit.DEFECT == 70
    assert "a bug in dirqueue" in sentence(done)
    monkeypatch.setenv("DIRQUEUE_TRACE", "1")
    assert "Traceback" in dq("peek", queue.path).err


def test_73_it_cannot_be_written_there(dq, tmp_path):
    """A file where a directory should be."""
    (tmp_path / "file").write_text("")
    done = dq("put", tmp_path / "file" / "q", "x")
    assert done.status == Exit.CANNOT_CREATE == 73
    sentence(done)


def test_75_full_for_now(dq, tmp_path):
    """A bounded queue without room."""
    Queue.create(tmp_path / "q", max_messages=1, sync=False)
    assert dq("put", tmp_path / "q", "x").status == 0
    done = dq("put", tmp_path / "q", "y", "--timeout", "0.01")
    assert done.status == Exit.TRY_AGAIN == 75
    sentence(done)


def test_130_interrupted_while_waiting(start, queue):
    """Ctrl-C ends a wait, without a word."""
    queue.put(b"")
    queue.get(timeout=0).ack()
    waiting = start("get", queue.path, "--wait", stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert opens(waiting.pid, queue.path)
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=50) == (b"", b"")
    assert waiting.returncode == Exit.INTERRUPTED == 130


def opens(pid, path):
    """Wait until a process has the directory open; by then it is where Ctrl-C is expected."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                if os.readlink(f"/proc/{pid}/fd/{fd}") == path:
                    return True
            except FileNotFoundError:
                continue
        time.sleep(0.01)
    return False


def test_141_the_reader_went_away(tmp_path):
    """`dirqueue ls | head -1` ends quietly."""
    Queue(tmp_path / "q", sync=False).put_many([b"x"] * 5000)
    listing = subprocess.Popen(
        command("ls", tmp_path / "q"), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with listing:
        listing.stdout.readline()
        listing.stdout.close()
        assert listing.stderr.read() == b""
    assert listing.returncode == Exit.PIPE == 141


# --- nothing half done ---------------------------------------------------------------------------------------


def test_a_get_whose_reader_went_away_gives_the_message_back(tmp_path):
    """Not acknowledged, not counted: the next get has it."""
    queue = Queue(tmp_path / "q", sync=False)
    queue.put(b"x" * 1_000_000)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command("get", queue.path), env=environment(), stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
    (message,) = queue.peek()
    assert message.attempts == 0


@pytest.mark.parametrize("words", [["get"], ["get", "--hold"], ["get", "--json"]])
def test_a_get_onto_a_full_disk_gives_the_message_back(queue, words):
    """The body cannot be written, so the message stays."""
    queue.put(b"body")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command(words[0], queue.path, *words[1:]),
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert [message.attempts for message in queue.peek()] == [0]


def test_a_put_whose_id_cannot_be_printed_reports_that_it_was_put(queue):
    """The message is there, so "try again" would be wrong."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("put", queue.path, "x"),
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    (message,) = queue.peek()
    assert message.id in done.stderr.decode()


def test_ctrl_c_in_the_middle_of_a_batch_puts_nothing(start, tmp_path):
    """Lines were read, the batch was not complete: not one of them is visible."""
    putting = start("put", tmp_path / "q", "--lines", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    putting.stdin.write((b"x" * (1 << 20) + b"\n") * 3)  # more than is read before the first is staged
    putting.stdin.flush()
    staged = lambda: [file for file in (tmp_path / "q").glob("*.batch.new/*") if file.stat().st_size]  # noqa: E731
    deadline = time.monotonic() + 30
    while len(staged()) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(staged()) >= 2
    putting.send_signal(signal.SIGINT)
    putting.wait(timeout=50)
    assert (putting.returncode, putting.stderr.read()) == (130, b"")
    assert Queue(tmp_path / "q").stats().to_dict()["total"] == 0
    assert not list((tmp_path / "q").glob("*.batch*"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_status_75_and_leaves_nothing(dq, queue, monkeypatch, code):
    """One message or a batch: none is visible, none is left unfinished."""
    queue.put(b"first")

    def full(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fs, "write", full)
    for words in (["x"], ["x", "y"]):
        done = dq("put", queue.path, *words)
        assert done.status == 75
        assert "free some space" in sentence(done)
    assert queue.stats().new == 0
    assert len(queue) == 1


@pytest.mark.needs("mount")
def test_a_really_full_disk(tmp_path):
    """On a small filesystem of its own: put says 75, and get still drains the queue."""
    script = f"""
        mount -t tmpfs -o size=64k none {tmp_path} && cd {tmp_path} || exit 9
        dq() {{ {sys.executable} -m dirqueue "$@"; }}
        dq put q small >/dev/null || exit 8
        head -c 1000000 /dev/zero | dq put q; [ $? = 75 ] || exit 7
        cat /dev/zero > filler 2>/dev/null
        dq get q
    """
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "small"), done
    assert done.stderr.count("dirqueue: ") == 1


@pytest.mark.parametrize("name", ["nope", "dir"])
def test_a_file_that_cannot_be_read_puts_nothing(dq, queue, tmp_path, name):
    """Not even those before it on the command line."""
    (tmp_path / "dir").mkdir()
    (tmp_path / "good").write_text("x")
    for extra in ([], ["--move"], ["--link"]):
        done = dq("put", queue.path, "-f", tmp_path / "good", "-f", tmp_path / name, *extra)
        assert done.status == 1
        assert name in sentence(done)
        assert (tmp_path / "good").exists()
    assert len(queue) == 0


@pytest.mark.root
def test_without_permission_every_verb_reports_it(queue):
    """As another user: no put, no get, and the reason."""
    queue.put(b"x")
    os.chmod(queue.path, 0o755)
    for words, status in (
        ("put {} y", 73),
        ("get {}", 1),
        ("flush {} --yes", 1),
        ("delete {} --yes", 1),
        ("mv {} {}2", 73),
    ):
        done = as_nobody(queue.path, *words.format(queue.path, queue.path).split())
        assert done.status == status, (words, done)
        sentence(done)
    os.chmod(queue.path, 0o700)
    done = as_nobody(queue.path, "ls", queue.path)
    assert done.status == 1, done
    assert "permission" in sentence(done)
    assert len(queue) == 1


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (["stat", "{nope}"], "`dirqueue create` makes one"),
        (["check", "{nope}"], "`dirqueue create` makes one"),
        (["put", "{q}", "-p", "1", "x"], "dirqueue create QUEUE --priorities"),
        (["cat", "{q}", "x"], "`dirqueue put` printed"),
        (["cat", "{q}", "x", "y"], "`dirqueue put` printed"),
        (["ack", "{q}", "x"], "`dirqueue get --hold` printed"),
        (["convert", "{q}", "--to", "vsqs"], "--wait TIME"),
    ],
)
def test_errors_speak_shell(dq, queue, tmp_path, words, cure):
    """The cure is a command or an option, not a call in Python."""
    queue.put(b"x")
    queue.get(timeout=0)
    shown = sentence(dq(*(word.format(q=queue.path, nope=tmp_path / "nope") for word in words)))
    assert cure in shown
    assert not re.search(r"\w\(|Queue\.|Lease\.|\w=", shown)


@pytest.mark.parametrize("words", READERS)
@pytest.mark.parametrize("text", ["", "words\n"], ids=["empty", "words"])
def test_a_wrong_queue_is_one_sentence_for_every_verb(dq, tmp_path, words, text):
    """A file that is no queue; it stays as it is."""
    (tmp_path / "file").write_text(text)
    id = "1500000000000000000000001"
    verb, *rest = words.format(id=id, handle=f"{id}.1500000000000000.1.t").split()
    done = dq(verb, tmp_path / "file", *rest)
    assert done.status == 1
    assert ("not a text queue" if text else "an empty file") in sentence(done)
    assert (tmp_path / "file").read_text() == text
    assert os.listdir(tmp_path) == ["file"]


def test_a_damaged_settings_file_is_one_sentence(dq, tmp_path):
    """It names the file."""
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "queue.json").write_text('{"format": 99}')
    done = dq("get", tmp_path / "q")
    assert done.status == 1
    assert "queue.json" in sentence(done)


def test_a_layout_that_is_not_there_is_one_sentence(dq, tmp_path):
    """A word that no version knows."""
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "queue.json").write_text('{"layout": "sideways"}')
    done = dq("put", tmp_path / "q", "x")
    assert done.status == 1
    sentence(done)


def test_odd_names_cannot_break_the_sentence(dq, tmp_path):
    """Line ends and escapes in a path are shown, not obeyed."""
    done = dq("ls", str(tmp_path / "a\nb\x1b[31m"))
    assert "\x1b" not in sentence(done)
    assert dq("put", "a\0b", "x").status == 2


def test_every_error_of_the_library_has_a_status():
    """None of them is taken for a defect."""
    from dirqueue import errors

    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.DirQueueError)
    ]
    assert len(kinds) > 10
    assert all(status_of(kind("text", **dict.fromkeys(kind._fields, 1))) != Exit.DEFECT for kind in kinds)

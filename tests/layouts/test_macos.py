"""What macOS lacks is not needed: simulated by taking it away. What is weaker there is in docs/howto/macos.md."""

import ast
import errno
import subprocess
import sys
from pathlib import Path

import pytest
from support.macos import MISSING
from support.running import environment

import dirqueue
from dirqueue.disk import fs

STORY = """
import sys
from support import macos
import asyncio, subprocess, threading, concurrent.futures.thread  # as Python itself is on Linux
macos.take_away()
import dirqueue
from dirqueue.disk import fs
path, layout = sys.argv[1:]
queue = dirqueue.Queue(path, layout=layout)
assert fs.fsync is fs.full_fsync
queue.put(b"first")
assert macos.flushes, "the drive was not flushed"
queue.put_many([b"a", b"b", b"c"])
with open(path + "-file", "wb") as file:
    file.write(b"file")
queue.put_path(path + "-file")
bodies = []
for lease in queue.consume(timeout=0.05):
    with lease as message:
        bodies.append(message.body)
    lease = None
assert sorted(bodies) == sorted([b"first", b"a", b"b", b"c", b"file"]), bodies
queue.put(b"again")
lease = queue.get(timeout=1)
lease.renew(30)
lease.retry(0) if "attempts" not in queue.layout.lacks else lease.release()
with queue.get(timeout=1):
    pass
if "dead" not in queue.layout.lacks:
    queue.put(b"dead", delay=0.01)
    queue.get(timeout=1).reject("no")
    assert queue.message(next(queue.peek("dead")).id).leased_at
    assert len(queue.redrive()) == 1
queue.put(b"work")
from dirqueue.worker.command import Command
dirqueue.Worker(queue, Command(["true"])).run_until_empty()
queue.purge()
assert len(queue) == 0, queue.stats()
waiting = threading.Timer(0.1, lambda: queue.put(b"late"))
waiting.start()
queue.get(timeout=10).ack()  # by polling
waiting.join()
"""


@pytest.mark.parametrize("layout", ["native", "vsqs", "dirq-simple", "dirq-normal"])
def test_a_queue_works_without_the_calls_of_linux(tmp_path, layout):
    """Every verb, a worker with a command, waiting; flushed with F_FULLFSYNC."""
    done = run(STORY, tmp_path / "q", layout)
    assert done.returncode == 0, done.stderr


COMMANDS = """
import sys
from support import macos
import asyncio, subprocess, threading, concurrent.futures.thread
macos.take_away()
from dirqueue.__main__ import main
q = sys.argv[1]
import os
os.environ["NOTIFY_SOCKET"] = q + ".sock"
for words in (["put", q, "a", "b"], ["get", q], ["stat", q], ["work", q, "--until-empty", "--", "true"],
              ["monitor", q, "--once"], ["put", q, "c"], ["convert", q, "--to", "vsqs"],
              ["convert", q, "--to", "native"],
              ["doctor", q], ["check", q], ["purge", q], ["delete", q, "--yes"]):
    status = main(words)
    assert status == 0, (words, status)
"""


def test_the_commands_work_without_the_calls_of_linux(tmp_path):
    """Convert without /proc, a worker under a manager, the doctor."""
    done = run(COMMANDS, tmp_path / "q")
    assert done.returncode == 0, done.stdout + done.stderr


def run(program, *words):
    """Run a program that begins by taking things away."""
    support = str(Path(__file__).parents[1])
    env = environment()
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        env=env | {"PYTHONPATH": f"{support}:{env['PYTHONPATH']}"},
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip


def test_no_module_names_what_macos_lacks():
    """Unless it asks first, with hasattr or getattr."""
    found = []
    for path in Path(dirqueue.__file__).parent.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.attr in MISSING.get(node.value.id, ())
                and f'hasattr({node.value.id}, "{node.attr}")' not in text
            ):
                found.append(f"{path.name}:{node.lineno}: {node.value.id}.{node.attr}")
    assert found == []


def test_space_is_reserved_by_writing_where_there_is_no_call_for_it(tmp_path, monkeypatch):
    """To the last byte, and really."""
    monkeypatch.delattr("os.posix_fallocate")
    with open(tmp_path / "file", "wb") as file:
        fs.fallocate(file.fileno(), 3 * fs.CHUNK + 1)
    facts = (tmp_path / "file").stat()
    assert facts.st_size == 3 * fs.CHUNK + 1
    assert facts.st_blocks * 512 >= facts.st_size


def test_a_flush_of_the_drive_falls_back_to_fsync(tmp_path, monkeypatch):
    """On a filesystem that cannot; an error of fsync is an error."""
    flushed = []

    def refuse(fd, command):
        flushed.append(command)
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(fs, "fcntl", refuse)
    with open(tmp_path / "file", "wb") as file:
        fs.full_fsync(file.fileno())
        monkeypatch.setattr(fs, "fcntl", lambda fd, command: flushed.append(command))
        fs.full_fsync(file.fileno())
        fd = file.fileno()
    assert len(flushed) == 2
    monkeypatch.setattr(fs, "fcntl", refuse)
    with pytest.raises(OSError, match="Bad file descriptor"):
        fs.full_fsync(fd)

"""What other programs do with a queue of links: the table in docs/faq.md, run."""

import os
import subprocess

import pytest
from support.kit import drain

from dirqueue import Queue

#: Four short bodies, one of which looks like a path that leads outside, and a long one.
BODIES = [b"hello", b"gr\xfcn\n", b"/etc/hostname", b"a/../../../x", b"x" * 2000]
LONG = [b"x" * 2000]

#: A command on the queue `q` that makes `c` -> (bodies that arrive, exit status).
COPIES = {
    "cp -r q c": (BODIES, 0),
    "cp -a q c": (BODIES, 0),
    "cp -rL q c": (LONG, 1),
    "mkdir x && tar cf q.tar q && tar xf q.tar -C x && mv x/q c": (BODIES, 0),
    "tar chf q.tar q; s=$?; mkdir x; tar xf q.tar -C x; mv x/q c; exit $s": (LONG, 1),
    "rsync -a q/ c/": (BODIES, 0),
    "rsync -r q/ c/": (LONG, 0),
    "rsync -rL q/ c/": (LONG, 23),
    "rsync -a --safe-links q/ c/": ([*BODIES[:3], BODIES[4]], 0),
}


@pytest.fixture
def queue(tmp_path):
    """Give a queue `q` in an empty directory."""
    queue = Queue.create(tmp_path / "q", links=True, sync=False)
    for body in BODIES:
        queue.put(body)
    return queue


def run(command, place):
    """Run a command of a shell in a directory; return its exit status."""
    return subprocess.run(["/bin/sh", "-c", command], cwd=place, capture_output=True, check=False).returncode


@pytest.mark.parametrize("command", COPIES)
def test_copy_of_a_queue_of_links_has_what_the_table_says(queue, tmp_path, command, require):
    """Who copies links as links copies the queue; who follows them does not find the short messages."""
    if command.startswith("rsync"):
        require("rsync")
    bodies, status = COPIES[command]
    assert run(command, tmp_path) == status
    assert drain(Queue(tmp_path / "c")) == bodies
    assert queue.stats().total == len(BODIES)


def test_programs_that_look_at_files_do_not_see_links(queue, tmp_path):
    """They lead nowhere: cat fails, find has a type for them, grep -r passes them over."""
    name = min(each for each in os.listdir(queue.path) if each.isdigit())
    assert run(f"cat q/{name}", tmp_path) == 1
    assert run("grep -r hello q", tmp_path) == 1
    assert run("test $(find q -name '1*' -type f | wc -l) = 1", tmp_path) == 0
    assert run("test $(find -L q -name '1*' -type f | wc -l) = 1", tmp_path) == 0
    assert run("test $(find q -type l | wc -l) = 4", tmp_path) == 0


@pytest.mark.root
def test_chown_changes_links_and_chmod_passes_them_over(queue, tmp_path):
    """A link has an owner and no mode."""
    assert run("chown -R 61001 q && chmod -R go-rwx q", tmp_path) == 0
    facts = [
        os.lstat(f"{queue.path}/{each}")
        for each in os.listdir(queue.path)
        if os.path.islink(f"{queue.path}/{each}")
    ]
    assert {(each.st_uid, each.st_mode & 0o777) for each in facts} == {(61001, 0o777)}

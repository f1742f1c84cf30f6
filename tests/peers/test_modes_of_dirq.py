"""The umask option of dirq: modes are as dirq makes them, and never wider in between."""

import os
import stat

import dirq.queue
import dirq.QueueSimple
import pytest
from support.kit import replaced

from dirqueue.compat.dirq import queue as ours
from dirqueue.compat.dirq.QueueSimple import QueueSimple
from dirqueue.disk import fs

SCHEMA = {"body": "string"}


@pytest.fixture
def umask():
    """Give a way to set the umask of the process, which is put back."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def fill(simple, normal, path, umask):
    """Make a queue of each kind below directories that are not there, with a locked element."""
    one = simple(str(path / "a" / "simple"), umask=umask)
    one.lock(one.add(b"x"))
    two = normal(str(path / "b" / "c" / "normal"), umask=umask, schema=SCHEMA)
    two.lock(two.add({"body": "x"}))


def modes(path):
    """Return the modes of everything below a directory, by depth and kind."""
    return sorted(
        (len(each.relative_to(path).parts), stat.filemode(each.stat().st_mode)) for each in path.rglob("*")
    )


@pytest.mark.parametrize("process", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("option", [None, 0o000, 0o027, 0o077])
def test_modes_are_those_of_dirq(tmp_path, umask, process, option):
    """The option alone decides, for parents too; without it the process does."""
    umask(process)
    for name in ("theirs", "ours"):
        (tmp_path / name).mkdir()
        os.chmod(tmp_path / name, 0o755)
    fill(dirq.QueueSimple.QueueSimple, dirq.queue.Queue, tmp_path / "theirs", option)
    umask(process)  # dirq leaves its own behind
    fill(QueueSimple, ours.Queue, tmp_path / "ours", option)
    assert modes(tmp_path / "ours") == modes(tmp_path / "theirs")
    assert os.umask(process) == process


def test_nothing_is_wider_than_asked_for_at_any_moment(tmp_path, umask):
    """Looked at right after each call that makes something."""
    umask(0)
    made = []

    def look(path, dir_fd):
        made.append((path, stat.S_IMODE(os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode) & 0o077))

    def open_(path, flags, mode=0o777, *, dir_fd=None):
        fd = real_open(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT:
            look(path, dir_fd)
        return fd

    def mkdir(path, mode=0o777, *, dir_fd=None):
        real_mkdir(path, mode, dir_fd=dir_fd)
        look(path, dir_fd)

    real_open, real_mkdir = fs.open, fs.mkdir
    with replaced(fs, open=open_, mkdir=mkdir):
        fill(QueueSimple, ours.Queue, tmp_path, 0o077)
    assert len(made) >= 12
    assert [each for each in made if each[1]] == []


def test_group_of_a_shared_directory_is_kept(tmp_path, umask):
    """The set-group-ID bit of the queue's directory goes on to what is made in it."""
    umask(0o022)
    (tmp_path / "q").mkdir()
    os.chmod(tmp_path / "q", 0o2770)
    queue = ours.Queue(str(tmp_path / "q"), umask=0o007, schema=SCHEMA)
    name = queue.add({"body": "x"})
    for each in (tmp_path / "q" / name, tmp_path / "q" / name[:8], tmp_path / "q" / "temporary"):
        assert stat.S_IMODE(each.stat().st_mode) == 0o2770

"""Small files that are replaced, on a filesystem that replaces none (HDFS) and on others."""

import errno
import os

import pytest
from support.failing import failing

from dirqueue import Queue, QueueAccess, Unsupported
from dirqueue.disk.mount import Mount
from dirqueue.layouts.native import staging


@pytest.fixture(name="directory")
def _directory(queue_dir):
    queue = Queue(queue_dir, sync=False)
    queue.layout.create()
    directory = queue.layout.directory
    directory.mount = Mount("fuse.hdfs")
    return directory


def over(name):
    return lambda src, dst, **_: dst == name


def text(directory, name):
    with open(f"{directory.path}/{name}", "rb") as file:
        return file.read()


def test_file_is_replaced_where_a_rename_onto_it_is_refused(directory):
    """It is taken away first."""
    staging.replace(directory, "owner", b"first", sync=False)
    with failing("rename", errno.EIO, when=over("owner")):
        staging.replace(directory, "owner", b"second", sync=False)
    assert text(directory, "owner") == b"second"


@pytest.mark.parametrize(
    ("fstype", "code"), [("fuse.hdfs", errno.EACCES), ("nfs4", errno.EIO)], ids=["other errno", "other mount"]
)
def test_file_stays_when_the_rename_failed_for_another_reason(directory, fstype, code):
    """An EIO of a filesystem that replaces files is an error of the disk."""
    staging.replace(directory, "owner", b"first", sync=False)
    directory.mount = Mount(fstype)
    with (
        failing("rename", code, when=over("owner")),
        pytest.raises(OSError, match=os.strerror(code)) as caught,
    ):
        staging.replace(directory, "owner", b"second", sync=False)
    assert caught.value.errno == code
    assert text(directory, "owner") == b"first"


def test_settings_that_cannot_be_replaced_stay(queue_dir):
    """The new ones are not left beside them."""
    queue = Queue.create(queue_dir, lease=77.0)
    queue.layout.directory.mount = Mount("fuse.hdfs")
    before = sorted(path.name for path in queue_dir.iterdir())
    refused = failing("rename", errno.EIO, when=over("queue.json"))
    with refused, pytest.raises(Unsupported, match="replaces no file") as caught:
        queue.configure(lease=78.0)
    assert caught.value.capability == "configure"
    with failing("rename", errno.EACCES, when=over("queue.json")), pytest.raises(QueueAccess, match="EACCES"):
        queue.configure(lease=78.0)
    assert sorted(path.name for path in queue_dir.iterdir() if "lock" not in path.name) == before
    assert Queue(queue_dir).settings.lease == 77.0

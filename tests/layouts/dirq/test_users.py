"""Several users of one group on one dirq queue, each with the usual umask."""

import os
import stat

import pytest
from support.kit import drain, in_child

from dirqueue import Queue, QueueAccess

pytestmark = pytest.mark.root

GROUP, PRODUCER, CONSUMER = 61000, 61001, 61002
LAYOUTS = ("dirq-simple", "dirq-normal")


@pytest.fixture
def path(tmp_path):
    """Give a directory for a queue as recommended: of the group, with the set-group-ID bit."""
    for parent in tmp_path.parents:
        mode = os.stat(parent).st_mode & 0o7777
        if not mode & 0o001:
            os.chmod(parent, mode | 0o011)
    os.chmod(tmp_path, 0o755)
    for layout in LAYOUTS:  # import all there is while we may: this tree may be root's own
        with Queue(tmp_path / layout, layout=layout, sync=False) as queue:
            queue.put(b"x")
            drain(queue)
    (tmp_path / "q").mkdir()
    os.chown(tmp_path / "q", 0, GROUP)
    os.chmod(tmp_path / "q", 0o2770)
    return tmp_path / "q"


def as_user(user, umask, function):
    """Do something in a child that is that user."""

    def run():
        os.setgroups([GROUP])
        os.setgid(GROUP)
        os.setuid(user)
        os.umask(umask)
        return function()

    return in_child(run)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_directories_take_the_mode_of_the_queue(path, layout):
    """Whatever the umask: they belong to all whom the queue's own directory lets in."""

    def put():
        with Queue(path, layout=layout, sync=False) as queue:
            queue.put(b"x")

    as_user(PRODUCER, 0o022, put)
    made = [each for each in path.rglob("*") if each.is_dir()]
    assert len(made) == (1 if layout == "dirq-simple" else 4)
    assert {stat.S_IMODE(each.stat().st_mode) for each in made} == {0o2770}


def test_another_user_of_the_group_consumes_a_normal_queue(path):
    """What one put with umask 022 the other locks, reads and removes."""

    def put():
        with Queue(path, layout="dirq-normal", sync=False) as queue:
            queue.put(b"x")

    def get():
        with Queue(path, layout="dirq-normal", sync=False) as queue:
            return drain(queue)

    as_user(PRODUCER, 0o022, put)
    assert as_user(CONSUMER, 0o022, get) == [b"x"]
    assert [each for each in path.rglob("*") if each.is_file()] == []


def test_element_that_may_not_be_read_is_stepped_over_and_reported(path):
    """What is behind it is delivered; when there is nothing else the error says so."""

    def put():
        with Queue(path, layout="dirq-simple", sync=False) as queue:
            queue.put(b"private")

    def get():
        with Queue(path, layout="dirq-simple", sync=False) as queue:
            queue.put(b"own")
            queue.get(timeout=0).ack()
            left = len(queue)
        with Queue(path, layout="dirq-simple", sync=False) as queue:
            try:
                queue.get(timeout=0)
            except QueueAccess as error:
                return left, error.errno

    as_user(PRODUCER, 0o077, put)
    left, code = as_user(CONSUMER, 0o022, get)
    assert left == 1
    assert os.strerror(code) == "Permission denied"


def test_directory_that_may_not_be_entered_is_stepped_over_and_reported(path):
    """A peer made it for itself alone."""

    def make():
        (path / "5f000000").mkdir(mode=0o700)

    def get():
        with Queue(path, layout="dirq-simple", sync=False) as queue:
            queue.put(b"own")
            bodies = [queue.get(timeout=0).message.body]
            try:
                queue.get(timeout=0)
            except QueueAccess as error:
                return bodies, error.errno

    as_user(PRODUCER, 0o022, make)
    bodies, code = as_user(CONSUMER, 0o022, get)
    assert bodies == [b"own"]
    assert os.strerror(code) == "Permission denied"

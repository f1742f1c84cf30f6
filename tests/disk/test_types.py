"""A filesystem whose listings tell no types: everything works there as elsewhere."""

import os

import pytest
from lab import images
from support.kit import drain

from dirqueue import Queue
from dirqueue.tools import check

pytestmark = [pytest.mark.root, pytest.mark.needs("mount")]


@pytest.fixture
def untyped(tmp_path):
    """Give a directory on a real ext4 that was made without types in its directories."""
    image = tmp_path / "image"
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    images.run("mkfs.ext4", "-q", "-F", "-O", "^filetype", str(image))
    with images.mounted("ext4", image, tmp_path / "point"):
        yield tmp_path / "point"


def test_every_verb_works_on_a_filesystem_without_types(untyped):
    """Put, batch, slices, retry, reject, purge, peek, stats, redrive and check."""
    queue = Queue(untyped / "queue", sync=False, backoff=0, margin=0, keep_done=True)
    queue.put(b"a")
    queue.put_many([b"b", b"c"])
    queue.put(b"d", delay=0.001)
    queue.get(timeout=0).retry(0)
    queue.get(timeout=0).reject("no")
    (untyped / "queue" / "not ours").write_bytes(b"")
    (untyped / "queue" / "a directory").mkdir()
    assert queue.purge().busy == 0
    stats = queue.stats()
    assert (stats.total, stats.dead, stats.foreign) == (3, 1, 2)
    assert len(queue.redrive()) == 1
    assert len(list(queue.peek())) >= 3
    assert {finding.code for finding in check.check(queue.path)} == {"Q02"}, "nothing but what is not ours"
    assert sorted(drain(queue)) == [b"a", b"b", b"c", b"d"]
    assert queue.purge().busy == 0
    assert "not ours" in os.listdir(untyped / "queue")


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_formats_of_peers_work_on_a_filesystem_without_types(untyped, layout):
    queue = Queue(untyped / "queue", layout=layout, sync=False, margin=0)
    for body in (b"a", b"b", b"c"):
        queue.put(body)
    queue.purge()
    assert queue.stats().total == 3
    assert Queue(untyped / "queue").layout.name == layout
    assert sorted(drain(queue)) == [b"a", b"b", b"c"]

"""Reserved space: shared by the queues of one directory, given up on a full disk."""

import os
from pathlib import Path

import pytest

from dirqueue import Queue
from dirqueue.disk import ballast, mount


@pytest.fixture(autouse=True)
def _disk(monkeypatch):
    """A filesystem on which a rename may need room."""
    real = mount.of

    def of(fd, path):
        found = real(fd, path)
        found.ballast = 4096
        return found

    monkeypatch.setattr(mount, "of", of)


def reserves(root):
    return sorted(Path(root).glob("*/.ballast"))


def test_one_queue_keeps_a_reserve(tmp_path):
    Queue(tmp_path / "queue", sync=False).put(b"x")
    assert os.stat(tmp_path / "queue/.ballast").st_size == 4096


def test_a_thousand_queues_of_one_root_keep_two_reserves(tmp_path):
    """Not one each: that would be 1 GiB on xfs."""
    for number in range(100):
        Queue(tmp_path / f"q{number}", sync=False).put(b"x")
    assert 2 <= len(reserves(tmp_path)) <= 2 + 100 - ballast.LOOK_AT


def test_a_queue_without_a_reserve_drops_that_of_a_neighbour(tmp_path):
    """First its own, then those beside it; then there is none. Purge makes it again."""
    queues = [Queue(tmp_path / f"q{number}", sync=False) for number in range(3)]
    for queue in queues:
        queue.put(b"x")
    assert len(reserves(tmp_path)) == 2
    directory = queues[2].layout.directory
    assert directory.drop_ballast()
    assert directory.drop_ballast()
    assert not directory.drop_ballast()
    assert reserves(tmp_path) == []
    queues[1].purge()
    assert len(reserves(tmp_path)) == 1


def test_what_only_looks_like_a_reserve_is_left_alone(tmp_path):
    """A file of another size, a link, a directory."""
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "a/.ballast").write_bytes(b"mine")
    (tmp_path / "b/.ballast").symlink_to(tmp_path / "a/.ballast")
    (tmp_path / "c/.ballast").mkdir()
    queue = Queue(tmp_path / "queue", sync=False)
    queue.put(b"x")
    assert queue.layout.directory.drop_ballast()
    assert not queue.layout.directory.drop_ballast()
    assert (tmp_path / "a/.ballast").read_bytes() == b"mine"
    assert (tmp_path / "b/.ballast").is_symlink()

"""The file server's clock: leases are judged by it, and one that was never set is refused."""

import os
import time

import pytest
from support.kit import LONG

from dirqueue import Queue, QueueError
from dirqueue.disk import clock as clocks
from dirqueue.disk import fs
from dirqueue.disk.clock import Clock, OwnClock
from dirqueue.disk.directory import Directory

YEAR = 365 * 86400


class Server:
    """A file server whose clock is off by so many seconds."""

    def __init__(self, monkeypatch, off):
        self.real, self.off = fs.fstat, off
        monkeypatch.setattr(fs, "fstat", self.fstat)

    def fstat(self, fd):
        real = self.real(fd)

        class Facts:
            st_mtime = real.st_mtime + self.off
            st_mtime_ns, st_nlink, st_dev, st_ino = real.st_mtime_ns, real.st_nlink, real.st_dev, real.st_ino
            st_mode = real.st_mode

        return Facts


@pytest.fixture
def directory(tmp_path):
    directory = Directory(str(tmp_path))
    assert directory.find()
    return directory


@pytest.mark.parametrize("off", [0, 0.01, 5, -5, 3600, -86400])
def test_clock_is_the_servers(directory, monkeypatch, off):
    """Leases are judged by the time of the files, whatever our own clock says."""
    Server(monkeypatch, off)
    clock = Clock(directory)
    difference = clock.now() / 1e6 - time.time()
    assert abs(difference - off) < 3
    assert clock.plausible
    assert os.listdir(directory.path) == []


def test_clock_looks_again_when_its_measurement_is_old(directory, monkeypatch):
    """A server whose clock is set while we run is followed after TRUST_NS, and when our own clock is set back."""
    server = Server(monkeypatch, 0)
    clock = Clock(directory)
    clock.now()
    server.off = 500
    assert abs(clock.now() / 1e6 - time.time()) < 3
    clock.till = 0
    assert abs(clock.now() / 1e6 - time.time() - 500) < 3
    server.off = 0
    clock.since = time.time_ns() + 10**12
    assert abs(clock.now() / 1e6 - time.time()) < 3


@pytest.mark.parametrize("off", [-1e12, -40 * YEAR])
def test_server_whose_clock_was_never_set_is_refused(tmp_path, monkeypatch, off):
    """Before 2001 microseconds have too few digits. One sentence, nothing is claimed, and put goes on."""
    queue = Queue(tmp_path / "queue", sync=False)
    queue.put(b"x")
    off = -time.time() + 1000 if off < -YEAR * 100 else off
    Server(monkeypatch, off)
    with pytest.raises(QueueError, match=r"file server shows 19.*set that clock"):
        queue.get(timeout=0)
    with pytest.raises(QueueError, match="set that clock"):
        queue.purge()
    assert queue.put(b"y")
    monkeypatch.undo()
    assert len(list(queue.consume(timeout=0))) == 2


def test_delayed_put_that_a_clock_refuses_leaves_nothing(tmp_path, monkeypatch):
    queue = Queue(tmp_path / "queue", sync=False)
    queue.put(b"x")
    before = sorted(os.listdir(queue.path))
    Server(monkeypatch, -40 * YEAR)
    with pytest.raises(QueueError, match="set that clock"):
        queue.put(b"y", delay=LONG)
    with pytest.raises(QueueError, match="set that clock"):
        queue.put_many([b"y", b"z"], delay=LONG)
    assert sorted(os.listdir(queue.path)) == before


def test_machine_whose_clock_was_never_set_is_refused(directory, monkeypatch):
    monkeypatch.setattr(clocks.time, "time_ns", lambda: 1_000_000_000)
    monkeypatch.setattr(clocks.time, "time", lambda: 1.0)
    monkeypatch.setattr(fs, "fstat", lambda _: type("Facts", (), {"st_mtime": 1.0}))
    with pytest.raises(QueueError, match="of this machine shows 1970-01-01"):
        Clock(directory).now()
    with pytest.raises(QueueError, match="of this machine"):
        OwnClock(directory).now()


def test_clock_of_a_directory_that_cannot_be_written_to_is_our_own(directory, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "no")

    monkeypatch.setattr(fs, "open", refuse)
    assert abs(Clock(directory).now() / 1e6 - time.time()) < 3


def test_own_clock_learns_from_the_files_of_peers_but_not_nonsense(directory):
    clock = OwnClock(directory)
    clock.learn(time.time_ns() + 100 * 10**9)
    assert abs(clock.now() / 1e6 - time.time() - 100) < 3
    clock.learn(1000)
    assert abs(clock.now() / 1e6 - time.time() - 100) < 3


@pytest.mark.parametrize("off", [3 * 86400, -3 * 86400, 30 * YEAR])
def test_nothing_is_tidied_while_the_clocks_differ_by_days(tmp_path, monkeypatch, off):
    """A server whose clock was just set makes everything that is being written look years old."""
    queue = Queue(tmp_path / "queue", sync=False, lease=LONG)
    queue.put(b"x")
    young = tmp_path / "queue" / f"{time.time_ns() // 1000}123456789.new"
    young.write_bytes(b"half")
    old = time.time() - 2 * queue.settings.stale
    stale = tmp_path / "queue" / f"{int(old * 1e6)}123456789.new"
    stale.write_bytes(b"half")
    os.utime(stale, (old, old))
    Server(monkeypatch, off)
    queue.get(timeout=0).ack()
    queue.purge()
    assert young.exists()
    assert stale.exists()
    monkeypatch.undo()
    with Queue(tmp_path / "queue", sync=False) as again:
        again.purge()
    assert young.exists()
    assert not stale.exists()

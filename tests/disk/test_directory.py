"""An open queue directory: its descriptor beside other threads, and its locks after a fork."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from support.kit import LONG, in_child, replaced

from dirqueue import Queue
from dirqueue.disk import fs
from dirqueue.disk.directory import Directory


def open_numbers():
    return set(os.listdir("/proc/self/fd"))


def test_close_closes_the_descriptor_at_once_when_nobody_uses_it(tmp_path):
    """And the next use opens the path again."""
    directory = Directory(str(tmp_path))
    before = open_numbers()
    assert directory.find()
    assert len(open_numbers() - before) == 1
    directory.close()
    assert open_numbers() == before
    assert directory.fd >= 0


def test_a_descriptor_in_use_outlives_close(tmp_path):
    """Whoever holds the number goes on with the same directory; no other file gets that number meanwhile."""
    directory = Directory(str(tmp_path))
    held = directory.fd
    directory.close()
    with open(tmp_path / "a", "wb") as file:
        assert file.fileno() != held
        assert os.stat("a", dir_fd=held).st_size == 0
    number = int(held)
    del held
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(number)


def test_a_directory_that_is_missing_has_no_descriptor(tmp_path):
    directory = Directory(str(tmp_path / "queue"))
    assert directory.fd == -1
    (tmp_path / "queue").mkdir()
    assert directory.fd >= 0
    with pytest.raises(AttributeError):
        directory.nonsense  # noqa: B018


def test_close_beside_puts_and_gets_of_other_threads_is_harmless(tmp_path):
    """Other files are opened and closed all the time, so that a number that was closed is soon another file's."""
    queue = Queue(tmp_path / "queue", sync=True, lease=LONG)
    wrong, put, got = [], [], []
    stop = threading.Event()

    def guard(work):
        def run():
            try:
                work()
            except BaseException as error:  # noqa: BLE001
                wrong.append(error)

        return threading.Thread(target=run)

    def producer():
        for number in range(300):
            put.append(queue.put(b"%d" % number))

    def consumer():
        while not (stop.is_set() and len(queue) == 0):
            for lease in queue.consume(timeout=0.01):
                lease.ack()
                got.append(lease.message.id)

    def closer():
        while not stop.is_set():
            queue.close()
            os.close(os.open("/dev/null", os.O_RDONLY))

    producers, others = [guard(producer), guard(producer)], [guard(consumer), guard(closer)]
    for thread in producers + others:
        thread.start()
    for thread in producers:
        thread.join()
    stop.set()
    for thread in others:
        thread.join()
    assert wrong == []
    assert sorted(got) == sorted(put)


def test_a_queue_object_dropped_at_exit_is_quiet(tmp_path):
    """Whatever the interpreter has taken apart by then."""
    program = f"""
        import dirqueue, sys
        queue = dirqueue.Queue({str(tmp_path / "queue")!r}); queue.put(b"x"); lease = queue.get(timeout=0)
        sys.modules["keep"] = queue
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("layout", ["native", "vsqs", "dirq-simple", "dirq-normal"])
@pytest.mark.parametrize("number", range(4))
def test_a_child_forked_while_another_thread_is_in_get_can_get(tmp_path, layout, number):
    """At any of its first calls: the locks it holds are free in the child, and what they guard is whole."""
    queue = Queue(tmp_path / "queue", layout=layout, sync=False, lease=LONG)
    for body in range(5):
        queue.put(b"%d" % body)
    queue.close()
    inside, go_on = threading.Event(), threading.Event()
    calls = iter(range(1000))

    def paused(real):
        def call(*arguments, **options):
            if threading.current_thread() is thread and next(calls) == number:
                inside.set()
                go_on.wait(30)
            return real(*arguments, **options)

        return call

    def child():
        signal.alarm(30)  # a lock that is never free again must not stop the suite
        queue.put(b"child")
        bodies = []
        for lease in queue.consume(timeout=0, limit=3):
            bodies.append(lease.message.body)
            lease.ack()
        return bodies

    thread = threading.Thread(target=lambda: queue.get(timeout=0))
    with replaced(fs, **{name: paused(getattr(fs, name)) for name in fs.CALLS}):
        try:
            thread.start()
            assert inside.wait(30)
            assert len(in_child(child)) == 3
        finally:
            go_on.set()
            thread.join()


def test_a_new_queue_is_made_durable_with_all_that_was_made_above_it(tmp_path, monkeypatch):
    """The name of each new directory is flushed in the directory above it before the first put returns."""
    flushed, real = [], fs.fsync

    def fsync(fd):
        flushed.append(os.readlink(f"/proc/self/fd/{int(fd)}"))
        return real(fd)

    monkeypatch.setattr(fs, "fsync", fsync)
    Queue(tmp_path / "a" / "b" / "queue").put(b"x")
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")} <= set(flushed)

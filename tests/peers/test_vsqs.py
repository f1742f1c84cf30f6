"""The interface of VSQS, and what its document promises."""

import importlib
import inspect
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.kit import PATIENCE, files, in_child

from dirqueue.compat.vsqs import Queue, QueueFullException, QueueManager


@pytest.fixture
def queue(tmp_path):
    """Give one queue."""
    queue = Queue(tmp_path / "q")
    yield queue
    queue.close()


def test_messages_come_in_order_and_are_deleted(queue):
    """publish, receive, delete, size as documented."""
    ids = [queue.publish(b"%d" % number) for number in range(3)]
    assert queue.size() == 3
    for number, id in enumerate(ids):
        assert queue.receive(timeout=1) == (id, b"%d" % number)
    assert queue.size() == 3
    for id in ids:
        queue.delete(id)
    assert queue.size() == 0
    assert queue.receive(timeout=0) == (None, None)


def test_delete_works_from_any_process(queue, tmp_path):
    """In vsqs 0.3 this does nothing."""
    queue.publish(b"x")
    id, _ = queue.receive(timeout=1)
    in_child(lambda: Queue(tmp_path / "q").delete(id))
    assert files(tmp_path / "q") == []


def test_expired_message_wakes_a_blocked_receive(queue):
    """In vsqs 0.3 a receive that waits is woken by new messages only."""
    id = queue.publish(b"x")
    queue.receive(visibility_timeout=0.2)
    assert queue.receive(timeout=PATIENCE) == (id, b"x")


def test_capacity_holds_publishers_back(tmp_path):
    """A full queue raises in time, and lets go when there is room."""
    queue = QueueManager(tmp_path).get_queue("q", capacity=2)
    ids = [queue.publish(b"x") for _ in range(2)]
    with pytest.raises(QueueFullException) as caught:
        queue.publish(b"y", timeout=0)
    assert caught.value.args == (2,)
    done = []
    thread = threading.Thread(target=lambda: done.append(queue.publish(b"y")))
    thread.start()
    queue.delete(ids[0])
    thread.join(PATIENCE)
    assert done
    queue.close()


@pytest.mark.parametrize("name", ["../q", "a/../../q", "/q", "a//q", "a/", "", ".", "a\0"])
def test_manager_refuses_names_outside_of_its_directory(tmp_path, name):
    """Queues lie in the manager's directory, or in directories there."""
    with pytest.raises(ValueError, match="name"):
        QueueManager(tmp_path / "m").get_queue(name)
    assert list(tmp_path.iterdir()) == []


def test_capacity_that_is_raised_lets_a_waiting_publisher_go_on(tmp_path):
    """It is looked at again each time that something changes in the queue."""
    queue = QueueManager(tmp_path).get_queue("q", capacity=0)
    done = []
    thread = threading.Thread(target=lambda: done.append(queue.publish(b"y")))
    thread.start()
    queue.capacity = 1
    (tmp_path / "q" / "something").touch()
    (tmp_path / "q" / "something").unlink()
    thread.join(PATIENCE)
    assert done
    queue.close()


def run(module, path):
    """Run the program in a process of its own: the watchers of vsqs 0.3 outlive it."""
    path.mkdir()
    script = Path(__file__).with_name("script_of_vsqs.py")
    command = [sys.executable, "-W", "ignore", str(script), module, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_program_for_vsqs_runs_with_its_import_line_changed(tmp_path):
    """The same results from vsqs 0.3 and from ours."""
    theirs = run("vsqs.queue", tmp_path / "theirs")
    assert theirs.count("\n") > 10
    assert run("dirqueue.compat.vsqs.queue", tmp_path / "ours") == theirs


@pytest.mark.parametrize("name", ["Queue", "QueueManager", "QueueException", "QueueFullException"])
def test_everything_of_vsqs_is_there(name):
    """Classes, their methods and what these take."""
    theirs, ours = (
        getattr(importlib.import_module(module), name)
        for module in ("vsqs.queue", "dirqueue.compat.vsqs.queue")
    )
    for method, function in inspect.getmembers(theirs, inspect.isfunction):
        if not method.startswith("_") or (method == "__init__" and name != "Queue"):
            expected = inspect.signature(function).parameters.values()
            found = inspect.signature(getattr(ours, method)).parameters.values()
            assert [(each.name, each.default) for each in found] == [
                (each.name, each.default) for each in expected
            ]


def test_both_orders_of_arguments_are_taken(tmp_path):
    """By path alone, or by manager and path; by position and by name."""
    manager = QueueManager(tmp_path)
    for queue in (
        Queue(tmp_path / "q", 5),
        Queue(path=tmp_path / "q", capacity=5),
        Queue(manager, tmp_path / "q", 5),
        Queue(manager=manager, path=tmp_path / "q", capacity=5),
    ):
        assert (queue.path, queue.capacity) == (str(tmp_path / "q"), 5)
        queue.close()
    for wrong in ((), (manager,), (tmp_path, 5, 6)):
        with pytest.raises(TypeError):
            Queue(*wrong)

"""A program written for vsqs 0.3: `python script_of_vsqs.py MODULE PATH` prints what happened, one thing to a line."""

import importlib
import os
import sys
from pathlib import Path

PATIENCE = 30.0


def run(module, path):
    """Run one program written for vsqs 0.3; return what happened, without what is never the same twice."""
    seen, ids = [], []
    manager = module.QueueManager(str(path))
    queue = manager.get_queue("q", capacity=3)
    seen.append((queue.path == str(path / "q"), queue.capacity, queue.manager is manager, queue.size()))
    for number in range(3):
        id = queue.publish(b"%d" % number)
        seen.append((type(id), len(id), id.isdigit(), abs(int(id) - module.micros()) < 3_600_000_000))
        ids.append(id)
    seen.append([id in os.listdir(path / "q") for id in ids])
    try:
        queue.publish(b"x", timeout=0)
    except module.QueueFullException as full:
        seen.append(("full", full.args, isinstance(full, module.QueueException)))
    for _ in range(2):
        id, data = queue.receive(visibility_timeout=600, timeout=PATIENCE)
        seen.append((ids.index(id), data, queue.size()))
        seen.append(
            [name.partition(".")[0] == id for name in os.listdir(path / "q") if "." in name].count(True)
        )
    seen.append(queue.delete(ids[0]))
    seen.append(queue.size())
    other = module.Queue(manager, str(path / "q"))
    seen.append((other.capacity, other.size()))
    id, data = other.receive(600, PATIENCE)
    seen.append((ids.index(id), data))
    seen.append(other.delete(id))
    seen.append(queue.receive(timeout=0.01))
    seen.append(queue.delete(ids[1]))
    seen.append((queue.size(), os.listdir(path / "q")))
    seen += more(module, manager, path)
    # Queues of one directory share a watch in vsqs 0.3, and the second close fails: one is closed.
    seen.append([queue.close(), manager.close()])
    return seen


def more(module, manager, path):
    """Change the capacity, delete what is not there, and use names with a slash."""
    seen = []
    queue = manager.get_queue("a/b", capacity=0)
    seen.append((queue.path == str(path / "a" / "b"), os.path.isdir(path / "a" / "b"), queue.capacity))
    for capacity in (0, 1, None, 2):
        queue.capacity = capacity
        try:
            seen.append((capacity, len(queue.publish(b"x", timeout=0)), queue.size()))
        except module.QueueFullException as full:
            seen.append((capacity, "full", full.args))
    for id in (None, "", "x", "1234", 5, "1600000000000000", "../a"):
        seen.append((id, queue.delete(id), queue.size()))
    return seen


if __name__ == "__main__":
    for each in run(importlib.import_module(sys.argv[1]), Path(sys.argv[2])):
        sys.stdout.write(f"{each!r}\n")
    sys.stdout.flush()
    os._exit(0)  # the watchers of vsqs would keep it

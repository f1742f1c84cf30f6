"""kill -9 and reopen: what was answered is there; what was not is there as a whole, or not at all. Nobody repairs."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("dirqueue.entroq.store")

from dirqueue.entroq.store import DirectoryStore
from dirqueue.entroq.tasks import QueuesQuery, TasksQuery

ROOT = Path(__file__).parents[2]
QUEUES = ["one", "two", "three"]

#: Inserts, moves, claims and deletes at random; each is announced, and then confirmed.
PROGRAM = """
import json, os, random, sys
from dirqueue.entroq.store import DirectoryStore
from dirqueue.entroq.tasks import Change, ClaimQuery, Modification, TaskData, TasksQuery

path, log, seed = sys.argv[1:]
chance, store, queues = random.Random(int(seed)), DirectoryStore(path), ["one", "two", "three"]
out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
number, known = 0, {}

def say(**what):
    os.write(out, (json.dumps(what) + "\\n").encode())

def keep(task):
    known[task.id] = task
    return [task.id, task.version, task.queue]

while True:
    number += 1
    kind = chance.choice(["insert", "insert", "move", "claim", "pair"])
    old = chance.choice(list(known.values())) if known else None
    target = chance.choice(queues)
    if kind == "claim":
        say(try_="claim")
        task = store.claim(ClaimQuery([target], "me", 3_600_000))
        say(did=[keep(task)] if task else [], gone=[])
    elif kind == "insert" or old is None:
        ids = [f"{seed}-{number}-{each}" for each in range(chance.choice([1, 3]))]
        say(try_="insert", ids=ids)
        done = store.modify(Modification("me", inserts=[TaskData(target, b"1", id=id) for id in ids]))
        say(did=[keep(task) for task in done.inserted], gone=[])
    elif kind == "move":
        say(try_="move", ids=[old.id])
        done = store.modify(Modification("me", changes=[Change(old.key, TaskData(target, b"2"))]))
        say(did=[keep(task) for task in done.changed], gone=[])
    else:
        new = f"{seed}-{number}-new"
        say(try_="pair", ids=[old.id, new])
        done = store.modify(Modification("me", deletes=[old.key], inserts=[TaskData(target, b"3", id=new)]))
        del known[old.id]
        say(did=[keep(task) for task in done.inserted], gone=[old.id])
"""


def replay(log):
    """Return the state that was confirmed, id -> (version, queue), and what was announced last."""
    state, tried = {}, None
    for line in log.read_text().splitlines():
        said = json.loads(line)
        if "try_" in said:
            tried = said
            continue
        tried = None
        for id, version, queue in said["did"]:
            state[id] = (version, queue)
        for id in said["gone"]:
            del state[id]
    return state, tried


def listed(path):
    """Reopen; return id -> (version, queue) of every task, and the counts."""
    store = DirectoryStore(path)
    try:
        tasks = [task for queue in QUEUES for task in store.tasks(TasksQuery(queue))]
        assert len({task.id for task in tasks}) == len(tasks), "a task is in two places"
        return {task.id: (task.version, task.queue) for task in tasks}, store.queues(QueuesQuery())
    finally:
        store.close()


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_any_moment_it_is_reopened_as_it_was_answered(tmp_path, seed):
    space, log = tmp_path / "space", tmp_path / "log"
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(space), str(log), str(seed)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        while not log.exists() or log.stat().st_size < 20_000:
            assert child.poll() is None
            time.sleep(0.01)
        time.sleep(random.Random(seed).uniform(0, 0.05))
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    wanted, tried = replay(log)
    found, stats = listed(space)
    changed = {id for id in wanted.keys() | found.keys() if wanted.get(id) != found.get(id)}
    if changed:
        # The one that was not answered has happened, as a whole.
        assert tried is not None, changed
        if tried["try_"] == "claim":
            [id] = changed
            assert found[id] == (wanted[id][0] + 1, wanted[id][1])
        else:
            assert changed == set(tried["ids"])
    again, counts = listed(space)
    assert (again, counts) == (found, stats)
    assert sum(stat.size for stat in stats) == len(found) > 20

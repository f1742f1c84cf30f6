"""The token game: tokens go round queues by transactions, and their movers are killed at random."""

import os
import random
import signal
import time

import pytest
from support.kit import FORK

from dirqueue import Conflict, Empty, LeaseLost, Put, Space
from dirqueue.layouts.native import conditions, resolve

QUEUES = ("a", "b", "c")
TOKENS = 30
SETTINGS = {"sync": False, "lease": 0.05, "margin": 0, "stale": 0.2, "max_attempts": 0}


def hop(space, lease, rest):
    """Move a token on, in one of the ways that there are; return how often that was reported."""
    name, hops = lease.message.body.split(b":")
    target = random.choice(QUEUES)
    token = b"%s:%d" % (name, int(hops) + 1)
    way = random.randrange(5)
    if way == 0:
        lease.ack(then=[Put(target, token)])
    elif way == 1:
        lease.ack(then=[Put(target, token, id=f"token-{name.decode()}", skip_existing=False)])
    elif way == 2:
        with space.transaction() as t:
            t.ack(lease)
            t.put(target, token)
            for each in space.queue(rest).peek(limit=1):
                t.need(each)
    elif way == 3 and rest != target:
        with space.transaction() as t:
            t.ack(lease)
            t.put(target, token)
            for each in space.queue(rest).peek(limit=1):
                t.move(each, target)
    else:
        lease.release()
        return 0
    return 1


def mover(root, tally, seconds):
    """Move tokens until the time is over; one byte for each hop that was reported as done."""
    random.seed(os.getpid())
    resolve.PATIENCE = 0.05
    space = Space(root, **SETTINGS)
    told = os.open(os.path.join(tally, str(os.getpid())), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        queue, rest = random.sample(QUEUES, 2)
        try:
            lease = space.get(queue, timeout=0)
            if hop(space, lease, rest):
                os.write(told, b"x")
        except (Empty, Conflict, LeaseLost):
            continue
    os._exit(0)


def play(root, tally, seconds):
    """Let four movers play, each killed and replaced again and again, ten times at least; return how often."""
    until, kills, movers = time.monotonic() + seconds, 0, []
    while time.monotonic() < until or kills < 10:
        while len(movers) < 4:
            movers.append(FORK.Process(target=mover, args=(root, tally, seconds)))
            movers[-1].start()
        time.sleep(random.uniform(0.005, 0.06))
        victim = movers.pop(random.randrange(4))
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        kills += 1
    for each in movers:
        each.kill()
        each.join()
    return kills


def judge(root, tally, monkeypatch):
    """After a purge every token is there exactly once, with at least as many hops as were reported."""
    monkeypatch.setattr(resolve, "PATIENCE", 0.0)
    time.sleep(0.3)
    found = {}
    with Space(root, **SETTINGS) as space:
        for _ in range(3):
            space.purge()
            time.sleep(0.25)
        assert not os.listdir(os.path.join(root, ".space", "txn"))
        for queue in QUEUES:
            for state in ("ready", "delayed", "leased"):
                for message in space.queue(queue).peek(state):
                    name, hops = message.body.split(b":")
                    assert name not in found, f"{name!r} is there twice"
                    found[name] = int(hops)
    left = [name for _, _, names in os.walk(root) for name in names if conditions.parse(name)]
    assert left == []
    assert len(found) == TOKENS
    reported = sum(os.path.getsize(os.path.join(tally, each)) for each in os.listdir(tally))
    assert sum(found.values()) >= reported
    return reported


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.timeout(180)
def test_tokens_survive_the_death_of_their_movers(tmp_path, monkeypatch, seconds):
    root, tally = str(tmp_path / "space"), str(tmp_path / "tally")
    os.makedirs(tally)
    with Space(root, **SETTINGS) as space:
        for number in range(TOKENS):
            space.put("a", b"%d:0" % number)
        for queue in QUEUES:
            space._ground.transacted(queue)
    kills = play(root, tally, seconds)
    reported = judge(root, tally, monkeypatch)
    assert kills >= 10
    assert reported >= 10

"""The token game: tokens go round the queues of a space by transactions, and their movers are killed at random.

Movers are processes; with several paths of one space they are on different hosts.
"""

import os
import random
import signal
import time
from typing import NamedTuple

from support.kit import FORK

from dirqueue import Conflict, Empty, LeaseLost, Put, Space
from dirqueue.layouts.native import conditions, resolve

QUEUES = ("a", "b", "c")
TOKENS = 30
MOVERS = 4


class Rules(NamedTuple):
    """How quick the game is: all in seconds."""

    lease: float = 0.05
    margin: float = 0.0
    stale: float = 0.2
    patience: float = 0.05
    #: Between two kills, at least and at most.
    pause: tuple = (0.005, 0.06)

    def open(self, root):
        resolve.PATIENCE = self.patience
        return Space(root, sync=False, lease=self.lease, margin=self.margin, stale=self.stale, max_attempts=0)


#: For a network filesystem, where a step takes a tenth of a second.
SLOW = Rules(lease=3.0, margin=1.0, stale=6.0, patience=2.0, pause=(0.3, 2.0))


def deal(root):
    """Put the tokens."""
    with Space(root, sync=False) as space:
        for number in range(TOKENS):
            space.put("a", b"%d:0" % number)
        for queue in QUEUES:
            space._ground.transacted(queue)


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


def mover(root, tally, seconds, rules):
    """Move tokens until the time is over; one byte for each hop that was reported as done."""
    random.seed(os.getpid())
    space = rules.open(root)
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


def play(roots, tally, seconds, rules):
    """Let four movers play, each killed and replaced again and again, ten times at least.

    Return how often, and what was wrong with those that ended by themselves.
    """
    until, kills, movers, hosts, wrong = time.monotonic() + seconds, 0, [], 0, []
    while (time.monotonic() < until or kills < 10) and len(wrong) < MOVERS:
        while len(movers) < MOVERS:
            root, hosts = roots[hosts % len(roots)], hosts + 1
            movers.append(FORK.Process(target=mover, args=(root, tally, seconds, rules)))
            movers[-1].start()
        time.sleep(random.uniform(*rules.pause))
        victim = movers.pop(random.randrange(MOVERS))
        victim.kill()
        victim.join()
        kills += 1
        if victim.exitcode not in (0, -signal.SIGKILL):
            wrong.append(f"a mover ended with {victim.exitcode}: see its traceback")
    for each in movers:
        each.kill()
        each.join()
    return kills, wrong


def judge(root, tally, rules):
    """Purge until nothing is left to do; return how many hops were reported, and the violations.

    Each token is there exactly once, with at least as many hops as were reported; nothing of a transaction is left.
    """
    found, wrong = {}, []
    with rules._replace(patience=0.0).open(root) as space:
        for _ in range(3):
            time.sleep(rules.stale + rules.margin + 0.1)
            space.purge()
        for queue in QUEUES:
            for state in ("ready", "delayed", "leased"):
                for message in space.queue(queue).peek(state):
                    name, hops = message.body.split(b":")
                    if name in found:
                        wrong.append(f"token {name!r} is there twice")
                    found[name] = int(hops)
    wrong += [f"a register is left: {each}" for each in os.listdir(os.path.join(root, ".space", "txn"))]
    names = [name for _, _, files in os.walk(root) for name in files]
    wrong += [f"a conditional name is left: {name}" for name in names if conditions.parse(name)]
    if len(found) != TOKENS:
        wrong.append(f"{TOKENS - len(found)} of {TOKENS} tokens are lost")
    reported = sum(os.path.getsize(os.path.join(tally, each)) for each in os.listdir(tally))
    if sum(found.values()) < reported:
        wrong.append(f"{reported} hops were reported, and the tokens have made {sum(found.values())}")
    return reported, wrong

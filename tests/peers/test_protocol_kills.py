"""Shell, Perl and the library on one queue while Perl is killed at random points: every message is accounted for."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from support import checker
from support.clients import Perl, needs_perl, shell

from dirqueue import Empty, LeaseLost, Queue


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A queue that does not exist yet."""
    return str(tmp_path / "queue")


class Account:
    """What happened to every message, by its body."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tried: set[bytes] = set()
        self.accepted: set[bytes] = set()
        self.ending: set[bytes] = set()
        self.acked: Counter[bytes] = Counter()

    def wrong(self, *, history: bool) -> list[str]:
        """Return what must not be: lost, doubled, revived, torn, from nowhere."""
        names: dict[bytes, list[str]] = {}
        for each in checker.survey(self.path):
            if each.kind in checker.MESSAGES:
                names.setdefault(Path(each.path).read_bytes(), []).append(each.where)
        found = checker.problems(self.path)
        found += [f"{body!r} from nowhere" for body in names.keys() - self.tried]
        found += [f"{body!r} is there {len(where)} times" for body, where in names.items() if len(where) > 1]
        found += [f"{body!r} acknowledged {n} times" for body, n in self.acked.items() if n > 1]
        missing = self.accepted - names.keys() - (set() if history else self.ending)
        found += [f"{body!r} is lost" for body in missing]
        for body in self.acked:
            if names.get(body, []) != (["done"] if history else []):
                found.append(f"{body!r} was acknowledged and is {names.get(body)}")
        return found


def body_of(path: str, handle: str) -> bytes | None:
    """Return the body of a lease; None if it was lost meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return Path(path, handle).read_bytes()
    return None


def by_perl(client: Perl, account: Account, seed: int, rounds: int) -> None:
    """Put, get and end messages; every fourth command is the last of its process."""
    chance = random.Random(seed)

    def ask(verb: str, *words: str) -> tuple[int, str] | None:
        kill = chance.uniform(0, 0.004) if chance.random() < 0.25 else None
        return client.ask(verb, *words, kill_after=kill)

    for number in range(rounds):
        body = b"perl-%d-%d" % (seed, number)
        account.tried.add(body)
        if (done := ask("put", f"body={body.decode()}")) and done[0] == 0:
            account.accepted.add(body)
        if not (done := ask("get")) or done[0]:
            continue
        held = body_of(account.path, done[1])
        verb = chance.choice(["ack", "ack", "ack", "retry", "release", "reject"])
        if held is None:
            continue
        if verb == "ack":
            account.ending.add(held)
        ended = ask(verb, done[1], *(["error=no"] if verb in ("retry", "reject") else []))
        if verb == "ack" and ended and ended[0] == 0:
            account.acked[held] += 1
        if number % 20 == 0:
            ask("purge")
            ask("redrive")


def by_library(queue: Queue[bytes], account: Account, seed: int, rounds: int) -> None:
    """The same with the library."""
    chance = random.Random(seed)
    for number in range(rounds):
        bodies = [b"library-%d-%d-%d" % (seed, number, each) for each in range(chance.choice([1, 3]))]
        account.tried.update(bodies)
        queue.put_many(bodies)
        account.accepted.update(bodies)
        for _ in bodies:
            with contextlib.suppress(Empty, LeaseLost):
                lease = queue.get(timeout=0.01)
                body = lease.message.body
                verb = chance.choice(["ack", "ack", "retry", "release", "reject"])
                if verb == "ack":
                    account.ending.add(body)
                    lease.ack()
                    account.acked[body] += 1
                else:
                    getattr(lease, verb)()
        if number % 20 == 0:
            queue.purge()
            queue.redrive()


def by_shell(account: Account, rounds: int) -> None:
    """The same with the script, which can only acknowledge or forget."""
    for number in range(rounds):
        body = b"shell-%d" % number
        account.tried.add(body)
        if shell("put", account.path, body=body).returncode == 0:
            account.accepted.add(body)
        handle = shell("get", account.path, "1").stdout.decode().strip()
        held = body_of(account.path, handle) if handle else None
        if held is None or number % 4 == 3:
            continue
        account.ending.add(held)
        status = shell("ack", account.path, handle).returncode
        assert status in (0, 4)
        account.acked[held] += status == 0


def together(*actors: threading.Thread) -> None:
    """Run them side by side to their ends."""
    for actor in actors:
        actor.start()
    for actor in actors:
        actor.join()


def drain(queue: Queue[bytes], account: Account) -> None:
    """Acknowledge what is left; every lease is over within a second or two."""
    for lease in queue.consume(timeout=3):
        account.ending.add(lease.message.body)
        lease.ack()
        account.acked[lease.message.body] += 1


def drop_unfinished(path: str) -> None:
    """Remove the second name that a put by link leaves when it is killed (F-02); a purge would wait for an hour."""
    for each in checker.survey(path):
        if each.kind == "new":
            os.unlink(each.path)


@needs_perl
@pytest.mark.timeout(300)
def test_three_clients_share_a_queue_under_kills_and_lose_nothing(path: str) -> None:
    """Shell, Perl (killed at random points) and the library: every message is accounted for."""
    account = Account(path)
    perls = [Perl(path, "lease=1", "margin=0.2", "backoff=0.001") for _ in range(2)]
    queue = Queue(path, lease=1.0, margin=0.2, backoff=0.001)
    together(
        *(
            threading.Thread(target=by_perl, args=(client, account, seed, 120))
            for seed, client in enumerate(perls)
        ),
        threading.Thread(target=by_library, args=(queue, account, 7, 60)),
        threading.Thread(target=by_shell, args=(account, 15)),
    )
    for client in perls:
        client.close()
    drain(queue, account)
    drop_unfinished(path)
    assert account.wrong(history=False) == []
    assert sum(client.kills for client in perls) >= 30
    assert any(body.startswith(b"perl") for body in account.acked)


@needs_perl
@pytest.mark.timeout(300)
def test_history_of_perl_and_the_library_under_kills_is_complete(path: str) -> None:
    """With priorities, three attempts and keep_done every message ends in done/ or dead/, once."""
    queue = Queue.create(
        path, priorities=True, keep_done=True, max_attempts=3, lease=1.0, margin=0.2, backoff=0.001
    )
    account = Account(path)
    perls = [Perl(path, f"priority={number}") for number in (1, 9)]
    together(
        *(
            threading.Thread(target=by_perl, args=(client, account, seed, 120))
            for seed, client in enumerate(perls)
        ),
        threading.Thread(target=by_library, args=(queue, account, 7, 60)),
    )
    for client in perls:
        client.close()
    drain(queue, account)
    drop_unfinished(path)
    assert account.wrong(history=True) == []
    assert sum(client.kills for client in perls) >= 30
    assert len(queue) == 0
    assert queue.stats().done > 0
    assert queue.stats().dead > 0

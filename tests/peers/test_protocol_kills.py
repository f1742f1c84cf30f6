"""Perl is killed, before each call that changes something and at random beside the others: no message is lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest
from support import checker
from support.clients import PERL, Perl, needs_perl, shell

from dirqueue import Empty, LeaseLost, Queue


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A queue that does not exist yet."""
    return str(tmp_path / "queue")


# --- before each call ------------------------------------------------------------------------------------------

#: Calls by which the client changes something, as strace knows them.
CALLS = ("rename", "link", "unlink", "mkdir", "rmdir", "write", "fsync", "utimensat")
BODY = b"the one message"
#: What each verb begins with, and where its message may be after a kill: nowhere is "".
STORIES = {
    "put": ("", {"", "live"}),
    "get": ("ready", {"live"}),
    "get spent": ("spent", {"live", "dead"}),
    "renew": ("leased", {"live"}),
    "release": ("leased", {"live"}),
    "retry": ("leased", {"live"}),
    "retry spent": ("leased spent", {"live", "dead"}),
    "reject": ("leased", {"live", "dead"}),
    "ack": ("leased", {"live", ""}),
    "ack kept": ("leased", {"live", "done"}),
    "redrive": ("dead", {"dead", "live"}),
    "purge": ("stale", {"live"}),
}


def begin(path: str, story: str) -> list[str]:
    """Make the queue that a story begins with; return the words of its command."""
    state, verb = STORIES[story][0], story.split(maxsplit=1)[0]
    settings = {
        "max_attempts": 1 if "spent" in state else 5,
        "keep_done": story == "ack kept",
        "backoff": 0.0,
    }
    queue = Queue.create(path, **settings)
    words = [verb, path]
    if verb == "put":
        return [*words, f"body={BODY.decode()}"]
    queue.put_many([BODY, b"another"])  # in a batch, as the more difficult case
    queue.message(queue.put(b"yet another")).cancel()
    if state == "ready":
        return words
    lease = queue.get(timeout=0, lease=0.001 if state == "spent" else 60)
    if state.startswith("leased"):
        note = Path(path, lease.handle).with_name(f"{lease.message.id}.error")
        note.write_text('{"error": "before", "at": 1700000000000000}')
        return [*words, lease.handle, *(["error=why"] if verb in ("retry", "reject") else [])]
    if state == "spent":
        name = Path(path, lease.handle)
        name.rename(name.with_name(f"{lease.message.id}.1700000000000000.1.gone"))
    elif state == "dead":
        lease.reject("no")
    else:
        lease.release()
        old = "1700000000000000123456789"
        for name in (f"{old}.new", f"leased/{old}.error", f"leased/{old}.1700000000000000.1.t.ack"):
            Path(path, name).write_bytes(b'{"error": "old"}')
            os.utime(Path(path, name), (0, 0))
    return words


def killed_before(call: str, number: int, words: list[str]) -> bool:
    """Run the client and kill it before its n-th such call; False if it makes fewer, and ends well."""
    inject = f"inject={call}:signal=SIGKILL:when={number}"
    command = ["strace", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject, PERL, *words]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


@needs_perl
@pytest.mark.needs("strace")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("story", STORIES)
def test_perl_killed_before_any_call_leaves_the_message_in_one_place(tmp_path: Path, story: str) -> None:
    """Complete, under one name, where it was or where it was to go."""
    points = 0
    for call in CALLS:
        for number in range(1, 20):
            path = str(tmp_path / f"{call}-{number}")
            killed = killed_before(call, number, begin(path, story))
            check_places(path, story, f"before {call} {number}")
            if not killed:
                break
            points += 1
        else:
            raise AssertionError(f"no end of {call}")
    assert points >= 1


def check_places(path: str, story: str, when: str) -> None:
    """Fail unless the one message is complete and in one of the places that the story allows."""
    messages = [each for each in checker.survey(path) if each.kind in checker.MESSAGES]
    bodies = [(Path(each.path).read_bytes(), each.where) for each in messages]
    places = [where for body, where in bodies if body == BODY] or [""]
    assert len(places) == 1, (when, places)
    assert places[0] in STORIES[story][1], (when, places)
    assert {body for body, _ in bodies} <= {BODY, b"another", b"yet another"}, (when, bodies)
    if story != "put":  # by link it has two names for a moment (F-02)
        assert checker.problems(path) == [], when


class Account:
    """What happened to every message, by its body."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tried: set[bytes] = set()
        self.accepted: set[bytes] = set()
        self.ending: set[bytes] = set()
        self.acked: Counter[bytes] = Counter()
        self.rejected: set[bytes] = set()

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
        if verb == "reject" and ended and ended[0] == 0:
            account.rejected.add(held)
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
            threading.Thread(target=by_perl, args=(client, account, seed, 60))
            for seed, client in enumerate(perls)
        ),
        threading.Thread(target=by_library, args=(queue, account, 7, 40)),
        threading.Thread(target=by_shell, args=(account, 10)),
    )
    for client in perls:
        client.close()
    drain(queue, account)
    drop_unfinished(path)
    assert account.wrong(history=False) == []
    assert sum(client.kills for client in perls) >= 10
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
            threading.Thread(target=by_perl, args=(client, account, seed, 60))
            for seed, client in enumerate(perls)
        ),
        threading.Thread(target=by_library, args=(queue, account, 7, 40)),
    )
    for client in perls:
        client.close()
    drain(queue, account)
    drop_unfinished(path)
    assert account.wrong(history=True) == []
    assert sum(client.kills for client in perls) >= 10
    assert len(queue) == 0
    assert queue.stats().done > 0
    assert account.rejected

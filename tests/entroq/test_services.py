"""Services as processes: several on one directory, other processes beside them, kill -9, and an orderly stop."""

import collections
import contextlib
import random
import signal
import threading
import time

import grpc
import httpx
import pytest
from clients import DOORS, later
from grpc_health.v1 import health_pb2, health_pb2_grpc
from services import Process

from dirqueue import Queue, Space
from dirqueue.entroq.tasks import (
    Change,
    ClaimQuery,
    DependencyError,
    Modification,
    QueuesQuery,
    TaskData,
    TasksQuery,
    Unavailable,
)

QUEUES = ["one", "two", "three"]


@contextlib.contextmanager
def client_of(service, door):
    with contextlib.closing(DOORS[door](service.addresses)) as client:
        yield client


def test_what_another_process_puts_wakes_a_claim(tmp_path):
    """A plain put into a queue that is there, one that is new, a delayed one, and one by another service."""
    with (
        Process(tmp_path / "space") as one,
        Process(tmp_path / "space") as two,
        contextlib.ExitStack() as stack,
    ):
        first = stack.enter_context(client_of(one, "http"))
        second = stack.enter_context(client_of(two, "proto"))
        space = stack.enter_context(Space(tmp_path / "space"))
        first.modify(Modification("me", inserts=[TaskData("there", b"0")]))
        first.modify(Modification("me", deletes=[first.claim(ClaimQuery(["there"], "me")).key]))
        for put in (
            lambda: space.put("there", b"1"),
            lambda: space.put("new", b"2"),
            lambda: space.put("there", b"3", delay=0.4),
            lambda: second.modify(Modification("you", inserts=[TaskData("there", b"4")])),
            lambda: second.modify(Modification("you", inserts=[TaskData("newer", b"5", by=300)])),
        ):
            waiting = later(first.wait, ClaimQuery(["there", "new", "newer"], "me", 60_000))
            time.sleep(0.3)
            assert not waiting.done()
            put()
            began = time.monotonic()
            task = waiting.result(10)
            assert time.monotonic() - began < 3
            first.modify(Modification("me", deletes=[task.key]))


def test_a_lease_of_a_process_that_was_killed_comes_back(tmp_path):
    with Process(tmp_path / "space") as one, Process(tmp_path / "space") as two:
        with client_of(one, "api") as client:
            client.modify(Modification("me", inserts=[TaskData("q", b"1")]))
            held = client.claim(ClaimQuery(["q"], "me", 1_000))
        one.stop(signal.SIGKILL)
        with client_of(two, "http") as client:
            again = client.wait(ClaimQuery(["q"], "you", 5_000))
            assert (again.id, again.version, again.claims) == (held.id, held.version + 1, 2)


def test_an_orderly_stop(tmp_path):
    """Those who wait are told, health says so, nothing of the process is left in the directory."""
    with Process(tmp_path / "space") as service:
        with client_of(service, "http") as client:
            client.modify(Modification("me", inserts=[TaskData("q", b"1"), TaskData("r", b"1")]))
        channel = grpc.insecure_channel(service.addresses.grpc.partition("://")[2])
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "proto.EntroQ", "api.EntroQ"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        channel.close()
        waits = []
        for door in DOORS:
            client = DOORS[door](service.addresses)
            waits.append((client, later(client.wait, ClaimQuery(["none"], "me"))))
        time.sleep(0.5)
        assert service.stop() == 0
        for client, waiting in waits:
            with pytest.raises((Unavailable, httpx.HTTPError)):
                waiting.result(10)
            client.close()
    assert list((tmp_path / "space" / ".space" / "txn").iterdir()) == []


class Player(threading.Thread):
    """Moves tokens from queue to queue in every way there is; services die under it."""

    def __init__(self, game, number):
        super().__init__(daemon=True)
        self.game, self.name, self.random = game, f"player-{number}", random.Random(number)
        self.door = list(DOORS)[number % len(DOORS)]
        self.moves = self.conflicts = self.broken = 0

    def run(self):
        while not self.game.over.is_set():
            client = DOORS[self.door](self.random.choice(self.game.services).addresses)
            try:
                while not self.game.over.is_set():
                    self.move(client)
            except DependencyError:
                self.conflicts += 1
            except (httpx.HTTPError, Unavailable, AssertionError, TimeoutError):
                self.broken += 1  # the service died: whether it did what it was asked is in the directory
            finally:
                client.close()

    def move(self, client):
        task = client.claim(ClaimQuery(QUEUES, self.name, 500))
        if task is None:
            time.sleep(0.01)
            return
        target = self.random.choice(QUEUES)
        way = self.random.randrange(4)
        if way == 0:  # delete and insert
            change = Modification(self.name, deletes=[task.key], inserts=[TaskData(target, task.value)])
        elif way == 1:  # change
            change = Modification(self.name, changes=[Change(task.key, TaskData(target, task.value))])
        elif way == 2:  # with another: both go, both come
            other = client.claim(ClaimQuery(QUEUES, self.name, 500))
            held = [each for each in (task, other) if each is not None]
            change = Modification(
                self.name,
                deletes=[each.key for each in held],
                inserts=[TaskData(self.random.choice(QUEUES), each.value) for each in held],
            )
        else:  # under an id of its own
            own = f"{task.value.decode()}-{time.time_ns()}"
            change = Modification(
                self.name, deletes=[task.key], inserts=[TaskData(target, task.value, id=own)]
            )
        client.modify(change)
        self.moves += 1


class Game:
    """Tokens that are moved through several services while these are killed."""

    TOKENS = 24

    def __init__(self, path, services=2, players=6):
        self.path, self.over = path, threading.Event()
        self.services = [Process(path) for _ in range(services)]
        with client_of(self.services[0], "http") as client:
            client.modify(
                Modification("me", inserts=[TaskData(QUEUES[i % 3], b"%d" % i) for i in range(self.TOKENS)])
            )
        self.players = [Player(self, number) for number in range(players)]

    def play(self, seconds):
        for player in self.players:
            player.start()
        deadline, kills = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            time.sleep(random.uniform(0.2, 0.8))
            place = random.randrange(len(self.services))
            victim = self.services[place]
            victim.stop(signal.SIGKILL)
            self.services[place] = Process(self.path)
            kills += 1
        self.over.set()
        for player in self.players:
            player.join(20)
            assert not player.is_alive()
        return kills

    def close(self):
        self.over.set()
        for service in self.services:
            service.stop()

    def count(self):
        """Return the tokens that are there, once nobody holds one."""
        with client_of(self.services[0], "http") as client:
            return collections.Counter(
                task.value for name in QUEUES for task in client.tasks(TasksQuery(name))
            )


def play(path, seconds):
    game = Game(path)
    try:
        kills = game.play(seconds)
        assert game.count() == {b"%d" % i: 1 for i in range(game.TOKENS)}
        moves = sum(player.moves for player in game.players)
        assert moves
        with client_of(game.services[0], "proto") as client:
            time.sleep(0.6)
            for _ in range(game.TOKENS):  # each can be claimed and ended
                task = client.wait(ClaimQuery(QUEUES, "end", 60_000), timeout=10)
                client.modify(Modification("end", deletes=[task.key]))
            assert client.queues(QueuesQuery()) == []
    finally:
        game.close()
    with Space(path) as space:
        assert space.empty(*QUEUES)
    print(f"{kills} kills, {moves} moves, {sum(player.broken for player in game.players)} broken")


def test_the_token_game_with_kill_9(tmp_path):
    """No token is lost or doubled, whichever service is killed at whatever moment."""
    play(tmp_path / "space", 6)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_token_game_for_longer(tmp_path):
    play(tmp_path / "space", 120)


def test_a_plain_consumer_beside_a_service(tmp_path):
    with Process(tmp_path / "space") as service, client_of(service, "http") as client:
        client.modify(Modification("me", inserts=[TaskData("q", b"%d" % i) for i in range(20)]))
        with Queue(tmp_path / "space" / "q") as queue:
            mine = [queue.get(timeout=5) for _ in range(10)]
            theirs = [client.claim(ClaimQuery(["q"], "me")) for _ in range(10)]
            values = {lease.message.data for lease in mine} | {task.value for task in theirs}
            assert len(values) == 20
            for lease in mine:
                lease.ack()
        client.modify(Modification("me", deletes=[task.key for task in theirs]))
        assert client.queues(QueuesQuery()) == []


def test_metrics_of_a_directory(tmp_path):
    """EntroQ's gauge and dirqueue's own, of the same queues."""
    with Process(tmp_path / "space") as service, client_of(service, "http") as client:
        client.modify(Modification("me", inserts=[TaskData("a/b", b"1"), TaskData("a/b", b"2")]))
        client.claim(ClaimQuery(["a/b"], "me"))
        text = httpx.get(service.addresses.http + "/metrics").text
        for line in (
            'entroq_queue_size{name="a/b",type="total"} 2',
            'entroq_queue_size{name="a/b",type="claimed"} 1',
            'entroq_queue_size{name="a/b",type="available"} 1',
            'entroq_queue_size{name="a/b",type="maxClaims"} 1',
            f'dirqueue_messages{{queue="{tmp_path}/space/a%2Fb",state="leased"}} 1',
            'dirqueue_entroq_requests_total{door="http",method="Modify",code="200"} 1',
        ):
            assert line in text.splitlines(), line

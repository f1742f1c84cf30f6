"""Names that hold under a condition: their grammar, their registers, and how they come to their ends."""

import errno
import json
import os

import pytest
from support.failing import failing

from dirqueue import Queue
from dirqueue.disk import fs
from dirqueue.layouts.native import conditions, names, resolve
from dirqueue.layouts.native.conditions import ABORTED, COMMITTED, OPEN, UNKNOWN
from dirqueue.layouts.native.register import register_beside
from dirqueue.layouts.native.resolve import Resolver

ID = "1700000000000000000000001"
P = "1700000000000000000000002"
T = f"{P}-1"
UNTIL = 1_700_000_100_000_000
LEASE = f"{ID}.{UNTIL}.1.host-1-0123456789-1"


@pytest.mark.parametrize("base", [ID, f"{ID}.{UNTIL}.0", LEASE, f"5{ID}"])
@pytest.mark.parametrize("how", ["if", "un", "mv"])
def test_conditional_names_are_read_and_built_letter_for_letter(base, how):
    text = conditions.conditional(base, how, T)
    found = conditions.parse(text)
    assert (found.text, found.base.text, found.how, found.txn) == (text, base, how, T)
    assert names.parse(text) is None
    assert len(text) <= 255


@pytest.mark.parametrize(
    "text",
    [
        ID, LEASE, f"{ID}.if", f"{ID}.if.{P}", f"{ID}.if.{P}-0", f"{ID}.if.{P}-1234567890", f"{ID}.or.{T}",
        f"{ID}.new.if.{T}", f"{ID}.error.un.{T}", f"x.if.{T}", f"{ID}.if.{T}.if.{T}", f"{ID}.if.{T}\n", f".if.{T}",
        f"{ID}.batch.if.{T}", f"{ID}.if.1{T}",
    ],
)  # fmt: skip
def test_other_names_are_not_conditional(text):
    assert conditions.parse(text) is None


def test_message_is_here_under_one_verdict():
    staged, held = (conditions.parse(f"{ID}.{how}.{T}") for how in ("if", "un"))
    assert (conditions.here(staged, COMMITTED), conditions.here(staged, ABORTED)) == (True, False)
    assert (conditions.here(held, COMMITTED), conditions.here(held, ABORTED)) == (False, True)


class Place:
    """A queue in a space, with registers made by hand."""

    def __init__(self, root):
        self.root, self.path = root, root / "q"
        self.registers = root / ".space" / "txn"
        (self.registers / P).mkdir(parents=True)
        self.path.mkdir()
        (self.path / "leased").mkdir()
        self.queue = Queue(self.path, sync=False, margin=0, lease=600.0)
        self.directory = self.queue.layout.directory
        assert self.directory.find()
        self.register = register_beside(self.directory)
        self.resolver = Resolver(self.directory, self.queue.settings)

    def write(self, name, body="body"):
        (self.path / name).write_text(body)

    def commit(self, text="", gone=False):
        folder = self.registers / (f"{P}.gone" if gone else P)
        folder.mkdir(exist_ok=True)
        (folder / "1").write_text(text)

    def resolve(self, *found, prefix="", now=None, linked=None):
        now = self.directory.clock.now() if now is None else now
        return self.resolver.resolve(prefix, conditions.among(found), now, linked)

    def there(self, *rooms):
        return sorted(
            name for room in (rooms or (".",)) for name in os.listdir(self.path / room) if name[0] == "1"
        )


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_register_tells_what_was_decided(place):
    assert place.register.look(T) == OPEN
    place.commit()
    assert place.register.look(T) == COMMITTED
    os.rename(place.registers / P, place.registers / f"{P}.gone")
    assert place.register.look(T) == COMMITTED
    assert place.register.look(f"{P}-2") == ABORTED
    os.unlink(place.registers / f"{P}.gone" / "1")
    os.rmdir(place.registers / f"{P}.gone")
    assert place.register.look(T) == ABORTED
    os.rmdir(place.registers)
    assert place.register.look(T) == UNKNOWN


def test_register_that_is_a_link_is_committed(place):
    os.symlink(":body", place.registers / P / "1")
    assert place.register.look(T) == COMMITTED


def test_decision_is_final(place):
    assert place.register.decide(T) == ABORTED
    assert place.register.look(T) == place.register.decide(T) == ABORTED
    place.write(LEASE)
    with pytest.raises(IsADirectoryError):
        os.rename(place.path / LEASE, place.registers / P / "1")
    (place.registers / P / "2").write_text("")
    assert place.register.decide(f"{P}-2") == COMMITTED


def test_decision_that_another_client_makes_at_the_same_time_is_looked_at(place):
    with failing("mkdir", errno.EEXIST, times=1):
        assert place.register.decide(T) == ABORTED
    with failing("mkdir", errno.EEXIST, times=99):
        assert place.register.decide(f"{P}-2") == OPEN


def test_decision_is_left_to_those_who_may_make_it(place):
    with failing("mkdir", errno.EACCES):
        assert place.register.decide(T) == OPEN


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"move": 1}', '{"move": {"a": "../b", "c": "d//e"}}'])
def test_damaged_plan_moves_nothing(place, text):
    place.commit(text)
    assert place.register.plan(T) == {}
    place.write(f"{ID}.mv.{T}")
    assert place.resolve(f"{ID}.mv.{T}").names == []
    assert place.there() == [f"{ID}.mv.{T}"]


def test_plan_is_read_where_the_register_is(place):
    place.commit(json.dumps({"move": {ID: f"r/{ID}"}}))
    assert place.register.plan(T) == {ID: f"r/{ID}"}
    os.rename(place.registers / P, place.registers / f"{P}.gone")
    assert place.register.plan(T) == {ID: f"r/{ID}"}
    assert place.register.plan(f"{P}-2") == {}


@pytest.mark.parametrize("verdict", ["committed", "aborted", "fenced", "forgotten"])
def test_names_come_to_their_ends(place, verdict):
    ids = [f"{ID[:-1]}{number}" for number in range(3)]
    plan = json.dumps({"move": {ids[2]: f"r/later/1700000000000000/{ids[2]}.{UNTIL}.0"}})
    if verdict in ("committed", "fenced"):
        place.commit(plan)
    elif verdict == "aborted":
        (place.registers / P / "1").mkdir()
    if verdict in ("fenced", "forgotten"):
        os.rename(place.registers / P, place.registers / f"{P}.gone")
    found = [f"{id}.{how}.{T}" for id, how in zip(ids, ("if", "un", "mv"), strict=True)]
    for name in found:
        place.write(name)
    done = verdict in ("committed", "fenced")
    assert place.resolve(*found).names == ([ids[0]] if done else ids[1:])
    assert place.there() == ([ids[0]] if done else ids[1:])
    assert (place.root / "r" / "later" / "1700000000000000" / f"{ids[2]}.{UNTIL}.0").exists() == done
    assert place.resolve(*found) == ([], resolve.NEVER)


def test_both_names_after_a_power_cut_become_one(place):
    """A rename of one name of a file to another one does nothing."""
    place.commit(json.dumps({"move": {ID: f"r/{ID}"}}))
    place.write(f"{ID}.mv.{T}")
    (place.root / "r").mkdir()
    os.link(place.path / f"{ID}.mv.{T}", place.root / "r" / ID)
    place.resolve(f"{ID}.mv.{T}")
    assert place.there() == []
    assert os.listdir(place.root / "r") == [ID]


def test_open_names_are_left_to_their_owner(place):
    held, staged = f"{ID[:-1]}2.un.{T}", f"{ID}.if.{T}"
    for name in (held, staged):
        place.write(name)
    now = place.directory.clock.now()
    assert place.resolve(held, staged, now=now) == ([], now + 5_000_000)
    assert place.resolve(held, now=now + 4_000_000).names == []
    (place.registers / P / "1.alive").touch()
    later = now + 3_000_000_000
    os.utime(place.registers / P / "1.alive", (later / 1e6, later / 1e6))
    assert place.resolve(held, now=later).names == []
    assert place.resolve(held, now=later + 6_000_000).names == [f"{ID[:-1]}2"]
    assert place.there() == sorted([f"{ID[:-1]}2", staged])


def test_staged_name_is_removed_when_it_is_stale(place):
    staged = f"{ID}.if.{T}"
    place.write(staged)
    now = place.directory.clock.now()
    assert place.resolve(staged, now=now + 3_599_000_000).again != resolve.NEVER
    assert place.resolve(staged, now=now + 3_601_000_000) == ([], resolve.NEVER)
    assert place.there() == []
    assert place.register.look(T) == ABORTED


def test_name_that_is_gone_is_no_reason_to_abort(place):
    assert place.resolve(f"{ID}.un.{T}", now=1 << 60) == ([], resolve.NEVER)
    assert place.register.look(T) == OPEN


def test_space_of_another_user_is_left_alone(place):
    place.write(f"{ID}.un.{T}")
    with failing("stat", errno.EACCES, when=lambda path, **_: "txn" in str(path), times=1):
        assert place.resolve(f"{ID}.un.{T}").again != resolve.NEVER
    place.commit()
    with failing("unlink", errno.EACCES, when=lambda path, **_: ".un." in path):
        assert place.resolve(f"{ID}.un.{T}") == ([], resolve.NEVER)
    assert place.there() == [f"{ID}.un.{T}"]


def test_links_come_to_their_ends_as_links(place):
    place.commit()
    os.symlink(":body", place.path / f"{ID}.if.{T}")
    os.symlink("elsewhere", place.path / f"{ID[:-1]}2.if.{T}")
    linked = {f"{ID}.if.{T}", f"{ID[:-1]}2.if.{T}"}
    assert place.resolve(*sorted(linked), linked=linked).names == [ID]
    assert ID in linked
    assert place.there() == [ID, f"{ID[:-1]}2.if.{T}"]
    assert place.queue.get(timeout=0).message.body == b"body"


def test_room_that_is_removed_as_fast_as_it_is_made_ends_in_an_error(place, monkeypatch):
    place.write(ID)
    monkeypatch.setattr(fs, "make_inner", lambda *_: True)
    with pytest.raises(FileNotFoundError):
        resolve.carry(ID, f"nowhere/{ID}", place.directory.fd)


@pytest.mark.parametrize("verdict", [OPEN, COMMITTED, ABORTED])
def test_consumer_finds_what_was_decided_in_the_rooms(place, verdict):
    """An expired lease that was held, a delay that was staged, and a lease whose time has not come."""
    due, later, live = (f"{ID[:-1]}{number}" for number in (1, 2, 3))
    ahead = place.directory.clock.now() + 600_000_000
    place.write(f"leased/{due}.{UNTIL}.1.host-1-0123456789-1.un.{T}", "due")
    place.write(f"leased/{live}.{ahead}.1.host-1-0123456789-2.un.{T}", "live")
    (place.path / "later" / "1700000100000000").mkdir(parents=True)
    place.write(f"later/1700000100000000/{later}.{UNTIL}.0.if.{T}", "later")
    if verdict == COMMITTED:
        place.commit()
    elif verdict == ABORTED:
        (place.registers / P / "1").mkdir()
    got = []
    for _ in range(2):
        for lease in place.queue.consume(timeout=0):
            got.append(lease.message.body)
            lease.ack()
    assert got == {OPEN: [], COMMITTED: [b"later"], ABORTED: [b"due"]}[verdict]
    assert any(name.startswith(live) and ".un." in name for name in place.there("leased"))
    stats = place.queue.stats()
    assert (stats.leased, stats.foreign) == {OPEN: (2, 0), COMMITTED: (0, 0), ABORTED: (1, 0)}[verdict]


def test_commit_is_noticed_although_the_queue_has_not_changed(place):
    """A consumer that found nothing looks again: the commit changes nothing in the directory."""
    place.write(f"{ID}.if.{T}", "new")
    os.utime(place.path, (1_700_000_000, 1_700_000_000))
    assert list(place.queue.consume(timeout=0)) == []
    assert place.queue.layout.wakes_in() <= 5.0
    place.commit()
    assert [lease.message.body for lease in place.queue.consume(timeout=0)] == [b"new"]


def test_spark_takes_what_was_committed(place):
    from dirqueue.layouts.native import supply

    place.commit()
    place.write(f"{ID}.if.{T}", "new")
    place.write(f"{ID[:-1]}2.un.{T}", "gone")
    os.symlink("elsewhere", place.path / f"{ID[:-1]}3.if.{T}")
    found = supply.claimable(place.directory, place.queue.settings)
    assert found.take() == ("", ID)
    assert found.take() is None

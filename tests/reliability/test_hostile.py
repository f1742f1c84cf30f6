"""A directory full of things that are no messages, and strings that are no ids."""

import os

import pytest
from lab import hostile

import dirqueue
from dirqueue.layouts.native import names


@pytest.fixture
def planted(tmp_path):
    """Return a queue directory with every kind of foreign entry, and a file outside that links point to."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    path = tmp_path / "queue"
    path.mkdir()
    assert hostile.plant(str(path), str(outside)) >= 60
    return path, outside


def test_foreign_entries_are_neither_delivered_nor_touched(planted):
    """All verbs among 60 kinds of entries: only our own messages come, everything else stays as it was."""
    path, outside = planted
    before = hostile.tree(path)
    queue = dirqueue.Queue(
        path, sync=False, stale=0.0, max_attempts=2, keep_done_for=0.001, keep_dead_for=0.001
    )
    for number in range(5):
        queue.put(b"%d" % number)
    queue.put_many([b"5", b"6"])
    got = []
    for _ in range(30):
        try:
            lease = queue.get(timeout=0)
        except dirqueue.Empty:
            break
        got.append(lease.message.body)
        if lease.message.body == b"3":
            lease.reject("bad")
        else:
            lease.ack()
    assert sorted(got) == [b"%d" % number for number in range(7)]
    assert queue.redrive() != []
    queue.get(timeout=0).ack()
    queue.purge()
    list(queue.peek())
    queue.stats()
    after = hostile.tree(path)
    assert {name: entry for name, entry in before.items() if after.get(name) != entry} == {}
    assert outside.read_bytes() == b"precious"


def test_what_is_foreign_is_counted(planted):
    """The tools can tell a person that there is something else in the directory."""
    path, _outside = planted
    queue = dirqueue.Queue(path, sync=False)
    assert sum(1 for entry in queue.layout.entries() if entry.state == "foreign") >= 60


def test_fuzzed_names_are_ours_or_are_ignored():
    """100,000 names almost like ours: parsing never raises, and what it accepts it rebuilds letter for letter."""
    accepted, wrong = hostile.fuzz(100_000)
    assert wrong == []
    assert 1000 < accepted < 99_000


def test_fuzzed_ids_reach_no_path(tmp_path):
    """What is not an id is refused by name, before any file is looked at."""
    canary = tmp_path / "canary"
    canary.write_bytes(b"precious")
    queue = dirqueue.Queue(tmp_path / "queue", sync=False)
    queue.put(b"x")
    strings = ["", ".", "..", "../canary", str(canary), "a\0b", "9" * 10_000, *hostile.fuzzed(3000, seed=1)]
    for text in strings:
        if names.parse(text) is not None and names.parse(text).kind == "ready":
            continue
        with pytest.raises((dirqueue.InvalidId, dirqueue.MessageNotFound)):
            queue.message(text)
    assert canary.read_bytes() == b"precious"
    assert len(queue) == 1


def test_a_link_planted_in_place_of_a_new_file_is_not_written_through(tmp_path, monkeypatch):
    """Somebody guesses the name of a file about to be made and plants a link there: put goes elsewhere."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    path = tmp_path / "queue"
    path.mkdir()
    guesses = iter(["1700000000000000000000001", "1700000000000000000000002"])
    monkeypatch.setattr("dirqueue.layouts.native.publish.new_id", lambda: next(guesses))
    os.symlink(precious, path / "1700000000000000000000001.new")
    queue = dirqueue.Queue(path, sync=False)
    assert queue.put(b"x") == "1700000000000000000000002"
    assert precious.read_bytes() == b"precious"


def test_a_planted_hard_link_is_never_written_to(tmp_path):
    """A message that is a second name of somebody's file: delivering and ending it leaves the file as it was."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    path = tmp_path / "queue"
    path.mkdir()
    os.link(precious, path / "1700000000000000000000001")
    queue = dirqueue.Queue(path, sync=False)
    lease = queue.get(timeout=0)
    lease.retry(0.0, "no luck")
    queue.get(timeout=0).ack()
    assert precious.read_bytes() == b"precious"

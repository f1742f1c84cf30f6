"""A directory full of entries that are not messages, and strings that are not ids."""

import os

import pytest
from lab import hostile

import dirqueue
from dirqueue.layouts.native import names


@pytest.fixture
def planted(tmp_path):
    """Give a queue directory with every kind of foreign entry, and a file outside that is the target of links."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    path = tmp_path / "queue"
    path.mkdir()
    assert hostile.plant(str(path), str(outside)) >= 60
    return path, outside


def test_foreign_entries_are_neither_delivered_nor_touched(planted):
    """Among 60 kinds of entries only messages are delivered; no verb changes anything else."""
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


def test_entries_reports_foreign_files(planted):
    """Foreign entries are listed with the state "foreign", so that tools can report them."""
    path, _outside = planted
    queue = dirqueue.Queue(path, sync=False)
    assert sum(1 for entry in queue.layout.entries() if entry.state == "foreign") >= 60


def test_fuzzed_names_are_parsed_exactly_or_rejected():
    """100,000 almost valid names: parsing never raises, and an accepted name is rebuilt exactly."""
    accepted, wrong = hostile.fuzz(100_000)
    assert wrong == []
    assert 1000 < accepted < 99_000


def test_fuzzed_ids_reach_no_path(tmp_path):
    """A string that is not an id is refused before any file is accessed."""
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


def test_put_does_not_write_through_a_planted_symlink(tmp_path, monkeypatch):
    """An attacker guesses the name of the next file and plants a symlink there: put uses another name."""
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


def test_planted_hard_link_is_never_written_to(tmp_path):
    """A message that is a hard link to another file: delivering and ending it leaves that file unchanged."""
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

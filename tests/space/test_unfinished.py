"""Queues, settings and probes of a space whose maker was killed, or stopped for long: purged, and made again."""

import os

import pytest
from support.stopping import killed_before, stopped_before

from dirqueue import Space
from dirqueue.disk import fs
from dirqueue.errors import QueueAccess
from dirqueue.space import probe


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "space"
    Space.create(root, max_attempts=7, sync=False).close()
    return root


def unfinished(root):
    return [name for name in os.listdir(root / ".space") if name.startswith(("create-", "removed-"))]


def of_queue(src, *_, **__):
    return "/create-" in str(src) and "queue.json" not in str(src)


def put(root):
    with Space(root) as space:
        space.put("q", b"1")
        return space.queue("q").settings.max_attempts


def test_purge_removes_what_a_killed_creator_left(root):
    killed_before("rename", lambda: put(root), when=of_queue)
    [left] = unfinished(root)
    assert Space(root).purge().other == 0
    assert unfinished(root) == [left]
    assert Space(root, stale=0).purge().other == 1
    assert unfinished(root) == []
    assert Space(root).names() == []


def test_purge_goes_on_with_what_a_killed_one_began(root):
    killed_before("rename", lambda: put(root), when=of_queue)
    killed_before(
        "rmdir", lambda: Space(root, stale=0).purge(), when=lambda name, **_: "removed-" in str(name)
    )
    [left] = unfinished(root)
    assert left.startswith("removed-")
    Space(root).purge()
    assert unfinished(root) == []


def test_a_creator_that_was_stopped_makes_its_queue_again(root):
    with stopped_before("rename", lambda: put(root), when=of_queue) as go_on:
        Space(root, stale=0).purge()
        assert unfinished(root) == []
        assert go_on() == 7
    assert unfinished(root) == []
    assert Space(root).get("q", timeout=0).message.body == b"1"


def test_a_creator_that_was_stopped_stores_its_settings_again(tmp_path):
    root = tmp_path / "space"
    call = "rename_noreplace"
    with stopped_before(call, lambda: Space.create(root, max_attempts=5).path, when=of_queue) as go_on:
        Space(root, stale=0).purge()
        assert unfinished(root) == []
        assert go_on() == str(root)
    assert Space(root).queue("q").settings.max_attempts == 5
    assert unfinished(root) == []


def test_a_creator_that_is_robbed_each_time_gives_up(root, monkeypatch):
    real = fs.rename_in

    def robbed(src, dst, fd):
        if of_queue(src):
            fs.remove_tree(src, fd)
        real(src, dst, fd)

    monkeypatch.setattr(fs, "rename_in", robbed)
    with pytest.raises(QueueAccess, match="cannot create"):
        Space(root).queue("q")
    assert unfinished(root) == []


# --- probes ------------------------------------------------------------------------------------------------


@pytest.fixture
def unprobed(root, monkeypatch):
    """A space whose filesystem was not tried out yet."""
    monkeypatch.setattr(probe, "_known", {})
    return root


def probes(root):
    return [name for name in os.listdir(root / ".space") if "probe-" in name]


def transact(root):
    with Space(root, sync=False) as space:
        space.put("q", b"1", id="one")
        return next(iter(probe._known.values()))


def of_probe(src, *_, **__):
    return "/probe-" in str(src)


def test_purge_removes_what_a_killed_prober_left(unprobed):
    killed_before("rename", lambda: transact(unprobed), when=of_probe)
    [left] = probes(unprobed)
    assert Space(unprobed).purge().other == 0
    assert probes(unprobed) == [left]
    assert Space(unprobed, stale=0).purge().other == 1
    assert probes(unprobed) == []


@pytest.mark.parametrize("call", ["mkdir", "rename", "link", "stat"])
def test_a_prober_that_was_stopped_tries_again_and_finds_the_same(unprobed, call):
    with stopped_before(call, lambda: transact(unprobed), when=of_probe) as go_on:
        Space(unprobed, stale=0).purge()
        assert probes(unprobed) == []
        assert go_on() is True
    assert probes(unprobed) == []
    assert Space(unprobed).get("q", timeout=0).message.body == b"1"


def test_a_prober_that_is_robbed_each_time_gives_up(unprobed, monkeypatch):
    real = fs.create

    def robbed(name, data, fd, **how):
        if of_probe(name):
            fs.remove_tree(os.path.dirname(name), fd)
        real(name, data, fd, **how)

    monkeypatch.setattr(fs, "create", robbed)
    with pytest.raises(QueueAccess, match="try out transactions"):
        transact(unprobed)
    assert probes(unprobed) == []
    assert Space(unprobed).put("q", b"1")

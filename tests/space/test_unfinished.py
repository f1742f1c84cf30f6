"""Queues and settings of a space whose creator was killed, or stopped for long: purged, and made again."""

import os

import pytest
from support.stopping import killed_before, stopped_before

from dirqueue import Space


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
    from dirqueue.disk import fs
    from dirqueue.errors import QueueAccess

    real = fs.rename_in

    def robbed(src, dst, fd):
        if of_queue(src):
            fs.remove_tree(src, fd)
        real(src, dst, fd)

    monkeypatch.setattr(fs, "rename_in", robbed)
    with pytest.raises(QueueAccess, match="cannot create"):
        Space(root).queue("q")
    assert unfinished(root) == []

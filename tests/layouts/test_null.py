"""The null layout."""

import pytest

from dirqueue import (
    Empty,
    LeaseLost,
    MessageNotFound,
    Purged,
    Queue,
    QueueAccess,
)
from dirqueue.layouts import peer


def test_null_layout_keeps_nothing(tmp_path):
    """What is put is gone, nothing is ever found, and every end of a lease is refused."""
    queue = Queue(tmp_path / "queue", layout="null")
    layout = queue.layout
    layout.create()
    assert queue.put(b"x") != queue.put(b"x")
    assert len(queue.put_many([b"x", b"y"])) == 2
    (tmp_path / "file").write_bytes(b"x")
    id = queue.put_path(tmp_path / "file")
    assert not (tmp_path / "file").exists()
    with pytest.raises(QueueAccess):
        queue.put_path(tmp_path / "file")
    assert (len(queue), layout.wakes_in(), layout.find(id), layout.purge()) == (0, None, None, Purged())
    with pytest.raises(Empty):
        queue.get(timeout=0)
    held = peer.Claim(id, id, 0, 0, 1, "")
    for act in (
        lambda: layout.ack(held),
        lambda: layout.renew(held, 1.0),
        lambda: layout.retry(held, 1.0, None),
        lambda: layout.release(held),
        lambda: queue.lease("anything"),
    ):
        with pytest.raises(LeaseLost):
            act()
    entry = layout.entry(held)
    for act in (
        lambda: layout.load(id),
        lambda: layout.stream(id),
        lambda: layout.size(id),
        lambda: layout.cancel(entry),
        lambda: queue.message(id),
    ):
        with pytest.raises(MessageNotFound):
            act()
    assert layout.check_id(id) == id
    assert not layout.remove(entry)
    assert list(layout.entries()) == []
    assert not (tmp_path / "queue").exists()

"""How the layout of a directory is recognised."""

import os

import pytest
from support.failing import HARD, failing, names
from support.vsqs_queues import make, queue

from dirqueue import (
    LayoutError,
    Queue,
    QueueAccess,
    SettingsError,
)
from dirqueue.layouts import layout_class

__all__ = ["make", "queue"]


def test_a_layout_that_there_is_not():
    """The error names those that there are."""
    with pytest.raises(SettingsError, match="native, vsqs"):
        layout_class("sqlite")


@pytest.mark.parametrize("code", names(HARD))
def test_a_directory_that_cannot_be_looked_into(queue, code):
    """Its format cannot be told, and that is said."""
    with failing("scandir", code), pytest.raises(QueueAccess) as caught:
        Queue(queue.path).put(b"x")
    assert caught.value.errno == code


def test_a_format_is_told_by_the_first_names(queue, monkeypatch):
    """However many there are; two formats side by side are refused."""
    monkeypatch.setattr("dirqueue.layouts.ENOUGH", 2)
    for _ in range(5):
        queue.put(b"x")
    assert Queue(queue.path).layout.name == "vsqs"
    monkeypatch.undo()
    os.mkdir(os.path.join(queue.path, "5f000000"))
    with pytest.raises(LayoutError, match="mixture"):
        Queue(queue.path).put(b"x")


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_a_directory_is_recognised(tmp_path, layout):
    """Who does not name the layout gets the one that is there."""
    with Queue(tmp_path / "q", layout=layout, sync=False) as queue:
        queue.put(b"x")
    with Queue(tmp_path / "q") as queue:
        assert queue.layout.name == layout
        assert queue.get(timeout=0).message.body == b"x"


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_a_queue_that_was_only_created_is_recognised(tmp_path, layout):
    """create() leaves enough to tell the layout by."""
    Queue.create(tmp_path / "q", layout=layout).close()
    with Queue(tmp_path / "q") as queue:
        assert queue.layout.name == layout


@pytest.mark.parametrize(
    ("one", "two"),
    [("vsqs", "dirq-simple"), ("native", "dirq-simple"), ("native", "dirq-normal"), ("vsqs", "dirq-normal")],
)
def test_a_mixture_is_refused(tmp_path, one, two):
    """Two formats in one directory are a mistake that is not made worse."""
    for layout in (one, two):
        with Queue(tmp_path / "q", layout=layout, sync=False) as queue:
            queue.put(b"x")
    with pytest.raises(LayoutError, match="mixture"):
        Queue(tmp_path / "q")

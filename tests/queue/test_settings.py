"""Settings: given at create, kept in queue.json, checked, and winning."""

import json
import os

import pytest
from support.kit import drain

from dirqueue import LayoutError, Queue, QueueError, QueueNotFound, SettingsError


def test_what_was_given_at_create_is_what_everybody_gets(tmp_path):
    """queue.json holds what was said, and wins over defaults."""
    path = tmp_path / "queue"
    Queue.create(path, lease=7.5, max_attempts=2, priorities=True, sync=False)
    stored = json.loads((path / "queue.json").read_text())
    assert stored == {"format": 1, "lease": 7.5, "max_attempts": 2, "priorities": True, "sync": False}
    opened = Queue(path).settings
    assert (opened.lease, opened.max_attempts, opened.priorities, opened.sync) == (7.5, 2, True, False)
    assert opened.order == "fifo"


def test_setting_that_equals_a_default_is_kept_too(tmp_path):
    """What was said at create holds, even if it is what nobody had to say."""
    Queue.create(tmp_path / "queue", lease=30.0)
    with pytest.raises(SettingsError, match=r"lease=10 .*lease=30\.0"):
        Queue(tmp_path / "queue", lease=10)


def test_conflict_names_both(tmp_path):
    """An argument that says otherwise is an error; one that agrees is fine; others are free."""
    path = tmp_path / "queue"
    Queue.create(path, lease=7.5)
    with pytest.raises(SettingsError) as caught:
        Queue(path, lease=8.0)
    assert "lease=8.0" in str(caught.value)
    assert "lease=7.5" in str(caught.value)
    assert "queue.json" in str(caught.value)
    assert Queue(path, lease=7.5, max_attempts=9).settings.max_attempts == 9


def test_create_without_settings_needs_no_file(tmp_path):
    """An absent queue.json is the defaults."""
    Queue.create(tmp_path / "queue")
    assert os.listdir(tmp_path / "queue") in ([], [".ballast"])


def test_create_twice_alike_is_fine_and_otherwise_an_error(tmp_path):
    """Create is idempotent, and never changes what is."""
    Queue.create(tmp_path / "queue", lease=5.0)
    Queue.create(tmp_path / "queue", lease=5.0).put(b"x")
    Queue.create(tmp_path / "queue", lease=5.0)
    with pytest.raises(SettingsError, match="lease"):
        Queue.create(tmp_path / "queue", lease=6.0)
    assert drain(Queue(tmp_path / "queue")) == [b"x"]


def test_queue_in_use_gets_no_settings(tmp_path):
    """Messages that were put under other rules are not put under these."""
    queue = Queue(tmp_path / "queue", sync=False)
    queue.put(b"x")
    with pytest.raises(QueueError, match="in use"):
        Queue.create(tmp_path / "queue", priorities=True)
    drain(queue)
    (tmp_path / "queue" / "README").write_text("foreign, and no reason to refuse")
    Queue.create(tmp_path / "queue", priorities=True)


def _size(value):
    return value.bit_length() if isinstance(value, int) else 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease": 0}, {"lease": -1}, {"lease": "5"}, {"lease": float("nan")}, {"lease": 1e12}, {"lease": True},
        {"max_attempts": 1.5}, {"max_attempts": -1}, {"max_attempts": "3"}, {"sync": 1}, {"sync": "yes"},
        {"order": "FIFO"}, {"order": None}, {"layout": "x"}, {"default_priority": 0},
        {"default_priority": 10**9}, {"max_size": -5}, {"max_messages": 2.0}, {"backoff": -1},
        {"max_backoff": 1e300}, {"margin": float("inf")}, {"stale": -0.1}, {"schema": [1]},
        {"maxelts": 0}, {"leese": 5}, {"lease": 10**400}, {"max_size": 10**400}, {"max_size": 10**9999},
        {"keep_done": None}, {"priorities": 2},
    ],
    ids=lambda wrong: f"{wrong}"[:40] if max(map(_size, wrong.values())) < 99 else f"{[*wrong]} huge",
)  # fmt: skip
def test_setting_that_is_invalid_is_refused(tmp_path, wrong):
    """By Queue and by create, naming it, and nothing is made."""
    (name,) = wrong
    for make in (Queue, Queue.create):
        with pytest.raises(SettingsError, match=name) as caught:
            make(tmp_path / "queue", **wrong)
        assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


HUGE = b"1" + b"0" * 400  # more than a float can hold


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"format": 2}', b'{"format": "1"}', b'{"lease": -1}',
        b'{"unknown": 1}', b'{"sync": 1}', b"[" * 200_000, b'{"schema": ' + b"[" * 200_000,
        b'{"schema": ' + b"[" * 900 + b"]" * 900 + b"}", b'{"lease": ' + HUGE + b"}", b'{"max_size": ' + HUGE + b"}",
        b'{"format": ' + HUGE + b"}", b'{"lease": 1e999}', b'{"lease": NaN}', b'{"max_size": ' + HUGE * 20 + b"}",
    ],
    ids=lambda text: text[:24].decode("ascii", "replace"),
)  # fmt: skip
def test_queue_json_that_is_damaged_is_a_layout_error(tmp_path, text):
    """Nobody goes on with settings that are not those of the queue; the arguments are not to blame."""
    (tmp_path / "queue.json").write_bytes(text)
    for make in (Queue, Queue.create):
        with pytest.raises(LayoutError, match=r"queue\.json") as caught:
            make(tmp_path)
        assert not isinstance(caught.value, SettingsError)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < len(str(tmp_path)) + 300
    assert (tmp_path / "queue.json").read_bytes() == text


def test_queue_that_must_exist(tmp_path):
    """create=False makes nothing, at once and later."""
    with pytest.raises(FileNotFoundError) as caught:
        Queue(tmp_path / "queue", create=False)
    assert isinstance(caught.value, QueueNotFound)
    assert os.listdir(tmp_path) == []


def test_relative_path_stays_the_same_queue_after_chdir(tmp_path, monkeypatch):
    """A process that changes its directory keeps its queue."""
    monkeypatch.chdir(tmp_path)
    queue = Queue("queue", sync=False)
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    queue.put(b"x")
    queue.purge()
    assert os.listdir(tmp_path / "elsewhere") == []
    assert drain(Queue(tmp_path / "queue")) == [b"x"]

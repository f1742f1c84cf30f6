"""What goes wrong in dirq 1.8 and must not here: each story is told to both, and the real one shows the bug."""

import contextlib
import os
import time
from pathlib import Path

import dirq.queue
import dirq.QueueBase
import dirq.QueueSet
import dirq.QueueSimple
import pytest
from support.kit import replaced

from dirqueue.compat.dirq.queue import Queue, QueueError, QueueSet
from dirqueue.compat.dirq.QueueSimple import QueueSimple
from dirqueue.disk import fs

SCHEMA = {"body": "string", "header": "table?"}
OLD = time.time() - 10_000


class Both:
    """One of the two implementations, and where its system calls can be met."""

    def __init__(self, real):
        self.real = real
        self.simple = dirq.QueueSimple.QueueSimple if real else QueueSimple
        self.normal = dirq.queue.Queue if real else Queue
        self.set = dirq.QueueSet.QueueSet if real else QueueSet
        self.calls = os if real else fs


@pytest.fixture(params=["dirq 1.8", "dirqueue"])
def both(request):
    """Give one implementation; the story is expected to go wrong with the real dirq, and must."""
    if request.param == "dirq 1.8":
        request.applymarker(pytest.mark.xfail(strict=True, reason="the bug, in dirq 1.8"))
    return Both(request.param == "dirq 1.8")


def age(path):
    os.utime(path, (OLD, OLD))


def wrapped(calls, **replacements):
    """Replace system calls where the implementation looks them up; each gets the original as its first argument."""

    def bind(name, function):
        original = getattr(calls, name)
        return lambda *arguments, **options: function(original, *arguments, **options)

    return replaced(calls, **{name: bind(name, function) for name, function in replacements.items()})


def test_lock_that_is_fresh_has_one_holder(both, tmp_path):
    """A purge between the link and the touch of an old element must not free the lock."""
    first, purger, second = (both.simple(str(tmp_path / "q")) for _ in range(3))
    name = first.add(b"x")
    age(tmp_path / "q" / name)
    purged = []

    def link(original, *arguments, **options):
        original(*arguments, **options)
        if not purged:
            purged.append(True)
            purger.purge()

    with wrapped(both.calls, link=link):
        assert first.lock(name)
    assert purged
    assert not second.lock(name)


def test_purge_leaves_a_live_add_alone(both, tmp_path):
    """An element being added is young, so no purge may touch it."""
    queue, purger = (both.normal(str(tmp_path / "q"), schema=SCHEMA) for _ in range(2))
    purged = []

    def mkdir(original, path, *arguments, **options):
        original(path, *arguments, **options)
        if "temporary/" in str(path) and not purged:
            purged.append(True)
            purger.purge()
            assert len(os.listdir(tmp_path / "q" / "temporary")) == 1

    with wrapped(both.calls, mkdir=mkdir):
        name = queue.add({"body": "x"})
    assert queue.lock(name)
    assert queue.get(name) == {"body": "x"}


def test_purge_leaves_a_live_remove_alone(both, tmp_path):
    """An element being removed goes without an error on either side."""
    queue, purger = (both.normal(str(tmp_path / "q"), schema=SCHEMA) for _ in range(2))
    name = queue.add({"body": "x"})
    assert queue.lock(name)
    purged = []

    def rename(original, source, target, *arguments, **options):
        original(source, target, *arguments, **options)
        if "obsolete/" in str(target) and not purged:
            purged.append(True)
            purger.purge()

    with wrapped(both.calls, rename=rename):
        queue.remove(name)
    assert purged
    assert queue.count() == 0


@pytest.mark.parametrize("code", ["ENOSPC", "EACCES"])
def test_add_that_fails_raises(both, tmp_path, code):
    """A full disk or a lack of rights is an error, not an endless loop."""
    import errno

    queue = both.simple(str(tmp_path / "q"))
    queue.add(b"first")
    tries = []

    def refuse(original, path, *arguments, **options):
        if str(path).endswith(".tmp"):
            tries.append(path)
            if len(tries) > 200:
                raise KeyboardInterrupt  # an endless loop swallows everything else
            raise OSError(getattr(errno, code), code)
        return original(path, *arguments, **options)

    with wrapped(both.calls, open=refuse):
        try:
            with pytest.raises(OSError, match=code):
                queue.add(b"second")
        except KeyboardInterrupt:
            pytest.fail("it does not end")


def test_text_never_overwrites_what_another_is_writing(both, tmp_path, monkeypatch):
    """Two adds that come upon the same name must end as two elements."""
    one, two = (both.simple(str(tmp_path / "q"), rndhex=1, granularity=1 << 31) for _ in range(2))
    one.add("zero")
    taken = "5" * 13 + "1"
    same = iter([taken, f"{1:013x}1", taken, *(f"{i:013x}1" for i in range(2, 100))])
    if both.real:
        monkeypatch.setattr(dirq.QueueSimple, "_name", lambda _: next(same))
        monkeypatch.setattr(
            dirq.QueueBase.os.path, "exists", lambda _: False
        )  # both looked before either wrote
    else:
        monkeypatch.setattr("dirqueue.layouts.dirq.simple_store.element", lambda _: next(same))
    inner = []

    def link(original, *arguments, **options):
        if not inner:
            inner.append(True)
            two.add("two")
        original(*arguments, **options)

    with wrapped(both.calls, link=link):
        one.add("one")
    got = []
    for name in one:
        assert one.lock(name)
        got.append(one.get(name))
    assert sorted(got) == [b"one", b"two", b"zero"]


def test_umask_of_the_process_stays(both, tmp_path):
    """A queue with its own umask must not leave it to the process."""
    before = os.umask(0o022)
    try:
        both.simple(str(tmp_path / "q"), umask=0).add(b"x")
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_remove_of_an_unlocked_element_leaves_it(both, tmp_path):
    """Only who locked an element may remove it."""
    queue = both.simple(str(tmp_path / "q"))
    name = queue.add(b"precious")
    with contextlib.suppress(OSError):
        queue.remove(name)
    assert (tmp_path / "q" / name).read_bytes() == b"precious"


def test_remove_after_the_lock_was_lost_leaves_the_element_to_its_holder(both, tmp_path):
    """Who stalled for so long that its lock was purged must not take the element from the next holder."""
    late, next_, purger = (both.simple(str(tmp_path / "q")) for _ in range(3))
    name = late.add(b"x")
    assert late.lock(name)
    age(tmp_path / "q" / name)
    purger.purge()
    assert next_.lock(name)
    with contextlib.suppress(OSError):
        late.remove(name)
    assert next_.get(name) == b"x"
    next_.remove(name)


def test_queue_taken_out_of_a_set_is_out_at_once(both, tmp_path):
    """The walk goes on over the other queues, and over all that they hold."""
    queues = {key: both.simple(str(tmp_path / key)) for key in "abc"}
    for _ in range(3):
        for queue in queues.values():
            queue.add(b"x")
            time.sleep(0.0001)
    together = both.set(*queues.values())
    together.first()
    together.next()
    together.remove(queues["b"])
    rest = []
    while (pair := together.next())[0] is not None:
        rest.append(Path(pair[0].path).name)
        assert len(rest) < 100
    assert sorted(rest) == ["a", "a", "c", "c", "c"]


def test_set_is_in_the_order_of_insertion(both, tmp_path):
    """A directory that is a counter must not come before one that is a time."""
    normal = both.normal(str(tmp_path / "normal"), schema=SCHEMA)
    simple = both.simple(str(tmp_path / "simple"))
    simple.add(b"first")
    time.sleep(0.01)
    normal.add({"body": "second"})
    together = both.set(normal, simple)
    assert Path(together.first()[0].path).name == "simple"


def test_part_of_an_element_is_never_taken_for_the_whole(both, tmp_path):
    """When a late holder removes the element while it is read, that is an error and not a missing header."""
    late, reader, purger = (both.normal(str(tmp_path / "q"), schema=SCHEMA) for _ in range(3))
    name = late.add({"body": "x", "header": {"a": "b"}})
    assert late.lock(name)
    age(tmp_path / "q" / name)
    purger.purge()
    assert reader.lock(name)
    gone = []

    def look(original, path, *arguments, **options):
        if str(path).endswith("/header") and not gone:
            gone.append(True)
            os.rename(tmp_path / "q" / name, tmp_path / "elsewhere")  # as the remove of the late holder does
        return original(path, *arguments, **options)

    with wrapped(both.calls, **({"lstat": look} if both.real else {"open": look})), pytest.raises(Exception):  # noqa: B017, PT011
        reader.get(name)
    assert gone


def test_add_is_on_disk_when_it_returns(both, tmp_path):
    """The file is flushed before it is shown, and the name after that."""
    queue = both.simple(str(tmp_path / "q"))
    queue.add(b"x")
    calls = []

    def fsync(original, fd):
        calls.append("fsync")
        original(fd)

    def link(original, *arguments, **options):
        calls.append("link")
        original(*arguments, **options)

    with wrapped(both.calls, fsync=fsync, link=link):
        queue.add(b"y")
    assert calls == ["fsync", "link", "fsync"]


@pytest.mark.parametrize("verb", ["lock", "get", "remove", "touch"])
def test_name_cannot_leave_the_queue(both, tmp_path, verb):
    """What is outside is not touched, whatever the name."""
    (tmp_path / "outside").write_bytes(b"private")
    (tmp_path / "outside.lck").write_bytes(b"private")
    if verb == "lock":
        (tmp_path / "outside.lck").unlink()
    queue = both.simple(str(tmp_path / "q"))
    with pytest.raises(QueueError):
        getattr(queue, verb)("../outside")


def test_iteration_that_was_left_does_not_spoil_the_next(both, tmp_path):
    """first() on an empty queue returns an empty string, whatever loop was left before."""
    queue = both.simple(str(tmp_path / "q"))
    names = [queue.add(b"x") for _ in range(3)]
    for _ in queue:
        break
    for name in names:
        queue.lock(name)
        queue.remove(name)
    assert queue.first() == ""


def test_nested_loops_end(both, tmp_path):
    """Each loop over a queue is its own."""
    queue = both.simple(str(tmp_path / "q"))
    names = [queue.add(b"x") for _ in range(3)]
    seen = []
    for outer in queue:
        for inner in queue:
            seen.append((outer, inner))
            assert len(seen) < 100
        assert len(seen) < 100
        assert outer
    assert seen == [(a, b) for a in names for b in names]


def test_failed_get_does_not_keep_the_lock(both, tmp_path):
    """An element that cannot be read is left as it was found."""
    queue = both.normal(str(tmp_path / "q"), schema=SCHEMA)
    name = queue.add({"body": "x"})
    (tmp_path / "q" / name / "header").write_bytes(b"no table\n")
    with pytest.raises(Exception):  # noqa: B017, PT011
        queue.dequeue(name)
    assert queue.lock(name)


def test_add_that_does_not_fit_leaves_nothing(both, tmp_path):
    """What the schema refuses is refused before anything is written."""
    queue = both.normal(str(tmp_path / "q"), schema=SCHEMA)
    with pytest.raises(Exception):  # noqa: B017, PT011
        queue.add({"header": {}})
    assert os.listdir(tmp_path / "q" / "temporary") == []


def test_reuse_of_the_last_directory(both, tmp_path):
    """Adding to an empty queue does not make a new directory each time."""
    queue = both.normal(str(tmp_path / "q"), schema=SCHEMA)
    for _ in range(4):
        queue.dequeue(queue.add({"body": "x"}))
    assert sorted(os.listdir(tmp_path / "q")) == ["00000000", "obsolete", "temporary"]


def test_count_is_of_elements_only(both, tmp_path):
    """What is being added or removed is not counted."""
    queue = both.normal(str(tmp_path / "q"), schema=SCHEMA)
    queue.add({"body": "x"})
    (tmp_path / "q" / "temporary" / "6afa4960123450").mkdir()
    assert queue.count() == 1

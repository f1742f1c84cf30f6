"""Side files: which are left by crashes, which a purge may remove, and what `check` says of them."""

import contextlib
import errno
import os
from types import SimpleNamespace

import pytest
from support.checker import problems
from support.dying import Died, dying
from support.failing import before, failing

import dirqueue
from dirqueue import Queue, Space
from dirqueue.disk import fs
from dirqueue.space import sides as sides_module
from dirqueue.tools.check import check
from dirqueue.tools.transfer import move


@pytest.fixture
def space(tmp_path):
    with Space(tmp_path / "s", sync=False, margin=0, stale=0) as space:
        yield space


def task(space, queue="q", **more):
    t = space.transaction(holder="ann")
    t.put(queue, b"work", **more)
    [put] = t.commit().puts
    return space.message(put.id, queue)


def change(space, message, **more):
    with space.transaction(holder="ann") as t:
        t.change(message, **more)


def sides(space):
    found = []
    for folder, _, names in os.walk(os.path.join(space.path, ".space", "side")):
        found += [os.path.join(folder, name) for name in names]
    return found


def stray(space, message, content, number=7):
    """Leave a side file that no name means."""
    path = os.path.join(space.path, sides_module.sidefile.path_of(message.id, number))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def of_version(version):
    from dirqueue.message import Details

    return sides_module.sidefile.dumps(Details(version, body=b"stray"))


def codes(space, queue="q", **more):
    return [each.code for each in check(os.path.join(space.path, queue), **more)]


# --- purge -------------------------------------------------------------------------------------------------------


def test_purge_removes_what_no_name_can_come_to_mean(space):
    message = task(space, failures=1)
    old = stray(space, message, of_version(0))
    space.purge()
    assert not os.path.exists(old)
    assert space.message(message.id).failures == 1


@pytest.mark.parametrize("content", [of_version(1), b"", b"half of"], ids=["next", "empty", "incomplete"])
def test_purge_leaves_what_a_stopped_writer_may_still_name(space, content):
    message = task(space)
    old = stray(space, message, content)
    space.purge()
    assert os.path.exists(old)
    space.get("q", timeout=0).ack()
    space.purge()
    assert not os.path.exists(old)


def test_a_writer_that_was_stopped_for_long_goes_on(space):
    """Between its side file and its rename everything becomes stale, and a purge comes."""
    message = task(space)
    with before("rename", lambda *_, **__: Space(space.path, stale=0).purge(), when=of_message(message)):
        change(space, message, body=b"new")
    assert space.message(message.id).body == b"new"


def test_a_put_that_was_stopped_for_long_is_whole_or_not_there(space):
    """The same between the side file of a put and its commit."""
    t = space.transaction(holder="ann")
    t.put("q", b"work", failures=3)
    t.put("q", b"more", failures=4)
    wakes = []

    def purge(*_, **__):
        if not wakes:
            wakes.append(1)
            Space(space.path, stale=0).purge()

    with before("open", purge, when=of_register):
        t.commit()
    assert sorted(message.failures for message in space.messages("q")) == [3, 4]


def of_message(message):
    return lambda src, *_, **__: message.id in str(src)


def of_register(name, *_, **__):
    return "/txn/" in str(name) and str(name).rpartition("/")[2].isdigit()


def test_purge_leaves_what_a_committed_change_means(space):
    """The change is committed, and its process died before the message had its new name."""
    message = task(space)
    with failing("rename", errno.EIO, when=lambda src, *_, **__: ".mv." in src, times=9):
        t = space.transaction(holder="ann")
        t.change(message, body=b"new")
        t.put("b", b"x")
        t.commit()
    [found] = sides(space)
    assert sides_module.orphans(space._ground.directory, 0) == []
    space.purge()
    assert os.path.exists(found)
    assert space.message(message.id).body == b"new"


def test_purge_leaves_what_a_message_means_that_every_look_misses(space, monkeypatch):
    """It lies in the queue that is listed last, and moves to the one that was listed already."""
    message = task(space)
    change(space, message, body=b"new")
    space.queue("r").put(b"another")
    walks = []
    beside = Space(space.path)

    def to(queue):
        with monkeypatch.context() as patch, beside.transaction(holder="ann") as t:
            patch.setattr(fs, "listing", real)
            t.move(beside.message(message.id), queue)

    real = fs.listing

    def listing(folder, fd):
        if folder == ".":
            to("r")
        found = sorted(real(folder, fd), key=lambda entry: entry.name)
        if folder == "q":
            to("q")
            walks.append(found)
        return iter(found)

    with monkeypatch.context() as patch:
        patch.setattr(fs, "listing", listing)
        assert sides_module.orphans(space._ground.directory, 0) == []
    assert len(walks) == 2
    assert space.message(message.id).body == b"new"


def test_purge_is_content_with_whole_seconds(space, monkeypatch):
    """Of a filesystem that tells no less: what changed in the same second is not certain."""
    message = task(space)
    change(space, message, body=b"new")
    os.unlink(os.path.join(space.path, "q", space.message(message.id).entry.place))
    real = fs.stat

    def stat(*args, **more):
        facts = real(*args, **more)
        times = {"st_mtime_ns": facts.st_mtime_ns // 10**9 * 10**9}
        return SimpleNamespace(**{n: getattr(facts, n) for n in dir(facts) if n.startswith("st_")} | times)

    monkeypatch.setattr(fs, "stat", stat)
    pauses = []
    monkeypatch.setattr(sides_module.time, "sleep", pauses.append)
    assert sides_module.orphans(space._ground.directory, 0) == []
    assert 0.9 < pauses[0] <= 2
    for folder in (".", "q", "q/leased"):
        os.utime(os.path.join(space.path, folder), (1_700_000_000, 1_700_000_000))
    [left] = sides_module.orphans(space._ground.directory, 0)
    assert sides(space) == [os.path.join(space.path, left)]


def test_nothing_is_removed_where_times_are_cached_and_new(space, monkeypatch):
    """On a network filesystem only what has been left alone for an hour is certain."""
    message = task(space)
    change(space, message, body=b"new")
    os.unlink(os.path.join(space.path, "q", space.message(message.id).entry.place))
    monkeypatch.setattr(space._ground.directory.mount, "attributes_are_cached", True)
    assert sides_module.orphans(space._ground.directory, 0) == []
    for folder in (".", "q", "q/leased"):
        os.utime(os.path.join(space.path, folder), (1_700_000_000, 1_700_000_000))
    assert len(sides_module.orphans(space._ground.directory, 0)) == 1


def test_nothing_is_removed_where_not_all_names_can_be_seen(space):
    message = task(space)
    stray(space, message, of_version(0))
    with (
        failing("scandir", errno.EACCES, when=lambda *_: True, times=99, done=False) as _,
        contextlib.suppress(PermissionError),
    ):
        assert sides_module.orphans(space._ground.directory, 0) == []


def test_a_number_that_is_taken_is_drawn_again(space, monkeypatch):
    message = task(space)
    taken = stray(space, message, of_version(9), number=5)
    numbers = iter([5, 6, 5, 7])
    monkeypatch.setattr(sides_module.sidefile, "new_number", lambda: next(numbers))
    change(space, message, body=b"new")
    message = space.message(message.id)
    assert (message.body, message.entry.card.side) == (b"new", 6)
    t = space.transaction(holder="ann")
    t.change(message, body=b"newer")
    t.put("b", b"x")
    t.commit()
    assert space.message(message.id).entry.card.side == 7
    assert os.path.exists(taken)


def test_a_lost_reply_is_no_collision(space):
    """The file is there because we made it, and the answer was lost."""
    message = task(space)
    with failing("open", errno.EEXIST, when=of_side, done=True), contextlib.suppress(OSError):
        change(space, message, body=b"new")
    assert space.message(message.id).body in (b"new", b"work")


def of_side(name, *_, **__):
    return "/side/" in str(name) and str(name).rpartition("/")[2].count(".") == 1


@pytest.mark.parametrize("call", ["open", "write", "mkdir"])
def test_a_side_file_that_cannot_be_written_changes_nothing(space, call):
    message = task(space)
    when = of_side_folder if call == "mkdir" else None
    with failing(call, errno.ENOSPC, when=when), pytest.raises(dirqueue.QueueAccess):
        change(space, message, body=b"new")
    seen = space.message(message.id)
    assert (seen.version, seen.body) == (0, b"work")


def of_side_folder(name, *_, **__):
    return "/side" in str(name)


# --- check -------------------------------------------------------------------------------------------------------


def test_check_reports_missing_and_leftover_side_files(space):
    message = task(space, failures=1)
    stray(space, message, of_version(0))
    assert codes(space) == ["Q30"]
    assert codes(space, repair=True) == ["Q30"]
    assert codes(space) == []
    [side] = sides(space)
    os.unlink(side)
    assert codes(space) == ["Q29"]
    assert codes(space, repair=True) == ["Q29"]


def test_a_task_in_the_wrong_place_is_repaired_with_its_card(space):
    message = task(space, delay=120)
    old = os.path.join(space.path, "q", message.entry.place)
    os.rename(old, os.path.join(space.path, "q", "later", os.path.basename(old)))
    assert codes(space, repair=True) == ["Q25"]
    assert space.message(message.id).version == 1


# --- moving to other queues --------------------------------------------------------------------------------------


def test_mv_within_a_space_carries_the_card(space):
    for number in range(3):
        task(space, failures=number + 1, id=f"k{number}")
    space.get("q", timeout=0).reject("bad")
    assert move(space.queue("q"), space.queue("other"), state="ready").atomic
    move(space.queue("q"), space.queue("other"), state="dead")
    found = space.messages("other")
    assert [(each.own_id, each.failures, each.version) for each in found] == [
        ("k0", 1, 3),
        ("k1", 2, 1),
        ("k2", 3, 1),
    ]


def test_mv_out_of_a_space_takes_the_body_along(space, tmp_path):
    message = task(space)
    change(space, message, body=b"new")
    target = Queue(tmp_path / "out", sync=False)
    assert not move(space.queue("q"), target).atomic
    assert target.get(timeout=0).message.body == b"new"
    task(space)
    assert move(space.queue("q"), target).atomic
    lease = target.get(timeout=0)
    assert (lease.message.body, lease.message.entry.card) == (b"work", None)


# --- deaths ------------------------------------------------------------------------------------------------------


def test_death_at_every_call_of_a_change_leaves_the_old_or_the_new(tmp_path):
    deaths = 0
    while True:
        root = tmp_path / f"s{deaths}"
        with Space(root, sync=False, stale=0) as space:
            message = task(space, failures=1)
            with dying(deaths) as count, contextlib.suppress(Died):
                change(space, message, body=b"new")
            over = count[0] <= deaths
            seen = space.message(message.id)
            assert (seen.version, seen.body, seen.failures) in ((0, b"work", 1), (1, b"new", 1))
            assert not over or seen.version == 1
            assert problems(os.path.join(space.path, "q")) == []
            space.get("q", timeout=0).ack()
            space.purge()
            assert not sides(space)
        if over:
            break
        deaths += 1
    assert deaths >= 5


# --- the checker of the laboratory -------------------------------------------------------------------------------


def test_the_checker_knows_tasks_in_every_room(space):
    for number in range(4):
        task(space, failures=number, delay=120 * (number == 3), id=f"k{number}" if number < 2 else None)
    space.get("q", timeout=0, holder="bob")
    space.get("q", timeout=0, holder="bob").reject("bad")
    space.get("q", timeout=0).release()
    assert problems(os.path.join(space.path, "q")) == []


@pytest.mark.parametrize("bug", ["gone", "torn", "later", "twice", "misplaced"])
def test_the_checker_notices_a_bug(space, bug):
    message = task(space)
    change(space, message, body=b"new")
    queue, [side] = os.path.join(space.path, "q"), sides(space)
    place = os.path.join(queue, space.message(message.id).entry.place)
    if bug == "gone":
        os.unlink(side)
    elif bug == "torn":
        os.truncate(side, 5)
    elif bug == "later":
        with open(side, "wb") as file:
            file.write(of_version(9))
    elif bug == "twice":
        with open(place.replace("~1~", "~2~"), "wb"):
            pass
    else:
        os.rename(place, os.path.join(queue, "leased", os.path.basename(place)))
    assert len(problems(queue)) == 1

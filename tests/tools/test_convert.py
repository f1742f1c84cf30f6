"""Converting a queue: all of it, in order, once, whenever the process dies."""

import json
import os
import shutil
import threading
import time

import pytest
from support.kit import PATIENCE, drain, files, wait_until
from support.running import sentence
from support.stopping import killed_before, stopped_before

from dirqueue import Queue, QueueError, Unsupported
from dirqueue.disk import fs
from dirqueue.tools import convert
from dirqueue.tools.convert import convert as convert_queue

LAYOUTS = ("native", "vsqs", "dirq-simple", "dirq-normal", "text")
DIRECTORIES = LAYOUTS[:-1]
PAIRS = [(one, two) for one in LAYOUTS for two in LAYOUTS if one != two]


def filled(path, layout, count=5):
    with Queue(path, layout=layout, sync=False) as queue:
        for number in range(count):
            queue.put(b"m%d" % number)
    return [b"m%d" % number for number in range(count)]


def home(layout):
    """Return the names that a queue called q has where it lies."""
    return {"q", ".q.dirqueue"} if layout == "text" else {"q"}


def converted(path, layout):
    with Queue(path) as queue:
        assert queue.layout.name == layout
        return drain(queue)


@pytest.mark.parametrize(("one", "two"), PAIRS)
def test_convert_keeps_every_message_in_order(tmp_path, one, two):
    """From each layout to each other."""
    bodies = filled(tmp_path / "q", one)
    assert convert_queue(tmp_path / "q", layout=two) == (5, "")
    assert converted(tmp_path / "q", two) == bodies
    assert set(os.listdir(tmp_path)) == home(two)


def test_convert_refuses_a_queue_with_held_messages(tmp_path):
    """Nothing is done while somebody works on a message."""
    filled(tmp_path / "q", "dirq-simple")
    with Queue(tmp_path / "q") as queue:
        lease = queue.get(timeout=0)
        with pytest.raises(QueueError, match="held"):
            convert_queue(tmp_path / "q", layout="native")
        lease.release()
        assert os.listdir(tmp_path) == ["q"]
    assert convert_queue(tmp_path / "q", layout="native").messages == 5


def test_convert_waits_for_leases_with_wait(tmp_path):
    """A message whose lease ends in time goes with the others."""
    bodies = filled(tmp_path / "q", "native")
    with Queue(tmp_path / "q", margin=0) as queue:
        queue.get(timeout=0, lease=0.3)
    assert convert_queue(tmp_path / "q", layout="vsqs", wait=30).messages == 5
    assert sorted(converted(tmp_path / "q", "vsqs")) == bodies


def test_convert_refuses_states_that_the_new_layout_lacks(tmp_path):
    """Dead and delayed messages are not dropped in silence."""
    with Queue(tmp_path / "q", sync=False) as queue:
        queue.put(b"later", delay=600)
    with pytest.raises(Unsupported, match="delayed"):
        convert_queue(tmp_path / "q", layout="dirq-simple")


def die_at(number):
    """Make this process die just before its n-th call of the filesystem, which is just after the one before it."""
    left = [number]

    def deadly(call):
        def run(*arguments, **options):
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return call(*arguments, **options)

        return run

    for name in fs.CALLS:
        setattr(fs, name, deadly(getattr(fs, name)))


def converted_until(number, path, layout):
    """Convert in a child that dies at that call; return whether it lived to the end."""
    child = os.fork()
    if child == 0:
        status = 8
        try:
            die_at(number)
            convert_queue(path, layout=layout, wait=PATIENCE, sync=False)
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 0


#: To and from each layout; the other ways round take as long and run the same code.
KILLED = [
    ("native", "text"),
    ("text", "native"),
    ("native", "dirq-simple"),
    ("dirq-normal", "native"),
    ("vsqs", "native"),
]
REST = [
    ("native", "dirq-normal"),
    ("native", "vsqs"),
    ("dirq-simple", "native"),
    ("dirq-simple", "dirq-normal"),
]


@pytest.mark.parametrize(
    ("one", "two"), [*KILLED, *(pytest.param(*each, marks=pytest.mark.slow) for each in REST)]
)
@pytest.mark.timeout(180)
def test_convert_continues_after_being_killed_at_any_call(tmp_path, monkeypatch, one, two):
    """Whichever call is the last, the next run ends with every message once, in whole."""
    monkeypatch.setattr(convert, "LEASE", 0.01)
    number = 0
    while True:
        path = tmp_path / str(number) / "q"
        path.parent.mkdir()
        if one in ("native", "vsqs", "text"):
            Queue.create(
                path, layout=one, margin=0
            ).close()  # so that the lease of the dead one is over at once
        bodies = filled(path, one, 2 if "native" in (one, two) else 1)
        finished = converted_until(number, path, two)
        if one.startswith("dirq"):
            # A lock that was not yet given its short time is honoured for ten minutes: let them pass.
            for each in path.rglob("*"):
                os.utime(each, (1e9, 1e9))
        convert_queue(path, layout=two, wait=30, sync=False)
        assert sorted(converted(path, two)) == bodies, number
        assert set(os.listdir(path.parent)) == home(two), number
        if finished:
            break
        shutil.rmtree(path.parent)
        number += 1
    assert number > 80


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("one", "two"), [("native", "dirq-simple"), ("dirq-normal", "native")])
def test_convert_continues_after_being_killed_again_and_again(tmp_path, monkeypatch, one, two):
    """Each run gets a little further than the one before, and dies too."""
    monkeypatch.setattr(convert, "LEASE", 0.01)
    path = tmp_path / "q"
    if one == "native":
        Queue.create(path, layout=one, margin=0).close()
    bodies = filled(path, one, 3)
    number = 1
    while not converted_until(number, path, two):
        if one.startswith("dirq"):
            for each in path.rglob("*"):
                os.utime(each, (1e9, 1e9))
        number += 1
        assert number < 2000
    assert sorted(converted(path, two)) == bodies
    assert os.listdir(tmp_path) == ["q"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_refuses_while_messages_are_held(tmp_path, layout):
    """One lease is enough; nothing is touched, and nothing is left behind."""
    filled(tmp_path / "q", layout, 2)
    with Queue(tmp_path / "q", sync=False) as queue:
        lease = queue.get(timeout=0)
        before = files(tmp_path)
        with pytest.raises(QueueError, match=r"1 messages .* held.*wait"):
            convert_queue(tmp_path / "q", layout="native" if layout != "native" else "vsqs")
        assert files(tmp_path) == before
        lease.ack()


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_convert_waits_until_the_holder_is_done(tmp_path, layout):
    """What the holder acks meanwhile is not converted; what it gives back is."""
    filled(tmp_path / "q", layout, 3)
    with Queue(tmp_path / "q", sync=False) as queue:
        done, back = queue.get(timeout=0), queue.get(timeout=0)
        results = []
        waiting = threading.Thread(
            target=lambda: results.append(convert_queue(tmp_path / "q", layout="native", wait=PATIENCE))
        )
        waiting.start()
        wait_until((tmp_path / "q.converting" / "from").exists, "the beginning")
        done.ack()
        back.release()
        waiting.join(PATIENCE)
    assert [each.messages for each in results] == [2]
    assert sorted(converted(tmp_path / "q", "native")) == [b"m1", b"m2"]


def test_convert_stops_waiting_after_wait_seconds(tmp_path):
    """Whoever holds on is named in the error; the messages that were moved stay moved, and the next run goes on."""
    bodies = filled(tmp_path / "q", "dirq-simple", 3)
    with Queue(tmp_path / "q", sync=False) as queue:
        lease = queue.get(timeout=0)
        with pytest.raises(QueueError, match=r"1 messages .* still held"):
            convert_queue(tmp_path / "q", layout="native", wait=0.01)
        lease.release()
    assert convert_queue(tmp_path / "q", layout="native").messages == 1
    assert sorted(converted(tmp_path / "q", "native")) == bodies


def test_convert_takes_messages_whose_lease_is_over(tmp_path):
    with Queue.create(tmp_path / "q", sync=False, margin=0) as queue:
        queue.put_many(bodies := [b"m1", b"m2"])
        queue.get(timeout=0, lease=0.001)
        time.sleep(0.01)
        assert queue.stats().expired == 1
    assert convert_queue(tmp_path / "q", layout="dirq-simple").messages == 2
    assert sorted(converted(tmp_path / "q", "dirq-simple")) == bodies


# --- what a power cut would leave ------------------------------------------------------------------------------


def calls_of(monkeypatch, *names):
    """Record calls of the filesystem in their order: name of the call, last part of the path or of the open file."""
    seen = []

    def recorded(name, call):
        def run(first, *rest, **options):
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else first
            seen.append((name, os.path.basename(path)))
            return call(first, *rest, **options)

        return run

    for name in names:
        monkeypatch.setattr(fs, name, recorded(name, getattr(fs, name)))
    return seen


@pytest.mark.parametrize("one", ["vsqs", "dirq-simple"])
def test_a_message_is_acknowledged_after_its_copy_is_on_disk(tmp_path, monkeypatch, one):
    """CRASH: the copy and its name are flushed before the original is removed."""
    filled(tmp_path / "q", one, 1)
    (id,) = [message.id for message in Queue(tmp_path / "q").peek()]
    seen = calls_of(monkeypatch, "fsync", "unlink")
    convert_queue(tmp_path / "q", layout="native")
    copied, last = id.replace("/", "-"), id.rpartition("/")[2]
    copy = seen.index(("fsync", copied))
    name = seen.index(("fsync", "moving"))
    removed = [i for i, (call, what) in enumerate(seen) if call == "unlink" and what.startswith(last)]
    gone = next(i for i in removed if seen[i][1] != copied)
    assert copy < name < gone


# --- what comes at the last moment -----------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "two"), KILLED)
def test_a_message_put_at_the_last_moment_is_converted_too(tmp_path, monkeypatch, one, two):
    """A producer that has the old directory open puts just before it is renamed away."""
    bodies = filled(tmp_path / "q", one, 2)
    rename = fs.rename
    with Queue(tmp_path / "q", sync=False) as producer:

        def late(src, dst, **how):
            if src == str(tmp_path / "q"):
                producer.put(b"late")
            return rename(src, dst, **how)

        monkeypatch.setattr(fs, "rename", late)
        assert convert_queue(tmp_path / "q", layout=two) == (3, "")
    assert sorted(converted(tmp_path / "q", two)) == sorted([*bodies, b"late"])


# --- interrupted -----------------------------------------------------------------------------------------------


def half_converted(path, one, two):
    """Convert in a child that is killed when two of five messages are through."""
    if one in ("native", "vsqs"):
        Queue.create(path, layout=one, margin=0).close()
    bodies = filled(path, one)
    moved = []

    def run():
        convert_queue(path, layout=two, sync=False, progress=lambda: moved.append(1))

    def third(*_, **__):
        return len(moved) == 2

    killed_before("open", run, when=third)
    return bodies


@pytest.mark.parametrize(
    ("one", "two"), [("native", "dirq-simple"), ("vsqs", "native"), ("dirq-normal", "native")]
)
def test_an_interrupted_conversion_is_reported(dq, tmp_path, monkeypatch, one, two):
    """By stat with the number of messages that are elsewhere, by check, by delete, which refuses."""
    monkeypatch.setattr(convert, "LEASE", 0.01)
    path = tmp_path / "q"
    bodies = half_converted(path, one, two)
    done = dq("stat", path, "--json")
    assert (done.status, json.loads(done.out)["converting"]) == (0, 2)
    assert f"dirqueue convert {path} --to {two}" in sentence(done)
    done = dq("check", path, "--json")
    assert (done.status, "Q24") == (5, json.loads(done.lines[0])["code"])
    before = files(tmp_path)
    done = dq("delete", path, "--yes")
    assert (done.status, "was interrupted" in sentence(done)) == (1, True)
    assert files(tmp_path) == before
    assert [line.split("\t")[0] for line in dq("list", tmp_path).lines] == [str(path)]
    if one.startswith("dirq"):
        for each in path.rglob("*"):
            os.utime(each, (1e9, 1e9))
    assert dq("convert", path, "--to", two, "--wait", "100").status == 0
    assert sorted(converted(path, two)) == bodies
    assert "converting" not in json.loads(dq("stat", path, "--json").out)


def test_a_conversion_interrupted_between_its_renames_is_reported(dq, tmp_path):
    """The path is free for a moment: the queue is not missing, and list, monitor and metrics know of it."""
    path = tmp_path / "q"
    bodies = filled(path, "vsqs", 3)
    killed_before(
        "rename",
        lambda: convert_queue(path, layout="native", sync=False),
        when=lambda src, dst, **_: dst == str(path),
    )
    assert os.listdir(tmp_path) == ["q.converting"]
    for verb in ("stat", "check", "delete", "ls"):
        done = dq(verb, path)
        assert (done.status, "was interrupted" in sentence(done)) == (1, True), verb
    (row,) = (json.loads(line) for line in dq("list", tmp_path, "--json").lines)
    assert (row["queue"], "was interrupted" in row["error"]) == (str(path), True)
    assert f'dirqueue_up{{queue="{path}"}} 0' in dq("metrics", tmp_path).lines
    assert dq("convert", path, "--to", "native").status == 0
    assert converted(path, "native") == bodies


def test_purge_leaves_the_directories_of_a_conversion_alone(dq, tmp_path):
    """A lock or reserve in them would be taken for a message on its way."""
    half_converted(tmp_path / "q", "vsqs", "native")
    before = files(tmp_path / "q.converting")
    assert dq("purge", "-r", tmp_path).status == 0
    assert files(tmp_path / "q.converting") == before


def test_two_conversions_of_one_queue_exclude_each_other(tmp_path):
    """RACE: what one has on its way would look like a leftover to the other, and come twice."""
    path = tmp_path / "q"
    bodies = filled(path, "vsqs", 3)

    def copied(src, *_, **__):
        return "/moving/" in src and not src.endswith(".new")

    def run():
        return convert_queue(path, layout="native", sync=False)

    # The message has left the old queue and is not in the new one.
    with stopped_before("rename_noreplace", run, when=copied) as go_on:
        with pytest.raises(QueueError, match="another process is converting"):
            convert_queue(path, layout="native", sync=False)
        assert go_on() == (3, "")
    assert sorted(converted(path, "native")) == bodies


def test_a_message_that_was_taken_from_a_stopped_conversion_does_not_come_twice(tmp_path, monkeypatch):
    """It was stopped for longer than its lease; a consumer got the message and acknowledged it."""
    monkeypatch.setattr(convert, "LEASE", 0.01)
    path = tmp_path / "q"
    Queue.create(path, layout="native", margin=0).close()
    filled(path, "native", 1)

    def acknowledges(name, **_):
        return os.path.basename(name).count(".") == 3

    with stopped_before(
        "unlink", lambda: convert_queue(path, layout="vsqs", wait=30), when=acknowledges
    ) as go_on:
        with Queue(path) as consumer:
            taken = wait_until(lambda: drain(consumer, 1), "the lease of the conversion to end")
        result = go_on()
    assert result.left == ""
    assert (taken, converted(path, "vsqs")) == ([b"m0"], [])


def test_an_interrupted_conversion_is_not_continued_to_another_layout(tmp_path, monkeypatch):
    """Messages would be in three formats; the error says how to finish it."""
    monkeypatch.setattr(convert, "LEASE", 0.01)
    half_converted(tmp_path / "q", "vsqs", "native")
    with pytest.raises(QueueError, match="--to native"):
        convert_queue(tmp_path / "q", layout="dirq-simple", wait=30)
    assert convert_queue(tmp_path / "q", layout="native", wait=30).left == ""
    assert len(converted(tmp_path / "q", "native")) == 5


# --- what is not dirqueue's ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", DIRECTORIES)
def test_convert_refuses_a_queue_that_holds_other_queues(tmp_path, layout):
    """They would be renamed away with it, and their programs find nothing."""
    filled(tmp_path / "q", layout)
    filled(tmp_path / "q" / "inner", "native")
    before = files(tmp_path)
    with pytest.raises(QueueError, match="holds other queues"):
        convert_queue(tmp_path / "q", layout="vsqs" if layout == "native" else "native")
    assert files(tmp_path) == before


def test_convert_goes_through_no_symbolic_link(tmp_path):
    """The queue that one leads to stays where it is."""
    bodies = filled(tmp_path / "q", "native")
    filled(tmp_path / "other", "native")
    (tmp_path / "q" / "link").symlink_to(tmp_path / "other")
    convert_queue(tmp_path / "q", layout="vsqs")
    assert converted(tmp_path / "q", "vsqs") == bodies
    assert converted(tmp_path / "other", "native") == bodies


def test_convert_refuses_a_directory_that_is_no_queue(dq, tmp_path):
    """Else the whole directory would be renamed away, and an empty queue be in its place."""
    (tmp_path / "home" / "empty").mkdir(parents=True)
    (tmp_path / "home" / "letter").write_text("dear")
    before = files(tmp_path)
    done = dq("convert", tmp_path / "home", "--to", "vsqs")
    assert (done.status, "is not a queue" in sentence(done)) == (1, True)
    assert files(tmp_path) == before


@pytest.mark.parametrize("one", DIRECTORIES)
def test_convert_keeps_files_that_are_not_dirqueues(tmp_path, one):
    """Whatever they are called, and empty directories too; they are kept aside, and the result says where."""
    two = "native" if one != "native" else "vsqs"
    bodies = filled(tmp_path / "q", one, 2)
    strange = ["from", "lock", "README", "notes/from", "notes/1", "notes/0123456789abcd.tmp"]
    if one != "dirq-normal":
        strange.append("attic/obsolete/thesis")
    for name in strange:
        (tmp_path / "q" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "q" / name).write_text("mine")
    (tmp_path / "q" / "notes" / "empty").mkdir()
    done = convert_queue(tmp_path / "q", layout=two)
    assert done == (2, str(tmp_path / "q.converting"))
    old = tmp_path / "q.converting" / "old"
    assert {name for name in files(old) if (old / name).is_file()} == set(strange)
    assert (old / "notes" / "empty").is_dir()
    with pytest.raises(QueueError, match="move it away first"):
        convert_queue(tmp_path / "q", layout="dirq-normal" if one != "dirq-normal" else "vsqs")
    assert converted(tmp_path / "q", two) == bodies

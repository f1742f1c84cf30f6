"""Spaces and transactions: what they do, and what they refuse."""

import contextlib
import errno
import gc
import io
import os
import pickle
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.dying import Died, dying
from support.failing import before, failing
from support.kit import LONG, drain, files, in_child

import dirqueue
from dirqueue import (
    Conflict,
    Contended,
    Empty,
    Full,
    InvalidId,
    LeaseLost,
    MessageNotFound,
    MessageTooLarge,
    Put,
    Queue,
    QueueAccess,
    QueueNotFound,
    SettingsError,
    Space,
    Unsupported,
)
from dirqueue.disk import fs
from dirqueue.layouts.native import conditions
from dirqueue.space import naming, probe


def bodies(space, *queues):
    """Return what is waiting, by queue, without taking it."""
    return {name: sorted(message.body for message in space.queue(name).peek()) for name in queues}


def die_holding(space, *messages):
    """Die after the first of them is held."""
    space._ground.transacted("a")
    space.put("warm", b"", id="warm")
    gc.collect()  # spaces of other tests leave now, and do not die
    with dying(1), contextlib.suppress(Died), space.transaction() as t:
        for message in messages:
            t.cancel(message)


def leased(space, queue, body=b"work", **more):
    space.put(queue, body)
    return space.get(queue, timeout=0, lease=LONG, **more)


# --- one change --------------------------------------------------------------------------------------------


def test_ack_then_puts_everything_or_nothing(space):
    lease = leased(space, "inbox")
    lease.ack(then=[Put("thumbs", b"small"), Put("log", "done", delay=600)])
    assert lease.ended == "acked"
    assert bodies(space, "inbox", "thumbs", "log") == {"inbox": [], "thumbs": [b"small"], "log": []}
    assert [message.body for message in space.queue("log").peek("delayed")] == [b"done"]
    assert not [path for path in files(space.path) if conditions.parse(os.path.basename(path))]


def test_ack_then_of_a_lost_lease_puts_nothing(space):
    space.put("inbox", b"work")
    lease = space.get("inbox", timeout=0, lease=0.001)
    other = Space(space.path, margin=0)
    time.sleep(0.002)
    taken = other.get("inbox", timeout=0)
    with pytest.raises(Conflict) as caught:
        lease.ack(then=[Put("thumbs", b"small")])
    assert [ref.id for ref in caught.value.held] == [taken.message.id]
    assert caught.value.held[0].queue == "inbox"
    assert bodies(space, "thumbs") == {"thumbs": []}
    taken.ack()


def test_ack_then_twice_is_refused_the_second_time(space):
    lease = leased(space, "inbox")
    lease.ack(then=[Put("thumbs", b"small")])
    with pytest.raises(Conflict, match="has ended already"):
        lease.ack(then=[Put("thumbs", b"small")])
    assert bodies(space, "thumbs") == {"thumbs": [b"small"]}


def test_ack_then_nothing_is_an_ack(space):
    lease = leased(space, "inbox")
    lease.ack(then=[])
    assert lease.ended == "acked"
    assert space.empty("inbox")


def test_ack_then_needs_a_space(tmp_path):
    queue = Queue(tmp_path / "q", sync=False)
    queue.put(b"x")
    lease = queue.get(timeout=0)
    with pytest.raises(SettingsError, match=r"needs a lease from a Space.*Space\("):
        lease.ack(then=[Put("other", b"y")])
    lease.ack()


def test_ack_then_takes_only_puts(space):
    lease = leased(space, "inbox")
    with pytest.raises(SettingsError, match="list of Put"):
        lease.ack(then=[b"small"])
    with pytest.raises(SettingsError, match=r"not one: write then=\[Put"):
        lease.ack(then=Put("thumbs", b"small"))
    with pytest.raises(SettingsError, match="not of 'pictures'"):
        space.queue_of("pictures")
    assert not lease.ended


def test_transaction_of_every_verb(space):
    kept = {name: leased(space, "inbox", name.encode()) for name in "arljnm"}
    seen = {}
    for name in ("cancelled", "moved", "changed", "needed"):
        space.put("waiting", name.encode())
    for message in space.queue("waiting").peek():
        seen[message.body.decode()] = message
    with space.transaction() as t:
        t.ack(kept["a"])
        t.retry(kept["r"], 600, ValueError("no luck"))
        t.release(kept["l"])
        t.reject(kept["j"], "bad")
        t.renew(kept["n"], 1200)
        t.move(kept["m"], "archive")
        t.cancel(seen["cancelled"])
        t.move(seen["moved"], "archive", delay=600)
        t.change(seen["changed"], delay=600)
        t.need(seen["needed"])
        put = t.put("log", b"done")
    ends = {name: lease.ended for name, lease in kept.items()}
    assert ends == {"a": "acked", "r": "retried", "l": "released", "j": "dead", "n": "", "m": "moved"}
    inbox, waiting, archive = (space.queue(name) for name in ("inbox", "waiting", "archive"))
    assert [(m.body, m.attempts) for m in inbox.peek("ready")] == [(b"l", 0)]
    assert [(m.body, m.attempts, m.error) for m in inbox.peek("delayed")] == [
        (b"r", 1, "ValueError: no luck")
    ]
    assert [(m.body, m.error) for m in inbox.peek("dead")] == [(b"j", "bad")]
    assert [m.body for m in inbox.peek("leased")] == [b"n"]
    assert sorted(m.body for m in waiting.peek("ready")) == [b"needed"]
    assert [m.body for m in waiting.peek("delayed")] == [b"changed"]
    assert [(m.body, m.attempts) for m in archive.peek("ready")] == [(b"m", 0)]
    assert [m.body for m in archive.peek("delayed")] == [b"moved"]
    assert space.message(put).body == b"done"
    assert kept["n"].until.timestamp() > time.time() + 1000
    kept["n"].ack()


def test_each_verb_alone_does_the_same(space):
    with space.transaction() as t:
        t.retry(leased(space, "inbox", b"r"), 600, "no luck")
    with space.transaction() as t:
        t.reject(leased(space, "inbox", b"j"), "bad")
    with space.transaction() as t:
        t.move(leased(space, "inbox", b"m"), "archive", error="not here")
    held = leased(space, "inbox", b"n")
    with space.transaction() as t:
        t.renew(held, 1200)
    held.ack()
    given = leased(space, "inbox", b"l")
    with space.transaction() as t:
        t.release(given)
    [seen] = space.queue("inbox").peek()
    with space.transaction() as t:
        t.change(seen, delay=600)
    [seen] = [m for m in space.queue("inbox").peek("delayed") if m.body == b"l"]
    with space.transaction() as t:
        t.cancel(seen)
    assert [(m.body, m.error) for m in space.queue("inbox").peek("delayed")] == [(b"r", "no luck")]
    assert [(m.body, m.error) for m in space.queue("inbox").peek("dead")] == [(b"j", "bad")]
    assert [(m.body, m.error) for m in space.queue("archive").peek()] == [(b"m", "not here")]


def test_retry_out_of_attempts_is_dead(tmp_path):
    space = Space(tmp_path / "s", sync=False, max_attempts=1)
    lease = leased(space, "inbox")
    with space.transaction() as t:
        t.retry(lease, error="no luck")
        t.put("log", b"x")
    assert lease.ended == "dead"
    assert [m.error for m in space.queue("inbox").peek("dead")] == ["no luck"]


def test_ack_keeps_history_where_the_queue_does(tmp_path):
    space = Space(tmp_path / "s", sync=True, keep_done=True)
    lease = leased(space, "inbox")
    lease.ack(then=[Put("log", b"x")])
    assert [m.body for m in space.queue("inbox").peek("done")] == [b"work"]


def test_exception_in_the_block_changes_nothing(space):
    lease = leased(space, "inbox")
    before_ = files(space.path)
    with pytest.raises(ZeroDivisionError), space.transaction() as t:
        t.ack(lease)
        t.put("log", b"x")
        raise ZeroDivisionError
    assert not lease.ended
    assert [each for each in files(space.path) if not each.startswith("log")] == before_
    with pytest.raises(SettingsError, match=r"ended already \(aborted\)"):
        t.commit()


def test_transaction_ends_once(space):
    with space.transaction() as t:
        t.put("a", b"x")
    with pytest.raises(SettingsError, match=r"ended already \(committed\)"):
        t.put("a", b"y")
    empty = space.transaction()
    assert empty.commit()[:2] == ([], [])
    with pytest.raises(SettingsError), empty:
        pass


def test_commit_returns_ids(space):
    space.put("a", b"there", id="one")
    t = space.transaction()
    drawn = t.put("a", b"x")
    assert t.put("b", b"y", id="two") == "two"
    t.put("b", b"z", id="one", skip_existing=True)
    assert t.commit()[:2] == ([drawn, "two", "one"], ["one"])
    assert bodies(space, "a", "b") == {"a": [b"there", b"x"], "b": [b"y"]}


# --- conflicts ---------------------------------------------------------------------------------------------


def test_every_failure_is_told_at_once(space):
    gone, changed, held = (space.put("w", body) for body in (b"gone", b"changed", b"held"))
    seen = {message.id: message for message in space.queue("w").peek()}
    space.put("w", b"owner", id="mine")
    lease = leased(space, "inbox")
    space.queue("w").message(gone).cancel()
    space.queue("w").message(changed).change(delay=600)
    while (taken := space.get("w", timeout=0, lease=LONG)).message.id != held:
        pass
    with pytest.raises(Conflict) as caught, space.transaction() as t:
        t.ack(lease)
        for id in (gone, held):
            t.cancel(seen[id])
        t.need(seen[changed])
        t.put("log", b"x", id="mine")
        t.put("log", b"y")
    error = caught.value
    assert [ref.id for ref in error.missing] == [gone]
    assert [ref.id for ref in error.changed] == [changed]
    assert [ref.id for ref in error.held] == [held]
    assert [ref.id for ref in error.taken] == ["mine"]
    assert not lease.ended
    assert bodies(space, "log") == {"log": []}
    assert pickle.loads(pickle.dumps(error)).missing == error.missing
    taken.ack()
    lease.ack()


def test_message_that_was_claimed_since_it_was_seen_is_not_cancelled(space):
    space.put("a", b"x")
    [seen] = space.queue("a").peek()
    held = space.get("a", timeout=0)
    with pytest.raises(Conflict, match="held"), space.transaction() as t:
        t.cancel(seen)
    held.ack()
    with pytest.raises(Conflict, match="missing"), space.transaction() as t:
        t.move(seen, "b")


def test_abandoned_transaction_in_the_way_is_undone(space, impatient):
    """What a dead process held is taken back by whoever needs it."""
    space.put("a", b"x")
    space.put("a", b"y")
    [x, y] = space.queue("a").peek()
    die_holding(space, x, y)
    assert [each for each in files(space.path) if ".un." in each]
    with space.transaction() as t:
        t.cancel(x)
        t.put("b", b"z")
    assert bodies(space, "a", "b") == {"a": [b"y"], "b": [b"z"]}
    assert not [each for each in files(space.path) if ".un." in each]


def test_contended_after_twenty_aborts(space, monkeypatch):
    monkeypatch.setattr("dirqueue.space.transaction.PAUSE", 0.0)
    lease = leased(space, "inbox")
    real = fs.rename
    aborted = []

    def rename(src, dst, **named):
        if dst.rpartition("/")[2].isdigit() and "/txn/" in dst:
            fs.mkdir(dst, dir_fd=named["dst_dir_fd"])
            aborted.append(dst)
        return real(src, dst, **named)

    monkeypatch.setattr(fs, "rename", rename)
    with pytest.raises(Contended, match="20 times"):
        lease.ack(then=[Put("log", b"x")])
    assert len(aborted) == 20
    assert not lease.ended
    monkeypatch.setattr(fs, "rename", real)
    assert not [each for each in files(space.path) if conditions.parse(os.path.basename(each))]
    lease.ack(then=[Put("log", b"x")])
    assert bodies(space, "log") == {"log": [b"x"]}


def test_fenced_process_begins_another_directory(space):
    leased(space, "inbox").ack(then=[Put("log", b"x")])
    txn = os.path.join(space.path, ".space", "txn")
    [process] = os.listdir(txn)
    os.rename(f"{txn}/{process}", f"{txn}/{process}.gone")
    leased(space, "inbox").ack(then=[Put("log", b"y")])
    assert bodies(space, "log") == {"log": [b"x", b"y"]}
    assert len(os.listdir(txn)) == 2


# --- ids of one's own --------------------------------------------------------------------------------------


def test_own_id_is_unique_until_its_message_is_gone(space):
    assert space.put("orders", b"first", id="order-17") == "order-17"
    with pytest.raises(Conflict) as caught:
        space.put("others", b"second", id="order-17")
    assert [ref.id for ref in caught.value.taken] == ["order-17"]
    assert space.put("others", b"second", id="order-17", skip_existing=True) == "order-17"
    assert bodies(space, "orders", "others") == {"orders": [b"first"], "others": []}
    assert space.message("order-17").body == b"first"
    space.get("orders", timeout=0).ack()
    with pytest.raises(MessageNotFound):
        space.message("order-17")
    space.put("others", b"third", id="order-17")
    assert space.message("order-17").body == b"third"


def test_own_id_is_freed_by_the_commit_that_takes_its_message(space):
    space.put("orders", b"first", id="k")
    lease = space.get("orders", timeout=0)
    with space.transaction() as t:
        t.ack(lease)
        t.put("log", b"x")
    space.put("orders", b"second", id="k")
    assert space.message("k").body == b"second"


@pytest.mark.parametrize(
    "id", ["a/b", "..", ".", "ü", "a" * 200, "ü" * 200, "1700000000000000000000001", " "]
)
def test_any_text_is_an_id(space, id):
    space.put("q", b"x", id=id)
    assert space.message(id).body == b"x"
    assert sorted(os.listdir(space.path)) == [".space", "q"]


@pytest.mark.parametrize("id", ["", "a" * 201, 17, "\udc80", "ü" * 201])
def test_invalid_ids_are_refused(space, id):
    with pytest.raises(InvalidId):
        space.put("q", b"x", id=id)


def test_same_id_twice_in_one_transaction_is_refused(space):
    with pytest.raises(SettingsError, match="in this transaction already"), space.transaction() as t:
        t.put("q", b"x", id="k")
        t.put("q", b"y", id="k")
    assert not space.names() or space.empty()


# --- bad input ---------------------------------------------------------------------------------------------


def test_same_message_twice_is_refused(space):
    lease = leased(space, "inbox")
    t = space.transaction()
    t.ack(lease)
    with pytest.raises(SettingsError, match="in this transaction already"):
        t.need(lease)
    with pytest.raises(SettingsError, match="in this transaction already"):
        t.reject(lease)
    t.abort()
    lease.ack()


@pytest.mark.parametrize("verb", ["ack", "retry", "release", "reject", "renew"])
def test_lease_verbs_take_leases(space, verb):
    with pytest.raises(SettingsError, match=f"{verb} takes a lease"):
        getattr(space.transaction(), verb)("1700000000000000000000001")


@pytest.mark.parametrize("verb", ["cancel", "change"])
def test_message_verbs_take_live_messages(space, verb):
    more = {"delay": 1} if verb == "change" else {}
    with pytest.raises(SettingsError, match=f"{verb} takes a message"):
        getattr(space.transaction(), verb)("1700000000000000000000001", **more)
    lease = leased(space, "inbox")
    lease.reject("no")
    with pytest.raises(
        SettingsError, match="is dead, and only one that is ready or delayed or leased can be"
    ):
        getattr(space.transaction(), verb)(space.message(lease.message.id), **more)


def test_lease_of_another_space_is_refused(space, tmp_path):
    other = Space(tmp_path / "other", sync=False)
    lease = leased(other, "inbox")
    with pytest.raises(SettingsError, match="is not a queue of the space"):
        space.transaction().ack(lease)


def test_lease_of_a_queue_opened_alone_takes_part(space):
    queue = Queue(os.path.join(space.path, "inbox"), sync=False)
    queue.put(b"x")
    with space.transaction() as t:
        t.ack(queue.get(timeout=0))
        t.put("log", b"y")
    assert bodies(space, "inbox", "log") == {"inbox": [], "log": [b"y"]}


def test_queue_that_is_a_link_is_refused(space, tmp_path):
    Queue(tmp_path / "elsewhere", sync=False).put(b"x")
    os.makedirs(space.path)
    os.symlink(tmp_path / "elsewhere", os.path.join(space.path, "linked"))
    with pytest.raises(Unsupported, match="is a link"), space.transaction() as t:
        t.put("linked", b"y")
    lease = Queue(os.path.join(space.path, "linked"), sync=False).get(timeout=0)
    with pytest.raises(SettingsError, match="is not a queue of the space"):
        space.transaction().ack(lease)
    assert space.names() == []


def test_queue_on_another_filesystem_is_refused(space, monkeypatch):
    space.put("q", b"x")
    real = fs.stat

    def stat(path, **named):
        facts = real(path, **named)
        return os.stat_result([*facts[:2], facts.st_dev + 1, *facts[3:]]) if path == "q" else facts

    monkeypatch.setattr(fs, "stat", stat)
    with pytest.raises(Unsupported, match="another filesystem"), space.transaction() as t:
        t.put("q", b"y")


def test_queue_of_another_layout_is_refused(space):
    Queue(os.path.join(space.path, "peer"), layout="dirq-simple").put(b"x")
    with pytest.raises(Unsupported, match="dirq-simple layout"), space.transaction() as t:
        t.put("peer", b"y")


def test_filesystem_that_renames_into_directories_is_refused(space, monkeypatch):
    """As HDFS behind FUSE does. Plain queues go on."""
    monkeypatch.setattr(probe, "_known", {})
    real = fs.rename

    def rename(src, dst, *, src_dir_fd, dst_dir_fd):
        with contextlib.suppress(OSError):
            if fs.stat(dst, dir_fd=dst_dir_fd).st_mode & 0o40000:
                dst = f"{dst}/{os.path.basename(src)}"
        real(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(fs, "rename", rename)
    lease = leased(space, "inbox")
    with pytest.raises(Unsupported, match="renames a file onto a directory; plain queues work"):
        lease.ack(then=[Put("log", b"x")])
    lease.ack()
    assert not [each for each in files(space.path) if "probe" in each]


def test_probe_refuses_what_is_missing(space, monkeypatch):
    space.put("q", b"x")
    for call, result, words in (
        ("mkdir", None, "makes a directory over a file"),
        ("rename", None, "renames a file"),
    ):
        monkeypatch.setattr(probe, "_known", {})
        real = getattr(fs, call)

        def patched(*arguments, real=real, result=result, **named):
            try:
                return real(*arguments, **named)
            except OSError:
                return result

        with monkeypatch.context() as patch:
            patch.setattr(fs, call, patched)
            with pytest.raises(Unsupported, match=words):
                space._ground.owner()


def test_invalid_names_of_queues_are_refused(space):
    for name in ("", 17, None, "\udc80", "a" * 256, "/" * 100):
        with pytest.raises(SettingsError, match="name of a queue"):
            space.queue(name)


def test_put_checks_like_a_queue(tmp_path):
    space = Space(tmp_path / "s", sync=False, max_size=3, max_messages=1)
    t = space.transaction()
    with pytest.raises(MessageTooLarge):
        t.put("q", b"long")
    with pytest.raises(SettingsError, match="delay"):
        t.put("q", b"x", delay=-1)
    with pytest.raises(SettingsError, match="priority"):
        t.put("q", b"x", priority=1)
    space.put("q", b"x")
    with pytest.raises(Full):
        t.put("q", b"y")


def test_missing_space_is_refused_unless_it_may_be_created(tmp_path):
    with pytest.raises(QueueNotFound):
        Space(tmp_path / "none", create=False)
    assert not os.path.exists(tmp_path / "none")


def test_space_cannot_be_pickled(space):
    with pytest.raises(TypeError, match="send its path"):
        pickle.dumps(space)


# --- a disk that fails -------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["open", "write", "rename", "mkdir", "link"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO, errno.EDQUOT, errno.EROFS])
def test_error_before_the_commit_undoes_everything(space, call, code):
    """At each of its calls in turn."""
    lease = leased(space, "inbox")
    space.put("other", b"z")
    [seen] = space.queue("other").peek()
    space.put("log", b"old", id="warm")
    space.get("log", timeout=0).ack()
    space.now()
    needed = space.queue("needed").message(space.put("needed", b"n"))
    for name in ("inbox", "archive", "other", "needed"):
        space._ground.transacted(name)
    refusals = 0
    for nth in range(40):
        passed = [0]

        def when(*_, nth=nth, passed=passed, **__):
            passed[0] += 1
            return passed[0] == nth + 1

        try:
            with failing(call, code, when=when, times=1), space.transaction() as t:
                t.ack(lease)
                t.move(seen, "archive")
                t.put("log", b"x", id=f"k{nth}")
                t.need(needed)
        except QueueAccess as error:
            assert error.errno == code
            refusals += 1
            assert not lease.ended
        except AssertionError:
            break  # the call was not made that often
        if lease.ended:  # it was after the commit
            assert bodies(space, "log", "archive") == {"log": [b"x"], "archive": [b"z"]}
            break
        assert bodies(space, "log", "other", "archive") == {"log": [], "other": [b"z"], "archive": []}
    assert refusals


def test_failed_fsync_after_the_commit_is_reported_and_not_undone(tmp_path):
    space = Space(tmp_path / "s", sync=True)
    leased(space, "inbox").ack(then=[Put("log", b"w")])
    lease = leased(space, "inbox")
    real, registers = fs.sync_directory, os.path.join(".space", "txn")
    with pytest.MonkeyPatch.context() as patch:

        def sync(name, dir_fd):
            if name.startswith(registers):
                raise OSError(errno.EIO, "broken")
            return real(name, dir_fd)

        patch.setattr(fs, "sync_directory", sync)
        with pytest.raises(QueueAccess, match="has happened for every process"):
            lease.ack(then=[Put("log", b"x")])
    assert lease.ended == "acked"
    assert bodies(space, "log") == {"log": [b"w", b"x"]}


def test_interrupt_after_the_commit_does_not_undo_it(space):
    lease = leased(space, "inbox")
    space.put("log", b"w", id="warm")
    real = fs.rename

    def rename(src, dst, **named):
        real(src, dst, **named)
        if "/txn/" in dst:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fs, "rename", rename)
        with pytest.raises(KeyboardInterrupt):
            lease.ack(then=[Put("log", b"x")])
    assert lease.ended == "acked"
    assert bodies(space, "inbox", "log") == {"inbox": [], "log": [b"w", b"x"]}


# --- looking -----------------------------------------------------------------------------------------------


def test_names_stats_and_prefixes(space):
    for name in ("a", "a/b", "b", "dead", "123", "ü", ".hidden", "%2F"):
        space.put(name, b"x")
    assert space.names() == sorted(["a", "a/b", "b", "dead", "123", "ü", ".hidden", "%2F"])
    assert space.names(prefix="a") == ["a", "a/b"]
    assert space.names(names=["b", "none"]) == ["b"]
    assert space.names(prefix="a/", names="b", limit=1) == ["a/b"]
    assert {name: stats.total for name, stats in space.stats(prefix="a").items()} == {"a": 1, "a/b": 1}
    with pytest.raises(SettingsError):
        space.names(limit=-1)


def test_get_of_several_and_of_all_queues(space):
    with pytest.raises(Empty, match="no queue"):
        space.get(timeout=0)
    space.put("a", b"x")
    space.put("b", b"y")
    got = {space.get("a", "b", timeout=0).message.body for _ in range(2)}
    assert got == {b"x", b"y"}
    space.put("c", b"z")
    assert space.get(timeout=0).message.body == b"z"


def test_empty_and_wait_empty(space):
    assert space.empty("none")
    assert space.empty()
    space.put("a", b"x", delay=600)
    assert not space.empty("a")
    assert not space.wait_empty("a", timeout=0.01)
    [seen] = space.queue("a").peek("delayed")
    timer = threading.Timer(0.05, seen.cancel)
    timer.start()
    assert space.wait_empty("a", timeout=30)
    timer.join()


def test_committed_put_is_there_before_it_is_shown(space):
    """Its owner died between the commit and the rename that shows it."""
    lease = leased(space, "inbox")
    space.put("log", b"w", id="warm")
    space.get("log", timeout=0).ack()
    with failing("rename", errno.EIO, when=lambda src, *_, **__: ".if." in src, times=9):
        lease.ack(then=[Put("log", b"x")])
    [shown] = [each for each in files(space.path) if ".if." in each]
    assert not space.empty("log")
    assert [message.body for message in space.queue("log").peek()] == [b"x"]
    assert space.queue("log").stats().ready == 1
    assert shown in files(space.path), "to look changes nothing"
    assert drain(space.queue("log")) == [b"x"]


def test_held_message_is_leased_to_whoever_looks(space):
    space.put("a", b"x")
    space.put("a", b"y")
    seen = list(space.queue("a").peek())
    die_holding(space, *seen)
    stats = space.queue("a").stats()
    assert (stats.leased, stats.ready, stats.expired) == (1, 1, 0)
    assert stats.oldest_lease > space.now()
    assert stats.foreign == 0
    assert not space.empty("a")


def test_message_by_id(space):
    id = space.put("a", b"x")
    assert space.message(id).body == space.message(id, "a").body == b"x"
    for missing in (f"{id[:-1]}{(int(id[-1]) + 1) % 10}", "no such", "17"):
        with pytest.raises(MessageNotFound):
            space.message(missing)
    with pytest.raises(MessageNotFound):
        space.message(id, "b")


def test_now_is_the_time(space):
    assert abs((space.now() - datetime.now(UTC)).total_seconds()) < 3600


def test_codec_holds_for_all_queues(tmp_path):
    space = Space(tmp_path / "s", sync=False, codec="json")
    space.put("a", {"x": 1})
    space.get("a", timeout=0).ack(then=[Put("b", [1, 2])])
    assert space.get("b", timeout=0).message.body == [1, 2]


def test_temporary_space_is_gone_when_it_is_closed():
    space = Space.temporary()
    space.put("a", b"x")
    leased(space, "a").ack(then=[Put("b", b"y")])
    path = space.path
    space.close()
    assert not os.path.exists(path)


def test_repr_names_the_path(space):
    assert repr(space) == f"Space({space.path!r})"


# --- processes, threads, leftovers -------------------------------------------------------------------------


def test_forked_child_has_registers_of_its_own(space):
    leased(space, "a").ack(then=[Put("b", b"x")])

    def child():
        leased(space, "a").ack(then=[Put("b", b"y")])
        return space._ground.owner()._process

    assert in_child(child) != space._ground.owner()._process
    assert bodies(space, "b") == {"b": [b"x", b"y"]}


def test_forked_child_cannot_use_the_leases_of_its_parent(space):
    lease = leased(space, "a")

    def child():
        with pytest.raises(Conflict, match="parent process"):
            lease.ack(then=[Put("b", b"y")])
        return True

    assert in_child(child)
    lease.ack()


def test_close_leaves_nothing_in_the_registers(tmp_path):
    space = Space(tmp_path / "s", sync=True)
    for _ in range(3):
        leased(space, "a").ack(then=[Put("b", b"x")])
    [process] = os.listdir(f"{space.path}/.space/txn")
    assert len(os.listdir(f"{space.path}/.space/txn/{process}")) == 3, "not forgotten before it is durable"
    space.close()
    assert os.listdir(f"{space.path}/.space/txn") == []
    leased(space, "a").ack(then=[Put("b", b"x")])
    assert len(drain(space.queue("b"))) == 4


def test_durable_registers_are_forgotten_together(tmp_path, monkeypatch):
    monkeypatch.setattr("dirqueue.space.owner.TOGETHER", 4)
    monkeypatch.setattr("dirqueue.space.owner.SECONDS", 600.0)
    space = Space(tmp_path / "s", sync=True)
    left = []
    for _ in range(5):
        leased(space, "a").ack(then=[Put("b", b"x")])
        [process] = os.listdir(f"{space.path}/.space/txn")
        left.append(len(os.listdir(f"{space.path}/.space/txn/{process}")))
    assert left == [1, 2, 3, 0, 1]


def test_threads_share_a_space(space):
    for number in range(40):
        space.put("a", str(number).encode())

    def work():
        while True:
            try:
                lease = space.get("a", timeout=0, lease=LONG)
            except Empty:
                return
            lease.ack(then=[Put("b", lease.message.body)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, drain(space.queue("b")))) == list(range(40))
    assert space.empty("a")


def test_lease_in_a_with_block_is_renewed_until_the_commit(space):
    space.put("a", b"x")
    lease = space.get("a", timeout=0, lease=0.3)
    with lease as message:
        time.sleep(0.5)
        lease.ack(then=[Put("b", message.body)])
    assert bodies(space, "b") == {"b": [b"x"]}


def test_deep_queue_takes_transactions_into_slices(space, monkeypatch):
    monkeypatch.setattr("dirqueue.layouts.native.publish.DEEP", -1)
    for number in range(3):
        leased(space, "a").ack(then=[Put("b", str(number).encode())])
    assert [each for each in files(space.path) if each.startswith("b/") and ".slice/" in each]
    assert drain(space.queue("b")) == [b"0", b"1", b"2"]


def test_target_that_is_removed_meanwhile_is_made_again(space):
    lease = leased(space, "a")
    space._ground.transacted("b")
    with before(
        "open",
        lambda: os.rmdir(f"{space.path}/b/leased") or os.rmdir(f"{space.path}/b"),
        when=lambda p, *_, **__: ".if." in str(p),
    ):
        lease.ack(then=[Put("b", b"x", delay=600)])
    assert [message.body for message in Queue(f"{space.path}/b").peek("delayed")] == [b"x"]


def test_queue_outside_of_a_space_leaves_conditional_names_alone(tmp_path):
    """They are foreign where there are no registers."""
    queue = Queue(tmp_path / "q", sync=False)
    queue.put(b"x")
    foreign = tmp_path / "q" / "1700000000000000000000001.if.1700000000000000000000002-1"
    foreign.write_bytes(b"y")
    assert drain(queue) == [b"x"]
    queue.layout.purge(None)
    assert queue.stats().foreign == 1
    assert foreign.exists()


def test_move_keeps_to_the_priorities_of_its_target(space):
    Queue.create(os.path.join(space.path, "urgent"), priorities=True, sync=False)
    space.put("a", b"x")
    [seen] = space.queue("a").peek()
    with space.transaction() as t:
        t.move(seen, "urgent")
    assert [message.priority for message in space.queue("urgent").peek()] == [5]
    with space.transaction() as t:
        t.put("urgent", b"y", priority=1)
        t.put("b", b"z")
    assert [message.body for message in space.queue("urgent").peek()] == [b"y", b"x"]


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "a/b",
        "/",
        "..",
        "dead",
        "later",
        "1700000000000000000000001",
        "abcdef01",
        "ä ö",
        "%",
        "queue.json",
    ],
)
def test_names_of_queues_come_back_from_their_directories(name):
    directory = naming.encode(name)
    assert naming.decode(directory) == name
    assert "/" not in directory
    assert not directory.startswith(".")


@pytest.mark.parametrize("directory", ["dead", "12", ".space", "a b", "%2f", "%61", "ä", "%FF"])
def test_directories_that_no_queue_has_are_no_queues(directory):
    assert naming.decode(directory) is None


def test_lost_lease_of_a_single_ack_is_a_conflict(space):
    lease = leased(space, "a")
    os.unlink(os.path.join(space.path, "a", lease.handle))
    with pytest.raises(Conflict), space.transaction() as t:
        t.ack(lease)
    assert lease.lost or not lease.ended
    with pytest.raises((Conflict, LeaseLost)):
        lease.ack()


def test_api_is_public():
    for name in ("Space", "Transaction", "Put", "Move", "Conflict", "Contended", "InDoubt", "Committed"):
        assert name in dirqueue.__all__
        assert getattr(dirqueue, name).__name__ == name


def test_links_take_part(tmp_path):
    """A short message is staged, consumed and committed as a link; the register is one for a moment."""
    space = Space(tmp_path / "s", sync=False, links=True)
    for number in range(3):
        space.put("a", str(number).encode())
    space.get("a", timeout=0).ack(then=[Put("b", b"x"), Put("b", b"y" * 2000), Put("b", b"z", id="k")])
    with space.transaction() as t:
        t.move(space.get("a", timeout=0), "c")
        t.ack(space.get("a", timeout=0))
        t.put("b", b"w", delay=600)
    kinds = {
        message.body[:1]: os.path.islink(os.path.join(space.path, "b", message.entry.place))
        for message in space.queue("b").peek()
    }
    assert kinds == {b"x": True, b"y": False, b"z": False}
    assert [message.body for message in space.queue("b").peek("delayed")] == [b"w"]
    assert [message.body for message in space.queue("c").peek()] == [b"1"]
    assert space.empty("a")
    assert not os.listdir(os.path.join(space.path, ".space", "txn", space._ground.owner()._process))


def test_foreign_link_under_a_conditional_name_is_left_alone(space):
    leased(space, "a").ack(then=[Put("b", b"x")])
    foreign = os.path.join(space.path, "b", "1700000000000000000000001.un.1700000000000000000000002-1")
    os.symlink("/etc/passwd", foreign)
    assert drain(space.queue("b")) == [b"x"]
    space.queue("b").layout.purge(None)
    assert os.path.islink(foreign)
    assert space.queue("b").stats().foreign == 1


# --- settings and copies -----------------------------------------------------------------------------------


def test_queues_of_a_created_space_begin_with_its_settings(tmp_path):
    space = Space.create(tmp_path / "s", lease=17.0, sync=False)
    space.put("a", b"x")
    assert Queue(tmp_path / "s" / "a").settings.lease == 17.0
    assert Space(tmp_path / "s").queue("b").settings.lease == 17.0
    Space.create(tmp_path / "s", lease=17.0, sync=False)
    with pytest.raises(SettingsError, match="was created with"):
        Space.create(tmp_path / "s", lease=18.0)
    with pytest.raises(SettingsError, match="no setting"):
        Space.create(tmp_path / "t", leese=18.0)


def test_export_and_import_bring_everything_over(space, tmp_path):
    space.put("a", b"\x00\xff")
    space.put("b/c", b"later", delay=600)
    space.put("b/c", b"mine", id="order/17")
    leased(space, "d", b"held")
    with open(tmp_path / "copy", "w", encoding="ascii") as file:
        assert space.export(file) == (4, True)
    with Space(tmp_path / "other", sync=False) as other:
        other.put("e", b"there", id="unrelated")
        with open(tmp_path / "copy", encoding="ascii") as file:
            assert other.import_(file) == (4, 0)
        assert bodies(other, "a", "b/c", "d") == {
            "a": [b"\x00\xff"],
            "b/c": [b"later", b"mine"],
            "d": [b"held"],
        }
        assert other.message("order/17").body == b"mine"
        with open(tmp_path / "copy", encoding="ascii") as file:
            assert other.import_(file) == (3, 1)


def test_export_of_a_space_that_changes_is_reported(space, monkeypatch):
    import io

    space.put("a", b"x")
    real = type(space).names
    monkeypatch.setattr(Space, "names", lambda self, **more: self.put("a", b"y") and real(self, **more))
    text = io.StringIO()
    done = space.export(text)
    assert not done.exact
    assert done.messages == len(text.getvalue().splitlines())


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "{}",
        '{"queue": "", "own_id": null, "body": ""}',
        "[]",
        '{"queue": "q", "own_id": null, "body": "?"}',
    ],
)
def test_import_refuses_other_lines(space, line):
    with pytest.raises(SettingsError, match="line 1"):
        space.import_([line])


# --- attributes --------------------------------------------------------------------------------------------

CARRIED = {"colour": "blue"}


def test_every_put_of_a_space_takes_attributes(space):
    """By itself, under an id of one's own, with an ack, and in a transaction."""
    space.put("a", b"one", attributes=CARRIED)
    space.put("a", b"two", attributes=CARRIED, ttl=LONG, id="two")
    lease = space.get("a", timeout=0)
    lease.ack(then=[Put("a", b"three", attributes=CARRIED, ttl=LONG), Put("a", b"four")])
    found = {message.body: message for message in space.queue("a").peek()}
    assert {body: message.attributes for body, message in found.items()} == {
        b"two": CARRIED,
        b"three": CARRIED,
        b"four": {},
    }
    assert found[b"three"].expires_at is not None
    assert len(list(Path(space.path, "a/attributes").glob("*/*"))) == 2, "those of the first went with it"


@pytest.mark.parametrize("how", ["lease", "message", "lease.move"])
def test_message_that_is_moved_takes_its_attributes_along(space, how):
    """And leaves none behind; to another queue, and back to its own."""
    id = space.put("a", b"one", attributes=CARRIED)
    for queue in ("b", "b"):
        source = "a" if space.queue("a").peek("ready", 1) and len(space.queue("a")) else "b"
        if how == "lease.move":
            space.get(source, timeout=0).move(queue)
        else:
            with space.transaction() as t:
                t.move(space.get(source, timeout=0) if how == "lease" else space.message(id), queue)
        assert space.message(id, queue).attributes == CARRIED
    assert not list(Path(space.path, "a/attributes").glob("*/*"))


def test_put_that_is_skipped_or_refused_leaves_no_attributes(space):
    """Neither the second of an id, nor that of a transaction that did not happen."""
    space.put("a", b"one", attributes=CARRIED, id="x")
    space.put("a", b"two", attributes=CARRIED, id="x", skip_existing=True)
    with pytest.raises(Conflict):
        space.put("a", b"three", attributes=CARRIED, id="x")
    with pytest.raises(SettingsError, match="attribute"):
        space.put("a", b"three", attributes={"a": 1}, id="y")
    assert len(list(Path(space.path, "a/attributes").glob("*/*"))) == 1
    space.message("x").cancel()
    assert len(list(Path(space.path, "a/attributes").glob("*/*"))) == 0


def test_copy_of_a_space_has_the_attributes(space, tmp_path):
    """And the end of life."""
    space.put("a", b"one", attributes=CARRIED, ttl=LONG)
    space.put("a", b"two", attributes=CARRIED, id="x")
    file = io.StringIO()
    space.export(file)
    copy = Space(tmp_path / "copy", sync=False)
    copy.import_(file.getvalue().splitlines())
    found = {message.body: (message.attributes, message.expires_at) for message in copy.queue("a").peek()}
    assert found == {
        b"one": (CARRIED, next(space.queue("a").peek()).expires_at),
        b"two": (CARRIED, None),
    }


def test_a_new_queue_is_made_with_its_settings_by_many_at_once(tmp_path):
    """Nobody meets the directory without them: it comes into the space whole."""
    Space.create(tmp_path / "space", max_attempts=7, sync=False).close()
    failed = []

    def put(space, name):
        try:
            space.put(name, b"1")
            assert space.queue(name).settings.max_attempts == 7
        except Exception as error:  # noqa: BLE001 - told below
            failed.append(error)

    for turn in range(30):
        spaces = [Space(tmp_path / "space") for _ in range(6)]
        threads = [threading.Thread(target=put, args=(space, f"q{turn}")) for space in spaces]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for space in spaces:
            space.close()
    assert failed == []
    assert not [name for name in os.listdir(tmp_path / "space" / ".space") if name.startswith("create-")]


def test_an_id_is_found_whatever_priority_its_message_got(tmp_path):
    """Its own one, and the one that was drawn when it was put, in the queue that it is in now."""
    with Space(tmp_path / "s", sync=False) as space:
        Queue.create(tmp_path / "s" / "urgent", priorities=True, sync=False).close()
        drawn = space.put("q", b"x")
        space.put("q", b"k", id="K")
        for message in space.messages("q"):
            with space.transaction() as t:
                t.move(message, "urgent")
        assert (space.message("K").body, space.message(drawn).body) == (b"k", b"x")
        assert space.message("K", "urgent").own_id == "K"
        space.put("q", b"again", id="K", skip_existing=True)
        assert space.messages("q") == []
        space.message("K").change(priority=2)
        assert space.message("K").priority == 2
        with space.transaction() as t:
            t.move(space.message("K"), "q")
        assert space.message("K", "q").body == b"k"
        with pytest.raises(dirqueue.MessageNotFound):
            space.message("K", "urgent")
        space.get("q", timeout=0).ack()
        with pytest.raises(dirqueue.MessageNotFound):
            space.message("K")


def test_a_lease_of_a_queue_that_was_configured_since_is_of_its_space_still(tmp_path):
    with Space(tmp_path / "space", sync=False) as space:
        space.put("in", b"1")
        space.queue("in").configure(max_attempts=3)
        space.get("in", timeout=0).ack(then=[Put("out", b"2")])
        assert space.empty("in")
        assert [message.body for message in space.queue("out").peek()] == [b"2"]

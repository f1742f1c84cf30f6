"""Further branches that a usual life does not reach: each by the fault, the race or the edit that it is for."""

import errno
import importlib.util
import os
import shutil
import sys
import threading

import pytest
from support.failing import before, failing, of
from support.kit import drain, wait_until

from dirqueue import Empty, LeaseLost, MessageNotFound, Purged, Queue, QueueAccess, QueueNotFound
from dirqueue.disk import fs
from dirqueue.layouts.base import Claim
from dirqueue.layouts.text import cursor, grammar, inspect, items, notes, stamp
from dirqueue.message import Entry


def in_place(path, old, new):
    """Write over a part of the file, as a textqueue program or a person does."""
    data = path.read_bytes()
    assert data.count(old) == 1
    with open(path, "r+b") as file:
        file.seek(data.index(old))
        file.write(new)


def older(path, copy):
    """Let the file say that it has seen no more than a copy of it had."""
    data = path.read_bytes()
    (now,), (then,) = stamp.find(data), stamp.find(copy)
    number = copy[then.offset : then.offset + stamp.WIDTH]
    path.write_bytes(data[: now.offset] + number + data[now.offset + stamp.WIDTH :])


def side(queue):
    return queue.layout.directory.side


# --- recognition, reading ------------------------------------------------------------------------------------


def test_file_that_is_away_for_a_moment_is_still_text(make, path):
    """An editor replaces it."""
    make().put(b"a")
    path.unlink()
    with Queue(path) as queue:
        assert queue.layout.name == "text"


def test_file_that_cannot_be_looked_into_is_reported(make, path):
    make().put(b"a")
    with failing("open", errno.EIO, when=of("jobs.tq")), pytest.raises(QueueAccess, match="look into"):
        Queue(path)
    with failing("open", errno.EIO, when=of("jobs.tq")), pytest.raises(QueueAccess, match="look into"):
        len(make())


def test_python_without_its_own_blake2_takes_hashlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "_blake2", None)
    spec = importlib.util.find_spec("dirqueue.layouts.text.grammar")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert module.digest(b"a") == grammar.digest(b"a")


def test_reader_that_goes_item_by_item(make, path, monkeypatch):
    """More is read until an item is whole; a missing file is no file, and one that cannot be read is reported."""
    queue = make()
    assert queue.layout.read_from(0, None) == (b"", 0, (0, 0))
    queue.put(b"x" * 50)
    monkeypatch.setattr(inspect, "AHEAD", 16)
    data = b""
    while more := queue.layout.read_from(len(data), _identity(path))[0]:
        data += more
    assert data == path.read_bytes()
    with failing("open", errno.EIO, when=of("jobs.tq")), pytest.raises(QueueAccess, match="read"):
        queue.layout.read_from(0, None)


def _identity(path):
    facts = path.stat()
    return facts.st_ino, facts.st_dev


def test_lines_that_end_by_a_carriage_return(make, path):
    path.write_bytes(b"# a\r-one\r-two\n-three\n")
    os.utime(path, (1e9, 1e9))
    wait_until(lambda: len(make()) == 3)
    queue, got = make(), []
    wait_until(lambda: got.extend(drain(queue)) or len(got) == 3)
    assert got == [b"one", b"two", b"three"]


def test_bare_continuation_at_the_end_is_no_line():
    """As textqueue has it."""
    (item,) = grammar.items(b"-a\n ")
    assert item.text == b"a"
    (item,) = grammar.items(b"-a\r\n b\r\n")
    assert item.text == b"a\nb"


def test_file_that_shrinks_in_a_turn_ends_the_search(make, path):
    queue = make()
    queue.put(b"a")

    def search(_, length, *__):
        return length == cursor.CHUNK

    with before("pread", lambda: os.truncate(path, 0), when=search), pytest.raises(Empty):
        queue.get(timeout=0)


def test_claim_looks_at_a_limited_number_of_messages(make, path, monkeypatch):
    queue, other = make(), make()
    queue.put_many([b"a", b"b", b"c"])
    drain(queue, 0)
    held = [queue.get(timeout=0), queue.get(timeout=0)]
    monkeypatch.setattr(cursor, "LOOKS", 1)
    with pytest.raises(Empty):
        other.get(timeout=0)
    assert wait_until(lambda: drain(other)) == [b"c"]
    for lease in held:
        lease.ack()


# --- marks and texts of others -------------------------------------------------------------------------------


def test_message_that_is_redriven_before_it_was_looked_at(make, path):
    queue, other = make(), make()
    queue.put_many([b"a", b"b"])
    other.get(timeout=0).release()
    queue.get(timeout=0)
    queue.get(timeout=0).reject("no")
    queue.redrive()
    assert drain(other) == [b"b"]


@pytest.mark.usefixtures("impatient")
def test_note_of_a_message_that_others_marked_is_dropped(make, path):
    """It was held, and its lease is over; meanwhile a textqueue program has processed it."""
    queue = make()
    queue.put_many([b"a", b"b"])
    queue.get(timeout=0, lease=0.01)
    in_place(path, b"-a", b"=a")
    assert drain(queue) == [b"b"]
    wait_until(lambda: not drain(queue) and not queue.layout.ledger.notes.by_offset)


@pytest.mark.usefixtures("impatient")
def test_dead_message_that_a_person_makes_wait_again_is_delivered(make, path, monkeypatch):
    """In its place, without its attempts."""
    monkeypatch.setattr(cursor, "AGAIN", 0)
    queue = make()
    queue.put(b"a")
    queue.get(timeout=0).reject("no")
    in_place(path, b"!a", b"-a")
    assert queue.get(timeout=0).message.attempts == 1


def test_variable_that_was_retyped_to_another_length_is_not_written(make, path):
    queue = make()
    items.append(queue.layout, b"a", (b"wide  ",))
    (item,) = (each for each in grammar.items(path.read_bytes()) if each.control == "-")
    path.write_bytes(path.read_bytes().replace(b"\\wide  ", b"\\w"))
    with pytest.raises(LeaseLost):
        items.set_variable(queue.layout, item, 0, b"longer")


# --- what is refused -----------------------------------------------------------------------------------------


def test_file_to_put_that_cannot_be_removed_is_reported(make, path, tmp_path):
    (tmp_path / "body").write_bytes(b"a")
    with failing("unlink", errno.EIO, when=of("body")), pytest.raises(QueueAccess, match="put the file"):
        make().put_path(tmp_path / "body")


def test_file_that_is_gone_is_not_made_by_a_client_that_may_not(make, path):
    make().put(b"a")
    reader = make(create=False)
    assert len(reader) == 1
    path.unlink()
    with pytest.raises(QueueNotFound):
        reader.put(b"b")


def test_queue_that_goes_while_it_is_cleaned(make, path):
    """There is nothing to clean then."""
    queue = make()
    queue.put(b"a")
    with before("flock", path.unlink):
        assert queue.layout.sweep(("done",)) == 0
    queue.put(b"a")
    with before("flock", path.unlink):
        assert queue.layout.purge() == Purged()


def test_nothing_to_sweep_leaves_the_file_alone(make, path):
    queue = make()
    queue.put(b"a")
    data = path.read_bytes()
    assert queue.clear() == 0
    assert path.read_bytes() == data


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("end", [b"", b"-c"], ids=["", "no line end"])
def test_file_whose_stamp_was_written_over_gets_another_one(make, path, end):
    queue = make()
    queue.put_many([b"a", b"b"])
    drain(queue, 1)
    in_place(path, b"dirqueue=", b"dirqueue~")
    with open(path, "ab") as file:
        file.write(end)
    assert queue.clear() == 1
    assert len(stamp.find(path.read_bytes())) == 1
    assert drain(queue) == [b"b", b"c"][: 1 + bool(end)]


def test_message_that_could_not_be_made_durable_but_is_held_stays(make, path):
    queue = make()
    lease = queue.get(timeout=0) if queue.put(b"a") else None
    queue.layout._take_back([lease.message.id])
    lease.ack()


def test_tool_that_ends_what_somebody_has_claimed_is_told(make, path):
    """It knows a message that waited a moment ago."""
    queue = make()
    id = queue.put(b"a")
    queue.get(timeout=0)
    with pytest.raises(LeaseLost):
        queue.layout.ack(Claim(id, id, 0, 0, 1))
    with pytest.raises(MessageNotFound, match="only an unclaimed message"):
        queue.layout.cancel(Entry(id, "leased", id, 0))


def test_change_of_nothing_changes_nothing(make, path):
    queue = make()
    message = queue.message(queue.put(b"a"))
    assert queue.layout.change(message.entry, priority=None, delay=None) == message.entry


def test_message_that_was_moved_is_found_by_its_text(make, path):
    """At its old place is the middle of another one."""
    queue = make()
    message = queue.message(queue.put(b"a"))
    path.write_bytes(b"# a line above\n" + path.read_bytes())
    wait_until(lambda: queue.stats().ready == 1)
    message.cancel()
    assert b"\n#a\n" in path.read_bytes()


# --- the journal ---------------------------------------------------------------------------------------------


def test_record_that_is_written_in_two_calls_is_whole(make, path):
    queue = make()
    queue.put(b"a")
    real, short = fs.pwrite, []

    def half(fd, data, offset):
        if not short and data[9:13] == b"put ":
            short.append(1)
            data = data[:5]
        return real(fd, data, offset)

    fs.pwrite = half
    try:
        queue.put(b"b")
    finally:
        fs.pwrite = real
    assert short
    assert drain(make()) == [b"a", b"b"]


@pytest.mark.usefixtures("impatient")
def test_part_that_was_about_to_begin_is_begun_again(make, path):
    """Killed behind the mark: the part that the mark leads to has no record."""
    queue = make()
    queue.put(b"a")
    journal = queue.layout.ledger.journal
    journal.append(b"next -")
    with open(os.path.join(side(queue), f"journal.{journal.end:016d}"), "wb"):
        pass
    with open(path, "ab") as file:
        file.write(b"-b\n")
    assert drain(make()) == [b"a", b"b"]


@pytest.mark.usefixtures("impatient")
def test_part_that_a_purge_trims_meanwhile_is_not_needed(make, path, monkeypatch):
    monkeypatch.setattr("dirqueue.layouts.text.journal.PART", 200)
    queue = make()
    copy = b""
    for n in range(9):
        queue.put(b"%d" % n)
        copy = copy or path.read_bytes()
    *older, _ = sorted(each for each in os.listdir(side(queue)) if each.startswith("journal."))
    path.write_bytes(copy)
    with failing("open", errno.ENOENT, when=of(*older)):
        got = drain(make())
    assert got[0] == b"0"
    assert got[-1] == b"8"


def test_part_that_goes_while_it_is_trimmed(make, path, monkeypatch):
    """Another purge has it; one that is young stays."""
    monkeypatch.setattr("dirqueue.layouts.text.journal.PART", 200)
    monkeypatch.setattr("dirqueue.layouts.text.journal.KEPT_BYTES", 0)
    queue = make()
    for n in range(9):
        queue.put(b"%d" % n)
    journal = queue.layout.ledger.journal
    assert journal.trim(0) == 0
    with failing("stat", errno.ENOENT, when=of(f"journal.{0:016d}")):
        assert journal.trim(1 << 60) > 0


def test_file_beside_that_goes_while_purge_looks_at_it(make, path):
    queue = make(stale=0)
    queue.put(b"a")
    with open(os.path.join(side(queue), ".clock-x"), "wb"):
        pass
    with failing("stat", errno.ENOENT, when=of(".clock-x")):
        assert queue.layout.purge().new == 0


def test_many_times_of_puts_are_thinned_out(monkeypatch):
    monkeypatch.setattr(notes, "TIMES", 4)
    found = notes.Notes()
    for n in range(1, 6):
        found.time(n * 10, n * notes.TICK)
    assert [found.put_at(n * 10) // notes.TICK for n in range(1, 6)] == [1, 1, 3, 3, 5]


def test_delayed_block_with_a_long_message_notes_only_messages(make, path):
    """Padding between them is none."""
    queue = make()
    queue.put_many([b"x" * 3000, b"y" * 3000], delay=600)
    assert queue.stats().delayed == 2


# --- the object and its directory ----------------------------------------------------------------------------


def test_child_begins_anew(make, path):
    """What a forked child does with the objects of its parent, here in one process."""
    queue = make()
    queue.put(b"a")
    queue.layout.ledger._renew_in_child()
    assert drain(queue) == [b"a"]
    queue.layout.ledger._renew_in_child()
    queue.layout.ledger._renew_in_child()
    assert drain(queue) == []


def test_put_waits_for_an_editor_that_moved_the_file_away(make, path):
    queue = make()
    queue.put(b"a")
    other = path.with_name("jobs~")
    os.rename(path, other)
    threading.Timer(0.05, os.rename, (other, path)).start()
    queue.put(b"b")
    wait_until(lambda: len(queue) == 2)


def test_directory_beside_that_is_removed_is_forgotten_by_a_look(make, path):
    """Nothing is held then."""
    queue = make()
    queue.put(b"a")
    queue.get(timeout=0)
    shutil.rmtree(side(queue))
    assert queue.stats().ready == 1
    queue = make()
    queue.put(b"b")
    os.unlink(os.path.join(side(queue), "lock"))
    assert queue.stats().ready == 2


def test_put_that_fails_and_cannot_be_taken_back_is_reported(make, path):
    queue = make()
    queue.put(b"a")
    with failing("pwritev", errno.EIO), failing("ftruncate", errno.EIO), pytest.raises(QueueAccess):
        queue.put(b"b")
    wait_until(lambda: drain(queue)[:1] == [b"a"])


# --- merging -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
def test_message_that_is_written_letter_by_letter(make, path):
    queue = make()
    queue.put(b"a")
    for piece in (b"-b", b"c", b"d\n"):
        with open(path, "ab") as file:
            file.write(piece)
        queue.purge()
    assert drain(queue) == [b"a", b"bcd"]


@pytest.mark.usefixtures("impatient")
def test_block_that_is_there_in_other_states_is_there(make, path):
    """The file has seen more than it says."""
    queue = make()
    queue.put(b"zero")
    copy = path.read_bytes()
    queue.put_many([b"a", b"b"])
    drain(queue, 2)
    older(path, copy)
    assert drain(queue) == [b"b"]
    assert path.read_bytes().count(b"\n=a\n") == 1


@pytest.mark.usefixtures("impatient")
def test_what_a_person_marked_in_an_old_copy_stays_marked(make, path):
    """Acknowledged meanwhile, or deleted by the person: there is nothing to mark."""
    queue = make()
    queue.put_many([b"a", b"b", b"c"])
    copy = path.read_bytes()
    drain(queue, 3)
    path.write_bytes(copy.replace(b"-a\n", b"#a\n").replace(b"-b\n", b""))
    assert drain(queue) == []
    data = path.read_bytes()
    assert b"#a\n" in data
    assert b"b\n" not in data
    assert b"=c\n" in data


@pytest.mark.usefixtures("impatient")
def test_merge_that_was_killed_before_a_person_moved_lines_marks_no_other(make, path):
    """Its record says which text is at the place that it marks."""
    queue = make()
    queue.put_many([b"a", b"b"])
    copy = path.read_bytes()
    drain(queue, 1)
    queue.put(b"c")
    path.write_bytes(copy)
    ledger = queue.layout.ledger
    real = ledger.stamp
    ledger.stamp = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        queue.get(timeout=0)
    ledger.stamp = real
    path.write_bytes(path.read_bytes().replace(b"=a\n-b\n", b"-b\n-a\n"))
    assert sorted(drain(make())) == [b"b", b"c"]


@pytest.mark.usefixtures("impatient")
def test_equal_texts_without_a_stamp_are_counted_one_by_one(make, path):
    queue = make()
    queue.put_many([b"a", b"a", b"a"])
    drain(queue, 2)
    data = path.read_bytes()
    path.write_bytes(data[data.index(b"=a") :])
    assert drain(queue) == [b"a"]


@pytest.mark.usefixtures("impatient")
def test_file_that_is_saved_again_while_it_is_merged_is_left_for_the_moment(make, path):
    """The next turn merges what is there then."""
    queue = make()
    queue.put(b"a")
    data = path.read_bytes()
    with open(path, "r+b", buffering=0) as editor:
        editor.write(b"# mine\n" + data)
        with before("fcntl", lambda: editor.write(b"-more\n")):
            wait_until(lambda: drain(make()) == [b"a", b"more"])


def test_turn_in_which_somebody_saved_the_file_makes_no_further_change(make, path):
    """It is over, and the next one looks first."""
    queue = make()
    queue.put_many([b"a", b"b"])
    ledger = queue.layout.ledger
    turns = []

    def change():
        turns.append(ledger.in_turn())
        if len(turns) == 1:
            ledger.forget()  # as when a mark meets somebody who saves the file
            ledger.in_turn()

    ledger.run(change)
    assert len(turns) == 2
    assert drain(queue) == [b"a", b"b"]


def test_held_and_delayed_messages_are_flushed_too(make, path):
    queue = make()
    queue.put_many([b"a", b"b"])
    queue.put(b"c", delay=600)
    lease = queue.get(timeout=0)
    assert queue.flush() == 3
    with pytest.raises(LeaseLost):
        lease.ack()

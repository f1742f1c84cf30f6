"""A person with an editor beside consumers: nothing is lost that the person did not delete, nothing comes twice."""

import os
import shutil
import subprocess

import pytest
from support.kit import drain, wait_until

from dirqueue import Empty, LeaseLost
from dirqueue.disk import fs
from dirqueue.layouts.text import grammar

pytestmark = pytest.mark.usefixtures("impatient")


def save_by_rename(path, data):
    """As vim, sed -i and most editors do."""
    new = path.with_name(path.name + "~new")
    new.write_bytes(data)
    os.rename(new, path)


def save_in_place(path, data):
    """As nano, ed and `vim -c 'set backupcopy=yes'` do."""
    with open(path, "r+b") as file:
        file.truncate(0)
        file.write(data)


SAVES = [save_by_rename, save_in_place]


def texts(path, control="-"):
    return [item.text for item in grammar.items(path.read_bytes()) if item.control == control]


@pytest.fixture(params=SAVES)
def save(request):
    return request.param


@pytest.fixture
def queue(make):
    queue = make()
    queue.put_many([b"one", b"two", b"three"])
    return queue


def test_line_that_a_person_adds_is_delivered_in_its_place(queue, path, save):
    save(path, path.read_bytes().replace(b"-two\n", b"-typed\n-two\n"))
    assert drain(queue) == [b"one", b"typed", b"two", b"three"]


def test_line_that_a_person_deletes_is_gone(queue, path, save):
    save(path, path.read_bytes().replace(b"-two\n", b""))
    assert drain(queue) == [b"one", b"three"]


def test_line_that_a_person_comments_out_is_not_delivered(queue, path, save):
    save(path, path.read_bytes().replace(b"-two\n", b"#two\n"))
    assert drain(queue) == [b"one", b"three"]


def test_message_that_a_person_makes_wait_again_is_delivered_again(queue, path, save):
    assert drain(queue, 1) == [b"one"]
    save(path, path.read_bytes().replace(b"=one\n", b"-one\n"))
    assert drain(queue) == [b"one", b"two", b"three"]


def test_what_was_put_while_a_person_edited_an_old_copy_is_not_lost(queue, path, save):
    copy = path.read_bytes()
    queue.put(b"meanwhile")
    save(path, copy.replace(b"-two\n", b"-two\n-typed\n"))
    assert sorted(drain(queue)) == sorted([b"one", b"two", b"typed", b"three", b"meanwhile"])
    assert b"# dirqueue: what follows came while" in path.read_bytes()


def test_what_was_finished_while_a_person_edited_an_old_copy_does_not_come_back(queue, path, save):
    copy = path.read_bytes()
    assert drain(queue, 1) == [b"one"]
    queue.put(b"meanwhile")
    assert drain(queue, 1) == [b"two"]
    save(path, b"# my notes\n" + copy)
    assert drain(queue) == [b"three", b"meanwhile"]
    assert texts(path, "=") == [b"one", b"two", b"three", b"meanwhile"]


def test_equal_texts_are_counted(make, path, save):
    queue = make()
    queue.put_many([b"job"] * 5)
    copy = path.read_bytes()
    drain(queue, 2)
    queue.put_many([b"job"] * 3)
    save(path, b"# moved\n" + copy)
    assert drain(queue) == [b"job"] * 6


def test_old_copy_saved_twice(queue, path, save):
    """An editor that is still open."""
    copy = path.read_bytes()
    drain(queue, 1)
    queue.put(b"a")
    save(path, copy)
    assert drain(queue, 1) == [b"two"]
    queue.put(b"b")
    save(path, copy)
    assert drain(queue) == [b"three", b"a", b"b"]
    save(path, copy)
    assert drain(queue) == []


def test_lease_survives_an_edit_that_moves_its_message(queue, path, save):
    lease = queue.get(timeout=0)
    save(path, b"# inserted above\n" + path.read_bytes())
    assert drain(queue) == [b"two", b"three"]
    lease.ack()
    assert texts(path, "=") == [b"one", b"two", b"three"]
    assert texts(path) == []


def test_lease_of_a_message_that_a_person_deleted_is_lost(queue, path, save):
    lease = queue.get(timeout=0)
    save(path, path.read_bytes().replace(b"-one\n", b""))
    with pytest.raises(LeaseLost):
        lease.ack()
    assert drain(queue) == [b"two", b"three"]


def test_lease_of_a_message_that_a_person_retyped_is_lost(queue, path, save):
    """The new text is a new message."""
    lease = queue.get(timeout=0)
    save(path, path.read_bytes().replace(b"-one\n", b"-uno\n"))
    with pytest.raises(LeaseLost):
        lease.ack()
    assert drain(queue) == [b"uno", b"two", b"three"]


def test_delay_attempts_and_reason_survive_an_edit(make, path, save):
    queue = make()
    for body in (b"later", b"failing", b"bad"):
        queue.put(body, delay=600 if body == b"later" else 0)
    queue.get(timeout=0).retry(0, "once")
    lease = queue.get(timeout=0)
    assert lease.message.attempts == 2
    lease.release()
    queue.put(b"x")
    drained = queue.get(timeout=0)
    drained.retry(0)
    copy = path.read_bytes()
    queue.get(timeout=0).reject("broken")
    save(path, b"# above\n" + copy)
    found = {message.body: message for state in ("ready", "delayed", "dead") for message in queue.peek(state)}
    drain(queue, 0)
    queue.purge()  # a turn
    found = {message.body: message for state in ("ready", "delayed", "dead") for message in queue.peek(state)}
    assert found[b"later"].state == "delayed"
    assert (found[b"failing"].state, found[b"failing"].error) == ("dead", "broken")


def test_file_that_was_emptied_is_empty(queue, path, save):
    save(path, b"")
    assert drain(queue) == []
    queue.put(b"new")
    assert drain(queue) == [b"new"]


def test_file_that_was_removed_is_made_again(queue, path):
    path.unlink()
    assert drain(queue) == []
    queue.put(b"new")
    assert drain(queue) == [b"new"]


def test_stamp_that_was_removed_is_made_again(queue, path, save):
    """And nothing that is there is taken for missing."""
    drain(queue, 1)
    lines = path.read_bytes().split(b"\n")
    save(path, b"\n".join(lines[2:]))
    assert drain(queue) == [b"two", b"three"]
    assert texts(path, "=") == [b"one", b"two", b"three"]
    assert path.read_bytes().count(b"\\dirqueue=") == 1


def test_file_that_was_put_twice_into_itself_is_read_as_it_is(queue, path, save):
    """Two stamps: everything that is there counts."""
    data = path.read_bytes()
    save(path, data + data)
    assert drain(queue) == [b"one", b"two", b"three"] * 2


def test_another_queue_put_in_its_place_is_taken(make, queue, path, tmp_path):
    other = make(tmp_path / "other.tq")
    other.put(b"elsewhere")
    save_by_rename(path, (tmp_path / "other.tq").read_bytes())
    assert drain(queue) == [b"elsewhere"]
    queue.put(b"x")
    assert drain(queue) == [b"x"]


def test_line_ends_of_windows_are_taken(queue, path, save):
    drain(queue, 1)
    save(path, path.read_bytes().replace(b"\n", b"\r\n"))
    assert drain(queue) == [b"two", b"three"]
    assert path.read_bytes().count(b"=") >= 3


def test_mark_by_hand_in_place(queue, path):
    """One byte, as a program of textqueue makes it."""
    lease = queue.get(timeout=0)
    at = path.read_bytes().index(b"-one")
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"=")
    with pytest.raises(LeaseLost):
        lease.ack()
    assert drain(queue) == [b"two", b"three"]


def test_message_above_that_is_made_to_wait_in_place_is_found(queue, path):
    drain(queue, 2)
    at = path.read_bytes().index(b"=one")
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"-")
    got = []
    wait_until(lambda: got.extend(drain(queue)) or len(got) == 2)
    assert sorted(got) == [b"one", b"three"]


def test_untouched_bytes_stay(make, path):
    """Comments, blank lines, spacing, variables, foreign lines and a missing line end."""
    before = b"# a comment \n  more\n\n\n-  spaced  \n\\v1   \n\\v2\n\n*tag:1\nT2024-x\n=old\n!bad\n-last"
    path.write_bytes(before)
    queue = make()
    assert drain(queue) == [b"  spaced  ", b"last"]
    queue.put(b"new")
    queue.get(timeout=0).ack()
    queue.purge()
    after = path.read_bytes()
    assert after[: len(before)] == before.replace(b"-  spaced", b"=  spaced").replace(b"-last", b"=last")
    assert queue.stats().foreign == 2


@pytest.mark.parametrize("command", [
    ["sed", "-i", "s/^-two$/-typed/"], ["perl", "-pi", "-e", "s/^-two$/-typed/"],
    ["ed", "-s"], ["vim", "-es", "-c", "%s/^-two$/-typed/", "-c", "wq"],
    ["vim", "-es", "-c", "set backupcopy=yes", "-c", "%s/^-two$/-typed/", "-c", "wq"],
])  # fmt: skip
def test_real_editors(queue, path, command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]} here")
    lease = queue.get(timeout=0)
    subprocess.run(
        [*command, str(path)],
        input=b",s/^-two$/-typed/\nw\nq\n",
        check=False,
        capture_output=True,
        timeout=30,
    )
    assert b"-typed" in path.read_bytes()
    assert drain(queue) == [b"typed", b"three"]
    lease.ack()
    with pytest.raises(Empty):
        queue.get(timeout=0)


def test_get_waits_while_a_file_is_being_saved(make, path, monkeypatch):
    """In the middle of a save nothing is delivered, nothing restored."""
    from dirqueue.layouts.text import merge

    monkeypatch.setattr(merge, "QUIET", 60_000_000)
    queue = make()
    queue.put(b"one")
    copy = path.read_bytes()
    queue.put(b"two")
    with open(path, "r+b") as file:
        file.truncate(0)
        file.write(copy[:50])
        file.flush()
        assert drain(queue) == []
        assert path.read_bytes() == copy[:50]
        file.write(copy[50:])
    assert drain(queue) == []
    monkeypatch.setattr(merge, "QUIET", 0)
    assert drain(queue) == [b"one", b"two"]


def test_message_that_somebody_is_still_writing_is_not_delivered(make, path, monkeypatch):
    """Line by line, without a lock: it comes whole when nothing was added for a moment."""
    from dirqueue.layouts.text import merge

    queue = make()
    queue.put(b"ours")
    assert drain(queue) == [b"ours"]
    monkeypatch.setattr(merge, "QUIET", 60_000_000)
    with open(path, "ab") as file:
        file.write(b"-whole\n-first line\n")
        file.flush()
        assert drain(queue) == [b"whole"]
        file.write(b" second line\n")
        file.flush()
        assert drain(queue) == []
        assert queue.layout.wakes_in() > 0
        monkeypatch.setattr(merge, "QUIET", 0)
        file.write(b"# the end\n")
    assert drain(queue) == [b"first line\nsecond line"]


def test_put_waits_for_a_line_that_somebody_is_still_writing(make, path, monkeypatch):
    """Else the rest of the line would be a line of its own."""
    from dirqueue.layouts.text import merge

    queue = make()
    queue.put(b"ours")
    monkeypatch.setattr(merge, "QUIET", 5_000_000)
    with open(path, "ab") as file:
        file.write(b"-half")
        file.flush()
        queue.purge()  # a turn, which sees it

        def finish():
            file.write(b" and whole\n")
            file.flush()

        monkeypatch.setattr(
            "dirqueue.layouts.text.turn.time.sleep", lambda _: finish() if not file.closed else None
        )
        queue.put(b"second")
        file.close()
    monkeypatch.undo()
    got = []
    wait_until(lambda: got.extend(drain(queue)) or len(got) == 3)
    assert b"half and whole" in got


def test_lease_survives_on_a_message_that_the_old_copy_lacks(queue, path, save):
    """It is appended again, and still held; what was retried or rejected keeps its attempts and its reason."""
    copy = path.read_bytes()
    ids = queue.put_many([b"held", b"dead", b"failed"])
    drain(queue, 3)
    held, dead, failed = (queue.get(timeout=0) for _ in range(3))
    dead.reject("broken")
    failed.retry(600, "later")
    save(path, b"# above\n" + copy)
    assert drain(queue) == []
    assert [(message.body, message.error) for message in queue.peek("dead")] == [(b"dead", "broken")]
    assert [(message.body, message.attempts) for message in queue.peek("delayed")] == [(b"failed", 1)]
    held.ack()
    assert queue.message(ids[0]).state == "done"
    assert texts(path, "=") == [b"one", b"two", b"three", b"held"]


def test_merge_that_was_killed_is_finished(make, queue, path, save):
    """The record says what was appended: it is not appended again."""
    copy = path.read_bytes()
    queue.put(b"meanwhile")
    drain(queue, 1)
    save(path, copy)
    ledger = queue.layout.ledger
    real = ledger.stamp
    ledger.stamp = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        queue.get(timeout=0)
    ledger.stamp = real
    assert texts(path) == [b"two", b"three", b"meanwhile"]
    fresh = make()
    assert drain(fresh) == [b"two", b"three", b"meanwhile"]
    save(path, copy)
    assert drain(fresh) == []


def test_long_message_that_an_old_copy_lacks(queue, path, save):
    copy = path.read_bytes()
    long = b"long " + b"-x\n" * 3000
    queue.put(long)
    save(path, b"# above\n" + copy)
    assert drain(queue) == [b"one", b"two", b"three", long]


def test_what_others_appended_and_an_old_copy_lacks_is_not_lost(queue, path, save):
    """Seen by one of ours, it is as safe as ours."""
    copy = path.read_bytes()
    with open(path, "ab") as file:
        file.write(b"-foreign\n more\n# end\n")
    drain(queue, 1)
    save(path, copy)
    assert drain(queue) == [b"two", b"three", b"foreign\nmore"]


#: The calls of a turn.
CALLS = ("open", "flock", "fstat", "pread", "fcntl", "pwrite", "pwritev", "close")


def before_call(monkeypatch, number, action):
    """Run `action` just before that call of those to come; return a list that holds something once it ran."""
    left, ran = [number], []

    def wrap(real):
        def wrapped(*arguments, **named):
            left[0] -= 1
            if left[0] == -1:
                ran.append(True)
                action()
            return real(*arguments, **named)

        return wrapped

    for name in CALLS:
        monkeypatch.setattr(fs, name, wrap(getattr(fs, name)))
    return ran


ACTS = {
    "put": lambda queue, _: queue.put(b"new"),
    "put long": lambda queue, _: queue.put(b"long " + b"-x\n" * 3000),
    "ack": lambda _, lease: lease.ack(),
    "reject": lambda _, lease: lease.reject("no"),
}


def save_again(editor, old):
    """Save an old copy in place."""
    editor.truncate(0)
    editor.seek(0)
    editor.write(old)


SAVED = {
    "same": save_again,
    "longer": lambda editor, old: save_again(editor, old + b"# mine\n"),
    "appended": lambda editor, _: (editor.seek(0, os.SEEK_END), editor.write(b"-foreign\n")),
}


@pytest.mark.parametrize("how", SAVED)
@pytest.mark.parametrize("act", ACTS)
def test_file_that_is_changed_in_place_before_any_call_of_a_turn(make, path, act, how, monkeypatch):
    """The turn overwrites a part of an old copy, and the copy a part of the turn: both are there in the end."""
    long = b"long " + b"-x\n" * 3000
    for number in range(99):
        queue = make(path.with_name(f"{number}.tq"))
        queue.put_many([b"one", b"two", b"three"])
        lease, held = queue.get(timeout=0), queue.get(timeout=0)
        with open(queue.path, "r+b", buffering=0) as editor, monkeypatch.context() as patch:
            old = editor.read()
            lease.ack()
            queue.put(b"meanwhile")
            ran = before_call(patch, number, lambda editor=editor, old=old: SAVED[how](editor, old))
            ACTS[act](queue, held)
        expected = [b"three", b"meanwhile", *{"put": [b"new"], "put long": [long]}.get(act, [])]
        expected += [b"foreign"] if how == "appended" and ran else []
        assert sorted(drain(make(queue.path))) == sorted(expected), number
        if act.startswith("put"):
            held.ack()
        assert texts(path.with_name(f"{number}.tq")) == []
        if not ran:
            return
    raise AssertionError("no end")

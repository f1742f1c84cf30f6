"""textqueue 1.1 itself: the same program with either module, its bugs, and the two beside each other in one file."""

import contextlib
import shutil
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import textqueue as theirs
from support.kit import FORK, PATIENCE, drain, wait_until

from dirqueue import Empty, LeaseLost, Queue
from dirqueue.compat import textqueue as ours
from dirqueue.layouts.text import grammar, merge, turn

EXAMPLE = Path(__file__).parent / "golden" / "textqueue.tq"
SETTINGS = {"layout": "text", "sync": False, "margin": 0, "backoff": 0}
STAMP = b"# dirqueue: this is a live queue."


@pytest.fixture(params=[theirs, ours], ids=["theirs", "ours"])
def module(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "jobs.tq"


@pytest.fixture
def impatient(monkeypatch):
    """Take a file that a test has just written for whole."""
    for each in (turn, merge):
        monkeypatch.setattr(each, "QUIET", 0)


OPEN = []


@pytest.fixture(autouse=True)
def closed():
    """Close what a test left open: theirs has no other way than close()."""
    yield
    while OPEN:
        OPEN.pop().close()


def opened(module, path):
    queue = module.TextQueue()
    OPEN.append(queue)
    queue.add_input(str(path))
    return queue


def without_stamp(path):
    """Return the file without what dirqueue adds at its end."""
    data = path.read_bytes()
    return data.partition(STAMP)[0] if STAMP in data else data


# --- the same program ---------------------------------------------------------------------------------------

STORIES = {}


def story(function):
    STORIES[function.__name__] = function
    return function


@story
def everything(queue, path, told):
    """Read all items in whatever state."""
    while (item := queue.get_next_in_file(0, True, True, True)) is not None:
        if "dirqueue:" not in item.value:
            told((item.status.name, item.value, item.get_variables(), item.control_offset))


@story
def work(queue, path, told):
    """Mark every second one."""
    n = 0
    while (item := queue.get_next()) is not None:
        n += 1
        told(item.value)
        item.mark_as_cleared() if n % 2 else item.mark_as_critical_error()
    told(queue.get_next())


@story
def variables(queue, path, told):
    """Set them, and fail to."""
    while (item := queue.get_next()) is not None:
        if not item.get_variables():
            continue
        item.set_variable(0, "short")
        item.set_variable(-1, "last")
        told(item.get_variables())
        for index, value in ((0, "x" * 500), (99, "x")):
            try:
                item.set_variable(index, value)
            except (ValueError, IndexError) as error:
                told((type(error).__name__, str(error)))
        item.mark_as_cleared()


@story
def appended_later(queue, path, told):
    """The end is not the end."""
    while queue.get_next() is not None:
        pass
    with open(path, "ab") as file:
        file.write(b"-later\n-and later\n")
    for _ in range(3):
        item = queue.get_next()
        told(item and item.value)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", STORIES)
def test_program_runs_with_only_its_import_changed(tmp_path, name):
    """The same answers and the same file, byte for byte, but for our stamp behind it."""
    results = []
    for module in (theirs, ours):
        path = tmp_path / module.__name__
        shutil.copy(EXAMPLE, path)
        queue = opened(module, path)
        told = []
        STORIES[name](queue, path, told.append)
        assert queue.input_files[0][0] == str(path)
        queue.close()
        results.append((told, without_stamp(path) if name != "appended_later" else None))
    assert results[0] == results[1]


@pytest.mark.usefixtures("impatient")
def test_odd_line_is_a_value_error_and_the_next_call_goes_on(module, path):
    path.write_bytes(b"-a\nodd line\n-b\n")
    queue = opened(module, path)
    assert queue.get_next().value == "a"
    with pytest.raises(ValueError, match="Unexpected Control Character 'o' on line 'odd line\n'"):
        queue.get_next()
    assert queue.get_next().value == "b"
    queue.close()


def test_several_files_are_drained_in_order(module, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(f"-{name}1\n-{name}2\n# end\n".encode())
    time.sleep(0.3)  # nobody is writing them any more
    queue = module.TextQueue()
    queue.add_input(str(tmp_path / "one"))
    queue.add_input(str(tmp_path / "two"))
    assert [queue.get_next().value for _ in range(4)] == ["one1", "one2", "two1", "two2"]
    assert queue.get_next() is None
    queue.close()


def test_missing_file_is_refused(module, tmp_path):
    with pytest.raises(FileNotFoundError):
        module.TextQueue().add_input(str(tmp_path / "missing"))


# --- bugs: there, and not here ------------------------------------------------------------------------------


def bug(function):
    """Run a test with both: it fails with theirs and passes with ours."""

    @pytest.mark.usefixtures("impatient")
    def test(module, path):
        if module is theirs:
            with pytest.raises((AssertionError, ValueError, AttributeError, pytest.fail.Exception)):
                function(module, path)
        else:
            function(module, path)

    test.__doc__ = function.__doc__
    test.__name__ = function.__name__
    return test


@bug
def test_status_after_a_critical_mark_is_critical(module, path):
    path.write_bytes(b"-a\n")
    item = opened(module, path).get_next()
    item.mark_as_critical_error()
    assert item.status is module.MessageStatus.critical


@bug
def test_variable_is_measured_in_bytes(module, path):
    """Else it is written over the next message."""
    path.write_bytes(b"-a\n\\hello\n-b\n")
    queue = opened(module, path)
    item = queue.get_next()
    with pytest.raises(ValueError, match="too long"):
        item.set_variable(0, "ééééé")
    assert queue.get_next().value == "b"


@bug
def test_shorter_variable_leaves_no_half_characters(module, path):
    path.write_bytes("-a\n\\ééé\n-b\n".encode())
    queue = opened(module, path)
    queue.get_next().set_variable(0, "x")
    queue.close()
    path.read_bytes().decode()
    assert path.read_bytes().startswith(b"-a\n\\x     \n")


@bug
def test_variable_of_two_lines_is_refused(module, path):
    """Else it injects a message."""
    path.write_bytes(b"-a\n\\          \n")
    queue = opened(module, path)
    item = queue.get_next()
    with pytest.raises(ValueError, match="line"):
        item.set_variable(0, "x\n-zz")
    item.mark_as_cleared()
    assert queue.get_next() is None


@bug
def test_two_readers_share(module, path):
    path.write_bytes(b"-a\n-b\n")
    one, two = opened(module, path), opened(module, path)
    assert [one.get_next().value, two.get_next().value] == ["a", "b"]


@bug
def test_mark_behind_a_lone_carriage_return_hits_the_control_character(module, path):
    path.write_bytes(b"-a\r-b\n")
    queue = opened(module, path)
    queue.get_next()
    queue.get_next().mark_as_cleared()
    queue.close()
    assert path.read_bytes().startswith(b"-a\r=b\n")


@bug
def test_mark_after_an_insertion_above_is_made_on_the_message(module, path):
    path.write_bytes(b"-aaaaaaaa\n-b\n")
    queue = opened(module, path)
    item = queue.get_next()
    path.write_bytes(b"# a note\n" + path.read_bytes())
    item.mark_as_cleared()
    queue.close()
    assert path.read_bytes().startswith(b"# a note\n=aaaaaaaa\n-b\n")


@bug
def test_mark_after_a_rename_over_is_made_in_the_new_file(module, path):
    path.write_bytes(b"-a\n-b\n")
    queue = opened(module, path)
    item = queue.get_next()
    new = path.with_name("new")
    new.write_bytes(path.read_bytes())
    new.rename(path)
    item.mark_as_cleared()
    queue.close()
    assert path.read_bytes().startswith(b"=a\n")


@bug
def test_mark_of_a_message_that_was_cut_off_makes_no_hole(module, path):
    path.write_bytes(b"-c\n-xx\n-yyyyy\n")
    queue = opened(module, path)
    item = [queue.get_next() for _ in range(3)][-1]
    data = path.read_bytes()
    path.write_bytes(data[:3] + data[14:])
    with contextlib.suppress(LeaseLost):
        item.mark_as_cleared()
    assert b"\0" not in path.read_bytes()


@bug
def test_message_appended_behind_a_line_without_end_is_not_swallowed(module, path):
    path.write_bytes(b"-b")
    queue = opened(module, path)
    queue.get_next().mark_as_cleared()
    queue.close()
    if module is ours:
        queue.append(str(path), "c")
    else:
        with open(path, "ab") as file:
            file.write(b"-c\n")
    assert opened(module, path).get_next().value == "c"


@bug
def test_bad_byte_spoils_its_own_message_only(module, path):
    path.write_bytes(b"-\xff\n-good\n")
    queue = opened(module, path)
    assert queue.get_next().value == "\udcff"
    assert queue.get_next().value == "good"


@bug
def test_bad_byte_order_mark_costs_no_message(module, path):
    path.write_bytes(grammar.BOM + b"-a\n-b\n")
    assert opened(module, path).get_next().value == "a"


def test_half_a_message_is_not_given_out(module, path):
    """Somebody is writing it: theirs gives what is there, ours waits."""
    with open(path, "wb") as file:
        file.write(b"-first\n-half")
        file.flush()
        time.sleep(0.01)
        queue = opened(module, path)
        values = []
        wait_until(lambda: values.append(queue.get_next()) or any(values) or len(values) > 300)
        if module is theirs:
            assert queue.get_next().value == "half"
            return
        file.write(b" and whole\n# end\n")
        file.flush()
        found = []
        wait_until(lambda: found.append(queue.get_next()) or found[-1])
        assert found[-1].value == "half and whole"
        queue.close()


@pytest.mark.parametrize("locale", ["C.UTF-8", "POSIX"])
@pytest.mark.usefixtures("impatient")
def test_locale_does_not_matter_here(path, locale, monkeypatch):
    monkeypatch.setenv("LC_ALL", locale)
    path.write_bytes("-é\n".encode())
    assert opened(ours, path).get_next().value == "é"


# --- ours alone ---------------------------------------------------------------------------------------------


def test_append_and_with(path):
    with ours.TextQueue() as queue:
        queue.append(str(path), "one\ntwo", ("state=     ",))
        queue.add_input(str(path))
        item = queue.get_next()
        assert (item.value, item.get_variables()) == ("one\ntwo", ("state=     ",))
        item.set_variable(0, "state=me")
        assert queue.get_next() is None
    # Closed without a mark: it is there for the next one.
    with ours.TextQueue() as queue:
        queue.add_input(str(path))
        item = queue.get_next()
        assert item.get_variables() == ("state=me   ",)
        item.mark_as_cleared()
    assert [item.value for item in _all_of_theirs(path) if item.status.name == "cleared"] == ["one\ntwo"]


@pytest.mark.parametrize(
    ("value", "variables"), [("a\rb", ()), ("a\0b", ()), ("a", ("x\ny",)), ("a", ("x\ry",))]
)
def test_append_refuses_what_the_format_cannot_hold(path, value, variables):
    with ours.TextQueue() as queue, pytest.raises(ValueError, match=r"text queue|one line"):
        queue.append(str(path), value, variables)
    assert not path.exists()


@pytest.mark.usefixtures("impatient")
def test_marks_of_what_is_not_queued(path):
    """As theirs: a comment can become a message, and a processed one a failed one."""
    path.write_bytes(b"# c\n=d\n")
    with opened(ours, path) as queue:
        queue.get_next_in_file(0, True, True).mark_as_cleared()
        item = queue.get_next_in_file(0, True, True)
        item.mark_as_critical_error()
        with pytest.raises(LeaseLost):
            queue.input_files[0][1].layout.ledger.forget()
            item._item = item._item._replace(control="=")
            item.mark_as_cleared()
    assert without_stamp(path) == b"= c\n!d\n"


def _all_of_theirs(path):
    queue = opened(theirs, path)
    found = []
    while (item := queue.get_next_in_file(0, True, True, True)) is not None:
        found.append(item)
    queue.close()
    return found


# --- both at once -------------------------------------------------------------------------------------------


def test_example_of_the_document_is_read_alike(tmp_path):
    """Fourteen items and more, five of them queued; ours gives the queued ones as bodies."""
    path = tmp_path / "example.tq"
    shutil.copy(EXAMPLE, path)
    time.sleep(0.3)
    wanted = [item.value.encode() for item in _all_of_theirs(path) if item.status.name == "queued"]
    assert len(wanted) == 5
    with Queue(path, sync=False) as queue:
        assert queue.layout.name == "text"
        assert drain(queue) == wanted
    data = without_stamp(path)
    assert data == b"".join(
        b"=" + line[1:] if line.startswith(b"-") else line
        for line in EXAMPLE.read_bytes().splitlines(keepends=True)
    )


def put_some(path, name, count, size):
    with Queue(path, **SETTINGS) as queue:
        for n in range(count):
            queue.put(f"{name}-{n} ".encode() + b"x" * (n * 37 % size))


def test_their_reader_at_the_tail_sees_whole_messages_once(tmp_path):
    """Three of our writers, messages of up to a page, and their reader without a pause."""
    path, count = tmp_path / "q.tq", 150
    put_some(path, "first", 1, 10)
    writers = [FORK.Process(target=put_some, args=(path, f"w{n}", count, 3900)) for n in range(3)]
    for each in writers:
        each.start()
    queue = opened(theirs, path)
    seen = Counter()
    deadline = time.monotonic() + PATIENCE
    while seen.total() < 3 * count + 1 and time.monotonic() < deadline:
        item = queue.get_next()
        if item is not None:
            name, _, filling = item.value.partition(" ")
            assert not filling.strip("x")
            seen[name] += 1
            item.mark_as_cleared()
    queue.close()
    for each in writers:
        each.join(PATIENCE)
    assert seen.total() == len(seen) == 3 * count + 1
    with Queue(path, **SETTINGS) as mine:
        assert wait_until(lambda: mine.stats().done) == 3 * count + 1
        assert drain(mine) == []


def test_their_reader_beside_ours_loses_and_damages_nothing(tmp_path):
    """It leaves no trace of what it works on, so a message may be done twice; none is lost, and ours are told."""
    path, count = tmp_path / "q.tq", 300
    with Queue(path, **SETTINGS) as queue:
        queue.put_many([b"m%d" % n for n in range(count)])
    done, lost = Counter(), []

    def mine():
        with Queue(path, **SETTINGS) as queue:
            deadline = time.monotonic() + PATIENCE
            while queue.stats().total and time.monotonic() < deadline:
                try:
                    lease = queue.get(timeout=0.05)
                    lease.ack()
                    done[lease.message.body.decode()] += 1
                except LeaseLost:
                    lost.append(1)
                except Empty:
                    pass

    threads = [threading.Thread(target=mine) for _ in range(2)]
    for each in threads:
        each.start()
    queue = opened(theirs, path)
    while (item := queue.get_next()) is not None:
        item.mark_as_cleared()
        done[item.value] += 1
    queue.close()
    for each in threads:
        each.join(PATIENCE)
    assert set(done) == {f"m{n}" for n in range(count)}
    found = [item for item in grammar.items(path.read_bytes()) if item.control != "#"]
    assert [(item.control, item.text) for item in found] == [("=", b"m%d" % n) for n in range(count)]


def test_program_that_appends_beside_ours(tmp_path):
    """open('a'), whole lines, while ours put and get: all of it is delivered once."""
    path, count = tmp_path / "q.tq", 100
    put_some(path, "first", 1, 10)

    def foreign():
        for n in range(count):
            with open(path, "ab") as file:
                file.write(b"-foreign-%d \n second line\n" % n)
            time.sleep(0.003)

    other = FORK.Process(target=foreign)
    writer = FORK.Process(target=put_some, args=(path, "w", count, 300))
    other.start()
    writer.start()
    got = Counter()
    with Queue(path, **SETTINGS) as queue:
        deadline = time.monotonic() + PATIENCE
        while got.total() < 2 * count + 1 and time.monotonic() < deadline:
            for body in drain(queue):
                got[body.partition(b" ")[0]] += 1
    for each in (other, writer):
        each.join(PATIENCE)
        assert each.exitcode == 0
    assert got.total() == len(got) == 2 * count + 1

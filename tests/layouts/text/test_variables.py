r"""Variables that say in the file what is known of a message: annotations, and the mutex of those who do not lock."""

import re

import pytest
from support.kit import drain, wait_until

from dirqueue import Empty, Queue
from dirqueue.compat import textqueue as compat
from dirqueue.layouts.text import grammar, mirror

pytestmark = pytest.mark.usefixtures("impatient")
UTC = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def variables(path, text):
    """Return the variables of the message with that text, without what fills them."""
    (item,) = (each for each in grammar.items(path.read_bytes()) if each.text == text)
    pairs = (each.value.decode().partition("=") for each in item.variables)
    return {name: value.strip() for name, _, value in pairs}


@pytest.fixture
def queue(make):
    return make(annotate=True)


def test_annotated_message_says_when_it_was_put(queue, path):
    """And has room for what is to come; its body is its body."""
    queue.put_many([b"a", b"two\nlines", b"\xff"])
    assert len({len(line) for line in path.read_bytes().splitlines() if line.startswith(b"\\error=")}) == 1
    told = variables(path, b"a")
    assert re.fullmatch(UTC, told.pop("put"))
    assert told == {"lease": "", "tries": "", "error": "", "done": ""}
    assert drain(queue) == [b"a", b"two\nlines", b"\xff"]


def test_annotations_follow_the_life_of_a_message(queue, path):
    """Held, renewed, retried, rejected, redriven, processed."""
    queue.put(b"a")
    lease = queue.get(timeout=0)
    assert re.fullmatch(rf"{re.escape(lease.token)} until {UTC}", variables(path, b"a")["lease"])
    assert variables(path, b"a")["tries"] == "1"
    lease.renew()
    assert variables(path, b"a")["lease"].startswith(lease.token)
    lease.retry(0, "over\nthere")
    told = variables(path, b"a")
    assert (told["lease"], told["tries"], told["error"]) == ("", "1", "over there")
    queue.get(timeout=0).reject("é" * 99)
    told = variables(path, b"a")
    assert (told["lease"], told["tries"], told["error"]) == ("", "2", "?" * 59 + "~")
    queue.redrive()
    assert variables(path, b"a")["tries"] == "0"
    queue.get(timeout=0).release()
    assert variables(path, b"a")["tries"] == "0"
    assert variables(path, b"a")["done"] == ""
    drain(queue)
    assert re.fullmatch(UTC, variables(path, b"a")["done"])
    assert b"=a\n" in path.read_bytes()


def test_annotations_are_kept_by_every_client(queue, make, path):
    """Whoever ends the lease, by its handle too; and a file of somebody else that has the room."""
    with open(path, "wb") as file:
        file.write(b"-theirs\n\\tries= \n\\odd\n\\error=\n")
    other = make()
    lease = wait_until(lambda: _try(other))
    assert variables(path, b"theirs") == {"tries": "1", "odd": "", "error": ""}
    queue.lease(lease.handle).reject("why")
    assert variables(path, b"theirs") == {"tries": "1", "odd": "", "error": ""}
    assert next(other.peek("dead")).error == "why"


def _try(queue):
    try:
        return queue.get(timeout=0)
    except Empty:
        return None


def test_copy_of_an_annotated_file_knows_tries(queue, make, path, tmp_path):
    """The journal stays behind; without one, the file is believed."""
    queue.put(b"a")
    for _ in range(2):
        queue.get(timeout=0).retry(0, "again")
    copy = tmp_path / "copy.tq"
    copy.write_bytes(path.read_bytes())
    lease = wait_until(lambda: _try(make(copy)))
    assert lease.message.attempts == 3
    copy = tmp_path / "odd.tq"
    copy.write_bytes(path.read_bytes().replace(b"\\tries=2", b"\\tries=x"))
    lease = wait_until(lambda: _try(make(copy)))
    assert lease.message.attempts == 1


def test_file_that_others_append_to_is_not_waited_for_behind_an_annotation(queue, make, path):
    """What is written over at the end of the file is known to be ours."""
    queue.put(b"a")
    queue.get(timeout=0).release()
    seal = queue.layout.ledger.seal
    with open(path, "ab") as file:
        file.write(b"-b\n")
    assert [message.body for message in queue.peek()] == [b"a", b"b"]
    assert drain(queue) == [b"a", b"b"]
    assert queue.layout.ledger.seal.stamp == seal.stamp


# --- the mutex -----------------------------------------------------------------------------------------------


def test_message_whose_mutex_is_taken_is_left_alone_for_a_lease(make, path):
    """A program that does not lock has it; if it dies, the message is delivered when the lease is over."""
    path.write_bytes(b"-theirs\n\\mutex=john  \n-free\n\\mutex=      \n")
    queue = make(lease=0.3)
    lease = wait_until(lambda: _try(queue))
    assert lease.message.body == b"free"
    assert variables(path, b"free")["mutex"] == lease.token[:5] + "~"
    assert [message.body for message in queue.peek("leased")] == [b"theirs", b"free"]
    assert variables(path, b"theirs")["mutex"] == "john"
    lease.ack()
    assert variables(path, b"free")["mutex"] == ""
    lease = wait_until(lambda: _try(queue))
    assert (lease.message.body, lease.message.attempts) == (b"theirs", 1)
    lease.release()
    assert variables(path, b"theirs")["mutex"] == ""
    assert queue.get(timeout=0).message.body == b"theirs"


def test_compat_program_honours_a_mutex_and_sets_its_own(path):
    path.write_bytes(b"-theirs\n\\mutex=john  \n-free\n\\mutex=      \n")
    with compat.TextQueue() as queue:
        queue.add_input(str(path))
        item = wait_until(queue.get_next)
        assert item.value == "free"
        item.set_variable(0, "mutex=me")
        assert variables(path, b"free")["mutex"] == "me"
        item.mark_as_cleared()
        assert queue.get_next() is None
    assert variables(path, b"free")["mutex"] == ""


def test_variables_of_another_name_are_left_alone():
    (item,) = grammar.items(b"-a\n\\mutexes=x\n\\tries=\n\\lease=ab\n")
    assert mirror.writes(item, {"mutex": "y", "tries": "1", "lease": "abcd"}) == [(29, b"a~")]


def test_annotate_is_kept_with_the_queue(path):
    with Queue.create(path, layout="text", annotate=True) as queue:
        queue.put(b"a")
    with Queue(path) as queue:
        queue.put(b"b")
    assert set(variables(path, b"b")) == {"put", "lease", "tries", "error", "done"}

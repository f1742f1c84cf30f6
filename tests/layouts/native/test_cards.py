"""Cards: what the names of tasks say, who holds them, and their side files, down to the last branch."""

import errno
import os
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.failing import failing
from support.kit import LONG, files
from support.native import remote

from dirqueue import Conflict, Empty, MessageNotFound, Queue, QueueAccess, SettingsError, Space, Unsupported
from dirqueue.layouts.native import holders, names, sidefile
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.supply import claimable
from dirqueue.message import Card, Details

ID = "1700000000000000000000001"
UNTIL = "1700000000000000"
cards = st.builds(
    Card,
    st.integers(0, 999_999_998),
    st.integers(0, 999_999_999),
    st.one_of(
        st.just(""),
        st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=36),
        st.text("abcdefghijklmnopqrstuvwxyz234567", min_size=32, max_size=32).map("={}".format),
    ),
)


@pytest.fixture
def space(tmp_path):
    with Space(tmp_path / "s", sync=False, margin=0, lease=LONG, backoff=0) as space:
        yield space


def task(space, queue="q", **more):
    """Put one task, and return it as a message."""
    t = space.transaction(holder="ann")
    t.put(queue, b"work", **more)
    [put] = t.commit().puts
    return space.message(put.id, queue)


def with_side(space, **more):
    return task(space, failures=1, **more)


def changed(space, message, **more):
    with space.transaction(holder="ann") as t:
        t.change(message, **more)
    return space.message(message.id)


def side_of(space, message):
    return os.path.join(space.path, sidefile.path_of(message.id, message.entry.card.side))


def sides(space):
    return [
        name
        for name in files(os.path.join(space.path, ".space"))
        if name.startswith("side/") and name.count("/") > 1
    ]


# --- names -----------------------------------------------------------------------------------------------------


@given(card=cards, n=st.integers(0, 999_999), token=st.sampled_from(["", "h-1-2", "ann__2-1"]))
def test_cards_are_parsed_and_rebuilt(card, n, token):
    text = names.waiting(ID, int(UNTIL), n, card.text, token)
    name = names.parse(text)
    assert (name.text, name.card, name.attempts, name.token) == (text, card, n, token)
    assert name.kind == ("leased" if token and n else "delayed")
    assert names.card_at(f"leased/{text}") == card
    assert names.card_at(f"leased/{text}.un.{ID}-7") == card
    assert names.parse_card(names.raised(text)) == card.raised()
    acked = names.parse(f"{text}.ack")
    assert acked is None if not token else (acked.kind, acked.card) == ("acked", card)


@pytest.mark.parametrize(
    "card",
    [
        "~",
        "~1",
        "~1~",
        "~01~0",
        "~1~00",
        "~1~0~",
        "~1~0~a b",
        "~1~0~=abc",
        "~1~0~" + "k" * 37,
        "~1~0~k~",
        "~-1~0",
        "~1~0\n",
    ],
)
def test_what_is_no_card_is_foreign(card):
    assert names.parse(f"{ID}.{UNTIL}.1{card}") is None
    assert names.parse(f"{ID}.{UNTIL}.1.token{card}") is None


def test_cards_need_a_time_and_deliveries():
    assert names.parse(f"{ID}~1~0") is None
    assert names.parse(f"{ID}.{UNTIL}~1~0") is None
    assert names.parse(f"{ID}.{UNTIL}.1.ack~1~0") is not None  # a token like any other
    assert names.parse(f"{ID}.{UNTIL}.1.ack") is not None
    assert names.card_at(f"{ID}.new~") is None
    assert names.raised(ID) == ""


# --- holders ---------------------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=80))
def test_holders_come_back_letter_for_letter(text):
    try:
        written = holders.who(text)
    except SettingsError:
        return  # a surrogate
    token = holders.new_token(written)
    assert len(token) <= 100
    assert holders.written_in(token) == written
    assert names.parse(f"{ID}.{UNTIL}.1.{token}~1~0") is not None
    assert holders.next_token(token) != token


@pytest.mark.parametrize("holder", ["", 7, None, "x" * 4097, "\udc80"])
def test_what_is_no_text_is_no_holder(holder):
    with pytest.raises(SettingsError, match="holder"):
        holders.who(holder)


def test_a_holder_that_nobody_knows_any_more_is_shown_by_its_token(space):
    holder = "long " * 100
    t = space.transaction(holder=holder)
    t.put("q", b"x")
    t.commit()
    [message] = space.messages("q")
    assert message.holder == holder
    [kept] = os.listdir(os.path.join(space.path, ".space", "holders"))
    os.unlink(os.path.join(space.path, ".space", "holders", kept))
    assert message.holder == message.token
    assert space.get("q", timeout=0, holder=holder).message.holder == holder  # written again


def test_a_text_that_is_none_is_shown_by_its_token(space):
    message = task(space)
    old = os.path.join(space.path, "q", message.entry.place)
    new = old.replace("ann__", "_FF__")
    os.rename(old, new)
    [message] = space.messages("q")
    assert message.holder == message.token


def test_a_holder_in_a_directory_that_is_gone_gets_nothing(tmp_path):
    queue = Queue(tmp_path / "q", sync=False)
    assert queue.layout.claim_for("ann", 1) is None


def test_a_holder_that_cannot_be_kept_is_an_error(space):
    space.put("q", b"x")
    with failing("utime", errno.EACCES), pytest.raises(QueueAccess, match="keep the name of a holder"):
        space.get("q", timeout=0, holder="x" * 100)


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "text"])
def test_other_layouts_have_no_place_for_holders(tmp_path, layout):
    queue = Queue.create(tmp_path / "q", layout=layout)
    queue.put(b"x")
    with pytest.raises(Unsupported, match="cannot keep who holds"):
        queue.get(timeout=0, holder="ann")
    message = queue.get(timeout=0).message
    assert (message.own_id, message.failures) == (None, 0)
    assert message.holder == (message.token or None)
    assert message.version == message.attempts


# --- side files ------------------------------------------------------------------------------------------------


def test_a_side_file_that_is_missing_makes_a_message_dead(space):
    message = with_side(space)
    os.unlink(side_of(space, message))
    with pytest.raises(QueueAccess, match="side file is missing or damaged"):
        message.failures  # noqa: B018
    with pytest.raises(QueueAccess, match="side file is missing or damaged"):
        message.data  # noqa: B018
    with pytest.raises(Empty):
        space.get("q", timeout=0)
    [dead] = space.queue("q").peek("dead")
    assert "side file is missing" in dead.error
    assert dead.to_dict()["failures"] is dead.to_dict()["size"] is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[", b'{"version": "x"}\n', b"\xff\n"])
def test_a_side_file_that_is_damaged_is_told(space, content):
    message = with_side(space)
    with open(side_of(space, message), "wb") as file:
        file.write(content)
    with pytest.raises(QueueAccess, match="missing or damaged"):
        message.size  # noqa: B018
    with pytest.raises(QueueAccess, match="missing or damaged"):
        message.open()


def test_a_side_file_of_a_later_version_is_not_its_own(space):
    message = with_side(space)
    later = sidefile.dumps(Details(7, body=b"of another"))
    with open(side_of(space, message), "wb") as file:
        file.write(later)
    with pytest.raises(QueueAccess, match="missing or damaged"):
        message.body  # noqa: B018


def test_a_message_that_moved_on_meanwhile_is_not_there(space):
    message = changed(space, with_side(space), body=b"one")
    changed(space, message, body=b"two")
    stale = space.messages("q")
    assert [each.body for each in stale] == [b"two"]
    with pytest.raises(MessageNotFound):
        message.body  # noqa: B018
    with pytest.raises(MessageNotFound):
        message.failures  # noqa: B018


def test_every_reader_gets_the_replaced_body(space):
    message = changed(space, task(space), body=b"other")
    assert (message.data, message.size, message.open().read()) == (b"other", 5, b"other")
    same = changed(space, message, failures=2)
    assert (same.data, same.failures) == (b"other", 2)
    from dirqueue.layouts.native.bodies import Bodies

    bodies = Bodies(space.queue("q").layout.directory)
    assert bodies.load(same.entry.place) == b"other"
    plain = changed(space, task(space), failures=3)
    assert (plain.size, plain.data) == (4, b"work")
    with plain.open() as stream:
        assert stream.read() == b"work"


def test_a_claimed_file_has_the_replaced_body_and_the_later_error(space):
    changed(space, task(space), body=b"other", error="set")
    lease = space.get("q", timeout=0)
    assert (lease.message.body, lease.message.error) == (b"other", "set")
    lease.retry(0, "failed")
    [seen] = space.messages("q")
    assert seen.error == "failed"
    seen = changed(space, seen, error=None)
    assert seen.error is None
    seen = changed(space, seen, error="again")
    assert (seen.error, seen.failure.trace) == ("again", None)


def test_a_redriven_task_keeps_its_card(space):
    message = with_side(space)
    space.get("q", timeout=0).reject("bad")
    space.queue("q").redrive()
    seen = space.message(message.id)
    assert (seen.state, seen.version, seen.attempts, seen.failures) == ("ready", 3, 0, 1)


def test_a_long_holder_needs_a_space(tmp_path):
    queue = Queue(tmp_path / "q", sync=False)
    queue.put(b"x")
    with pytest.raises(SettingsError, match="needs a Space"):
        queue.get(timeout=0, holder="x" * 65)


def test_purge_removes_the_texts_of_holders_that_nobody_is(space):
    space.stale = 0
    for holder in ("x" * 100, "y" * 100):
        space.put("q", b"x")
        space.get("q", timeout=0, holder=holder)
    space.queue("q").lease(space.messages("q")[0].entry.place).ack()
    folder = os.path.join(space.path, ".space", "holders")
    for name in os.listdir(folder):
        os.utime(os.path.join(folder, name), (1_700_000_000, 1_700_000_000))
    space.purge()
    assert [message.holder for message in space.messages("q")] == ["y" * 100]
    assert len(os.listdir(folder)) == 1


def test_a_link_with_a_replaced_body(tmp_path):
    with Space(tmp_path / "s", sync=False, links=True) as space:
        changed(space, task(space), body=b"other")
        assert space.get("q", timeout=0).message.body == b"other"
        changed(space, task(space), failures=3)
        assert space.get("q", timeout=0).message.body == b"work"


# --- every rename carries it along -----------------------------------------------------------------------------


def test_an_own_priority_keeps_its_side_file(tmp_path):
    Space.create(tmp_path / "s", priorities=True)
    with Space(tmp_path / "s", sync=False) as space:
        message = changed(space, task(space, priority=5), body=b"other")
        again = message.change(priority=2)
        assert (again.priority, again.version, again.body) == (2, 2, b"other")


def test_a_task_is_changed_and_cancelled_by_the_message_itself(space):
    message = with_side(space).change(delay=60)
    assert (message.state, message.version, message.failures) == ("delayed", 1, 1)
    message = message.change(delay=0)
    assert (message.state, message.version) == ("ready", 2)
    assert "/" not in message.entry.place
    message.cancel()
    assert not sides(space)


def test_removing_a_task_removes_its_side_file(space):
    with_side(space)
    assert space.queue("q").flush() == 1
    assert not sides(space)


def test_cancelled_tasks_are_kept_with_their_side_files(tmp_path):
    with Space(tmp_path / "s", sync=False, keep_done=True) as space:
        with_side(space, id="k").cancel()
        done = space.message("k")
        assert (done.state, done.version, done.failures) == ("done", 1, 1)


def test_a_task_out_of_attempts_is_buried_with_its_card(tmp_path):
    with Space(tmp_path / "s", sync=False, margin=0, max_attempts=1) as space:
        message = with_side(space)
        lease = space.get("q", timeout=0, lease=0.05)
        while space.now() <= lease.until:
            pass
        with pytest.raises(Empty):
            space.get("q", timeout=0)
        dead = space.message(message.id)
        assert (dead.state, dead.failures) == ("dead", 1)
        assert dead.version > lease.message.version


@pytest.mark.parametrize("verb", ["ack", "release", "retry", "renew"])
def test_on_network_filesystems_too(space, verb):
    message = with_side(space)
    queue = remote(space.queue("q"))
    lease = queue.get(timeout=0)
    lease.retry(0) if verb == "retry" else getattr(lease, verb)()
    if verb == "ack":
        assert space.empty("q")
    else:
        assert space.message(message.id).version == 2


def test_a_full_disk_keeps_the_card(space):
    message = task(space)
    lease = space.get("q", timeout=0)
    with failing("rename", errno.ENOSPC, when=of_later, times=9):
        lease.retry(60)
    [seen] = space.messages("q")
    assert (seen.id, seen.version) == (message.id, 2)
    assert seen.entry.place.startswith("leased/")


def of_later(_src, dst, **_):
    return "later/" in dst


# --- lots ------------------------------------------------------------------------------------------------------


def pinned(space, consumer="my__app"):
    queue = space.queue("q")
    mine = Pins(queue.layout.directory, queue.settings, consumer)
    mine.register(600.0)
    count = mine.pin(1, claimable(mine.directory, mine.settings), Limit())
    return mine, count


def test_pinned_tasks_have_the_next_version(space):
    with_side(space, id="k")
    space.put("q", b"plain")
    mine, count = pinned(space)
    assert count == 2
    seen = space.message("k")
    assert (seen.state, seen.version, seen.holder, seen.failures) == ("leased", 1, "my__app", 1)
    t = space.transaction(holder="my")
    t.cancel(seen)
    with pytest.raises(Conflict) as caught:
        t.commit()
    assert [ref.id for ref in caught.value.held] == [seen.id]
    mine.release(1)
    free = space.message("k")
    assert (free.state, free.version) == ("ready", 1)
    assert space.get("q", timeout=0).message.version == 2


@pytest.mark.parametrize("keep", [False, True])
def test_acknowledged_lots_take_side_files_along(space, keep):
    with_side(space, id="k")
    mine, _ = pinned(space)
    mine.ack(1, keep=keep)
    assert bool(sides(space)) == keep
    if keep:
        done = space.message("k")
        assert (done.state, done.version, done.failures) == ("done", 2, 1)


def test_directories_with_tasks_are_not_taken_whole(tmp_path):
    """Outside of a space, where whole directories are taken, each task still gets its next version."""
    queue = Queue(tmp_path / "q", sync=False)
    queue.put_many([b"1", b"2", b"3"])
    lease = queue.get(timeout=0, holder="ann")
    [batch] = [name for name in os.listdir(queue.path) if name.endswith(".batch")]
    lease.retry(0)
    [bucket] = os.listdir(os.path.join(queue.path, "later"))
    [name] = os.listdir(os.path.join(queue.path, "later", bucket))
    os.rename(os.path.join(queue.path, "later", bucket, name), os.path.join(queue.path, batch, name))
    mine = Pins(queue.layout.directory, queue.settings, "c")
    mine.register(600.0)
    assert mine.pin(1, claimable(mine.directory, mine.settings), Limit()) == 3
    assert sorted(message.version for message in queue.peek("leased")) == [1, 1, 3]

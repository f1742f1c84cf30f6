"""Tasks: versions, holders, ids of one's own, replaced bodies; what EntroQ's clients need of a space."""

import os
from datetime import UTC, datetime, timedelta

import pytest

import dirqueue
from dirqueue import Conflict, Empty, Queue, SettingsError, Space
from dirqueue.layouts.native import names

ANN, BOB = "ann", "Bob the 2nd/é"


@pytest.fixture(params=[False, True], ids=["files", "links"])
def space(request, tmp_path):
    with Space(tmp_path / "s", sync=False, margin=0, links=request.param) as space:
        yield space


def put(space, queue="q", body=b"work", holder=ANN, **more):
    """Put one task; return what the commit told of it."""
    t = space.transaction(holder=holder)
    t.put(queue, body, **more)
    [put] = t.commit().puts
    return put


def change(space, what, holder=ANN, **more):
    t = space.transaction(holder=holder)
    t.change(what, **more)
    [changed] = t.commit().changes
    return changed


def sides(space):
    found = []
    for folder, _, files in os.walk(os.path.join(space.path, ".space", "side")):
        found += [os.path.join(folder, name) for name in files]
    return found


# --- life ----------------------------------------------------------------------------------------------------


def test_a_task_is_put_by_its_holder_and_is_not_leased(space):
    written = put(space)
    message = space.message(written.id)
    assert (written.version, written.queue, written.attempts) == (0, "q", 0)
    assert (message.version, message.state, message.holder, message.attempts) == (0, "ready", ANN, 0)
    assert message.body == b"work"


def test_claims_count_versions_and_tell_the_holder(space):
    written = put(space)
    lease = space.get("q", timeout=0, holder=BOB)
    assert lease.message.id == written.id
    seen = space.message(written.id)
    for message in (lease.message, seen):
        assert (message.version, message.holder, message.attempts, message.state) == (1, BOB, 1, "leased")
    lease.renew(60)
    assert (lease.message.version, lease.message.holder) == (2, BOB)
    lease.retry(0, "no luck")
    again = space.message(written.id)
    assert (again.version, again.holder, again.attempts, again.error) == (3, None, 1, "no luck")


@pytest.mark.parametrize("verb", ["release", "retry", "reject"])
def test_every_end_of_a_lease_raises_the_version(space, verb):
    written = put(space, id="mine")
    lease = space.get("q", timeout=0, holder=BOB)
    lease.retry(0) if verb == "retry" else getattr(lease, verb)()
    message = space.message("mine")
    assert (message.id, message.version, message.own_id) == (written.id, 2, "mine")
    if verb == "reject":
        assert message.state == "dead"
        space.queue("q").redrive()
        message = space.message("mine")
        assert (message.state, message.version, message.attempts, message.own_id) == ("ready", 3, 0, "mine")
    assert space.get("q", timeout=0).message.id == written.id


def test_plain_consumers_carry_the_card_along(space):
    written = put(space, failures=2, error="before")
    queue = Queue(os.path.join(space.path, "q"), sync=False)
    lease = queue.get(timeout=0)
    assert (lease.message.version, lease.message.failures, lease.message.error) == (1, 2, "before")
    assert lease.message.holder == lease.token
    lease.renew()
    lease.release()
    assert queue.message(written.id).version == 3
    queue.get(timeout=0).ack()
    assert not sides(space)


def test_a_plain_message_gets_a_card_when_a_holder_claims_it(space):
    space.put("q", b"plain")
    lease = space.get("q", timeout=0, holder=ANN)
    assert (lease.message.version, lease.message.attempts) == (1, 1)
    lease.retry(0)
    again = space.get("q", timeout=0)
    assert (again.message.version, again.message.attempts) == (3, 2)


def test_kept_tasks_keep_their_cards(tmp_path):
    with Space(tmp_path / "s", sync=False, keep_done=True) as space:
        put(space, id="kept", failures=1)
        space.get("q", timeout=0, holder=ANN).ack()
        message = space.message("kept")
        assert (message.state, message.version, message.failures, message.own_id) == ("done", 2, 1, "kept")


# --- changes -------------------------------------------------------------------------------------------------


def test_change_replaces_the_body_for_every_reader(space):
    written = put(space, body=b"old")
    lease = space.get("q", timeout=0, holder=ANN)
    changed = change(space, lease, body=b"new body")
    assert (changed.id, changed.version, changed.attempts) == (written.id, 2, 1)
    assert lease.ended == "released"
    message = space.message(written.id)
    assert (message.body, message.size, message.holder, message.version) == (b"new body", 8, None, 2)
    with message.open() as stream:
        assert stream.read() == b"new body"
    plain = Queue(os.path.join(space.path, "q"), sync=False).get(timeout=0)
    assert plain.message.body == b"new body"
    plain.ack()
    assert not sides(space)


def test_change_keeps_what_is_not_given(space):
    written = put(space, body=b"first", failures=3, error="broken", id="k")
    message = space.message("k")
    changed = change(space, message, delay=60)
    seen = space.message("k")
    assert (seen.version, seen.state, seen.failures, seen.error) == (1, "delayed", 3, "broken")
    assert seen.until == changed.until
    change(space, seen, body=b"second")
    seen = space.message("k")
    assert (seen.version, seen.body, seen.failures, seen.error, seen.own_id) == (
        2,
        b"second",
        3,
        "broken",
        "k",
    )
    assert seen.until == changed.until
    change(space, seen, failures=0, error=None, at=datetime.now(UTC) - timedelta(days=400))
    seen = space.message("k")
    assert (seen.version, seen.body, seen.failures, seen.error, seen.state) == (
        3,
        b"second",
        0,
        None,
        "ready",
    )
    assert len(sides(space)) == 1
    assert seen.id == written.id


def test_change_moves_and_keeps_or_resets_attempts(space):
    put(space, id="k")
    lease = space.get("q", timeout=0, holder=ANN)
    changed = change(space, lease, queue="other", delay=0)
    assert (changed.queue, changed.version, changed.attempts) == ("other", 2, 1)
    seen = space.message("k")
    assert (space.queue_of(seen), seen.version, seen.attempts, seen.state) == ("other", 2, 1, "ready")
    changed = change(space, seen, attempts=0)
    assert (changed.version, changed.attempts) == (3, 0)
    assert space.get("other", timeout=0).message.own_id == "k"


def test_only_the_holder_may_change_what_is_held(space):
    put(space)
    lease = space.get("q", timeout=0, holder=ANN)
    [seen] = space.messages("q")
    for verb in ("change", "cancel", "move", "renew"):
        for other in (BOB, None):
            t = space.transaction(holder=other)
            getattr(t, verb)(
                seen, *(["other"] if verb == "move" else []), **({"delay": 1} if verb == "change" else {})
            )
            with pytest.raises(Conflict) as caught:
                t.commit()
            assert [(ref.id, ref.queue, ref.version) for ref in caught.value.held] == [(seen.id, "q", 1)]
    t = space.transaction(holder=ANN)
    t.renew(seen, 60)
    [renewed] = t.commit().changes
    assert renewed.version == 2
    with pytest.raises(dirqueue.LeaseLost):
        lease.ack()
    [seen] = space.messages("q")
    assert (seen.holder, seen.version, seen.state) == (ANN, 2, "leased")
    with space.transaction(holder=ANN) as t:
        t.cancel(seen)
    assert space.empty("q")


def test_a_lease_that_is_over_protects_nothing(space):
    put(space)
    space.get("q", timeout=0, holder=ANN, lease=0.05)
    [seen] = space.messages("q")
    while space.now() <= seen.until:
        pass
    assert change(space, seen, holder=BOB, body=b"x").version == 2


def test_all_conflicts_are_told_at_once(space):
    put(space, id="taken")
    for name in ("gone", "changed", "held", "same"):
        put(space, queue=name, id=name)
    seen = {name: space.message(name) for name in ("gone", "changed", "held", "same")}
    with space.transaction() as t:
        t.cancel(seen["gone"])
    change(space, seen["changed"], delay=0)
    space.get("held", timeout=0, holder=BOB)
    held = space.message("held")
    t = space.transaction(holder=ANN)
    t.cancel(seen["gone"])
    t.change(seen["changed"], body=b"lost")
    t.change(held, delay=0)
    t.need(seen["same"])
    t.put("new", b"x", id="taken")
    with pytest.raises(Conflict) as caught:
        t.commit()
    error = caught.value
    assert [(ref.queue, ref.version) for ref in error.missing] == [("gone", 0)]
    assert [(ref.queue, ref.version) for ref in error.changed] == [("changed", 0)]
    assert [(ref.queue, ref.version) for ref in error.held] == [("held", 1)]
    assert [ref.id for ref in error.taken] == ["taken"]
    assert len(sides(space)) == 0
    assert space.message("changed").version == 1


def test_several_changes_are_one_transaction(space):
    for name in "abc":
        put(space, queue=name, body=name.encode(), id=name)
    need = space.message("c")
    t = space.transaction(holder=ANN)
    t.change(space.message("a"), body=b"A", failures=1, error="why")
    t.change(space.message("b"), queue="c", delay=5)
    t.need(need)
    t.put("new", b"n", id="n", delay=9)
    done = t.commit()
    assert [each.version for each in done.changes] == [1, 1]
    assert [each.queue for each in done.changes] == ["a", "c"]
    assert (done.changes[1].until - done.at).total_seconds() == 5
    assert (done.puts[0].until - done.at).total_seconds() == 9
    a = space.message("a")
    assert (a.body, a.failures, a.error) == (b"A", 1, "why")
    assert not [
        name for _, _, files in os.walk(space.path) for name in files if ".mv." in name or ".if." in name
    ]


# --- ids of one's own ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "own",
    [
        "order-17",
        "1ee2c3b0-5c8f-4b1c-9c2e-1d6c1f0a9b7e",
        "a b/c",
        "é" * 64,
        "💡" * 64,
        "x" * 200,
        "~1~2",
        "=",
    ],
)
def test_ids_of_any_text_are_shown_by_listings(space, own):
    put(space, id=own)
    [seen] = space.messages("q")
    assert seen.own_id == own
    assert space.message(own).id == seen.id
    with pytest.raises(Conflict) as caught:
        put(space, id=own)
    assert [ref.id for ref in caught.value.taken] == [own]
    lease = space.get("q", timeout=0)
    assert lease.message.own_id == own
    lease.ack()
    assert not sides(space)
    put(space, id=own)


def test_an_id_that_is_too_long_is_refused(space):
    with pytest.raises(dirqueue.InvalidId, match="200 characters"):
        put(space, id="x" * 201)


# --- holders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holder", ["a", "host__1", "_x", "π/ζ", "x" * 64, "long " * 100, "=~."])
def test_any_text_is_a_holder(space, holder):
    put(space, holder=holder)
    [seen] = space.messages("q")
    assert seen.holder == holder
    lease = space.get("q", timeout=0, holder=holder)
    assert space.message(seen.id).holder == holder
    with space.transaction(holder=holder) as t:
        t.cancel(space.message(seen.id))
    with pytest.raises(dirqueue.LeaseLost):
        lease.ack()


@pytest.mark.parametrize("holder", ["", 7, "x" * 5000, "\udc80"])
def test_what_is_no_holder_is_refused(space, holder):
    with pytest.raises(dirqueue.SettingsError, match="holder"):
        space.transaction(holder=holder)
    space.put("q", b"x")
    with pytest.raises(dirqueue.SettingsError, match="holder"):
        space.get("q", timeout=0, holder=holder)


def test_a_long_holder_needs_a_space(tmp_path):
    queue = Queue(tmp_path / "q", sync=False)
    queue.put(b"x")
    with pytest.raises(dirqueue.SettingsError, match="needs a Space"):
        queue.get(timeout=0, holder="x" * 65)
    lease = queue.get(timeout=0, holder="x" * 64)
    assert lease.message.holder == "x" * 64
    assert os.listdir(tmp_path) == ["q"]


def test_names_of_tasks_are_never_too_long(space):
    """The longest of all, with a condition: a priority, a holder, a key."""
    id = "999999999" + "9" * 25
    text = names.leased(id, 9_999_999_999_999_999, 999_999, "x" * 100, f"~{'9' * 9}~{'9' * 9}~{'k' * 36}")
    name = text.removeprefix("leased/")
    assert names.parse(name) is not None
    assert len(f"{name}.un.{'9' * 25}-{'9' * 9}") == 255


def test_who_holds_what_is_told_by_holder(space):
    from dirqueue.tools.holders import holders

    for _ in range(3):
        put(space)
    for holder in (ANN, ANN, None):
        space.get("q", timeout=0, holder=holder)
    found = {each.name: len(each.ids) for each in holders(space.queue("q"))}
    assert found.pop(ANN) == 2
    [(plain, count)] = found.items()
    assert (plain.count("-") >= 1, count) == (True, 1)


def test_copies_of_a_space_keep_failures_and_own_ids(space, tmp_path):
    import io

    put(space, id="k", failures=2, error="why")
    put(space, failures=1)
    change(space, space.message("k"), body=b"replaced")
    file = io.StringIO()
    assert space.export(file).messages == 2
    file.seek(0)
    with Space(tmp_path / "copy", sync=False) as copy:
        assert copy.import_(file).messages == 2
        seen = copy.message("k")
        assert (seen.body, seen.failures, seen.error, seen.own_id) == (b"replaced", 2, "why", "k")
        assert sorted(message.failures for message in copy.messages("q")) == [1, 2]


# --- changes that keep hold --------------------------------------------------------------------------------


def test_a_change_can_keep_hold_of_what_was_claimed(space):
    """Nobody else gets it before the time, and only its holder may change it until then."""
    space.put("q", b"1")
    lease = space.get("q", timeout=0, lease=60, holder="ann")
    with space.transaction(holder="ann") as transaction:
        transaction.change(lease, delay=600, failures=1, error="not yet", hold=True)
    (message,) = space.messages("q")
    assert (message.state, message.holder, message.attempts, message.failures) == ("leased", "ann", 1, 1)
    assert message.version == lease.message.version + 1
    with pytest.raises(Conflict) as refused, space.transaction(holder="bob") as transaction:
        transaction.cancel(message)
    assert [ref.id for ref in refused.value.held] == [message.id]
    with space.transaction(holder="ann") as transaction:
        transaction.cancel(message)
    assert space.empty("q")


def test_what_was_never_claimed_waits_in_the_name_of_its_holder(space):
    with space.transaction(holder="ann") as transaction:
        transaction.put("q", b"1")
    (message,) = space.messages("q")
    transaction = space.transaction(holder="bob")
    transaction.change(message, delay=600, hold=True)
    (written,) = transaction.commit().changes
    (found,) = space.messages("q")
    assert (found.state, found.holder, found.attempts) == ("delayed", "bob", 0)
    assert found.entry.place == written.place
    with pytest.raises(Empty):
        space.get("q", timeout=0)


def test_a_change_that_holds_until_now_releases(space):
    space.put("q", b"1")
    lease = space.get("q", timeout=0, holder="ann")
    with space.transaction(holder="ann") as transaction:
        transaction.change(lease, delay=0, hold=True)
    (message,) = space.messages("q")
    assert (message.state, message.holder) == ("ready", None)


def test_to_hold_takes_a_holder(space):
    space.put("q", b"1")
    (message,) = space.messages("q")
    with pytest.raises(SettingsError, match="holder"):
        space.transaction().change(message, delay=1, hold=True)

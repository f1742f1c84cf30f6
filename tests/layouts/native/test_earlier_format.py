"""A queue of the earlier format, which had all live states at the top and no buckets, is used as it is."""

import os
import time
from pathlib import Path

import pytest
from support.kit import LONG, files
from support.native import listed, place_of

from dirqueue import Empty, LeaseLost, waiting
from dirqueue.layouts.native.supply import claimable

#: None that one of the directories below has.
NUMBERS = iter(range(1000, 1 << 30))
#: Where the earlier format had live messages: the top, and directories of them.
FOLDERS = {
    "top": "",
    "slice": "1600000000000000000000000.slice",
    "batch": "1600000000000000000000000.batch",
    "part": "1600000000000000000000000.batch/1600000000000000000000001.part",
}
FORMS = {
    "delayed": "{past}.0",
    "retried": "{past}.2",
    "leased": "{past}.1.host-1-a-1",
    "vsqs": "{past}",
    "vsqs in milliseconds": "{millis}",
}


def now():
    return time.time_ns() // 1000


def lay(queue, folder, form, until=None):
    """Make a message as the earlier format had it; return its id."""
    until = now() - 1_000_000 if until is None else until
    id = f"16000000000000{next(NUMBERS):011d}"
    path = Path(queue.path, folder)
    path.mkdir(parents=True, exist_ok=True)
    name = f"{id}.{form.format(past=until, millis=until // 1000)}"
    (path / name).write_bytes(name.encode())
    return id


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_message_is_counted_claimed_and_acknowledged_where_it_lies(make, folder, form):
    """What is over is claimable, its deliveries are counted on, and its claim is one of the new format."""
    queue = make()
    id = lay(queue, folder, form)
    held = "leased" if form in (FORMS["leased"], FORMS["vsqs"], FORMS["vsqs in milliseconds"]) else "ready"
    assert getattr(queue.stats(), held) == 1
    assert queue.message(id).state == held
    before = queue.message(id).attempts
    lease = queue.get(timeout=0)
    assert (lease.message.id, lease.message.attempts) == (id, before + 1)
    assert lease.handle == place_of(queue, id)
    assert lease.handle.startswith(f"leased/{id}.")
    lease.ack()
    assert len(queue) == 0


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_message_whose_time_is_not_over_is_left_alone_and_its_end_is_known(make, folder, form):
    """A wait would end then."""
    queue = make()
    lay(queue, folder, form, now() + 1_000_000 * int(LONG))
    with pytest.raises(Empty):
        queue.get(timeout=0)
    assert 0 < queue.layout.wakes_in() <= LONG


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
@pytest.mark.parametrize("form", ["leased", "vsqs", "vsqs in milliseconds"])
def test_lease_is_left_alone_for_the_margin(make, folder, form):
    """Hosts whose clocks disagree need it, wherever the lease lies."""
    queue, patient = make(), make(margin=LONG)
    lay(queue, folder, FORMS[form])
    with pytest.raises(Empty):
        patient.get(timeout=0)
    queue.get(timeout=0)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_message_whose_time_comes_ends_a_wait(make, monkeypatch, form):
    """No poll comes to its help."""
    monkeypatch.setattr(waiting, "LONGEST_WATCHED", LONG)
    queue = make()
    id = lay(queue, "", form, now() + 200_000)
    assert queue.get(timeout=LONG).message.id == id


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)
@pytest.mark.parametrize("verb", ["ack", "renew", "retry", "release", "reject"])
def test_lease_of_an_earlier_program_is_taken_over_by_its_handle(make, folder, verb):
    """The handle is the path that the earlier program printed."""
    queue = make()
    until = now() + 600_000_000
    id = lay(queue, folder, "{past}.2.host-1-a-1", until)
    handle = os.path.join(folder, f"{id}.{until}.2.host-1-a-1")
    lease = queue.lease(handle)
    getattr(lease, verb)()
    if verb == "ack":
        assert len(queue) == 0
    else:
        room = {"renew": "leased/", "retry": "later/", "release": "later/", "reject": "dead/"}[verb]
        assert place_of(queue, id).startswith(room)
    if verb == "renew":
        lease.ack()
    with pytest.raises(LeaseLost):
        queue.lease(handle)


def test_note_of_an_earlier_program_goes_along(make):
    """It lies beside its message at the top; the delivery shows it, and it is gone when the message is."""
    queue = make()
    id = lay(queue, "", FORMS["retried"])
    Path(queue.path, f"{id}.error").write_text('{"error": "why", "at": 1600000000000000}')
    assert queue.message(id).error == "why"
    lease = queue.get(timeout=0)
    assert lease.message.error == "why"
    assert [name for name in files(queue.path) if name.endswith(".error")] == [f"leased/{id}.error"]
    lease.ack()
    assert not [name for name in files(queue.path) if name.endswith(".error")]


@pytest.mark.parametrize("form", [FORMS["retried"], FORMS["leased"], FORMS["vsqs"]])
def test_message_that_is_spent_is_buried_where_it_lies(make, form):
    """By a consumer, or by a purge."""
    for by in ("get", "purge"):
        queue = make(max_attempts=1)
        id = lay(queue, "", form)
        if by == "get":
            with pytest.raises(Empty):
                queue.get(timeout=0)
        else:
            assert queue.purge().buried == 1
        assert place_of(queue, id).startswith("dead/")
        assert len(place_of(queue, id).split("/")) == 3


def test_message_is_cancelled_and_changed_where_it_lies(make):
    """Its next name is one of the new format."""
    queue = make()
    first, second = (lay(queue, "", FORMS["delayed"], now() + 600_000_000) for _ in range(2))
    queue.message(first).cancel()
    queue.message(second).change(delay=LONG)
    assert place_of(queue, second).startswith("later/")
    assert len(queue) == 1


@pytest.mark.parametrize("state", ["dead", "done"])
def test_ended_message_without_a_bucket_is_seen_kept_and_purged(make, state):
    """By its own time, as those in buckets."""
    queue = make(keep_dead_for=3600, keep_done_for=3600)
    old = lay(queue, state, "{past}.3", 1_600_000_000_000_000)
    young = lay(queue, state, "{past}.3")
    assert {message.id for message in queue.peek(state)} == {old, young}
    queue.put(b"one")
    purged = queue.purge()
    assert getattr(purged, state) == 1
    assert [message.id for message in queue.peek(state)] == [young]


def test_dead_message_without_a_bucket_is_redriven(make):
    """With its note gone and its attempts forgotten."""
    queue = make()
    id = lay(queue, "dead", "{past}.3")
    note = Path(queue.path, "dead", f"{id}.error")
    note.write_text('{"error": "why", "at": 1600000000000000}')
    assert next(queue.peek("dead")).error == "why"
    assert queue.redrive() == [id]
    assert place_of(queue, id) == id
    assert not note.exists()


def test_whole_queue_is_drained_in_order(make):
    """All forms in all places, among messages of the new format; then nothing is left but rooms."""
    queue = make()
    ids = [lay(queue, folder, form) for folder in FOLDERS.values() for form in FORMS.values()]
    flat = [id for id in ids if place_of(queue, id).count("/") == 0]
    ids += [queue.put(b"new") for _ in range(3)]
    got = []
    for _ in ids:
        lease = queue.get(timeout=0)
        got.append(lease.message.id)
        lease.ack()
    assert sorted(got) == sorted(ids)
    assert [id for id in got if id in flat] == flat
    with pytest.raises(Empty):
        queue.get(timeout=0)
    queue.purge()
    assert not [name for name in files(queue.path) if name[0].isdigit()]


def test_lots_are_taken_from_where_messages_lie(make):
    """Consumers of many at once see the earlier places too."""
    queue = make()
    ids = {lay(queue, folder, form) for folder in FOLDERS.values() for form in FORMS.values()}
    supply = claimable(queue.layout.directory, queue.settings)
    assert {name.partition(".")[0] for _, name in iter(supply.take, None)} == ids


def test_nothing_writes_where_the_earlier_format_did(make):
    """A life of every kind leaves no state at the top but ready."""
    queue = make(max_attempts=3)
    for _ in range(3):
        queue.put(b"one")
        queue.put(b"two", delay=LONG)
    queue.put_many([b"a", b"b"])
    queue.get(timeout=0).retry(LONG, "why")
    queue.get(timeout=0).reject("no")
    queue.get(timeout=0).renew()
    assert [name for name in listed(queue, "") if name.count(".") > 1 and name[0].isdigit()] == []
    assert [name for name in listed(queue, "dead") if not name.isdigit()] == []

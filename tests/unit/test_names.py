"""Names, ids and tokens: what is parsed is rebuilt, what is made is unique."""

import string
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kit import PATIENCE, in_child

from dirqueue import InvalidId, SettingsError, settings
from dirqueue.disk import identity
from dirqueue.layouts.native import names

ids = st.one_of(
    st.integers(10**12, 10**13 - 1), st.integers(10**15, 10**16 - 1), st.integers(10**24, 10**34 - 1)
).map(str)
ends = st.one_of(st.integers(10**12, 10**13 - 1), st.integers(10**15, 10**16 - 1)).map(str)
counts = st.integers(0, 999_999).map(str)
tokens = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=100)


@given(id=ids, until=ends, n=counts, token=tokens)
def test_every_form_is_parsed_and_rebuilt(id, until, n, token):
    """What parse accepts, text gives back letter for letter, with its parts."""
    micros = int(until) * (1000 if len(until) == 13 else 1)
    for text, kind, parts in (
        (id, "ready", (0, 0, "")),
        (f"{id}.{until}.{n}", "delayed", (micros, int(n), "")),
        (f"{id}.{until}.{n}.{token}", "leased", (micros, int(n), token)),
        (f"{id}.{until}.{n}.{token}.ack", "acked", (micros, int(n), token)),
        (f"{id}.{until}", "leased", (micros, 1, "")),
        (f"{id}.new", "new", (0, 0, "")),
        (f"{id}.batch.new", "batch.new", (0, 0, "")),
        (f"{id}.slice", "slice", (0, 0, "")),
    ):
        name = names.parse(text)
        assert (name.text, name.kind, name.id) == (text, kind, id)
        assert (name.until, name.attempts, name.token) == parts


@given(st.text(max_size=80))
def test_other_names_are_not_messages(text):
    """Whatever parse accepts is ASCII, has no slash, and begins with an id."""
    name = names.parse(text)
    if name is not None:
        assert text.isascii()
        assert "/" not in text
        assert names.check_id(name.id) == text.partition(".")[0]


@given(st.text(alphabet="0123456789.newbatchslip/\n\x00²", max_size=60))
def test_nothing_close_to_a_name_slips_through(text):
    """Accepted or not, the rest of the line is part of the verdict."""
    if names.parse(text):
        assert names.parse(text + "\n") is None
        assert names.parse("/" + text) is None
        assert names.parse(text + "/") is None


@given(id=ids, priority=st.integers(1, settings.MAX_PRIORITY))
def test_priority_goes_in_and_comes_out(id, priority):
    """with_priority and priority_of agree; the time stays."""
    if len(id) < identity.ID_DIGITS:
        return
    changed = names.with_priority(id, priority)
    assert names.priority_of(changed) == priority
    assert names.micros_of(changed) == names.micros_of(id)
    assert names.order_key(changed) == (priority, id[-identity.ID_DIGITS :])


@pytest.mark.parametrize(
    "wrong", [None, 5, b"1", "", "0" * 25, "1" * 24, "1" * 35, "²" * 25, "1" * 25 + "\n"]
)
def test_id_that_is_invalid_is_refused(wrong):
    """check_id refuses, and shows at most a line of it."""
    with pytest.raises(InvalidId) as caught:
        names.check_id(wrong)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("wrong", [0, -1, 10**9, True, 1.0, "1"])
def test_priority_that_is_invalid_is_refused(wrong):
    """A whole number from 1 to 999,999,999."""
    with pytest.raises(SettingsError):
        settings.check_priority(wrong)


def test_ids_increase_and_never_repeat():
    """In one process, from many threads, and across a fork."""
    made = [[] for _ in range(4)]

    def make(into):
        into.extend(identity.new_id() for _ in range(25_000))

    threads = [threading.Thread(target=make, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    child = in_child(lambda: [identity.new_id() for _ in range(1000)])
    for each in (*made, child):
        assert each == sorted(each)
    every = [id for each in (*made, child) for id in each]
    assert len(every) == 101_000
    assert len(set(every)) == len(every)
    assert all(len(id) == identity.ID_DIGITS for id in every)


def test_ids_increase_when_the_clock_does_not(monkeypatch):
    """A clock set back, or never set, makes no id twice and none that cannot be read."""
    monkeypatch.setattr(identity.time, "time_ns", lambda: 5_000)
    made = [identity.new_id() for _ in range(100)]
    assert made == sorted(set(made))
    assert all(names.parse(id) for id in made)


def test_tokens_never_repeat():
    """From many threads and across a fork; each fits the grammar."""
    made = [[] for _ in range(4)]

    def make(into):
        into.extend(identity.new_token() for _ in range(50_000))

    threads = [threading.Thread(target=make, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    child = in_child(lambda: [identity.new_token() for _ in range(1000)])
    every = [token for each in (*made, child) for token in each]
    assert len(set(every)) == len(every) == 201_000
    assert names.parse(f"{identity.new_id()}.1600000000000000.1.{every[0]}").token == every[0]


def test_milliseconds_and_microseconds_are_told_apart_by_their_length():
    """An id of 13 digits is milliseconds."""
    assert names.micros_of("1700000000000") == names.micros_of("1700000000000000") == 1_700_000_000_000_000

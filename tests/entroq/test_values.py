"""Ids as UUIDs and values as JSON: what goes out comes back."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dirqueue.entroq import values
from dirqueue.entroq.tasks import (
    Change,
    DependencyError,
    InvalidArgument,
    Mode,
    Modification,
    TaskData,
    TaskId,
    native_of,
    uuid_of,
)

digits = st.sampled_from([13, 16, 25]).flatmap(
    lambda n: st.integers(10 ** (n - 1), 10**n - 1).map(str)
) | st.builds(
    lambda priority, number: f"{priority}{number}",
    st.integers(1, 999_999_999),
    st.integers(10**24, 10**25 - 1),
)


@given(digits)
def test_a_native_id_is_a_uuid_and_back(native):
    text = uuid_of(native)
    assert uuid.UUID(text).version == 8
    assert uuid.UUID(text).variant == uuid.RFC_4122
    assert native_of(text) == native


OURS = uuid_of("1700000000000000123456789")


@given(st.uuids())
def test_other_uuids_are_not_ours(other):
    assert native_of(str(other)) is None


@pytest.mark.parametrize("text", ["", "x", "8" * 36, OURS.upper(), OURS[:-1]])
def test_what_is_no_uuid_of_ours_is_none(text):
    assert native_of(text) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(json_values)
def test_json_comes_back(value):
    try:
        stored = values.from_json(value)
    except InvalidArgument:
        assert "\\ud" in ascii(value)  # half a character has no bytes
    else:
        assert values.to_json(stored) == value


@given(st.binary())
def test_bytes_come_back_through_json(data):
    shown = values.to_json(data)
    if values.BYTES in str(shown):
        assert values.from_json(shown) == data


@pytest.mark.parametrize("value", [{"@bytes": "MTI="}, {"@bytes": ""}, {"@bytes": "no"}, {"@bytes": "/w=="}])
def test_an_object_that_looks_like_bytes_comes_back(value):
    assert values.to_json(values.from_json(value)) == value


@pytest.mark.parametrize("data", [b"1e400", b"NaN", b"[" * 200_000, b"1" * 5000, b"\xff", b"{"])
def test_what_is_not_strict_json_is_shown_as_bytes(data):
    assert values.from_json(values.to_json(data)) == data
    assert values.BYTES in values.to_json(data)


def delete(id="a", version=0, queue=""):
    return TaskId(id, version, queue)


@pytest.mark.parametrize(
    ("modification", "word"),
    [
        (Modification(), "empty"),
        (Modification(inserts=[TaskData()]), "no queue"),
        (Modification(inserts=[TaskData("q", id="a"), TaskData("r", id="a")]), "twice"),
        (Modification(deletes=[delete()], depends=[delete()]), "twice"),
        (Modification(deletes=[delete("")]), "empty"),
        (Modification(deletes=[delete("a" * 65)]), "64"),
        (Modification(deletes=[delete(version=-1)]), "version"),
        (Modification(deletes=[delete(version=2**31)]), "version"),
        (Modification("c\n", deletes=[delete()]), "printable"),
        (Modification(inserts=[TaskData("q", attempt=-1)]), "attempt"),
        (Modification(inserts=[TaskData("q", by=10**18)]), "200 years"),
        (Modification(inserts=[TaskData("q", at=10**18)]), "2200"),
        (Modification(deletes=[delete(str(i)) for i in range(10_001)]), "10,001"),
        (Modification(changes=[Change(delete(), TaskData(value=b"1"), Mode.LEASE)]), "only its arrival"),
        (Modification(changes=[Change(delete(queue="q"), TaskData("r"), Mode.LEASE)]), "move"),
        (Modification(changes=[Change(delete(), TaskData("q", id="b"))]), "another id"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(modification, word):
    with pytest.raises(InvalidArgument, match=word):
        modification.check()


def test_a_dependency_error_names_everything():
    error = DependencyError(inserts=[delete("i")], claims=[delete("c", 3)])
    assert list(error.details()) == [("INSERT", delete("i")), ("CLAIM", delete("c", 3))]
    assert str(error) == "nothing was done: INSERT i:v0, CLAIM c:v3"
    assert bool(error)
    assert not DependencyError()


def test_arrivals():
    now = 1_700_000_000_000
    assert TaskData().arrival(now) == now
    assert TaskData(by=5).arrival(now) == now + 5
    assert TaskData(at=now - 5).arrival(now) == now
    assert TaskData(by=-5).arrival(now) == now
    assert TaskData(at=-6795364578871).arrival(now) == now
    assert TaskData(at=0).arrival(now) == now

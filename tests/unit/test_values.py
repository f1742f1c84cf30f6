"""Errors, settings, backoff, codecs, the clock and the table of mounts."""

import copy
import json
import pickle
import queue as stdlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dirqueue
from dirqueue import codecs, errors, settings

ERRORS = [
    errors.Empty("t", path="p"), errors.Full("t", path="p"),
    errors.LeaseLost("t", message_id="1", token="k", reason="gone"), errors.MessageNotFound("t", message_id="1"),
    errors.MessageTooLarge("t", message_id="", size=2, limit=1), errors.InvalidId("t", message_id="x"),
    errors.CodecError("t", message_id="1"), errors.QueueNotFound("t", path="p"), errors.LayoutError("t", path="p"),
    errors.Unsupported("t", path="p", capability="delay"), errors.SettingsError("t"),
    errors.access_error("p", "put to", OSError(28, "No space left on device")),
    errors.Retry(5, "why"), errors.Reject("no"), errors.Release(),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: type(each).__name__)
def test_errors_survive_pickling_and_copying(error):
    """Type, text and every field."""
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
        assert getattr(again, "errno", None) == getattr(error, "errno", None)


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: type(each).__name__)
def test_errors_keep_their_notes(error):
    """What was added on the way up crosses to another process too."""
    error = copy.copy(error)
    error.add_note("and then: worse")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["and then: worse"]


@pytest.mark.parametrize("kind", [errors.QueueError, errors.LeaseLost, errors.SettingsError, errors.Empty])
def test_errors_take_no_other_fields_than_theirs(kind):
    with pytest.raises(TypeError, match="unexpected keyword"):
        kind("text", colour="red")


def test_errors_are_what_people_already_catch():
    """Each is its standard parent too, and all have one base."""
    for kind, parent in (
        ("Empty", stdlib.Empty), ("Full", stdlib.Full), ("MessageNotFound", LookupError),
        ("MessageTooLarge", ValueError), ("InvalidId", ValueError), ("CodecError", ValueError),
        ("QueueNotFound", FileNotFoundError), ("QueueAccess", OSError), ("SettingsError", ValueError),
    ):  # fmt: skip
        assert issubclass(getattr(dirqueue, kind), (parent, dirqueue.DirQueueError))
        assert issubclass(getattr(dirqueue, kind), parent)


@given(attempts=st.integers(1, 10**6), first=st.floats(0, 1e6), longest=st.floats(0, 1e6))
def test_pause_doubles_within_its_bounds(attempts, first, longest):
    """Between half and all of min(longest, first * 2 ** (n - 1)), for any number of failures."""
    pause = settings.Settings(backoff=first, max_backoff=longest).pause(attempts)
    expected = min(longest, first * 2.0 ** min(attempts - 1, 62))
    assert expected * 0.5 <= pause <= expected


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "lease": st.floats(0.001, 1e6), "max_attempts": st.integers(0, 1000), "sync": st.booleans(),
            "order": st.sampled_from(settings.ORDERS), "priorities": st.booleans(),
            "max_size": st.integers(0, 10**12), "margin": st.floats(0, 100), "keep_done": st.booleans(),
        },
    )
)  # fmt: skip
def test_settings_are_written_and_read_as_they_were_given(given_settings):
    """What dumps writes, loads reads; nothing that was not given is in it."""
    stored = settings.loads(settings.dumps(given_settings))
    assert stored == given_settings
    built = settings.build({}, stored)
    assert all(getattr(built, name) == value for name, value in given_settings.items())


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(
    alphabet=st.characters(exclude_categories=["Cs"])), lambda inner: st.lists(inner) | st.dictionaries(
    st.text(alphabet=st.characters(exclude_categories=["Cs"])), inner), max_leaves=10))  # fmt: skip
def test_json_bodies_come_back(value):
    """Any JSON value, compact and in UTF-8."""
    codec = codecs.find("json")
    assert codecs.decode(codec, codecs.encode(codec, value), "1") == json.loads(json.dumps(value))


def test_only_what_was_purged_can_be_added_up():
    """Anything else is a mistake of the caller."""
    assert dirqueue.Purged(new=1) + dirqueue.Purged(new=2) == dirqueue.Purged(new=3)
    assert dirqueue.Purged().__add__((1,)) is NotImplemented

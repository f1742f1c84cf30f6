"""Names of dirq, and schemas of its elements."""

import pytest

from dirqueue import (
    Queue,
    SettingsError,
)
from dirqueue.layouts.dirq import names as dirq_names
from dirqueue.layouts.dirq.schema import Schema, read_table, write_table


def test_names_never_go_back(monkeypatch):
    """Whatever the clock does; and litter of the same length is told apart."""
    first = dirq_names.element("a")
    monkeypatch.setattr("time.time_ns", lambda: 10**18)
    assert dirq_names.element("a") > first
    assert dirq_names.elements([first, "x" * 14]) == [first]
    assert int(dirq_names.folder(1), 16) % 1 == 0
    assert int(dirq_names.folder(60), 16) % 60 == 0
    before_ = dirq_names._state
    dirq_names._after_fork()
    assert dirq_names._state is not before_, "a lock that a thread of the parent held is free in a child"


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        {"locked": "binary"},
        {"a b": "binary"},
        {1: "binary"},
        {"a": "number"},
        {"a": 1},
        {"a": "binary?"},
    ],
)
def test_schema_that_is_invalid_is_refused(wrong, tmp_path):
    """With what is wrong about it."""
    with pytest.raises(ValueError, match="invalid schema"):
        Schema(wrong)
    if wrong:
        with pytest.raises(SettingsError):
            Queue(tmp_path / "queue", layout="dirq-normal", schema=wrong).put(b"x")


def test_element_that_does_not_fit_its_schema_is_refused():
    """Each piece by its type; what is optional may be missing."""
    schema = Schema({"body": "binary", "text": "string?", "header": "table?*"})
    for wrong in (
        [],
        {},
        {"body": "text"},
        {"body": b"x", "text": b"x"},
        {"body": b"x", "header": "x"},
        {"body": b"x", "odd": b"x"},
        {"body": b"x", "text": "\ud800"},
        {"body": b"x", "header": {1: "x"}},
    ):
        with pytest.raises(ValueError, match=r"element|missing|unexpected|table|UTF-8"):
            schema.files(wrong)
    whole = {"body": b"x", "text": "é", "header": {"a\t": "b\\\n"}}
    assert schema.element(schema.files(whole)) == whole
    assert schema.decode(schema.encode(whole)) == whole
    assert schema.element({"body": b"x"}) == {"body": b"x"}
    with pytest.raises(ValueError, match="missing data file"):
        schema.element({})
    for wrong in (b"[]", b'{"body": 1}', b'{"body": "not base64"}', b"no json"):
        with pytest.raises(ValueError, match=r"JSON|base64|Expecting"):
            schema.split(wrong)
    plain = Schema({"text": "string"})
    with pytest.raises(ValueError, match="utf-8"):
        plain.split(b"\xff")
    with pytest.raises(ValueError, match="missing data file"):
        plain.join({})
    assert plain.decode(plain.encode({"text": "x"})) == {"text": "x"}


def test_table_is_lines_of_two():
    """Blank lines around it are forgiven, anything else is not."""
    assert read_table("") == {}
    assert read_table("\na\tb\n\n") == {"a": "b"}
    assert read_table(write_table({"a": "1", "b\n": "\\t"})) == {"a": "1", "b\n": "\\t"}
    with pytest.raises(ValueError, match="unexpected line"):
        read_table("a")

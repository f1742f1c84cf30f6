"""Why a delivery failed, as text: bounded, the last call first."""

import asyncio
import pickle

import pytest

from dirqueue.errors import Reject, Retry
from dirqueue.failure import CALLS, ERROR_LENGTH, TRACE_LENGTH, Reason, describe, trace_of


def caught(call, *arguments):
    try:
        call(*arguments)
    except BaseException as error:  # noqa: BLE001 - the point
        return error
    raise AssertionError("it did not raise")


def inner():
    raise ValueError("bad")


def outer():
    inner()


def functions(trace):
    """Return the names of the functions in a trace, in its order."""
    return [line.rpartition(" in ")[2] for line in trace.splitlines() if line.startswith("  File")]


def test_exception_is_its_text_with_the_last_call_first():
    text = describe(caught(outer))
    assert text == "ValueError: bad"
    assert functions(text.trace) == ["inner", "outer", "caught"]
    first = text.trace.splitlines()
    assert first[0] == f'  File "{__file__}", line {inner.__code__.co_firstlineno + 1}, in inner'
    assert first[1] == '    raise ValueError("bad")'


def test_plain_text_has_no_trace():
    assert describe("boom\ntwo") == "boom\ntwo"
    assert trace_of(describe("boom")) is None
    assert describe(None) is None
    assert trace_of(None) is None


def test_reason_survives_pickling():
    """It crosses the socket between a worker and its child processes."""
    copy = pickle.loads(pickle.dumps(Reason("why", "where")))
    assert (copy, copy.trace, type(copy)) == ("why", "where", Reason)


def test_exception_without_text_is_its_type():
    assert describe(KeyError()) == "KeyError"
    assert trace_of(describe(KeyError())) is None


def test_exception_whose_text_fails_is_still_described():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no")

    assert describe(Mute()) == "Mute: (its message cannot be shown: RuntimeError)"


def test_causes_and_contexts_follow():
    def handled():
        try:
            inner()
        except ValueError:
            {}["key"]

    def chained():
        try:
            handled()
        except KeyError as error:
            raise RuntimeError("outermost") from error

    trace = describe(caught(chained)).trace
    heads = [line for line in trace.splitlines() if not line.startswith(" ")]
    assert heads == ["caused by KeyError: 'key'", "while handling ValueError: bad"]


def test_suppressed_context_is_left_out():
    def quiet():
        try:
            inner()
        except ValueError:
            raise RuntimeError("only this") from None

    assert "ValueError" not in describe(caught(quiet)).trace


def test_exceptions_of_a_group_are_shown():
    async def both():
        async with asyncio.TaskGroup() as group:
            group.create_task(one())
            group.create_task(two())

    async def one():
        raise ValueError("first")

    async def two():
        raise KeyError("second")

    trace = describe(caught(asyncio.run, both())).trace
    assert "it holds ValueError: first" in trace
    assert "together with KeyError: 'second'" in trace
    assert {"one", "two"} <= set(functions(trace))


def test_notes_are_kept():
    error = caught(inner)
    error.add_note("order 7")
    assert describe(error).trace.startswith("order 7\n")


def test_a_chain_that_bites_its_tail_ends():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert describe(one).trace == "caused by ValueError: two"


def test_deep_recursion_is_cut_at_its_beginning():
    def deeper(left):
        return deeper(left - 1) if left else inner()

    trace = describe(caught(deeper, 500)).trace
    assert functions(trace)[0] == "inner"
    assert len(functions(trace)) <= CALLS
    assert len(trace) <= TRACE_LENGTH


def test_long_texts_are_cut():
    text = describe(ValueError("x" * 10_000_000))
    assert len(text) <= ERROR_LENGTH + len("ValueError: ")
    assert text.endswith("...")
    error = caught(inner)
    error.add_note("y" * 10_000_000)
    assert len(describe(error).trace) <= TRACE_LENGTH


@pytest.mark.parametrize("kind", [Reject, lambda text: Retry(error=text)])
def test_retry_and_reject_keep_their_text_and_what_they_came_from(kind):
    def refusing():
        try:
            inner()
        except ValueError as error:
            raise kind("no customer") from error

    text = describe(caught(refusing))
    assert text == "no customer"
    assert text.trace.startswith("caused by ValueError: bad\n")


def test_retry_without_text_is_described_by_its_cause():
    def retrying():
        try:
            inner()
        except ValueError as error:
            raise Retry(5) from error

    text = describe(caught(retrying))
    assert text == "ValueError: bad"
    assert functions(text.trace)[0] == "inner"
    assert describe(Retry(5)) is None


def test_deliberate_retry_has_no_trace_of_its_own():
    assert trace_of(describe(caught(lambda: (_ for _ in ()).throw(Reject("no"))))) is None

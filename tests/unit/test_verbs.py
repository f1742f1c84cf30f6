"""Which exception ends a lease by which verb; the same function serves `with` blocks and workers."""

import asyncio
import pickle

import pytest

from dirqueue import Reject, Release, Retry
from dirqueue.lease import Outcome, describe, verb_for

STEERING = [
    (Retry(5, "later"), Outcome("retry", 5, "later")),
    (Retry(), Outcome("retry")),
    (Reject("bad"), Outcome("reject", None, "bad")),
    (Reject(404), Outcome("reject", None, "404")),
    (Release(), Outcome("release")),
    (ValueError("no"), Outcome("retry", None, "ValueError: no")),
    (ExceptionGroup("all", [KeyError(1)]), Outcome("retry", None, "ExceptionGroup: all (1 sub-exception)")),
]
LEAVING = [
    SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(),
    BaseExceptionGroup("all", [KeyboardInterrupt()]),
]  # fmt: skip


@pytest.mark.parametrize(("error", "outcome"), STEERING, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("propagates", [False, True])
def test_verb_for_an_exception_is_the_same_everywhere(error, outcome, propagates):
    assert verb_for(error, propagates=propagates) == outcome


@pytest.mark.parametrize("error", LEAVING, ids=lambda each: type(each).__name__)
def test_verb_for_what_ends_the_program_is_release(error):
    """Out of a `with` block: the program goes, and that is no fault of the message."""
    assert verb_for(error, propagates=True) == Outcome("release")


@pytest.mark.parametrize("error", LEAVING, ids=lambda each: type(each).__name__)
def test_verb_for_what_a_worker_outlives_is_a_counted_retry(error):
    """In a worker: released uncounted, the message would come again at once, without end."""
    assert verb_for(error) == Outcome("retry", None, describe(error))


class Recorder:
    """Stands for a lease: remembers how it was ended."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, verb):
        return lambda *arguments: self.calls.append((verb, *arguments))


@pytest.mark.parametrize(
    ("outcome", "call"),
    [
        (Outcome(), ("ack",)),
        (Outcome("retry", 5, "later"), ("retry", 5, "later")),
        (Outcome("reject", None, "bad"), ("reject", "bad")),
        (Outcome("reject"), ("reject", "rejected")),
        (Outcome("release"), ("release",)),
    ],
)
def test_outcome_ends_a_lease_by_its_verb(outcome, call):
    lease = Recorder()
    outcome.end(lease)
    assert lease.calls == [call]


def test_outcome_survives_pickling():
    """It crosses the socket between a worker and its children."""
    outcome = Outcome("retry", 2.5, "why")
    assert pickle.loads(pickle.dumps(outcome)) == outcome


def test_describe_names_the_type_only_of_exceptions():
    assert [describe(each) for each in (None, "text", 404, KeyError(), KeyError("a"))] == [
        None, "text", "404", "KeyError", "KeyError: 'a'",
    ]  # fmt: skip

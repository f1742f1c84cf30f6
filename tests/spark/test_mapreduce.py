"""The word count on Spark: what goes and what comes is one transaction, wherever its driver is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import dirqueue.spark
from dirqueue import Conflict, Space
from dirqueue.layouts.native import pins
from dirqueue.settings import Settings

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TEXTS = [f"the cat number {number} and the dog number {number + 1}" for number in range(120)]
WANTED = Counter(" ".join(TEXTS).split())

#: Seconds until the documents of a dead driver may go back; the margin of the queue comes on top.
TIMEOUT = 1

#: A driver that kills itself just before or just after the call that decides.
DRIVER = """
import os, signal, sys
sys.path.insert(0, {examples!r})
import mapreduce_spark
from dirqueue import Space
from dirqueue.space.commit import Attempt
import dirqueue.spark

real = Attempt._decide

def decide(attempt):
    if {after!r}:
        real(attempt)
    os.kill(os.getpid(), signal.SIGKILL)

Attempt._decide = decide
with Space({space!r}) as space:
    mapreduce_spark.count_all(dirqueue.spark.session("local[1]"), space, timeout={timeout})
"""


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import mapreduce_spark

    return mapreduce_spark


def filled(path):
    space = Space(path, sync=False, margin=0)
    space.queue("map").put_many(text.encode() for text in TEXTS)
    return space


def counts(space):
    """Return the one result that there is."""
    [result] = [json.loads(message.body) for message in space.queue("out").peek()]
    return result


def test_words_are_counted_as_a_plain_count_does(spark, example, tmp_path):
    """More than a hundred different words, all documents gone, one result."""
    with filled(tmp_path) as space:
        example.count_all(spark, space, timeout=60)
        assert len(WANTED) > 100
        assert counts(space) == WANTED
        assert space.empty("map")
        assert pins.consumers(space.queue("map").layout.directory) == []
        example.count_all(spark, space, timeout=60)  # nothing is there, nothing is put
        assert counts(space) == WANTED


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(False, id="before the commit", marks=pytest.mark.slow),
        pytest.param(True, id="after the commit"),
    ],
)
def test_killed_driver_counts_nothing_twice(spark, example, tmp_path, after):
    """Killed there, and run again: one result, equal to a plain count."""
    filled(tmp_path).close()
    program = DRIVER.format(examples=str(EXAMPLES), space=str(tmp_path), after=after, timeout=TIMEOUT)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    with Space(tmp_path, sync=False, margin=0) as space:
        assert space.empty("map") == after
        assert space.empty("out") != after
        time.sleep(TIMEOUT + Settings().margin + 0.1)  # the dead driver's documents are back
        example.count_all(spark, space, timeout=60)
        assert counts(space) == WANTED
        assert space.empty("map")


def test_documents_that_were_given_back_are_a_conflict(spark, tmp_path):
    """A driver that was away too long puts nothing, and leaves the documents where they are."""
    with filled(tmp_path) as space:
        layout = space.queue("map").layout
        transaction = space.transaction()
        with (
            pytest.raises(Conflict),
            dirqueue.spark.claim(spark, space.queue("map").path, transaction=transaction),
        ):
            transaction.put("out", b"late")
            [consumer] = pins.consumers(layout.directory)
            pins.Pins(layout.directory, layout.settings, consumer).release(1)
        assert space.empty("out")
        assert space.queue("map").stats().ready == len(TEXTS)
        assert pins.consumers(layout.directory) == []


@pytest.mark.slow
def test_example_runs_as_a_program(without_java):
    """It compares with a plain count itself."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "mapreduce_spark.py", "--documents", "20"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("the counts are exact\n")

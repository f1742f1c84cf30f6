"""A failure can be understood: the traceback is kept, handed to hooks, and logged once."""

import logging
import os

import pytest

from dirqueue import Reject, Worker
from dirqueue.worker.command import Command

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
WAYS = pytest.mark.parametrize("way", [{"threads": 1}, {"processes": 1}], ids=["thread", "process"])


def parse(text):
    return int(text)


def handle(message):
    parse(message.body)


def functions(trace):
    return [line.rpartition(" in ")[2] for line in trace.splitlines() if line.startswith("  File")]


@WAYS
def test_traceback_is_kept_with_the_last_call_first_and_nothing_of_the_worker(queue, way):
    id = queue.put(b"x")
    Worker(queue, handle, limit=1, **way).run()
    message = queue.message(id)
    assert message.error == "ValueError: invalid literal for int() with base 10: b'x'"
    assert functions(message.trace) == ["parse", "handle"]


@WAYS
def test_hook_gets_the_trace(queue, way):
    seen = []
    queue.put(b"x")
    Worker(queue, handle, limit=1, hooks={"retried": seen.append}, **way).run()
    (event,) = seen
    assert event.error.startswith("ValueError")
    assert functions(event.trace) == ["parse", "handle"]
    assert "trace=" not in event.line()


@WAYS
def test_failure_is_logged_once_as_a_warning_with_its_trace(queue, way, caplog):
    queue.put(b"x")
    with caplog.at_level(logging.WARNING, "dirqueue.worker"):
        Worker(queue, handle, limit=1, **way).run()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("event=retried")
    line, *trace = logging.Formatter("%(message)s").format(record).splitlines()
    assert line == record.getMessage()
    assert functions("\n".join(trace)) == ["parse", "handle"]


def test_cause_of_a_reject_is_kept(queue):
    def handler(message):
        try:
            handle(message)
        except ValueError as error:
            raise Reject("not a number") from error

    id = queue.put(b"x")
    Worker(queue, handler, limit=1).run()
    dead = queue.message(id)
    assert dead.error == "not a number"
    assert dead.trace.startswith("caused by ValueError")


def test_log_escapes_what_would_steer_a_terminal_and_indents_what_looks_like_a_line(queue, caplog):
    def handler(message):
        error = ValueError("x")
        error.add_note("\x1b[31mred\x07\nevent=acked id=1")
        raise error

    queue.put(b"x")
    Worker(queue, handler, limit=1).run()
    assert "\n  \\x1b[31mred\\x07\n  event=acked id=1" in caplog.text
    assert "\x1b" not in caplog.text


def test_output_of_a_failed_program_is_its_trace(queue, capfd, caplog):
    """The error is how it ended and its last line; the log does not repeat what the program has shown already."""
    id = queue.put(b"x")
    Worker(queue, Command(["sh", "-c", "echo first; echo last >&2; exit 7"]), limit=1).run()
    message = queue.message(id)
    assert message.error.startswith("exit status 7: ")
    assert sorted(message.trace.splitlines()) == ["first", "last"]
    assert "first" not in caplog.text.replace(message.error, "")
    assert "first" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("script", "error"), [("echo only; exit 7", "exit status 7: only"), ("exit 7", "exit status 7")]
)
def test_output_of_one_line_needs_no_trace(queue, script, error, capfd):
    id = queue.put(b"x")
    Worker(queue, Command(["sh", "-c", script]), limit=1).run()
    assert (queue.message(id).error, queue.message(id).trace) == (error, None)


def test_a_child_sees_the_trace_of_the_delivery_before(queue):
    def handler(message):
        if message.attempts == 1:
            raise ValueError("first")
        if functions(message.trace) != ["handler"]:
            os._exit(9)

    queue.put(b"x")
    counts = Worker(queue, handler, processes=1).run_until_empty(idle=0.3)
    assert (counts.retried, counts.acked) == (1, 1)

"""Real processes that are stopped or killed just before one of their filesystem calls."""

import contextlib
import os
import signal
import time

from support.failing import before
from support.kit import FORK, PATIENCE


def killed_before(call, function, *, when=None):
    """Run a function in a child that is killed by SIGKILL just before that call."""
    child = FORK.Process(target=_run, args=(signal.SIGKILL, call, when, function, None))
    child.start()
    child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL, f"{call} was never called that way"


@contextlib.contextmanager
def stopped_before(call, function, *, when=None):
    """Run a function in a child that is stopped just before that call; yield a function that resumes it.

    That function returns what the child's function returned, or the exception that it raised.
    """
    here, there = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_run, args=(signal.SIGSTOP, call, when, function, there))
    child.start()
    try:
        deadline = time.monotonic() + PATIENCE
        while not os.waitpid(child.pid, os.WUNTRACED | os.WNOHANG)[0]:
            assert time.monotonic() < deadline, f"{call} was never called that way"
            time.sleep(0.002)

        def go_on():
            os.kill(child.pid, signal.SIGCONT)
            assert here.poll(PATIENCE), "the child reported nothing"
            return here.recv()

        yield go_on
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGCONT)
        child.join(PATIENCE)
        here.close()
        there.close()


def _run(number, call, when, function, results):
    with before(call, lambda: os.kill(os.getpid(), number), when=when):
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - the parent receives it
            result = error
    results.send(result)

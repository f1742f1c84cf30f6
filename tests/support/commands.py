"""Run the command: in this process if that is enough, else as a real process."""

import io
import subprocess
import sys

import pytest
from support.running import Done, command, environment

from dirqueue import Queue
from dirqueue.__main__ import main


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    """Remove the variables that the developer may have set."""
    for name in ("DIRQUEUE_DIR", "NO_COLOR", "DIRQUEUE_TRACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def dq(capsysbinary, monkeypatch):
    """Give a function that runs the command in this process; `stdin` is its input."""

    def run(*words, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        status = main([str(word) for word in words])
        out, err = capsysbinary.readouterr()
        return Done(
            int(status), out.decode("utf-8", "surrogateescape"), err.decode("utf-8", "surrogateescape")
        )

    return run


@pytest.fixture
def real():
    """Give a function that runs the command in a separate process."""

    def run(*words, stdin=b"", **options):
        done = subprocess.run(
            command(*words),
            input=stdin,
            capture_output=True,
            env=environment(),
            check=False,
            timeout=50,
            **options,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def start():
    """Give a function that starts the command; the process is killed when the test ends."""
    running = []

    def begin(*words, **options):
        process = subprocess.Popen(command(*words), env=environment(), **options)
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                pipe.close()


@pytest.fixture
def queue(tmp_path):
    """Give a queue with sync=False."""
    with Queue(tmp_path / "q", sync=False) as made:
        yield made

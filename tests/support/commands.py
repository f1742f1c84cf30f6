"""Running the command: in this process where that is enough, as a real process where it is not."""

import io
import subprocess
import sys

import pytest
from support.running import Done, command, environment

from dirqueue import Queue
from dirqueue.__main__ import main


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    """No test depends on what the developer has set."""
    for name in ("DIRQUEUE_DIR", "NO_COLOR", "DIRQUEUE_TRACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def dq(capsysbinary, monkeypatch):
    """Run the command in this process; `stdin` are the bytes it reads."""

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
    """Run the command as a process of its own."""

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
    """Start real processes that end with the test."""
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
    """Return a queue without waits for the disk."""
    with Queue(tmp_path / "q", sync=False) as made:
        yield made

"""What the worker's tests share."""

import os
import subprocess
import sys
import textwrap

import pytest
from support.patience import until

import dirqueue


@pytest.fixture
def queue(queue_dir):
    """Give a fast queue whose failures come back at once."""
    return dirqueue.Queue(queue_dir, sync=False, backoff=0.01, max_backoff=0.01, max_attempts=3)


class Program:
    """A worker in a Python process of its own."""

    def __init__(self, directory, source, env):
        self.directory = directory
        script = directory / "program.py"
        script.write_text(PREAMBLE + textwrap.dedent(source))
        self.stderr = directory / "stderr"
        with self.stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(script)],
                cwd=directory,
                env=os.environ | env,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
            )
        self.pid = self.process.pid

    def said(self):
        return self.stderr.read_text()

    def wait_for_file(self, name):
        """Return what a file says, once it is there and whole."""

        def whole():
            assert self.process.poll() is None or (self.directory / name).exists(), self.said()
            try:
                return (self.directory / name).read_text()
            except FileNotFoundError:
                return None

        return until(whole, f"the file {name}")

    def ends(self):
        """Return the exit status."""
        try:
            return self.process.wait(40)
        except subprocess.TimeoutExpired:
            raise AssertionError("the program does not end: " + self.said()) from None


PREAMBLE = """\
import logging, os, pathlib, signal, sys, threading, time
import dirqueue
from dirqueue import Worker
logging.basicConfig(level=logging.DEBUG, format="%(message)s")

def tell(name, text="x"):
    pathlib.Path(name + ".part").write_text(str(text))
    os.rename(name + ".part", name)

def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)

queue = dirqueue.Queue("queue", sync=False, backoff=0.01, max_backoff=0.01, max_attempts=3)
"""


@pytest.fixture
def program(tmp_path):
    """Start workers in processes of their own, in a directory with a queue; end those that are left."""
    started = []

    def start(source, **env):
        started.append(Program(tmp_path, source, env))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait()

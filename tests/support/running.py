"""Helpers for tests of the command: start it, and check its error message."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass
class Done:
    """The exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def lines(self):
        return self.out.splitlines()


def environment(**extra):
    """Return the environment of a real dirqueue process."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"} | extra


def command(*words):
    """Return the words that start a real dirqueue process."""
    return [sys.executable, "-m", "dirqueue", *map(str, words)]


def sentence(done):
    """Assert that a failed command printed one sentence and nothing else, and return it."""
    assert done.err.startswith("dirqueue: "), done
    assert done.err.count("\n") == 1, done
    assert "Traceback" not in done.err, done
    return done.err


#: Import everything while it is readable, then drop all privileges.
AS_NOBODY = """
import concurrent.futures.thread, ctypes, filelock, heapq, json, os, sys, traceback
import dirqueue.layouts.signs, dirqueue.queue, dirqueue.tools.check, dirqueue.tools.discover, dirqueue.tools.transfer
from dirqueue.cli.main import build, run
build()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(run(sys.argv[1:]))
"""


def as_nobody(path, *words):
    """Run the command as an unprivileged user, who can reach `path` but not write there."""
    for above in Path(path).parents:
        if not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *map(str, words)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    return Done(done.returncode, done.stdout, done.stderr)

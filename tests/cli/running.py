"""What the tests of the command share: how it is started, and what it must say."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass
class Done:
    """What a command left behind."""

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
    """Assert that a failed command said one sentence and nothing else, and return it."""
    assert done.err.startswith("dirqueue: "), done
    assert done.err.count("\n") == 1, done
    assert "Traceback" not in done.err, done
    return done.err

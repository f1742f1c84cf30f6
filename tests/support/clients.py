"""Run the clients in docs/, which are written in shell and Perl from docs/protocol.md alone."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = DOCS / "protocol.sh"
PERL = DOCS / "protocol.pl"
needs_perl = pytest.mark.skipif(
    subprocess.run(
        ["/bin/sh", "-c", "perl -MJSON::PP -MTime::HiRes -e 1"], capture_output=True, check=False
    ).returncode
    != 0,
    reason="needs perl with its core modules",
)


def run(client: Path, *words: str, body: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run one verb of a client."""
    return subprocess.run(
        [client, *words], input=body, capture_output=True, check=False, env=os.environ | env
    )


def shell(*words: str, body: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the shell client."""
    return run(SCRIPT, *words, body=body)


def perl(*words: str, body: bytes = b"", status: int = 0) -> str:
    """Run the Perl client; return what it printed."""
    done = run(PERL, *words, body=body)
    assert done.returncode == status, done.stderr
    return done.stdout.decode().strip()


class Perl:
    """A Perl client that executes one command after the other and can be killed during any of them."""

    def __init__(self, path: str, *settings: str) -> None:
        self.path = path
        self.settings = settings
        self.kills = 0
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, verb: str, *words: str, kill_after: float | None = None) -> tuple[int, str] | None:
        """Return (status, output); None if it was killed before it answered."""
        process = self._process = self._process or subprocess.Popen(
            [PERL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert process.stdin
        assert process.stdout
        process.stdin.write((" ".join([verb, self.path, *words, *self.settings]) + "\n").encode())
        if kill_after is not None:
            time.sleep(kill_after)
            process.kill()
        line = b""
        while not line.endswith(b"\n"):
            more = process.stdout.read(4096)
            if not more:
                break
            line += more
        if kill_after is not None:
            self.close()
            self.kills += 1
        if not line.endswith(b"\n"):
            return None
        status, _, text = line.decode().strip().partition(" ")
        return int(status), text

    def close(self) -> None:
        """End the process."""
        if self._process:
            self._process.kill()
            with self._process:
                self._process = None

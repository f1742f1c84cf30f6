"""The C floor: floor.c, built with the system's compiler; and Perl's Directory::Queue, spoken to in the same way.

Both are programs that print one JSON object, so that a cell of theirs is one command.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: The peers of this module, by the short name that tables and plans use.
TITLES = {
    "c": "C floor",
    "perl-simple": "Perl Directory::Queue::Simple",
    "perl-normal": "Perl Directory::Queue::Normal",
}

_binary: list[str | None] = []


def binary() -> str | None:
    """Return the path of the built program, or None where there is no compiler."""
    if not _binary:
        _binary.append(_build())
    return _binary[0]


def _build() -> str | None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    target = str(Path(tempfile.mkdtemp(prefix="dirqueue-floor-"), "floor"))
    done = subprocess.run([compiler, "-O2", "-o", target, str(HERE / "floor.c")], check=False)
    return target if done.returncode == 0 else None


def perl() -> bool:
    """Return whether Perl's Directory::Queue is installed."""
    if shutil.which("perl") is None:
        return False
    return (
        subprocess.run(["perl", "-MDirectory::Queue", "-e1"], check=False, capture_output=True).returncode
        == 0
    )


def command(peer: str, built: str, *arguments: object) -> list[str]:
    """Return the command line of a program peer."""
    words = [str(each) for each in arguments]
    if peer == "c":
        return [built, *words]
    return ["perl", str(HERE / "queue.pl"), peer.removeprefix("perl-"), *words]


def run(peer: str, built: str, *arguments: object) -> dict[str, Any]:
    """Run a program peer and return its results."""
    done = subprocess.run(command(peer, built, *arguments), check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer

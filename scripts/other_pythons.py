"""Print the Pythons from 3.12 on that are installed, one of each version, but not the one that runs this.

On PATH and among pyenv's, which need not be on it. `make test-pythons` runs the core suite with each.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys

OLDEST = (3, 12)
PROBE = "import ensurepip, sys, venv; print(*sys.version_info[:2])"


def version(python: str) -> tuple[int, ...]:
    """Return the version of a Python that works and can make environments; nothing for another one."""
    try:
        done = subprocess.run([python, "-c", PROBE], check=False, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


def main() -> None:
    """Print them, the oldest version first."""
    folders = [
        *os.environ.get("PATH", os.defpath).split(os.pathsep),
        *glob.glob(os.path.expanduser("~/.pyenv/versions/*/bin")),
    ]
    found: dict[tuple[int, ...], str] = {}
    for python in (path for folder in folders for path in sorted(glob.glob(f"{folder}/python3.[0-9][0-9]"))):
        if "/shims/" not in python:  # a shim works only for the version that was chosen
            found.setdefault(version(python), python)
    for each in sorted(found):
        if each >= OLDEST and each != sys.version_info[:2]:
            print(found[each])


if __name__ == "__main__":
    main()

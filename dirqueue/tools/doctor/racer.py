"""One of the two processes that race for names.

Layer: edges.  Touches: names in the doctor's scratch directory.
"""

from __future__ import annotations

import sys
import time

from dirqueue.disk import fs

#: The two try each name at the same moment: so long after the one before.
STEP_SECONDS = 0.001


def race(verb: str, rounds: int, place: str, who: str) -> tuple[int, int]:
    """Do `verb` to each name in its turn; return how often we won, and errors that are neither a win nor a loss."""
    fd = fs.open(place, fs.DIRECTORY)
    won = odd = 0
    start = float(sys.stdin.readline())
    for number in range(rounds):
        while time.monotonic() < start + number * STEP_SECONDS:
            pass
        try:
            _one(verb, f"{verb}-{number}", who, fd)
            won += 1
        except (FileExistsError, FileNotFoundError):
            pass
        except OSError:
            odd += 1
    fs.close(fd)
    return won, odd


def _one(verb: str, name: str, who: str, fd: int) -> None:
    match verb:
        case "create":
            fs.create(name, b"", fd, sync=False)
        case "mkdir":
            fs.mkdir(name, fs.DIR_MODE, dir_fd=fd)
        case "rename":
            fs.rename(name, f"{name}.{who}", src_dir_fd=fd, dst_dir_fd=fd)
        case "unlink":
            fs.unlink(name, dir_fd=fd)
        case "link":
            fs.link(name, f"{name}.lck", src_dir_fd=fd, dst_dir_fd=fd)


def main(words: list[str]) -> None:
    """Say that we are there, wait for the word, race, and tell how it went."""
    print("ready", flush=True)  # noqa: T201
    verb, rounds, place, who = words
    print(*race(verb, int(rounds), place, who))  # noqa: T201

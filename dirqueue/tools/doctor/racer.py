"""One of the two processes that race for names.

Layer: tools.  Touches: names in the doctor's scratch directory.
"""

from __future__ import annotations

import sys
import time

from dirqueue.disk import fs

#: Time between one name and the next; both processes try each name at the same moment.
STEP_SECONDS = 0.001


def race(verb: str, rounds: int, place: str, racer: str) -> tuple[int, int]:
    """Do `verb` to each name in turn; return the number of wins, and of errors that are neither a win nor a loss."""
    fd = fs.open(place, fs.DIRECTORY)
    won = odd = 0
    start = float(sys.stdin.readline())
    for number in range(rounds):
        while time.monotonic() < start + number * STEP_SECONDS:
            pass
        try:
            _one(verb, f"{verb}-{number}", racer, fd)
            won += 1
        except (FileExistsError, FileNotFoundError):
            pass
        except OSError:
            odd += 1
    fs.close(fd)
    return won, odd


def _one(verb: str, name: str, racer: str, fd: int) -> None:
    match verb:
        case "create":
            fs.create(name, b"", fd, sync=False)
        case "mkdir":
            fs.mkdir(name, fs.DIR_MODE, dir_fd=fd)
        case "rename":
            fs.rename(name, f"{name}.{racer}", src_dir_fd=fd, dst_dir_fd=fd)
        case "claim":
            fs.rename(name, f"room/{name}.{racer}", src_dir_fd=fd, dst_dir_fd=fd)
        case "unlink":
            fs.unlink(name, dir_fd=fd)
        case "link":
            fs.link(name, f"{name}.lck", src_dir_fd=fd, dst_dir_fd=fd)


def main(words: list[str]) -> None:
    """Print "ready", wait for the time to start, race, and print the counts."""
    print("ready", flush=True)  # noqa: T201
    verb, rounds, place, racer = words
    print(*race(verb, int(rounds), place, racer))  # noqa: T201

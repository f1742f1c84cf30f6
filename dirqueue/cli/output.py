"""What the command shows, and what its exit status says.

Layer: edges.  Data goes to stdout: a table on a terminal, tab-separated lines elsewhere, with --json one object per
line. Talk goes to stderr, each line beginning with `dirqueue: `.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from types import EllipsisType
from typing import Any, TextIO

from dirqueue import errors
from dirqueue.disk import fs


class Exit(IntEnum):
    """What the exit status of every verb means."""

    OK = 0  #: it worked
    FAILED = 1  #: it did not; the sentence on stderr says why
    USAGE = 2  #: the words of the command cannot be
    EMPTY = 3  #: nothing to do: the queue is empty, or nothing came in time
    LEASE_LOST = 4  #: the lease is no longer held; nothing was changed
    PROBLEMS = 5  #: check or doctor found something
    UNAVAILABLE = 69  #: an optional package is not installed
    DEFECT = 70  #: an error in dirqueue itself; DIRQUEUE_TRACE=1 shows where
    CANNOT_CREATE = 73  #: the queue or the message cannot be written there
    TRY_AGAIN = 75  #: the queue or the disk is full, or somebody else is at it; later it may work
    INTERRUPTED = 130  #: Ctrl-C
    PIPE = 141  #: the reader of our output went away


class MissingExtra(errors.DirQueueError):
    """An optional package is not installed; the text says how to get it."""


class InputError(errors.DirQueueError):
    """What was to be read cannot be."""


class OutputError(errors.DirQueueError):
    """What was to be told cannot be."""


#: Errors of the filesystem that pass: no space, no quota, no descriptors, busy.
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EBUSY, errno.EAGAIN, errno.ENOMEM)


def status_of(error: BaseException, *, creates: bool = False) -> Exit:
    """Return the exit status that an error deserves; `creates` if the verb writes something new."""
    match error:
        case errors.Empty():
            return Exit.EMPTY
        case errors.Full():
            return Exit.TRY_AGAIN
        case errors.LeaseLost():
            return Exit.LEASE_LOST
        case errors.SettingsError() | errors.InvalidId():
            return Exit.USAGE
        case MissingExtra():
            return Exit.UNAVAILABLE
        case errors.QueueNotFound():
            return Exit.FAILED
        case OSError():
            if error.errno in _PASSING:
                return Exit.TRY_AGAIN
            return Exit.CANNOT_CREATE if creates else Exit.FAILED
        case errors.DirQueueError():
            return Exit.FAILED
        case _:
            return Exit.DEFECT


def failed(error: BaseException, *, creates: bool = False) -> int:
    """Say what went wrong in one sentence, and return the exit status."""
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        _abandon_stdout()
        return Exit.PIPE
    status = status_of(error, creates=creates)
    if os.environ.get("DIRQUEUE_TRACE"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, errors.DirQueueError):
        complain(str(error))
    elif isinstance(error, OSError):
        where = f" {os.fsdecode(error.filename)!r}" if isinstance(error.filename, str | bytes) else ""
        complain(f"cannot go on{where}: {error.strerror or error}")
    else:
        complain(
            f"this is a defect in dirqueue: {type(error).__name__}: {error} (DIRQUEUE_TRACE=1 shows where)"
        )
    return status


def complain(text: str) -> None:
    """Say something to the person, not to the program that reads our output."""
    if sys.stderr is None:
        return  # closed before we began; print() would take stdout instead
    try:
        print(f"dirqueue: {one_line(text)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # there is nobody left to tell


def need(module: str, extra: str) -> Any:
    """Import an optional package; if it is not there, say how to get it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(
            f"this needs the package {module.partition('.')[0]}: pip install 'dirqueue[{extra}]'"
        ) from None


def finish() -> None:
    """Hand over all output: an error that comes late is still an error."""
    if sys.stdout is not None:
        with _output():
            sys.stdout.flush()


@contextlib.contextmanager
def _output() -> Iterator[None]:
    """Turn what happens to our output into an OutputError; a reader that went away is told apart."""
    if sys.stdout is None:
        raise OutputError("cannot write to the standard output: it is closed")
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _abandon_stdout()
        raise output_error(error) from error


def _abandon_stdout() -> None:
    """Keep Python from trying once more, and complaining, when it exits."""
    with contextlib.suppress(OSError, ValueError):
        null = fs.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        fs.close(null)


def output_error(error: OSError) -> OutputError:
    """Return the error for output that nobody could take."""
    return OutputError(f"cannot write to the standard output: {os.strerror(error.errno or 0)}")


def input_error(name: str, error: OSError) -> InputError:
    """Return the error for a file of the user's that cannot be read; "-" is standard input."""
    what = "the standard input" if name == "-" else repr(name)
    return InputError(f"cannot read {what}: {os.strerror(error.errno or 0)}")


def write(data: bytes) -> None:
    """Write bytes as they are, and hand them over."""
    with _output():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def line(text: str) -> None:
    """Write one line of data."""
    with _output():
        sys.stdout.write(text + "\n")


# --- records -----------------------------------------------------------------------------------------------


def tabular(args: argparse.Namespace) -> bool:
    """Whether to show a table: on a terminal, or asked for."""
    return args.table or (not args.json and on_terminal())


def records(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], args: argparse.Namespace) -> int:
    """Show rows: JSON objects whole, otherwise these columns; return how many there were."""
    count = 0
    if not tabular(args):
        for row in rows:
            show(row, columns, json=args.json)
            count += 1
        return count
    shown = [[cell(row[name], human=True) for name in columns] for row in rows]
    if shown:
        widths = [max(len(name), *(len(each[i]) for each in shown)) for i, name in enumerate(columns)]
        numeric = [i > 0 and _all_numbers([each[i] for each in shown]) for i in range(len(columns))]
        line(
            paint(
                _aligned([name if name[0].isdigit() else name.upper() for name in columns], widths, numeric),
                "bold",
            )
        )
        for each in shown:
            line(_aligned(each, widths, numeric))
    return len(shown)


def _all_numbers(cells: list[str]) -> bool:
    told = [text for text in cells if text != "-"]
    return bool(told) and all(text.replace(".", "").isdigit() for text in told)


def show(row: Mapping[str, Any], columns: Sequence[str], *, json: bool = False) -> None:
    """Show one row for programs."""
    line(dumps(row) if json else "\t".join(cell(row[name]) for name in columns))


def dumps(row: Mapping[str, Any]) -> str:
    """Return one object on one line."""
    import json

    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _aligned(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = (
        text.rjust(width) if right else text.ljust(width)
        for text, width, right in zip(cells, widths, numeric, strict=True)
    )
    return "  ".join(padded).rstrip()


def cell(value: object, *, human: bool = False) -> str:
    """Return one value as text without tabs or line ends; on a terminal, times are ages."""
    if value is None or value == "":
        return "-" if human else ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%SZ") if human else value.isoformat()
    if isinstance(value, float):
        return f"{value:g}"
    return one_line(str(value))


def one_line(text: str) -> str:
    """Return text that cannot break a line, a column or a terminal."""
    if text.isprintable():
        return text
    escapes = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return "".join(
        c if c.isprintable() else escapes.get(c) or c.encode("unicode_escape", "surrogatepass").decode()
        for c in text
    )


def duration(seconds: float) -> str:
    """Return a duration as people say it: 7s, 3m, 2h, 5d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def age(when: datetime | None) -> str:
    """Return how long ago that was."""
    return "-" if when is None else duration(max(0.0, (datetime.now(UTC) - when).total_seconds()))


# --- terminals ---------------------------------------------------------------------------------------------

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def on_terminal(stream: TextIO | EllipsisType | None = ...) -> bool:
    """Whether a person is at the other end of a stream, stdout if none is given; a closed one is None."""
    stream = sys.stdout if isinstance(stream, EllipsisType) else stream
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False  # closed


def coloured(stream: TextIO | EllipsisType | None = ...) -> bool:
    """Whether colours are welcome: a terminal that knows them, and no NO_COLOR."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and on_terminal(stream)


def paint(text: str, style: str) -> str:
    """Return text in a colour, where colours are welcome."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if coloured() else text


def confirm(question: str, *, yes: bool) -> bool:
    """Ask on a terminal; without one the answer must have been given with --yes."""
    if yes:
        return True
    if not (on_terminal(sys.stdin) and on_terminal(sys.stderr)):
        raise errors.SettingsError(f"{question} There is no terminal to ask on: say --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextlib.contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """Yield a function to call once per step; a bar is drawn on a terminal where rich is installed."""
    bar = _bar() if on_terminal(sys.stderr) else None
    if bar is None:
        yield lambda: None
        return
    with bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)


def _bar() -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)

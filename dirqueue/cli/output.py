"""What the command shows.

Layer: edges.  Data goes to stdout: a table on a terminal, tab-separated lines elsewhere, with --json one object per
line. Messages to people go to stderr, each line beginning with `dirqueue: `.
Invariant: what a file, a body or an error says cannot control a terminal: it is escaped, except a body that goes to
a file or a pipe, or with --raw.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TextIO

from dirqueue import errors
from dirqueue.cli.exits import InputError, MissingExtra, OutputError
from dirqueue.disk import fs

if TYPE_CHECKING:
    from dirqueue.message import Message

#: How much of a body is read at a time.
PIECE = 1 << 16


def complain(text: str) -> None:
    """Write a message for a person to stderr."""
    if sys.stderr is None:
        return  # closed at the start; print() would write to stdout instead
    try:
        print(f"dirqueue: {one_line(text)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # closed: nobody can read it


def need(module: str, extra: str) -> Any:
    """Import an optional package; MissingExtra says how to install it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(
            f"this needs the package {module.partition('.')[0]}: pip install 'dirqueue[{extra}]'"
        ) from None


def finish() -> None:
    """Flush the output: an error that comes late is still an error."""
    if sys.stdout is not None:
        with _output():
            sys.stdout.flush()


@contextlib.contextmanager
def _output() -> Iterator[None]:
    """Turn an error of the output into an OutputError; a reader that went away stays a BrokenPipeError."""
    if sys.stdout is None:
        raise OutputError("cannot write to the standard output: it is closed")
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        abandon_stdout()
        raise output_error(error) from error


def abandon_stdout() -> None:
    """Keep Python from flushing stdout, and failing, when it exits."""
    with contextlib.suppress(OSError, ValueError):
        null = fs.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        fs.close(null)


def output_error(error: OSError, name: str = "-") -> OutputError:
    """Return the error for an output file that cannot be written; "-" is standard output."""
    what = "to the standard output" if name == "-" else repr(name)
    return OutputError(f"cannot write {what}: {os.strerror(error.errno or 0)}")


def input_error(name: str, error: OSError) -> InputError:
    """Return the error for an input file that cannot be read; "-" is standard input."""
    what = "the standard input" if name == "-" else repr(name)
    return InputError(f"cannot read {what}: {os.strerror(error.errno or 0)}")


def write(data: bytes) -> None:
    """Write bytes as they are, and flush."""
    with _output():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def text(whole: str, *, raw: bool = False) -> None:
    """Write text of several lines: as it is, or escaped on a terminal unless `raw`."""
    data(whole.encode("utf-8", "replace"), raw=raw)


def data(whole: bytes, *, raw: bool = False) -> None:
    """Write bytes: as they are, or escaped on a terminal unless `raw`."""
    write((_as_it_is if raw or not on_terminal() else _escaper())(whole, True))


def body(message: Message[bytes], end: bytes, *, raw: bool) -> None:
    """Write a body and what ends it: as it is, or escaped on a terminal unless `raw`.

    A long one is never in memory as a whole. MessageNotFound comes before anything was written.
    """
    shown = _as_it_is if raw or not on_terminal() else _escaper()
    if message.size < PIECE:
        write(shown(message.data, True) + end)
        return
    with message.open() as file:
        while data := file.read(PIECE):
            write(shown(data, False))
    write(shown(b"", True) + end)


def _as_it_is(data: bytes, _final: bool) -> bytes:
    return data


def _escaper() -> Callable[[bytes, bool], bytes]:
    """Return a function that escapes a body piece by piece: a character may lie across two of them."""
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    return lambda data, final: _harmless(decoder.decode(data, final), keep="\n\t").encode()


def line(text: str) -> None:
    """Write one line of data."""
    with _output():
        sys.stdout.write(text + "\n")


# --- records -----------------------------------------------------------------------------------------------


def tabular(args: argparse.Namespace) -> bool:
    """Return whether to show a table: on a terminal, or with --table."""
    return args.table or (not args.json and on_terminal())


def records(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], args: argparse.Namespace) -> int:
    """Show rows: JSON objects whole, otherwise these columns. Return the number of rows."""
    count = 0
    if not tabular(args):
        for row in rows:
            show(row, columns, json=args.json)
            count += 1
        return count
    cells = [[cell(row[name], human=True) for name in columns] for row in rows]
    if cells:
        table(columns, cells)
    return len(cells)


def table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Show a table with a header; numbers are aligned to the right."""
    header = [name if name[0].isdigit() else name.upper() for name in columns]
    widths = [max(_width(each[i]) for each in (header, *cells)) for i in range(len(columns))]
    numeric = [i > 0 and _all_numbers([each[i] for each in cells]) for i in range(len(columns))]
    line(paint(_aligned(header, widths, numeric), "bold"))
    for each in cells:
        line(_aligned(each, widths, numeric))


def _all_numbers(cells: list[str]) -> bool:
    given = [text for text in cells if text != "-"]
    return bool(given) and all(text.replace(".", "").isdigit() for text in given)


def _aligned(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = []
    for text, width, right in zip(cells, widths, numeric, strict=True):
        space = " " * (width - _width(text))
        padded.append(space + text if right else text + space)
    return "  ".join(padded).rstrip()


def _width(text: str) -> int:
    """Return the columns that a text takes on a terminal: East Asian letters take two, combining ones none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def show(row: Mapping[str, Any], columns: Sequence[str], *, json: bool = False) -> None:
    """Show one row for programs."""
    line(dumps(row) if json else "\t".join(cell(row[name]) for name in columns))


def dumps(row: Mapping[str, Any]) -> str:
    """Return one object on one line: valid UTF-8 without control characters, whatever the values hold."""
    import json

    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=_plain)
    return text if text.isprintable() else "".join(c if _is_harmless(c) else _json_escape(c) for c in text)


def _json_escape(c: str) -> str:
    r"""Return a character as JSON escapes it; a byte of a name that is not UTF-8 as the four letters \xHH."""
    if _is_byte(c):
        return f"\\\\x{ord(c) - 0xDC00:02x}"
    pairs = c.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pairs[i]:02x}{pairs[i + 1]:02x}" for i in range(0, len(pairs), 2))


def _is_byte(c: str) -> bool:
    """Return whether the character stands for a byte that is not UTF-8 (PEP 383)."""
    return "\udc80" <= c <= "\udcff"


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def cell(value: object, *, human: bool = False) -> str:
    """Return one value as text without tabs or line ends."""
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
    return _harmless(text, keep="")


def _harmless(text: str, keep: str) -> str:
    """Return text with every control character escaped; those in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(c if c in keep or _is_harmless(c) else _escape(c) for c in text)


def _is_harmless(c: str) -> bool:
    """Return whether a terminal only shows the character: it is printable, or a space of some width."""
    if c.isprintable():
        return True
    import unicodedata

    return unicodedata.category(c) == "Zs"


def _escape(c: str) -> str:
    if _is_byte(c):
        return f"\\x{ord(c) - 0xDC00:02x}"
    return c.encode("unicode_escape", "surrogatepass").decode()


def duration(seconds: float) -> str:
    """Return a duration in one unit: 7s, 3m, 2h, 5d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def age(when: datetime | None) -> str:
    """Return how long ago that was."""
    return "-" if when is None else duration(max(0.0, (datetime.now(UTC) - when).total_seconds()))


def moment(when: datetime | None) -> str:
    """Return a time, and how far away it is."""
    if when is None:
        return ""
    return f"{cell(when, human=True)} ({ahead(when)})"


def ahead(when: datetime | None) -> str:
    """Return how far ahead that is, or how long ago it was."""
    if when is None:
        return "-"
    left = (when - datetime.now(UTC)).total_seconds()
    return f"in {duration(left)}" if left > 0 else f"{duration(-left)} ago"


# --- terminals ---------------------------------------------------------------------------------------------

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def on_terminal(stream: TextIO | EllipsisType | None = ...) -> bool:
    """Return whether a stream is a terminal; stdout if none is given; a closed one is None."""
    stream = sys.stdout if isinstance(stream, EllipsisType) else stream
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False  # closed


def coloured(stream: TextIO | EllipsisType | None = ...) -> bool:
    """Return whether to use colours: on a terminal that has them, without NO_COLOR."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and on_terminal(stream)


def paint(text: str, style: str) -> str:
    """Return text in a colour, where colours are used."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if coloured() else text


def confirm(question: str, *, yes: bool) -> bool:
    """Ask on a terminal; without one --yes is required."""
    if yes:
        return True
    if not (on_terminal(sys.stdin) and on_terminal(sys.stderr)):
        raise errors.SettingsError(f"{question} There is no terminal to ask on: add --yes")
    print(f"{one_line(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextlib.contextmanager
def progress(label: str, total: int | None = None, *, typed: bool = False) -> Iterator[Callable[[], None]]:
    """Yield a function to call once per step; a bar is drawn on a terminal where rich is installed.

    Not if the input is being `typed` at that terminal: the bar would overwrite it.
    """
    bar = _bar() if on_terminal(sys.stderr) and not typed else None
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

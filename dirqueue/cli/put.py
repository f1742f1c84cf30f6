"""The verb `put`: bodies from arguments, standard input or files.

Layer: edges.  Several bodies are one batch: all of them become visible at once, or none.
"""

from __future__ import annotations

import argparse
import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TextIO

from dirqueue.cli import output
from dirqueue.cli.arguments import json_option, moment, open_queue, pair, path_of, seconds, verb, whole
from dirqueue.cli.exits import Exit, InputError, OutputError
from dirqueue.disk import fs
from dirqueue.errors import SettingsError

if TYPE_CHECKING:
    from dirqueue.queue import Queue

#: How much of standard input is read at a time when it is split.
CHUNK = 1 << 16


def add(subparsers: Any) -> None:
    """Add the verb."""
    parser = verb(
        subparsers,
        "put",
        put,
        "put messages into a queue",
        description="Each BODY or --file is a message; without any, the standard input is. The ids are printed when "
        "the messages are on disk. Several messages become visible all at once, or not at all (in a layout "
        "without batches, one by one).",
        creates=True,
    )
    parser.add_argument("bodies", metavar="BODY", nargs="*", help="the body of a message; may be repeated")
    split = parser.add_mutually_exclusive_group()
    split.add_argument("-l", "--lines", action="store_true", help="standard input holds a message per line")
    split.add_argument(
        "-0", "--null", action="store_true", help="standard input holds messages that end in NUL"
    )
    split.add_argument(
        "-f",
        "--file",
        action="append",
        metavar="FILE",
        default=[],
        help="put the contents of FILE; may be repeated",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--move", action="store_true", help="with --file: move the file in, without a copy")
    how.add_argument(
        "--link", action="store_true", help="with --file: link it in; it must not change any more"
    )
    how.add_argument(
        "--each", action="store_true", help="put each message as it is read, instead of all at once"
    )
    parser.add_argument(
        "--at",
        type=moment,
        metavar="INSTANT",
        help="when it becomes ready, instead of --delay, e.g. 2027-01-01T06:00 (local time) or ...T06:00Z",
    )
    parser.add_argument(
        "--delay",
        type=seconds,
        default=0.0,
        metavar="TIME",
        help="how long until it is ready, e.g. 5m (default: at once)",
    )
    parser.add_argument(
        "--ttl",
        type=seconds,
        metavar="TIME",
        help="how long it may be delivered, e.g. 1h; then it goes to the dead letters (default: no limit)",
    )
    parser.add_argument(
        "-a",
        "--attribute",
        action="append",
        type=pair,
        default=[],
        metavar="NAME=VALUE",
        help="text that it carries beside its body; may be repeated",
    )
    parser.add_argument(
        "-p", "--priority", type=whole, metavar="N", help="1 is the most urgent, in a queue with priorities"
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=0.0,
        metavar="TIME",
        help="how long to wait for room in a bounded queue, e.g. 30s (default: do not wait)",
    )
    parser.add_argument(
        "--existing", action="store_true", help="fail if there is no queue there, instead of making one"
    )
    parser.add_argument("--no-sync", action="store_true", help="do not wait for the disk")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print the ids")
    json_option(parser)


def put(args: argparse.Namespace) -> int:
    """Put what the arguments name."""
    if (args.move or args.link) and not args.file:
        raise SettingsError("--move and --link are about files: name them with --file")
    if args.bodies and (args.file or args.lines or args.null):
        raise SettingsError(
            "give the bodies as arguments, with --file, or on standard input, not in two ways"
        )
    settings = {"sync": False} if args.no_sync else {}
    queue = open_queue(args.queue, create=not args.existing, into=not args.existing, **settings)
    if args.priority and not queue.settings.priorities and "priority" not in queue.layout.lacks:
        raise SettingsError("--priority needs a queue with priorities: dirqueue create QUEUE --priorities")
    how = {"delay": args.delay, "at": args.at, "priority": args.priority, "timeout": args.timeout}
    how |= {"ttl": args.ttl, "attributes": dict(args.attribute)}
    show = _shower(args)
    if args.move or args.link:
        _put_paths(queue, args, how, show)
        return Exit.OK
    source = _source(args)
    if source is not None:
        show([_put_source(queue, source, how)])
        return Exit.OK
    single, bodies = _bodies(args)
    if single or args.each or "batch" in queue.layout.lacks:
        for body in bodies:
            show([queue.put(body, **how)])
    else:
        with output.progress("put", typed=output.on_terminal(sys.stdin) and not args.bodies) as step:
            ids = queue.put_many(_counted(bodies, step), **how)
        show(ids)
    return Exit.OK


def _source(args: argparse.Namespace) -> str | None:
    """Return the one file that is the one body; "-" is standard input."""
    if args.bodies or args.lines or args.null or len(args.file) > 1:
        return None
    return args.file[0] if args.file else "-"


def _put_source(queue: Queue[bytes], name: str, how: dict[str, Any]) -> str:
    """Put one file, or standard input, without reading all of it first."""
    from dirqueue.tools.spool import put_stream

    with _Input(name) as source:
        return put_stream(queue, source, **how)


def _put_paths(
    queue: Queue[bytes], args: argparse.Namespace, how: dict[str, Any], show: Callable[[list[str]], None]
) -> None:
    for file in args.file:  # a wrong one among many is reported before the first is gone
        _check(file)
    for file in args.file:
        show([queue.put_path(file, **how, link=args.link)])


def _check(file: str) -> None:
    try:
        fd = fs.open(file, fs.READ)
        plain = stat.S_ISREG(fs.fstat(fd).st_mode)
        fs.close(fd)
    except OSError as error:
        raise output.input_error(file, error) from error
    if not plain:
        raise InputError(f"{file!r} is not a regular file: only those can be moved or linked in")


def _shower(args: argparse.Namespace) -> Callable[[list[str]], None]:
    """Return the function that prints ids; they are flushed at once, so that an error says what was put."""
    where = path_of(args.queue)

    def show(ids: list[str]) -> None:
        try:
            for id in ids:
                output.line(output.dumps({"id": id, "queue": where}) if args.json else id)
            output.finish()
        except OutputError as error:
            raise OutputError(f"{error}; what was put stays put: {', '.join(ids[:3])}") from None

    return (lambda _: None) if args.quiet else show


def _bodies(args: argparse.Namespace) -> tuple[bool, Iterable[bytes]]:
    """Return whether there is one body for sure, and the bodies."""
    if args.bodies:
        return len(args.bodies) == 1, [os.fsencode(body) for body in args.bodies]
    if args.file:
        return False, (_read(file) for file in args.file)
    return False, _split(b"\n" if args.lines else b"\0")


def _read(file: str) -> bytes:
    with _Input(file) as source:
        return source.read()


class _Input:
    """A file, or standard input as "-". An error names it, and is never taken for one of the queue."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: BinaryIO | None = None
        try:
            if name != "-":
                self._own = io.BufferedReader(io.FileIO(fs.open(name, os.O_RDONLY | os.O_CLOEXEC), "rb"))
        except OSError as error:
            raise output.input_error(name, error) from error
        self._source: BinaryIO = self._own or _stdin().buffer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.close()

    def read(self, size: int = -1) -> bytes:
        """Read so many bytes, or all."""
        try:
            return self._source.read(size)
        except OSError as error:
            raise output.input_error(self._name, error) from error


def _stdin() -> TextIO:
    if sys.stdin is None:
        raise InputError("there is no body: the standard input is closed")
    if output.on_terminal(sys.stdin):
        output.complain("reading from the terminal; Ctrl-D ends it")
    return sys.stdin


def _split(end: bytes) -> Iterator[bytes]:
    """Yield the pieces of standard input as they come; a last one without an end counts if there is any."""
    rest: list[bytes] = []
    source = _stdin().buffer
    read: Callable[[int], bytes] = getattr(source, "read1", source.read)
    while True:
        try:
            data = read(CHUNK)
        except OSError as error:
            raise output.input_error("-", error) from error
        if not data:
            break
        head, *others = data.split(end)
        rest.append(head)
        for piece in others:
            yield b"".join(rest)
            rest = [piece]
    if last := b"".join(rest):
        yield last


def _counted(bodies: Iterable[bytes], step: Callable[[], None]) -> Iterator[bytes]:
    for body in bodies:
        yield body
        step()

"""The verb for spaces: list, stats, find, purge, export, import.

Layer: edges.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

from dirqueue.cli import output
from dirqueue.cli.arguments import described, json_option, path_of, raw_option, table_option, verb, whole
from dirqueue.cli.count import COLUMNS, TERMINAL_COLUMNS
from dirqueue.cli.exits import Exit

if TYPE_CHECKING:
    from dirqueue.space import Space


def add(subparsers: Any) -> None:
    """Add the verb and its own verbs."""
    parser = verb(
        subparsers,
        "space",
        _nothing,
        "work on all queues of a directory: list, stats, find, purge, export or import",
        description="A space is a directory of native queues, which can change together.",
        queue=False,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    parser = _verb(verbs, "list", list_, "print the names of the queues")
    _choice(parser)
    parser = _verb(verbs, "stats", stats, "count the messages of each queue by state")
    _choice(parser)
    table_option(parser)
    parser = _verb(
        verbs,
        "find",
        find,
        "print the message of an id, with its queue",
        "An id of your own, or the digits that put printed. Exit status 3: there is no such message.",
    )
    parser.add_argument("id", metavar="ID", help="the id")
    parser.add_argument("--queue", metavar="NAME", help="the queue to look in (default: all)")
    json_option(parser)
    raw_option(parser)
    parser = _verb(
        verbs,
        "purge",
        purge,
        "remove what crashes have left behind, in every queue and in .space/",
        "Made for cron: prints nothing unless something is wrong. Never needed for correctness, and safe at any time.",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print what was removed")
    json_option(parser)
    parser = _verb(
        verbs,
        "export",
        export,
        "write every waiting message as a line of JSON",
        "To standard output, unless a file is named. A warning says if the space changed meanwhile.",
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="a new file (default: standard output)")
    parser = _verb(
        verbs,
        "import",
        import_,
        "put what export wrote",
        "Messages with an id of your own that is there already are skipped. Prints how many were put.",
        creates=True,
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="the file (default: standard input)")


def _verb(
    verbs: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    help: str,
    description: str = "",
    *,
    creates: bool = False,
) -> argparse.ArgumentParser:
    parser = verb(verbs, name, run, help, description=description, queue=False, creates=creates)
    parser.add_argument("space", metavar="SPACE", help="the directory of the queues")
    return parser


def _choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="only these queues (default: all)")
    parser.add_argument("--prefix", default="", metavar="TEXT", help="only queues whose names begin so")
    parser.add_argument("--limit", type=whole, metavar="N", help="at most N queues")


def _nothing(_args: argparse.Namespace) -> int:
    raise AssertionError  # argparse asks for one of the verbs


def _open(args: argparse.Namespace, *, create: bool = False) -> Space[Any]:
    from dirqueue.space import Space
    from dirqueue.tools import discover

    path = path_of(args.space)
    discover.need_space(path)
    return Space(path, create=create)


def list_(args: argparse.Namespace) -> int:
    """Print the names of the queues."""
    with _open(args) as space:
        names = space.names(prefix=args.prefix, names=args.names, limit=args.limit)
    for name in names:
        output.line(output.one_line(name))
    return Exit.OK if names else Exit.EMPTY


def stats(args: argparse.Namespace) -> int:
    """Count each queue."""
    human = output.tabular(args)
    with _open(args) as space:
        rows = _rows(space, args, human=human)
        count = output.records(rows, TERMINAL_COLUMNS if human else COLUMNS, args)
    return Exit.OK if count else Exit.EMPTY


def _rows(space: Space[Any], args: argparse.Namespace, *, human: bool) -> Iterator[dict[str, Any]]:
    for name in space.names(prefix=args.prefix, names=args.names, limit=args.limit):
        queue = space.queue(name)
        found = queue.stats()
        row = {"queue": name, "layout": queue.layout.name} | found.to_dict()
        if human:
            row["oldest ready"] = output.age(found.oldest_ready)
            row["lease ends"] = output.ahead(found.oldest_lease)
            row["held by"] = found.oldest_lease_token
            row["next due"] = output.ahead(found.next_due)
        yield row


def find(args: argparse.Namespace) -> int:
    """Print one message."""
    from dirqueue.errors import MessageNotFound

    with _open(args) as space:
        try:
            message = space.message(args.id, args.queue)
        except MessageNotFound as error:
            output.complain(str(error))
            return Exit.EMPTY
        queue = space.queue_of(message)
        if args.json:
            output.line(output.dumps({"queue": queue} | described(message)))
        else:
            output.line(f"{output.one_line(queue)}\t{message.id}\t{message.state}")
            output.body(message, b"\n", raw=args.raw)
    return Exit.OK


def purge(args: argparse.Namespace) -> int:
    """Purge every queue and what belongs to all of them."""
    with _open(args) as space:
        done = space.purge()._asdict()
    if args.json:
        output.line(output.dumps({"space": path_of(args.space)} | done))
    elif args.verbose:
        parts = [f"{name}={count}" for name, count in done.items() if count]
        output.line(" ".join(parts) or "clean")
    return Exit.OK


def export(args: argparse.Namespace) -> int:
    """Write every message."""
    import io

    with _open(args) as space:
        text = io.StringIO()
        done = space.export(text)
    if args.file is None:
        output.write(text.getvalue().encode())
    else:
        try:
            with open(args.file, "x", encoding="ascii") as file:
                file.write(text.getvalue())
        except OSError as error:
            raise output.output_error(error, args.file) from error
    if not done.exact:
        output.complain("the space changed meanwhile: the copy is not of one moment")
    return Exit.OK if done.messages else Exit.EMPTY


def import_(args: argparse.Namespace) -> int:
    """Put what export wrote."""
    with _open(args, create=True) as space:
        if args.file is None:
            done = space.import_(sys.stdin)
        else:
            with _opened(args.file) as file:
                done = space.import_(file)
    output.line(f"{done.messages} put, {done.skipped} skipped")
    return Exit.OK


def _opened(name: str) -> IO[str]:
    try:
        return open(name, encoding="ascii")
    except OSError as error:
        raise output.input_error(name, error) from error

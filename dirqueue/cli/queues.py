"""The verbs for whole queues: create, delete, clear, flush, list.

Layer: edges.
"""

from __future__ import annotations

import argparse
from typing import Any

from dirqueue import layouts, states
from dirqueue.cli import exits, output
from dirqueue.cli.arguments import (
    VARIABLE,
    at_least_0,
    base,
    flag,
    open_queue,
    path_of,
    seconds,
    table_option,
    verb,
    whole,
)
from dirqueue.cli.exits import Exit
from dirqueue.errors import QueueNotFound, SettingsError
from dirqueue.settings import NAMES, build
from dirqueue.tools import conversion

COUNTS = states.VISIBLE
COLUMNS = ("queue", "layout", *COUNTS, "error")
#: COMPAT: Quetify calls it Stack.
TYPES = {"fifo": "fifo", "stack": "lifo", "lifo": "lifo", "random": "random"}


def add(subparsers: Any) -> None:
    """Add the verbs."""
    _add_create(subparsers)
    parser = verb(
        subparsers,
        "delete",
        delete,
        "delete a queue and every message in it",
        description="Asks first. Refuses what is not a queue, a queue with files in it that are not dirqueue's, and "
        "one whose conversion was interrupted.",
    )
    _sure(parser)
    parser.add_argument(
        "-f", "--missing-ok", action="store_true", help="do nothing, successfully, if there is no such queue"
    )
    parser = verb(subparsers, "clear", clear, "remove the acknowledged messages that are kept in done/")
    parser.add_argument("--dry-run", action="store_true", help="only print how many there are")
    parser = verb(
        subparsers,
        "flush",
        flush,
        "remove every message in every state; the queue stays",
        description="Asks first. Whoever holds a message finds the lease lost.",
    )
    _sure(parser)
    parser = verb(
        subparsers,
        "list",
        list_,
        "list the queues under a directory",
        description="Exit status 1: one could not be read, and its row gives the error; 3: there are none.",
        queue=False,
    )
    parser.add_argument(
        "root",
        metavar="ROOT",
        nargs="?",
        help=f"where to look (default: ${VARIABLE}, else the current directory)",
    )
    table_option(parser)


def _sure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")


def _add_create(subparsers: Any) -> None:
    parser = verb(
        subparsers,
        "create",
        create,
        "make a queue with settings that apply to everyone who opens it",
        description="A queue with default settings needs no create: the first put makes it.",
        creates=True,
    )
    parser.add_argument(
        "-t",
        "--type",
        type=str.lower,
        choices=tuple(TYPES),
        default="fifo",
        help="order of delivery, in upper or lower case (default: fifo)",
    )
    flag(parser, "-p", "--priorities", help="whether messages have priorities, 1 first (default: false)")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--max-attempts",
        type=int,
        metavar="N",
        help="deliveries before a message is dead; 0: no limit (default: 5)",
    )
    limit.add_argument(
        "-r",
        "--retry-limit",
        type=at_least_0,
        metavar="N",
        help="the same, counted in retries: after N of them, N + 1 deliveries, it is dead",
    )
    parser.add_argument("--lease", type=seconds, metavar="TIME", help="how long a claim lasts (default: 30s)")
    parser.add_argument("--keep-done", action="store_true", help="keep acknowledged messages in done/")
    parser.add_argument(
        "--max-messages", type=whole, metavar="N", help="most messages in the queue; put waits for room"
    )
    parser.add_argument("--max-size", type=whole, metavar="BYTES", help="largest body")
    parser.add_argument(
        "--links", action="store_true", help="write bodies of at most 1,000 bytes as symbolic links"
    )
    parser.add_argument(
        "--no-sync", action="store_true", help="do not wait for the disk: a power cut may lose messages"
    )
    parser.add_argument(
        "--layout",
        choices=layouts.NAMES,
        help="how the directory is written (default: native)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other setting: " + ", ".join(NAMES),
    )


def create(args: argparse.Namespace) -> int:
    """Make a queue."""
    from dirqueue.queue import Queue

    given = _settings(args)
    build(given)  # an invalid value is a wrong command line, not a directory that cannot be made
    try:
        Queue.create(path_of(args.queue), **given)
    except SettingsError as error:
        output.complain(str(error))
        return Exit.CANNOT_CREATE
    return Exit.OK


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    limit = args.max_attempts if args.retry_limit is None else args.retry_limit + 1
    given = {
        "order": TYPES[args.type] if args.type != "fifo" else None,
        "priorities": args.priorities or None,
        "max_attempts": limit,
        "lease": args.lease,
        "keep_done": args.keep_done or None,
        "max_messages": args.max_messages,
        "max_size": args.max_size,
        "links": args.links or None,
        "sync": False if args.no_sync else None,
        "layout": args.layout,
    }
    return named(args.set) | {name: value for name, value in given.items() if value is not None}


def named(texts: list[str]) -> dict[str, Any]:
    """Return the settings given with --set."""
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--set {text!r:.60} needs NAME=VALUE")
        given[name] = _value(value)
    return given


def _value(text: str) -> Any:
    """Read a value as JSON would; anything else is text."""
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


def delete(args: argparse.Namespace) -> int:
    """Delete a queue, after a question."""
    from dirqueue.tools import delete as deleting

    try:
        queue = open_queue(args.queue)
    except QueueNotFound:
        if args.missing_ok and conversion.interrupted(path_of(args.queue)) is None:
            return Exit.OK
        raise
    deleting.check(queue.layout)
    stats = queue.stats()
    what = f"the queue {queue.path!r} with {stats.total + stats.dead + stats.done} messages"
    if args.dry_run:
        output.complain(f"would delete {what}")
        return Exit.OK
    if not output.confirm(f"Delete {what}?", yes=args.yes):
        output.complain("nothing was deleted")
        return Exit.FAILED
    gone = deleting.delete(queue.layout)
    if output.on_terminal():
        output.complain(f"deleted {queue.path!r} and {gone} messages")
    return Exit.OK


def clear(args: argparse.Namespace) -> int:
    """Remove the done messages."""
    queue = open_queue(args.queue)
    output.line(str(queue.stats().done if args.dry_run else queue.clear()))
    return Exit.OK


def flush(args: argparse.Namespace) -> int:
    """Remove every message, after a question."""
    queue = open_queue(args.queue)
    stats = queue.stats()
    count = stats.total + stats.dead + stats.done
    if args.dry_run:
        output.line(str(count))
        return Exit.OK
    if not output.confirm(
        f"Remove all {count} messages of {queue.path!r}, {stats.leased} of them held?", yes=args.yes
    ):
        output.complain("nothing was removed")
        return Exit.FAILED
    output.line(str(queue.flush()))
    return Exit.OK


def list_(args: argparse.Namespace) -> int:
    """List queues with their counts."""
    from dirqueue.tools import discover

    root = base() if args.root is None else args.root
    rows = [_row(path) for path in discover.find(root)]
    failed = any(row["error"] for row in rows)
    # People see the column of errors only where there is one; programs always.
    output.records(rows, COLUMNS if failed or not output.tabular(args) else COLUMNS[:-1], args)
    return Exit.FAILED if failed else Exit.OK if rows else Exit.EMPTY


def _row(path: str) -> dict[str, Any]:
    """Return the counts of a queue, or why it cannot be read: it must not hide the others."""
    try:
        with open_queue(path, resolve=False) as queue:
            return {"queue": path, "layout": queue.layout.name} | queue.stats().to_dict() | {"error": None}
    except Exception as error:  # noqa: BLE001 - see above
        return {"queue": path, "layout": None} | dict.fromkeys(COUNTS) | {"error": exits.sentence_of(error)}

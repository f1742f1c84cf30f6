"""The verbs for whole queues: create, delete, clear, flush, list.

Layer: edges.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from dirqueue import layouts
from dirqueue.cli import output
from dirqueue.cli.arguments import (
    VARIABLE,
    base,
    open_queue,
    path_of,
    seconds,
    table_option,
    verb,
    whole,
)
from dirqueue.cli.output import Exit
from dirqueue.errors import DirQueueError, QueueError, SettingsError
from dirqueue.settings import NAMES, build

COLUMNS = ("queue", "layout", "ready", "delayed", "leased", "dead", "done")
#: Quetify says Stack, Python says lifo.
TYPES = {"fifo": "fifo", "stack": "lifo", "lifo": "lifo", "random": "random"}


def add(subparsers: Any) -> None:
    """Add the verbs."""
    _add_create(subparsers)
    parser = verb(
        subparsers,
        "delete",
        delete,
        "delete a queue and every message in it",
        description="Asks first. Refuses what is not a queue, and a queue with files in it that are not dirqueue's.",
    )
    _sure(parser)
    parser = verb(subparsers, "clear", clear, "remove the acknowledged messages that are kept in done/")
    parser.add_argument("--dry-run", action="store_true", help="only say how many there are")
    parser = verb(
        subparsers,
        "flush",
        flush,
        "remove every message in every state; the queue stays",
        description="Asks first. Whoever holds a message finds the lease lost.",
    )
    _sure(parser)
    parser = verb(subparsers, "list", list_, "list the queues under a directory", queue=False)
    parser.add_argument(
        "root", metavar="ROOT", nargs="?", help=f"where to look; ${VARIABLE}, or here, if not given"
    )
    table_option(parser)


def _sure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")


def _add_create(subparsers: Any) -> None:
    parser = verb(
        subparsers,
        "create",
        create,
        "make a queue with settings that everybody who opens it gets",
        description="A queue with default settings needs no create: the first put makes it.",
        creates=True,
    )
    parser.add_argument("-t", "--type", choices=tuple(TYPES), default="fifo", help="order of delivery (fifo)")
    parser.add_argument("-p", "--priorities", action="store_true", help="messages have priorities, 1 first")
    parser.add_argument(
        "-r",
        "--max-attempts",
        "--retry-limit",
        type=int,
        metavar="N",
        help="deliveries before a message is dead (5); 0: no limit",
    )
    parser.add_argument("--lease", type=seconds, metavar="TIME", help="how long a claim holds (30s)")
    parser.add_argument("--keep-done", action="store_true", help="keep acknowledged messages in done/")
    parser.add_argument("--max-messages", type=whole, metavar="N", help="put waits when so many are there")
    parser.add_argument("--max-size", type=whole, metavar="BYTES", help="largest body")
    parser.add_argument(
        "--no-sync", action="store_true", help="do not wait for the disk: a power cut may lose messages"
    )
    parser.add_argument(
        "--layout",
        choices=layouts.NAMES,
        help="how the directory is written (native)",
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
    build(given)  # a value that cannot be is the caller's mistake, not the directory's
    try:
        Queue.create(path_of(args.queue), **given)
    except SettingsError as error:
        output.complain(str(error))
        return Exit.CANNOT_CREATE
    return Exit.OK


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    told = {
        "order": TYPES[args.type] if args.type != "fifo" else None,
        "priorities": args.priorities or None,
        "max_attempts": args.max_attempts,
        "lease": args.lease,
        "keep_done": args.keep_done or None,
        "max_messages": args.max_messages,
        "max_size": args.max_size,
        "sync": False if args.no_sync else None,
        "layout": args.layout,
    }
    return named(args.set) | {name: value for name, value in told.items() if value is not None}


def named(texts: list[str]) -> dict[str, Any]:
    """Return the settings that --set gave."""
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
    """Delete a queue, once the person is sure."""
    from dirqueue.tools import discover

    queue = open_queue(args.queue)
    if not discover.is_queue(queue.path):
        text = f"{queue.path!r} is not a queue: nothing in it is dirqueue's; nothing was deleted"
        raise QueueError(text, path=queue.path)
    stats = queue.stats()
    what = f"the queue {queue.path!r} with {stats.total + stats.dead + stats.done} messages"
    if args.dry_run:
        found = discover.strangers(queue.layout)
        output.complain(
            f"would refuse {what}: {found[0]!r} is not dirqueue's" if found else f"would delete {what}"
        )
        return Exit.FAILED if found else Exit.OK
    if not output.confirm(f"Delete {what}?", yes=args.yes):
        output.complain("nothing was deleted")
        return Exit.FAILED
    gone = discover.delete(queue.layout)
    if output.on_terminal():
        output.complain(f"deleted {queue.path!r} and {gone} messages")
    return Exit.OK


def clear(args: argparse.Namespace) -> int:
    """Remove what is done."""
    queue = open_queue(args.queue)
    output.line(str(queue.stats().done if args.dry_run else queue.clear()))
    return Exit.OK


def flush(args: argparse.Namespace) -> int:
    """Remove every message, once the person is sure."""
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
    return Exit.OK if output.records(_rows(discover.find(root)), COLUMNS, args) else Exit.EMPTY


def _rows(paths: Iterator[str]) -> Iterator[dict[str, Any]]:
    from dirqueue.queue import Queue

    for path in paths:
        try:
            with Queue(path, create=False) as queue:
                yield {"queue": path, "layout": queue.layout.name} | queue.stats().to_dict()
        except DirQueueError as error:  # one that cannot be read must not hide the others
            output.complain(str(error))

"""The verbs that count: stat, shape.

Layer: edges.  Touches: nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from dirqueue import states
from dirqueue.cli import exits, output
from dirqueue.cli.arguments import open_queue, path_of, seconds, table_option, verb, whole
from dirqueue.cli.exits import Exit
from dirqueue.tools import conversion
from dirqueue.tools.shape import measure

COLUMNS = (
    "queue", "layout", *states.LIVE, "expired", *states.ENDED, states.NEW, states.FOREIGN, "total",
    "oldest_ready", "oldest_lease", "oldest_lease_token", "next_due", "paused", "most_attempts",
)  # fmt: skip
TERMINAL_COLUMNS = (
    "queue",
    *states.LIVE,
    "expired",
    *states.ENDED,
    "oldest ready",
    "lease ends",
    "held by",
    "next due",
)


def add(subparsers: Any) -> None:
    """Add the verbs."""
    parser = verb(
        subparsers, "stat", stat, "count the messages of queues by state", queue=False, aliases=("stats",)
    )
    parser.add_argument("queues", metavar="QUEUE", nargs="+", help="the directory of a queue")
    table_option(parser)

    parser = verb(
        subparsers,
        "shape",
        shape,
        "show how old the messages are: an age histogram",
        description="Each column counts the messages that are younger than its bound and not counted by a column "
        "before; the bounds double. The age of a message is the time since it was put.",
        queue=False,
    )
    parser.add_argument("queues", metavar="QUEUE", nargs="+", help="the directory of a queue")
    parser.add_argument(
        "--by",
        choices=("state", "attempts", "priority", "queue"),
        default="state",
        help="what a row is (default: state)",
    )
    parser.add_argument(
        "--first", type=seconds, default=60.0, metavar="TIME", help="the first bound (default: 1m)"
    )
    parser.add_argument("--buckets", type=whole, default=9, metavar="N", help="how many bounds (default: 9)")
    table_option(parser)


def stat(args: argparse.Namespace) -> int:
    """Count each queue."""
    human = output.tabular(args)
    status = Exit.OK

    def failed(error: Exception) -> None:
        nonlocal status
        output.complain(exits.sentence_of(error))
        status = max(status, exits.status_of(error))

    rows = _counts(args.queues, failed, human=human)
    output.records(rows, TERMINAL_COLUMNS if human else COLUMNS, args)
    return status


def _counts(
    queues: list[str], failed: Callable[[Exception], None], *, human: bool
) -> Iterator[dict[str, Any]]:
    for name in queues:
        try:
            with open_queue(name) as queue:
                stats = queue.stats()
                row = {"queue": path_of(name), "layout": queue.layout.name} | stats.to_dict()
                found = conversion.interrupted(queue.path)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are counted
            failed(error)
            continue
        if found:
            row["converting"] = found.messages
            output.complain(str(found))
        if human:
            row["queue"] += " (paused)" if stats.paused else ""
            row["oldest ready"] = output.age(stats.oldest_ready)
            row["lease ends"] = output.ahead(stats.oldest_lease)
            row["held by"] = stats.oldest_lease_token
            row["next due"] = output.ahead(stats.next_due)
        yield row


def shape(args: argparse.Namespace) -> int:
    """Show the ages."""
    entries = []
    for name in args.queues:
        queue = open_queue(name)
        entries.append((path_of(name), queue))
    shaped = measure(entries, by=args.by, first=args.first, buckets=args.buckets)
    if args.json:
        for row in shaped.rows():
            output.line(output.dumps(row))
        return Exit.OK
    bounds = [output.duration(bound) for bound in shaped.bounds]
    columns = [args.by, "total", *bounds, f"{bounds[-1]}+"]
    rows = (
        {args.by: row[args.by], "total": row["total"]} | dict(zip(columns[2:], row["counts"], strict=True))
        for row in shaped.rows()
    )
    output.records(rows, columns, args)
    return Exit.OK

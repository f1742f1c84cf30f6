"""The verb `mv`: messages from one queue to another.

Layer: edges.
"""

from __future__ import annotations

import argparse
from typing import Any

from dirqueue import states
from dirqueue.cli import output
from dirqueue.cli.arguments import open_queue, verb, whole
from dirqueue.cli.exits import Exit


def add(subparsers: Any) -> None:
    """Add the verb."""
    parser = verb(
        subparsers,
        "mv",
        mv,
        "move messages that nobody holds to another queue",
        description="Between two native queues on one filesystem each move is one rename. Otherwise each message is "
        "claimed, put and acknowledged, which is reported on stderr. Prints the ids. Exit status 3: there was none.",
        creates=True,
    )
    parser.add_argument("target", metavar="TARGET", help="the directory of the other queue; made if missing")
    parser.add_argument("ids", metavar="ID", nargs="*", help="only these (default: all)")
    parser.add_argument(
        "--state",
        choices=states.MOVABLE,
        default=states.READY,
        help="in which state; dead ones become ready (default: ready)",
    )
    parser.add_argument("--limit", type=whole, metavar="N", help="at most N, the oldest first")
    parser.add_argument("--dry-run", action="store_true", help="only print the ids")


def mv(args: argparse.Namespace) -> int:
    """Move messages, and print their ids."""
    source = open_queue(args.queue)
    if args.dry_run:
        ids = args.ids or [message.id for message in source.peek(args.state, args.limit)]
        for id in ids:
            output.line(id)
        return Exit.OK if ids else Exit.EMPTY
    from dirqueue.tools.transfer import move

    target = open_queue(args.target, create=True, into=True)
    with output.progress("mv") as step:
        moved = move(source, target, args.ids or None, state=args.state, limit=args.limit, progress=step)
    for id in moved.ids:
        output.line(id)
    if moved.ids and not moved.atomic:
        output.complain(
            f"what was moved ({len(moved.ids)}) was claimed, put and acknowledged one by one: "
            "the queues are not both native on one filesystem, or links would have become readable to more people"
        )
    return Exit.OK if moved.ids else Exit.EMPTY

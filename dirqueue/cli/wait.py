"""The verb `wait`: until a queue is empty, or until messages have ended.

Layer: edges.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from dirqueue.cli import output
from dirqueue.cli.arguments import open_queue, seconds, verb
from dirqueue.cli.exits import Exit
from dirqueue.errors import MessageNotFound


def add(subparsers: Any) -> None:
    """Add the verb."""
    parser = verb(
        subparsers,
        "wait",
        wait,
        "wait until a queue is empty, or until messages have ended",
        description="Empty means: nothing ready, delayed or leased. A message has ended when it is acknowledged, "
        "cancelled or dead. Exit status 1: one of the messages is dead; 75: the time is over.",
    )
    parser.add_argument("ids", metavar="ID", nargs="*", help="wait for these messages only")
    parser.add_argument(
        "--timeout", type=seconds, metavar="TIME", help="how long to wait (default: no limit)"
    )


def wait(args: argparse.Namespace) -> int:
    """Wait, and say how it ended."""
    deadline = None if args.timeout is None else time.monotonic() + args.timeout
    with open_queue(args.queue) as queue:
        status = Exit.OK
        for id in args.ids or [None]:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not queue.join(id, timeout=left):
                left_over = len(queue)
                what = f"message {id}" if id else f"{left_over} message{'s' * (left_over != 1)}"
                output.complain(f"the time is over: {what} of {queue.path!r} did not end in time")
                return Exit.TRY_AGAIN
            if id and (error := _failure(queue, id)) is not None:
                output.complain(f"message {id} of {queue.path!r} is dead: {error}")
                status = Exit.FAILED
    return status


def _failure(queue: Any, id: str) -> str | None:
    try:
        message = queue.message(id)
    except MessageNotFound:
        return None
    return (message.error or "for no known reason") if message.state == "dead" else None

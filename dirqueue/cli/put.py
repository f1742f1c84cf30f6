"""The verb `put`: the frame, options follow.

Layer: edges.
"""

from __future__ import annotations

import argparse
from typing import Any

from dirqueue.cli import render
from dirqueue.cli.options import open_queue, verb
from dirqueue.cli.render import Exit


def add(subparsers: Any) -> None:
    """Add the verb."""
    parser = verb(subparsers, "put", put, "put messages", creates=True)
    parser.add_argument("bodies", metavar="BODY", nargs="*", help="one message each")


def put(args: argparse.Namespace) -> int:
    """Put each argument."""
    queue = open_queue(args.queue, create=True)
    for body in args.bodies:
        render.line(queue.put(body))
    return Exit.OK

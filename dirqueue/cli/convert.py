"""The verb `convert`: moving a queue to another layout.

Layer: edges.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from dirqueue import layouts
from dirqueue.cli import output
from dirqueue.cli.arguments import path_of, seconds, verb
from dirqueue.cli.exits import Exit
from dirqueue.cli.queues import named


def add(subparsers: Any) -> None:
    """Add the verb."""
    parser = verb(
        subparsers,
        "convert",
        convert,
        "move a queue to another layout; its path stays the same",
        description="Stop the producers first. Refuses while others hold messages, unless --wait says how long to "
        "wait for them. After a crash run it again: it continues.",
    )
    names = [each for each in layouts.NAMES if each != "null"]
    parser.add_argument("--to", choices=names, required=True, help="the new layout")
    parser.add_argument(
        "--wait",
        type=seconds,
        default=0.0,
        metavar="TIME",
        help="how long to wait for messages that others hold (default: do not wait)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting for the new queue"
    )


def convert(args: argparse.Namespace) -> int:
    """Convert a queue, and print how many messages were moved."""
    converting = importlib.import_module("dirqueue.tools.convert")
    with output.progress("convert") as step:
        done = converting.convert(
            path_of(args.queue), layout=args.to, wait=args.wait, progress=step, **named(args.set)
        )
    output.line(str(done.messages))
    if done.left:
        output.complain(f"something in the old directory is not dirqueue's, so it is kept at {done.left!r}")
    return Exit.OK

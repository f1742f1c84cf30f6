"""The verb `monitor`, also called `top`: queues while they are in use.

Layer: edges.  Touches: nothing; `dirqueue.tools.monitor` reads the queues, here is the table and JSON, in
`screen.py` the screen.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from dirqueue import states
from dirqueue.cli import output
from dirqueue.cli.arguments import VARIABLE, path_of, seconds, table_option, verb, whole
from dirqueue.cli.exits import Exit
from dirqueue.errors import SettingsError
from dirqueue.stats import LIMIT
from dirqueue.tools.monitor import Monitor, Reading, arranged

COLUMNS = (
    "queue", *states.LIVE, "expired", *states.ENDED, "put_rate", "ack_rate", "error_rate",
    "oldest_ready", "oldest_lease", "oldest_lease_token", "sampled", "error",
)  # fmt: skip
ONCE = (
    "queue",
    *states.LIVE,
    "expired",
    *states.ENDED,
    "oldest ready",
    "lease ends",
    "held by",
)
SHORTEST = 0.1


def add(subparsers: Any) -> None:
    """Add the verb."""
    parser = verb(
        subparsers,
        "monitor",
        monitor,
        "watch queues: depth by state, rates, oldest message, dead letters",
        description="Rates are exact on a local filesystem with the extra dirqueue[watch]; elsewhere what came and "
        "went between two readings is not seen. Counts marked ~ are estimates from a part of a deep queue. On the "
        "screen sick queues come first; the arrows move, enter shows one queue in full, s sorts, / finds, q ends it.",
        queue=False,
        aliases=("top",),
    )
    parser.add_argument(
        "root",
        metavar="ROOT",
        nargs="?",
        help=f"a queue, or a directory of queues (default: ${VARIABLE}, else the current directory)",
    )
    parser.add_argument("--once", action="store_true", help="one reading, then end")
    parser.add_argument(
        "-i",
        "--interval",
        type=seconds,
        default=1.0,
        metavar="TIME",
        help="time between readings (default: 1s)",
    )
    parser.add_argument(
        "--limit",
        type=whole,
        default=LIMIT,
        metavar="N",
        help=f"most names to read of a queue at a time (default: {LIMIT})",
    )
    table_option(parser)


def monitor(args: argparse.Namespace) -> int:
    """Read once, or until interrupted: into a pipe or on a screen."""
    if args.interval < SHORTEST:
        raise SettingsError(f"--interval must be at least {SHORTEST:g} s, not {args.interval:g}")
    root = path_of(args.root) if args.root else os.environ.get(VARIABLE) or "."
    with Monitor(root, limit=args.limit) as watcher:
        if args.once:
            return _once(watcher, args)
        if args.json or not output.on_terminal():
            return _stream(watcher, args)
        output.need("rich", "cli")
        from dirqueue.cli import screen

        screen.run(watcher, args.interval, args.limit)
    return Exit.OK


def _once(watcher: Monitor, args: argparse.Namespace) -> int:
    human = output.tabular(args)
    readings = watcher.read()
    rows = [_row(reading, human=human) for reading in (arranged(readings) if human else readings)]
    output.records(rows, ONCE if human else COLUMNS, args)
    return Exit.OK if rows else Exit.EMPTY


def _row(reading: Reading, *, human: bool) -> dict[str, Any]:
    row = reading.to_dict()
    if human:
        stats = reading.stats
        row["queue"] = (
            reading.name + (" (sampled)" if reading.sampled else "") + (" (paused)" if stats.paused else "")
        )
        row["oldest ready"] = reading.error or output.age(stats.oldest_ready)
        row["lease ends"] = output.ahead(stats.oldest_lease)
        row["held by"] = stats.oldest_lease_token
    return row


def _stream(watcher: Monitor, args: argparse.Namespace) -> int:
    """Write the readings one after the other, for a program that reads them."""
    try:
        while True:
            began = time.monotonic()
            for reading in watcher.read():
                output.show(reading.to_dict(), COLUMNS, json=args.json)
            output.finish()
            time.sleep(max(0.0, args.interval - (time.monotonic() - began)))
    except KeyboardInterrupt:
        return Exit.OK  # the way to leave a monitor

"""The verb `monitor`, also called `top`: queues while they are in use.

Layer: edges.  Touches: nothing; `dirqueue.tools.monitor` reads the queues, here is the screen, the table and JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from dirqueue import states
from dirqueue.cli import output
from dirqueue.cli.arguments import VARIABLE, path_of, seconds, table_option, verb, whole
from dirqueue.cli.exits import Exit
from dirqueue.errors import SettingsError
from dirqueue.stats import LIMIT
from dirqueue.tools.monitor import Monitor, Reading, Series, sparkline

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
#: Widths of the terminal from which more columns are shown.
ROOMY, WIDE = 100, 140


def add(subparsers: Any) -> None:
    """Add the verb."""
    parser = verb(
        subparsers,
        "monitor",
        monitor,
        "watch queues: depth by state, rates, oldest message, dead letters",
        description="Rates are exact on a local filesystem with the extra dirqueue[watch]; elsewhere what came and "
        "went between two readings is not seen. Counts marked ~ are estimates from a part of a deep queue. q or Ctrl-C "
        "ends it.",
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
        return _screen(watcher, args)


def _once(watcher: Monitor, args: argparse.Namespace) -> int:
    human = output.tabular(args)
    rows = [_row(reading, human=human) for reading in watcher.read()]
    output.records(rows, ONCE if human else COLUMNS, args)
    return Exit.OK if rows else Exit.EMPTY


def _row(reading: Reading, *, human: bool) -> dict[str, Any]:
    row = reading.to_dict()
    if human:
        stats = reading.stats
        row["queue"] = reading.name + (" (sampled)" if reading.sampled else "")
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


# --- the screen --------------------------------------------------------------------------------------------


def _screen(watcher: Monitor, args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    _fit(console)
    with contextlib.suppress(KeyboardInterrupt), _keys() as pressed:
        readings = watcher.read()
        with Live(
            _view(watcher, readings, console, args), console=console, screen=True, auto_refresh=False
        ) as live:
            while True:
                _fit(console)
                live.update(_view(watcher, readings, console, args), refresh=True)
                if pressed(args.interval):
                    break
                readings = watcher.read()
    return Exit.OK


def _fit(console: Any) -> None:
    """Use the size that the terminal has now; one from the environment would never change."""
    from rich.console import ConsoleDimensions

    with contextlib.suppress(OSError):
        console.size = ConsoleDimensions(*os.get_terminal_size(sys.stdout.fileno()))


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits for some seconds and returns whether q was pressed."""
    if not output.on_terminal(sys.stdin):

        def never(pause: float) -> bool:
            time.sleep(pause)
            return False

        yield never
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(pause: float) -> bool:
        deadline = time.monotonic() + pause
        while (left := deadline - time.monotonic()) > 0:
            if select.select([fd], [], [], left)[0] and os.read(fd, 64)[:1] in (b"q", b"Q", b""):
                return True
        return False

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _view(watcher: Monitor, readings: list[Reading], console: Any, args: argparse.Namespace) -> Any:
    from rich.console import Group
    from rich.text import Text

    ready = sum(reading.stats.ready for reading in readings)
    leased = sum(reading.stats.leased for reading in readings)
    dead = sum(reading.stats.dead for reading in readings)
    head = Text.assemble(
        ("dirqueue ", "bold"),
        output.one_line(watcher.root),
        f"   {len(readings)} queue{'s' * (len(readings) != 1)}   ready {_number(ready)}"
        f"   leased {_number(leased)}   ",
        (f"dead {_number(dead)}", "bold red" if dead else ""),
        f"   {datetime.now().astimezone():%H:%M:%S}",
    )
    room = max(1, console.height - 5)
    parts: list[Any] = [head, _table(watcher, readings[:room], console.width)]
    if len(readings) > room:
        parts.append(Text(f"{len(readings) - room} more queues do not fit on this screen", style="yellow"))
    notes = [f"every {args.interval:g} s", "q ends"]
    if any(reading.sampled for reading in readings):
        notes.insert(0, f"~ estimated from {args.limit} names or fewer")
    parts.append(Text(" · ".join(notes), style="dim"))
    return Group(*parts)


def _table(watcher: Monitor, readings: list[Reading], width: int) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    longest = max((len(reading.name) for reading in readings), default=5)
    table.add_column("QUEUE", no_wrap=True, width=max(5, min(longest, 14 if width < ROOMY else width // 5)))
    for name in ("READY", "LEASED", "DEAD"):
        table.add_column(name, justify="right", no_wrap=True)
    if width >= ROOMY:
        table.add_column("DELAYED", justify="right", no_wrap=True)
    for name in ("PUT/s", "ACK/s", "ERR/s"):
        table.add_column(name, no_wrap=True)
    table.add_column("OLDEST", justify="right", no_wrap=True)
    if width >= ROOMY:
        table.add_column("LEASE ENDS", no_wrap=True)
    if width >= WIDE:
        table.add_column("HELD BY", no_wrap=True, overflow="ellipsis")
    chart = 4 if width < ROOMY else 8 if width < WIDE else 12
    for reading in readings:
        table.add_row(*_cells(reading, watcher.series[reading.path], width, chart))
    return table


def _cells(reading: Reading, series: Series, width: int, chart: int) -> Iterator[Any]:
    from rich.text import Text

    stats = reading.stats
    yield Text(output.one_line(reading.name))
    if reading.error is not None:
        yield Text(output.one_line(reading.error), style="red")
        return
    about = "~" if reading.sampled else ""
    yield Text(about + _number(stats.ready))
    leased = _number(stats.leased) + (f" ({stats.expired} late)" if stats.expired else "")
    yield Text(about + leased, style="yellow" if stats.expired else "")
    yield Text(_number(stats.dead), style="bold red" if stats.dead else "dim")
    if width >= ROOMY:
        yield Text(about + _number(stats.delayed))
    for rate, values, colour in (
        (reading.rates.put, series.put, "cyan"),
        (reading.rates.ack, series.ack, "green"),
        (reading.rates.error, series.error, "red"),
    ):
        yield Text.assemble(f"{_rate(rate):>5} ", (sparkline(values, chart), colour))
    yield Text(output.age(stats.oldest_ready))
    if width >= ROOMY:
        yield Text(output.ahead(stats.oldest_lease))
    if width >= WIDE:
        yield Text(stats.oldest_lease_token or "")


def _number(value: int) -> str:
    return f"{value:,}" if value < 1_000_000 else f"{value / 1_000_000:.2f}M"


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:.1f}" if 0 < rate < 10 else f"{rate:.0f}"

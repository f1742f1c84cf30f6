"""The live screen of `monitor`: all queues, the sick ones first, or one queue in full.

Layer: edges.  Touches: nothing.
Lines are laid out here, column by column, so that they fit any width from 60 columns on.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from dirqueue import states
from dirqueue.cli import output
from dirqueue.tools.failures import kinds
from dirqueue.tools.holders import holders
from dirqueue.tools.monitor import SORTS, Monitor, Reading, Series, arranged, sparkline

if TYPE_CHECKING:
    from rich.text import Text

#: Widths of the terminal from which more columns are shown.
ROOMY, WIDE = 100, 140
#: Lines that are not queues: the head, the heads of the columns, the foot.
FRAME = 3
#: Dead letters whose errors are counted for one queue in full.
ERRORS = 500

UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END, BACK, OPEN, ERASE = (
    "up", "down", "page up", "page down", "home", "end", "back", "open", "erase",
)  # fmt: skip
_SEQUENCES = {
    "[A": UP, "OA": UP, "[B": DOWN, "OB": DOWN, "[C": OPEN, "[D": BACK, "OC": OPEN, "OD": BACK,
    "[5~": PAGE_UP, "[6~": PAGE_DOWN, "[H": HOME, "[F": END, "[1~": HOME, "[4~": END, "OH": HOME, "OF": END,
}  # fmt: skip
_LETTERS = {"k": UP, "j": DOWN, "g": HOME, "G": END, "\r": OPEN, "\n": OPEN}
#: Up to this width the foot leaves out what is not a key.
NARROW = 80
HELP = "enter open  s sort  r turn  / find  q quit"


class View:
    """What the person has chosen: the order, the filter, the line, the queue."""

    def __init__(self) -> None:
        self.sort, self.backwards = "sick", False
        self.search, self.typing = "", False
        #: The path of the queue that the cursor is on: it stays on it while others come and go.
        self.chosen = ""
        self.full = False
        self.top = 0

    def arrange(self, readings: list[Reading]) -> list[Reading]:
        """Return the readings that are shown, in their order."""
        return arranged(readings, self.sort, self.search, backwards=self.backwards)

    def press(self, key: str, shown: list[Reading], room: int) -> bool:
        """Do what a key says. Return whether it ends the screen."""
        if self.typing:
            self._type(key)
        elif key in ("q", "Q"):
            return True
        elif self.full:
            self.full = key not in (BACK, ERASE)
        elif key == "s":
            names = list(SORTS)
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key == "r":
            self.backwards = not self.backwards
        elif key == "/":
            self.typing, self.search = True, ""
        elif key == BACK:
            self.search = ""
        elif _LETTERS.get(key, key) == OPEN:
            self.full = bool(shown)
        else:
            self._move(_LETTERS.get(key, key), shown, room)
        return False

    def _type(self, key: str) -> None:
        if key == BACK:
            self.typing, self.search = False, ""
        elif _LETTERS.get(key) == OPEN:
            self.typing = False
        elif key == ERASE:
            self.search = self.search[:-1]
        elif len(key) == 1 and key.isprintable():
            self.search += key

    def _move(self, key: str, shown: list[Reading], room: int) -> None:
        steps = {UP: -1, DOWN: 1, PAGE_UP: -room, PAGE_DOWN: room, HOME: -len(shown), END: len(shown)}
        if shown and key in steps:
            to = max(0, min(len(shown) - 1, self.line(shown) + steps[key]))
            self.chosen = shown[to].path

    def line(self, shown: list[Reading]) -> int:
        """Return which line the cursor is on."""
        return next((number for number, each in enumerate(shown) if each.path == self.chosen), 0)

    def window(self, shown: list[Reading], room: int) -> int:
        """Return the first line that is on the screen: scrolled just so far that the cursor is on it."""
        line = self.line(shown)
        self.top = max(0, min(self.top, len(shown) - room, line), line - room + 1)
        return self.top


def run(watcher: Monitor, interval: float, limit: int) -> None:
    """Show the screen until q or Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    view = View()
    with contextlib.suppress(KeyboardInterrupt), _keyboard() as wait:
        readings = watcher.read()
        due = time.monotonic() + interval
        _fit(console)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                _fit(console)
                lines = draw(
                    watcher,
                    readings,
                    view.arrange(readings),
                    view,
                    (console.width, console.height),
                    (interval, limit),
                )
                live.update(_joined(lines), refresh=True)
                room = max(1, console.height - FRAME)
                for key in wait(max(0.0, due - time.monotonic())):
                    if view.press(key, view.arrange(readings), room):
                        return
                if time.monotonic() >= due:
                    readings = watcher.read()
                    due = time.monotonic() + interval


def _joined(lines: list[Text]) -> Any:
    from rich.text import Text

    return Text("\n", no_wrap=True, overflow="crop").join(lines)


def _fit(console: Any) -> None:
    """Use the size that the terminal has now; one from the environment would never change."""
    from rich.console import ConsoleDimensions

    with contextlib.suppress(OSError):
        console.size = ConsoleDimensions(*os.get_terminal_size(sys.stdout.fileno()))


@contextlib.contextmanager
def _keyboard() -> Iterator[Callable[[float], list[str]]]:
    """Yield a function that waits for some seconds, or until keys are pressed, and returns them."""
    if not output.on_terminal(sys.stdin):

        def sleep(pause: float) -> list[str]:
            time.sleep(pause)
            return []

        yield sleep
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def wait(pause: float) -> list[str]:
        if not select.select([fd], [], [], pause)[0]:
            return []
        return keys_of(os.read(fd, 256)) or ["q"]  # the terminal is gone

    try:
        tty.setcbreak(fd)
        yield wait
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def keys_of(data: bytes) -> list[str]:
    """Return the keys that a terminal sent: names for those without a letter."""
    text, found = data.decode("utf-8", "ignore"), []
    while text:
        if text[0] == "\x1b":
            name = next((each for each in _SEQUENCES if text.startswith(each, 1)), "")
            found.append(_SEQUENCES.get(name, BACK))
            rest = len(name) + 1 if name else len(text) if text[1:2] in ("[", "O") else 1
            text = text[rest:]  # an unknown sequence is left out, with what came with it
        else:
            found.append(ERASE if text[0] in "\x7f\b" else text[0])
            text = text[1:]
    return found


# --- all queues --------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """One column: its head, its width, and what is in it."""

    head: str
    width: int
    cell: Callable[[Reading, Series], tuple[str, str]]
    left: bool = False


def draw(
    watcher: Monitor,
    readings: list[Reading],
    shown: list[Reading],
    view: View,
    size: tuple[int, int],
    pace: tuple[float, int],
) -> list[Text]:
    """Return the lines of the screen."""
    from rich.cells import cell_len
    from rich.text import Text

    width, height = size
    room = max(1, height - FRAME)
    if view.full and shown:
        return _full(watcher, shown[view.line(shown)], width, height)
    columns = _columns(width, max((cell_len(output.one_line(each.name)) for each in shown), default=10))
    top = view.window(shown, room)
    line = view.line(shown)
    lines = [_head(watcher, readings, width), _heads(columns, view)]
    for number, reading in enumerate(shown[top : top + room], top):
        text = _row(columns, reading, watcher.series[reading.path], width)
        if number == line:
            text.stylize("reverse", 0, len(_cell(output.one_line(reading.name), columns[0].width, left=True)))
        lines.append(text)
    if not shown:
        lines.append(Text("no queue has such a name" if readings else "there is no queue yet", style="dim"))
    lines += [Text()] * (height - len(lines) - 1)
    lines.append(_foot(readings, shown, view, top, room, width, pace))
    return lines


def _head(watcher: Monitor, readings: list[Reading], width: int) -> Text:
    from rich.text import Text

    shown = (states.READY, states.LEASED, states.DEAD)
    ready, leased, dead = (sum(getattr(each.stats, state) for each in readings) for state in shown)
    sick = sum(each.severity > 0 for each in readings)
    tail = Text.assemble(
        f"  {len(readings):,} queue{'s' * (len(readings) != 1)}",
        (f"  {sick:,} sick", "yellow") if sick else "",
        f"  ready {_number(ready)}  leased {_number(leased)}  ",
        (f"dead {_number(dead)}", "bold red" if dead else ""),
        f"  {datetime.now().astimezone():%H:%M:%S}",
    )
    root = _cut(output.one_line(watcher.root), max(4, width - tail.cell_len - 9))
    return Text.assemble(("dirqueue ", "bold"), root, tail)


def _columns(width: int, longest: int) -> list[Column]:
    """Return the columns that fit: names and counts always, charts and holders where there is room."""
    chart = 0 if width < ROOMY else 8 if width < WIDE else 12
    columns = [
        Column("READY", 8, lambda r, _: (_about(r) + _number(r.stats.ready), "")),
        Column(
            "LEASED",
            7,
            lambda r, _: (_about(r) + _number(r.stats.leased), "yellow" if r.stats.expired else ""),
        ),
        Column("DEAD", 6, lambda r, _: (_number(r.stats.dead), "bold red" if r.stats.dead else "dim")),
    ]
    if chart:
        columns.append(Column("DELAYED", 8, lambda r, _: (_about(r) + _number(r.stats.delayed), "")))
    columns += [
        _rate_column("PUT/s", "put", "cyan", chart),
        _rate_column("ACK/s", "ack", "green", chart),
        _rate_column("ERR/s", "error", "red", chart),
        Column("OLDEST", 6, lambda r, _: (output.age(r.stats.oldest_ready), "")),
    ]
    if chart:
        columns.append(
            Column("LEASE ENDS", 10, lambda r, _: (output.ahead(r.stats.oldest_lease), ""), left=True)
        )
    if width >= WIDE:
        columns.append(Column("HELD BY", 24, lambda r, _: (r.stats.oldest_lease_token or "", ""), left=True))
    taken = sum(column.width + 1 for column in columns)
    name = max(10, min(40, longest, width - taken - 1))
    return [Column("QUEUE", name, lambda r, _: (output.one_line(r.name), ""), left=True), *columns]


def _rate_column(head: str, name: str, colour: str, chart: int) -> Column:
    def cell(reading: Reading, series: Series) -> tuple[str, str]:
        bars = " " + sparkline(getattr(series, name), chart) if chart else ""
        return f"{_rate(getattr(reading.rates, name)):>5}{bars}", colour if chart else ""

    return Column(head.rjust(5) if chart else head, 6 + chart if chart else 5, cell, left=bool(chart))


def _heads(columns: list[Column], view: View) -> Text:
    from rich.text import Text

    marks = {
        "name": "QUEUE",
        "ready": "READY",
        "leased": "LEASED",
        "dead": "DEAD",
        "rate": "PUT/s",
        "oldest": "OLDEST",
    }
    text = Text()
    for column in columns:
        on = marks.get(view.sort) == column.head.strip()
        cell = _cell(column.head, column.width, left=column.left)
        text.append(cell + " ", "bold underline" if on else "bold")
    return text


def _row(columns: list[Column], reading: Reading, series: Series, width: int) -> Text:
    from rich.text import Text

    text = Text()
    if reading.error is not None:
        text.append(_cell(output.one_line(reading.name), columns[0].width, left=True) + " ", "red")
        return text.append(_cut(output.one_line(reading.error), max(1, width - columns[0].width - 1)), "red")
    for number, column in enumerate(columns):
        cell, style = column.cell(reading, series)
        style = "yellow" if not number and reading.severity else style
        text.append(_cell(cell, column.width, left=column.left) + " ", style)
    room = width - text.cell_len
    if room > 8 and reading.complaints:
        text.append(_cut(" · ".join(reading.complaints), room), "yellow")
    return text


def _foot(
    readings: list[Reading],
    shown: list[Reading],
    view: View,
    top: int,
    room: int,
    width: int,
    pace: tuple[float, int],
) -> Text:
    from rich.text import Text

    if view.typing:
        return Text(_cut(f"find: {view.search}▏  enter keeps it, esc ends it", width), "bold")
    notes = [f"{view.sort} {'last' if view.backwards else 'first'}"]
    if view.search:
        notes.append(f"“{view.search}”")
    if len(shown) > room:
        notes.append(f"{top + 1}-{min(len(shown), top + room)} of {len(shown):,}")
    if any(reading.sampled for reading in readings):
        notes.append(f"~ estimated from {pace[1]} names or fewer")
    if width > NARROW:
        notes.append(f"every {pace[0]:g} s")
    return Text(_cut(f"{' · '.join(notes)}   {HELP}", width), "dim")


# --- one queue in full -------------------------------------------------------------------------------------


def _full(watcher: Monitor, reading: Reading, width: int, height: int) -> list[Text]:
    from rich.text import Text

    stats, series = reading.stats, watcher.series[reading.path]
    lines = [Text.assemble(("dirqueue ", "bold"), (_cut(output.one_line(reading.path), width - 9), "bold"))]
    if reading.complaints:
        lines.append(Text(_cut(" · ".join(reading.complaints), width), "yellow"))
    lines.append(Text())
    if reading.error is not None:
        return [*lines, Text(_cut(output.one_line(reading.error), width), "red"), Text(), _way_back()]
    about = _about(reading)
    counted = [f"{state} {about}{getattr(stats, state):,}" for state in states.VISIBLE]
    lines.append(
        Text(_cut("   ".join([*counted, f"late {stats.expired:,}", f"layout {reading.layout}"]), width))
    )
    facts = [
        ("oldest ready", output.age(stats.oldest_ready)),
        ("next due", output.ahead(stats.next_due)),
        ("first lease ends", output.ahead(stats.oldest_lease)),
    ]
    lines += [Text(_cut("   ".join(f"{name} {value}" for name, value in facts), width)), Text()]
    chart = max(10, width - 14)
    depth: list[float | None] = [float(value) for value in series.depth]
    for name, last, values, colour in (
        ("depth", _number(stats.total), depth, "magenta"),
        ("put/s", _rate(reading.rates.put), series.put, "cyan"),
        ("ack/s", _rate(reading.rates.ack), series.ack, "green"),
        ("err/s", _rate(reading.rates.error), series.error, "red"),
    ):
        lines.append(Text.assemble(f"{name:<6}{last:>7} ", (sparkline(values, chart), colour)))
    queue = watcher.queue(reading.name)
    room = height - len(lines) - 2
    if queue is not None:
        lines += _sections(queue, width, room)
    lines = lines[: height - 1]
    return [*lines, *[Text()] * (height - len(lines) - 1), _way_back()]


def _sections(queue: Any, width: int, room: int) -> list[Text]:
    """Return who holds what, and what the dead failed with; each gets half of the room, or what the other leaves."""
    from rich.text import Text

    try:
        held = holders(queue)
        dead = () if "dead" in queue.layout.lacks else queue.peek(states.DEAD, ERRORS)
        failed = kinds(queue, (message.entry for message in dead)).most_common()
    except Exception as error:  # noqa: BLE001 - whatever it is, the rest of the screen is worth showing
        return [Text(), Text(_cut(output.one_line(str(error)), width), "red")]
    lines: list[Text] = []
    if held:
        lines += [Text(), Text(f"{'WORKER':<34}{'HOLDS':>6}  {'FOR':>6}  FIRST LEASE ENDS", "bold")]
        for each in held[: max(1, room - len(failed) - 5) if failed else room]:
            late = f", {each.late} late" if each.late else ""
            text = (
                f"{_cut(output.one_line(each.name), 33):<34}{len(each.ids):>6}  {output.age(each.since):>6}  "
            )
            lines.append(
                Text(_cut(f"{text}{output.ahead(each.until)}{late}", width), "yellow" if late else "")
            )
    if failed:
        lines += [Text(), Text(f"{'DEAD':>6}  FAILED WITH", "bold")]
        lines += [
            Text(_cut(f"{n:>6}  {output.one_line(error) or 'no reason is known'}", width))
            for error, n in failed
        ]
    return lines


def _way_back() -> Text:
    from rich.text import Text

    return Text("esc back to all queues  q quit", "dim")


# --- cells -------------------------------------------------------------------------------------------------


def _cell(text: str, width: int, *, left: bool) -> str:
    """Return a text of exactly that many columns."""
    from rich.cells import cell_len

    text = _cut(text, width)
    space = " " * (width - cell_len(text))
    return text + space if left else space + text


def _cut(text: str, width: int) -> str:
    """Return a text of at most that many columns; one that was cut ends in an ellipsis."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…"


def _about(reading: Reading) -> str:
    return "~" if reading.sampled else ""


def _number(value: int) -> str:
    return (
        f"{value:,}"
        if value < 100_000
        else f"{value / 1000:,.0f}k"
        if value < 1_000_000
        else f"{value / 1e6:.2f}M"
    )


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:.1f}" if 0 < rate < 10 else f"{rate:.0f}"

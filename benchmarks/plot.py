"""Small SVG charts, written by hand: lines on logarithmic axes, and bars. No dependency, readable in both themes."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 200, 40, 50
COLOURS = (
    "#d62728",
    "#1f77b4",
    "#2ca02c",
    "#9467bd",
    "#ff7f0e",
    "#8c564b",
    "#17becf",
    "#7f7f7f",
    "#bcbd22",
    "#e377c2",
)
STYLE = (
    "text{font:12px sans-serif;fill:#333}rect.back{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}rect.back{fill:#161b22}}"
)
Series = dict[str, list[tuple[float, float]]]


def lines(path: Path, title: str, across: str, up: str, series: Series) -> None:
    """Draw one line for each series; both axes logarithmic, powers of ten marked."""
    series = {name: sorted(points) for name, points in series.items() if points}
    if not series:
        return
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    left, right = math.floor(math.log10(min(xs))), math.ceil(math.log10(max(xs)))
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    right, high = max(right, left + 1), max(high, low + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        along = (math.log10(x) - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        above = (math.log10(y) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return LEFT + along, HEIGHT - BOTTOM - above

    parts = []
    for power in range(left, right + 1):
        x, bottom = place(10**power, 10**low)
        parts += [_line(x, bottom, x, TOP, "#8886"), _text(x, bottom + 18, _short(10**power), "middle")]
    for power in range(low, high + 1):
        x, y = place(10**left, 10**power)
        parts += [_line(x, y, WIDTH - RIGHT, y, "#8886"), _text(x - 8, y + 4, _short(10**power), "end")]
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        spots = [place(x, y) for x, y in points]
        path_of = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline points="{path_of}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
        parts += _legend(number, name, colour)
    _write(path, title, across, up, parts)


def bars(path: Path, title: str, up: str, values: list[tuple[str, float]]) -> None:
    """Draw one lying bar for each value, the longest first."""
    values = [(name, value) for name, value in values if value > 0]
    if not values:
        return
    most = max(value for _, value in values)
    step, parts = 20, []
    for number, (name, value) in enumerate(values):
        y = TOP + number * step
        wide = value / most * (WIDTH - 290)
        colour = (
            COLOURS[0]
            if name.startswith("dirqueue")
            else COLOURS[7]
            if "floor" in name or "bare" in name
            else COLOURS[1]
        )
        parts += [
            _text(195, y + 13, name, "end"),
            f'<rect x="200" y="{y + 3}" width="{wide:.1f}" height="14" fill="{colour}"/>',
            _text(205 + wide, y + 14, _number(value), "start"),
        ]
    _write(path, title, "", up, parts, TOP + len(values) * step + 25)


def _legend(number: int, name: str, colour: str) -> list[str]:
    y = TOP + 18 * number + 6
    x = WIDTH - RIGHT + 14
    return [_line(x, y, x + 18, y, colour, 3), _text(x + 24, y + 4, name, "start")]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, wide: int = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{wide}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(value: float) -> str:
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _write(path: Path, title: str, across: str, up: str, parts: list[str], height: int = HEIGHT) -> None:
    text = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{WIDTH}" height="{height}"/>',
        f'<text x="{WIDTH / 2:.0f}" y="20" text-anchor="middle" font-weight="bold">{escape(title)}</text>',
        *parts,
    ]
    if across:
        text.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 12, across, "middle"))
        text.append(
            f'<text transform="translate(16 {height / 2:.0f}) rotate(-90)" text-anchor="middle">{escape(up)}</text>'
        )
    else:
        text.append(_text(200, height - 8, up, "start"))
    path.write_text("\n".join([*text, "</svg>"]) + "\n", encoding="utf-8")

"""A bar chart: as an SVG image without a plotting package, as a PNG image where matplotlib is installed.

Layer: edges.  Pure: text in, an image out.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from xml.sax.saxutils import escape

from dirqueue.errors import SettingsError

COLOURS = ("#4477aa", "#ccbb44", "#66ccee", "#ee6677", "#228833", "#aa3377")
ROW, GAP, LEFT, WIDTH, TOP = 18, 6, 260, 560, 40


def bars(rows: Sequence[tuple[str, Sequence[int]]], names: Sequence[str]) -> str:
    """Return horizontal stacked bars, one for each row, with a legend."""
    longest = max((sum(values) for _, values in rows), default=0) or 1
    height = TOP + len(rows) * (ROW + GAP) + GAP
    size = f'width="{LEFT + WIDTH + 80}" height="{height}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, name in enumerate(names):
        x: float = LEFT + index * 100
        out += [
            f'<rect x="{x}" y="12" width="12" height="12" fill="{COLOURS[index % len(COLOURS)]}"/>',
            f'<text x="{x + 18}" y="22">{escape(name)}</text>',
        ]
    for line, (label, values) in enumerate(rows):
        y = TOP + line * (ROW + GAP)
        shown = _short(label)
        out.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(shown)}</text>')
        x = LEFT
        for index, value in enumerate(values):
            width = WIDTH * value / longest
            if width:
                out.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW}" '
                    f'fill="{COLOURS[index % len(COLOURS)]}"/>'
                )
            x += width
        out.append(f'<text x="{x + 6:.1f}" y="{y + 13}">{sum(values)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _short(label: str) -> str:
    return label if len(label) <= 38 else "…" + label[-37:]


def png(rows: Sequence[tuple[str, Sequence[int]]], names: Sequence[str]) -> bytes:
    """Return the same bars, drawn by matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingsError(
            "a PNG chart is drawn by matplotlib, which is not installed: pip install matplotlib, or take SVG"
        ) from None
    figure = Figure(figsize=(9, 1 + 0.25 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    places, left = list(range(len(rows))), [0] * len(rows)
    for index, name in enumerate(names):
        values = [each[index] for _, each in rows]
        axes.barh(places, values, left=left, label=name, color=COLOURS[index % len(COLOURS)])
        left = [sum(pair) for pair in zip(left, values, strict=True)]
    for place, total in zip(places, left, strict=True):
        axes.text(total, place, f" {total}", va="center")
    axes.set_yticks(places, [_short(label) for label, _ in rows])
    axes.invert_yaxis()
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(names), frameon=False)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()

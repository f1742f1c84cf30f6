"""A bar chart as an SVG image, without a plotting package.

Layer: edges.  Pure: text in, text out.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

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
        shown = label if len(label) <= 38 else "…" + label[-37:]
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

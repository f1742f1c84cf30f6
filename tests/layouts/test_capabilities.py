"""The table in docs/layouts.md and what the layouts say of themselves are one thing."""

from pathlib import Path

import pytest

from dirqueue import Queue, Unsupported
from dirqueue.layouts import NAMES, layout_class
from dirqueue.message import Extras

PAGE = Path(__file__).parents[2] / "docs" / "layouts.md"
#: The first word of a row that stands for a capability of that name.
ROWS = (
    "delay", "priority", "attempts", "batch", "dead", "done", "fencing", "change", "link", "watch",
    "lifo", "random", "removal", "apart", "pause", "attributes",
)  # fmt: skip


def table():
    """Return layout -> capability -> yes or no, as the page has it."""
    lines = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    head, *rows = [[cell.strip() for cell in line] for line in lines]
    found = {name: {} for name in head[1:]}
    for row in rows:
        word = row[0].split(" ")[0].strip(",:")
        if word in ROWS:
            for name, cell in zip(head[1:], row[1:], strict=True):
                found[name][word] = cell
    return found


@pytest.mark.parametrize("name", NAMES)
def test_capability_table_agrees_with_the_layouts(name):
    """A reader of the page and a reader of `lacks` learn the same."""
    lacks = layout_class(name).lacks
    assert table()[name] == {word: "no" if word in lacks else "yes" for word in ROWS}
    assert set(lacks) <= set(ROWS)
    assert all(reason.strip() for reason in lacks.values())


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "attributes" in layout_class(name).lacks and name != "null"]
)
def test_layout_without_attributes_refuses_them_itself_too(name, tmp_path):
    """For whoever asks it and not the queue."""
    with Queue(tmp_path / "queue", layout=name) as queue, pytest.raises(Unsupported):
        queue.layout.carrying(Extras({}))

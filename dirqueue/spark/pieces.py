"""The pieces of dirq-normal elements: files of an element, and the columns that they become.

Layer: edges.  Touches: nothing.
"""

from __future__ import annotations

import itertools

from dirqueue import states
from dirqueue.disk import fs
from dirqueue.layouts.base import Layout
from dirqueue.layouts.dirq.schema import KEY, LOCKED
from dirqueue.message import Entry
from dirqueue.spark.columns import PIECES
from dirqueue.spark.options import READ, SOURCE, Options, open_queue

#: Values of the option `pieces`: the pieces of dirq-normal elements are left out, a map, or columns.
SHAPES = ("false", "true", "columns")
#: Elements that are listed to find out which pieces there are.
SAMPLE = 100


def columns_of(given: dict[str, str]) -> list[str]:
    """Return the columns for pieces when the user gives no schema: none, the map, or those of the first elements."""
    options = Options(given, READ + SOURCE)  # Spark asks for the schema of a stream too
    shape = options.choice("pieces", *SHAPES)
    if shape != "columns":
        return [PIECES] if shape == "true" else []
    found: set[str] = set()
    for queue in options.queues():
        layout = open_queue(queue, layout=options.text("layout", "auto") or "auto").layout
        if layout.name == "dirq-normal":
            sample = itertools.islice(layout.entries(states.VISIBLE), SAMPLE)
            found.update(*(files_of(layout, entry) for entry in sample if entry.state in states.VISIBLE))
    return sorted(found)


def files_of(layout: Layout, entry: Entry) -> list[str]:
    """Return the names of the pieces of an element; an empty list if it is gone."""
    try:
        found = fs.names_in(element(entry), layout.directory.fd)
    except FileNotFoundError:
        return []
    return sorted(name for name in found if KEY.fullmatch(name) and name != LOCKED)


def element(entry: Entry) -> str:
    """Return the directory of an element."""
    # COMPAT: what follows is the lock's owner at the time of the listing.
    return entry.place.partition("@")[0]

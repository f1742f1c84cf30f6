"""The workloads by name. Each takes a cell and returns what it measured, as plain values.

A cell runs in a process of its own (`python benchmarks/work.py CELL-AS-JSON`), so that one peer's memory, imports and
threads do not count for another. Bodies are numbered and stamped: what is lost or comes twice is counted in every cell.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from cell import Cell, Result, tally
from crowds import consume, crowd, death, mix, produce, sleeper, victim, wake, watch_renames
from looks import backlog, memory, scan, startup
from stores import batch, durable, store

__all__ = ["WORK", "Cell", "run", "tally"]

WORK: dict[str, Callable[[Cell], Result]] = {
    each.__name__: each
    for each in (
        store, mix, crowd, produce, consume, durable, batch, scan, backlog, wake, sleeper, memory, startup, death,
        victim,
    )
}  # fmt: skip


def run(cell: Cell) -> Result:
    """Measure one cell in this process."""
    return WORK[cell.work](cell)


if __name__ == "__main__":
    _cell = Cell(**json.loads(sys.argv[1]))
    if _cell.work == "consume":
        watch_renames()
    print(json.dumps(run(_cell)), flush=True)
    os._exit(0)  # some peers leave threads behind

"""The verbs for whole queues as text: export, import.

Layer: edges.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dirqueue.cli import output
from dirqueue.cli.arguments import json_option, open_queue, path_of, verb
from dirqueue.cli.exits import Exit, InputError


def add(subparsers: Any) -> None:
    """Add the verbs."""
    verb(
        subparsers,
        "export",
        export,
        "print a queue as JSON lines: its settings, then every message",
        description="Nothing is claimed. While others work it is a snapshot of each moment: pause the queue for one "
        "that is whole. `import` reads it.",
    )
    parser = verb(
        subparsers,
        "import",
        load,
        "read what `export` printed into a queue",
        description="From standard input. Messages keep their ids, and those that the queue has are skipped, so that "
        "an import that was interrupted is run again. A queue that is not there is created with the same settings.",
        creates=True,
    )
    json_option(parser)


def export(args: argparse.Namespace) -> int:
    """Print everything."""
    from dirqueue.tools import archive

    with open_queue(args.queue) as queue:
        for record in archive.export(queue):
            output.line(output.dumps(record))
    return Exit.OK


def load(args: argparse.Namespace) -> int:
    """Import standard input, and say how many there were."""
    from dirqueue.tools import archive

    if sys.stdin is None:
        raise InputError("there is nothing to import: the standard input is closed")
    with output.progress("import", None) as step:
        done = archive.load(path_of(args.queue), sys.stdin.buffer, step)
    if args.json:
        output.line(output.dumps(done._asdict()))
    else:
        output.line(f"{done.imported} imported, {done.skipped} skipped")
    return Exit.OK

"""The `dirqueue` command.

Layer: edges.  Data goes to stdout, talk to stderr, the outcome is the exit status (`render.Exit`).
`parser` has the table of verbs, each verb is in a module that is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; never a traceback, never SystemExit."""
    try:
        from dirqueue.cli.parser import run

        return run(argv)
    except KeyboardInterrupt:  # while the first modules were loading
        return 130

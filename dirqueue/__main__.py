"""The entry point of the `dirqueue` command, also as `python -m dirqueue`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; never a traceback, never SystemExit."""
    try:
        from dirqueue.cli.main import run

        return run(argv)
    except KeyboardInterrupt:  # while the first modules were loading
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""`python -m dirqueue` is the `dirqueue` command."""

import sys

from dirqueue.cli import main

if __name__ == "__main__":
    sys.exit(main())

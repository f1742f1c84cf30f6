"""Hours of producers, consumers, a purger and a killer: `make soak HOURS=8`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from lab import soak  # noqa: E402

if __name__ == "__main__":
    sys.exit(soak.main())

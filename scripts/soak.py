"""Run producers, consumers, a purger and a killer for hours: `make soak HOURS=8`.

python scripts/soak.py [--hours 8 | --seconds 60] [--sync] [PATH ...]

Without a path, it uses one queue of each layout and two queues shared with the real dirq 1.8. With paths, it uses one
native queue whose directory is mounted at each of them. Every ten minutes all messages are counted and a new round begins.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from lab import soak  # noqa: E402

#: Seconds of one round: a bound on the logs that are kept in memory.
ROUND = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=float, default=1.0, help="how long to run (default %(default)g)")
    parser.add_argument("--seconds", type=float, help="how long to run, in seconds instead of hours")
    parser.add_argument(
        "--sync", action="store_true", help="use sync=True, the default of the library (default: sync=False)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first round (default %(default)s)")
    parser.add_argument("paths", nargs="*", help="paths of one queue directory, one per mount")
    options = parser.parse_args()
    total, left, number = soak.Account(), options.seconds or options.hours * 3600, options.seed
    while left > 0:
        place = Path(tempfile.mkdtemp(prefix="dirqueue-soak-"))
        sites = soak.every_layout(place / "queues", sync=options.sync)
        if options.paths:
            sites = [soak.Site(options.paths, settings={"sync": options.sync})]
        try:
            total += soak.run(
                place, min(left, ROUND), sites=sites, progress=Line(total), pace=0.01, seed=number
            )
        finally:
            shutil.rmtree(place, ignore_errors=True)
        left, number = left - ROUND, number + 1
    print(f"\n{total}" if sys.stderr.isatty() else total)
    return 1 if total.wrong else 0


class Line:
    """Shows the progress: one line updated in place on a terminal, one line a minute elsewhere."""

    def __init__(self, before: soak.Account) -> None:
        self._before, self._next = before, 0.0

    def __call__(self, seconds: float, now: soak.Account) -> None:
        live = sys.stderr.isatty()
        if not live and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 60.0
        all_ = self._before + now
        text = (
            f"{self._before.seconds + seconds:8.0f} s  {all_.kills} kills  {all_.put} put  {all_.acked} "
            f"acknowledged  {len(all_.wrong)} violations"
        )
        print(f"\r{text}\033[K" if live else text, end="" if live else "\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

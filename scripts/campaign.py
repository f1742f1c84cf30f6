"""The large runs of the fault laboratory: prints figures and refreshes docs/reliability.md. `make campaign`.

python scripts/campaign.py [--scale 0.1] [--only interleavings,kills,...]
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
PAGE = ROOT / "docs/reliability.md"

import capabilities  # noqa: E402
from lab import campaigns, explore, powerloss, soak  # noqa: E402
from lab.explore import Plan  # noqa: E402
from lab.forge import ERRORS  # noqa: E402

#: How many, what else there is to say, and what went wrong.
Result = tuple[int, str, list[str]]
PROGRAMS = ("ga", "gt", "gl", "gj", "gna", "gtga", "glga", "gjd", "gnga", "p", "P", "u", "d", "pp")


def interleavings(scale: float, _place: Path) -> Result:
    """Pairs of programs with every schedule (as far as the limit goes), then three and four clients at random."""
    runs = complete = pairs = 0
    wrong = []
    for one in PROGRAMS:
        for other in PROGRAMS:
            done, pruned, whole, failure = explore.exhaust(
                Plan.of(f"{one}|{other}", before="p"), int(4000 * scale) + 1
            )
            runs += done + pruned
            pairs += 1
            complete += whole
            wrong += [str(failure)] if failure else []
    faults = [{}, {"kills": 1}, {"lossy": 3, "fstype": "nfs4"}, {"noreplace": False}]
    for number in range(int(400 * scale) + 1):
        some = [PROGRAMS[(number * step + step) % len(PROGRAMS)] for step in (1, 3, 5)]
        plan = Plan.of("|".join(some), before="pp", ticks=number % 3, **faults[number % 4])
        done, failure = explore.wander(plan, 500, seed=number)
        runs += done
        wrong += [str(failure)] if failure else []
    return runs, f"{complete} of {pairs} pairs of programs complete", wrong


def kills(scale: float, place: Path) -> Result:
    """SIGKILL at every system call of every story."""
    points, missed, wrong = 0, [], []
    for number in range(max(1, int(18 * scale))):
        report = campaigns.kills(place / str(number), sync=bool(number % 2))
        points, missed, wrong = points + report.points, missed + report.missed, wrong + report.wrong
    return points, f"{len(missed)} not reached", wrong


def errors(scale: float, place: Path) -> Result:
    """Every system call of every story fails with every errno."""
    report = campaigns.errors(place, ERRORS if scale >= 1 else ERRORS[:2])
    return report.points, f"{len(ERRORS)} errnos", report.wrong


def power_loss(scale: float, place: Path) -> Result:
    """Images of mounted filesystems after every call."""
    taken, wrong, kinds = 0, [], []
    for kind, count in {"ext4": 4000, "xfs": 1500, "btrfs": 1000}.items():
        if capabilities.has(kind):
            for number in range(max(1, int(count * scale / 500))):
                folder = place / f"{kind}{number}"
                folder.mkdir(parents=True)
                done, bad = powerloss.photograph(kind, folder, int(min(500, count * scale)))
                taken, wrong = taken + done, wrong + bad
                shutil.rmtree(folder)
            kinds.append(kind)
    return taken, ", ".join(kinds), wrong


def reordered(scale: float, place: Path) -> Result:
    """Random subsets of the block writes between two flushes."""
    taken, wrong = 0, []
    for seed in range(max(1, int(30 * scale))):
        folder = place / str(seed)
        folder.mkdir(parents=True)
        done, bad = powerloss.reorder(folder, 500, seed=seed)
        taken, wrong = taken + done, wrong + bad
        shutil.rmtree(folder)
    return taken, "ext4", wrong


def killer(scale: float, place: Path) -> Result:
    """A soak: producers, consumers, a purger and SIGKILL every 0.1 to 0.5 s."""
    account = soak.run(place / "soak", 600 * scale)
    return account.kills, f"{account.put} put, {account.acked} acknowledged", account.wrong


CAMPAIGNS = {
    "interleavings": (interleavings, "schedules", ()),
    "kills": (kills, "kill points", ("strace",)),
    "errors": (errors, "failing calls", ("strace",)),
    "power loss": (power_loss, "disk images", ("loop",)),
    "reordered writes": (reordered, "disk images", ("loop", "fuse", "ext4")),
    "soak": (killer, "kills", ()),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="1 takes about an hour")
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--no-page", action="store_true", help="print only")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(CAMPAIGNS)
    place = Path(
        tempfile.mkdtemp(prefix="dirqueue-campaign-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    )
    rows, failed = [], False
    try:
        for name in chosen:
            function, unit, needs = CAMPAIGNS[name]
            if absent := capabilities.missing(list(needs)):
                print(f"{name}: skipped, needs {', '.join(absent)}")
                continue
            began = time.monotonic()
            count, detail, wrong = function(options.scale, place / name.replace(" ", "-"))
            took = time.monotonic() - began
            failed |= bool(wrong)
            rows.append(f"| {name} | {count:,} {unit} | {detail} | {len(wrong)} | {took:.0f} s |")
            print(f"{name}: {count:,} {unit}, {detail}, {len(wrong)} violations, {took:.0f} s", flush=True)
            for each in wrong[:5]:
                print(f"  {each}")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if not options.no_page and len(rows) == len(CAMPAIGNS):
        refresh(rows, options.scale)
    return 1 if failed else 0


def refresh(rows: list[str], scale: float) -> None:
    """Put the figures into the page, between its two marks."""
    head = ["| campaign | size | detail | violations | took |", "|---|---|---|---|---|"]
    text = "\n".join([f"Last run: `python scripts/campaign.py --scale {scale:g}`", "", *head, *rows])
    page = PAGE.read_text()
    marks = re.compile(r"(<!-- figures -->\n).*(\n<!-- end of figures -->)", re.DOTALL)
    PAGE.write_text(marks.sub(lambda match: match[1] + text + match[2], page))


if __name__ == "__main__":
    sys.exit(main())

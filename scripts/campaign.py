"""Run the large fault campaigns, print their figures and update docs/reliability.md: `make campaign`.

python scripts/campaign.py [--scale 0.1] [--only kills,errors,...] [--no-page]

The figures of each finished campaign are stored in docs/reliability.json, and the table of the page is generated from that
file. So campaigns can be run one by one or in parallel.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
PAGE, BOOK = ROOT / "docs/reliability.md", ROOT / "docs/reliability.json"

from lab import campaigns, hostile, network, nfs, powerloss, soak, tokens  # noqa: E402
from lab.forge import ERRORS  # noqa: E402
from lab.stories import COMMON, LAYOUTS  # noqa: E402
from support import capabilities  # noqa: E402

#: The count, a detail for the table, and the violations.
Result = tuple[int, str, list[str]]


class Progress:
    """Shows the progress: one line updated in place on a terminal, one line every half minute elsewhere."""

    def __init__(self, name: str) -> None:
        self._name, self._began, self._next = name, time.monotonic(), 0.0

    def __call__(self, done: int, of: float, wrong: int) -> None:
        live = sys.stderr.isatty()
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.2 if live else 30.0)
        text = f"{self._name}: {done:,} of about {of:,.0f}, {wrong} violations, {now - self._began:.0f} s"
        print(f"\r{text}\033[K" if live else text, end="" if live else "\n", file=sys.stderr, flush=True)


def interleavings(scale: float, _place: Path, _progress: Progress) -> Result:
    """Schedules of two to four clients of the real library."""
    from lab import plans

    result: Result = plans.campaign(scale)
    return result


def _ways(scale: float) -> Iterator[dict[str, Any]]:
    """Yield the settings of the kill campaign; at scale 1 they give 20,000 kill points."""
    every: list[dict[str, Any]] = [{"layout": layout} for layout in LAYOUTS]
    every += [{"layout": layout, "sync": False} for layout in LAYOUTS]
    every += [{"layout": "native", "keep_done": True}, {"layout": "native", "priorities": True}]
    every += [{"layout": "vsqs", "milliseconds": True}, {"layout": "dirq-simple", "granularity": 1}]
    every += [{"layout": "dirq-normal", "maxelts": 1}, {"layout": "native", "order": "lifo"}]
    every += [{"layout": "native", "order": "random"}, {"layout": "native", "max_attempts": 1}]
    every += [{"layout": layout, "order": "lifo"} for layout in LAYOUTS[1:]]
    every += [{"layout": "native", "keep_done": True, "sync": False}]
    yield from every[: max(1, round(len(every) * scale))]


def kills(scale: float, place: Path, progress: Progress) -> Result:
    """SIGKILL at every system call of every story, with several settings."""
    total, ways = campaigns.Report(), list(_ways(scale))
    for number, settings in enumerate(ways):
        total += campaigns.kills(
            place / str(number),
            progress=lambda now, total=total: progress(
                total.points + now.points, 20_000 * scale, len(total.wrong + now.wrong)
            ),
            **settings,
        )
    detail = f"{len(ways)} settings of {len(LAYOUTS)} layouts, {len(total.missed)} points not reached"
    return total.points, detail, total.wrong + total.missed


def errors(scale: float, place: Path, progress: Progress) -> Result:
    """Every system call of every story fails with every errno."""
    points, wrong = 0, []
    # Converting from another layout makes only calls of its get and ack and of native's put.
    but_convert = [name for name in COMMON if name != "convert"]
    codes = ERRORS[: max(1, round(len(ERRORS) * scale))]
    for layout in LAYOUTS:
        for code in codes:
            report = campaigns.errors(
                place / layout,
                [code],
                layout=layout,
                names=None if layout == "native" else but_convert,
                progress=lambda now, points=points, wrong=wrong: progress(
                    points + now.points, 30_000 * scale, len(wrong + now.wrong)
                ),
            )
            points, wrong = points + report.points, wrong + report.wrong
    return points, f"{len(LAYOUTS)} layouts, each call with {', '.join(codes)}", wrong


def power_loss(scale: float, place: Path, progress: Progress) -> Result:
    """Disk images of mounted filesystems, taken after every call."""
    taken, wrong, tally = 0, [], {}
    wanted = {"ext4": 10_000 * scale, "xfs": 3_500 * scale, "btrfs": 3_500 * scale}
    for kind, count in wanted.items():
        number = 0
        while capabilities.has(kind) and tally.get(kind, 0) < count:
            # Every fourth series of images uses another layout, every fourth links.
            other = LAYOUTS[1 + number // 4 % 3] if number % 4 == 3 else ""
            settings = {"layout": other} if other else {"links": number % 4 == 1}
            folder = place / f"{kind}{number}"
            folder.mkdir(parents=True)
            some = int(min(250, count - tally.get(kind, 0)) + 0.999)
            done, bad = powerloss.photograph(kind, folder, some, **settings)
            taken, wrong, number = taken + done, wrong + bad, number + 1
            tally[kind] = tally.get(kind, 0) + done
            shutil.rmtree(folder)
            progress(taken, sum(wanted.values()), len(wrong))
    lost = 0
    for kind in tally:
        folder = place / f"{kind}-unsynced"
        folder.mkdir(parents=True)
        done, losses, bad = powerloss.photograph_unsynced(kind, folder, 30)
        lost, wrong = lost + len(losses), wrong + bad
    images = ", ".join(f"{count:,} {kind}" for kind, count in tally.items())
    return taken, f"{images}; sync=False lost {lost} of the newest puts and acks, and nothing else", wrong


def reordered(scale: float, place: Path, progress: Progress) -> Result:
    """Random subsets of the block writes between two flushes."""
    taken, wrong = 0, []
    for seed in range(max(1, round(8 * scale))):
        folder = place / str(seed)
        folder.mkdir(parents=True)
        done, bad = powerloss.reorder(folder, 400, seed=seed)
        taken, wrong = taken + done, wrong + bad
        shutil.rmtree(folder)
        progress(taken, 3_200 * scale, len(wrong))
    return taken, "ext4, subsets of the blocks written since the last flush", wrong


def lost_replies(scale: float, place: Path, progress: Progress) -> Result:
    """Two hosts on a network filesystem that loses every tenth reply."""
    passed = replies = number = 0
    wrong: list[str] = []
    faults: list[dict[str, Any]] = [{}, {"cache": 1.0}, {"nolink": True}]
    while passed < 200_000 * scale:
        folder = place / str(number)
        folder.mkdir(parents=True)
        some, lost, bad = network.lose(folder, 2_000, seed=number, lost=0.1, **faults[number % 3])
        passed, replies, wrong, number = passed + some, replies + lost, wrong + bad, number + 1
        shutil.rmtree(folder)
        progress(passed, 200_000 * scale, len(wrong))
    return passed, f"{replies:,} replies lost; plain, with a cache, without hard links", wrong


def real_nfs(scale: float, _place: Path, progress: Progress) -> Result:
    """A real NFS server, mounted twice: messages both ways, then a soak with kills."""
    place = Path(
        tempfile.mkdtemp(prefix="dirqueue-nfs-", dir="/var/tmp")
    )  # a disk: tmpfs has no file handles
    try:
        with (
            nfs.served(place / "server") as export,
            nfs.mounted(place / "one") as one,
            nfs.mounted(place / "two") as two,
        ):
            count = int(2_000 * scale)
            acked, lost = network.flow(f"{one}/flow", f"{two}/flow", count)
            wrong = network.judge(f"{export}/flow", count, acked, lost) + network.text_file(one)
            site = soak.Site([f"{one}/soak", f"{two}/soak"], settings={"lease": 3.0, "margin": 1.0})
            account = soak.run(
                place,
                180 * scale,
                sites=[site],
                progress=lambda _, now: progress(len(acked) + now.put, 8_000 * scale, len(now.wrong)),
                pace=0.05,
            )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    detail = f"nfs-ganesha, version 3, two clients (libnfs); {account.kills} kills"
    return len(acked) + account.put, detail, wrong + account.wrong


def nfs_transactions(scale: float, _place: Path, progress: Progress) -> Result:
    """The token game on a real NFS server, mounted twice."""
    place = Path(tempfile.mkdtemp(prefix="dirqueue-nfs-", dir="/var/tmp"))  # a disk, as above
    try:
        with (
            nfs.served(place / "server") as export,
            nfs.mounted(place / "one") as one,
            nfs.mounted(place / "two") as two,
        ):
            (place / "tally").mkdir()
            roots = [f"{one}/space", f"{two}/space"]
            tokens.deal(roots[0])
            kills, ended = tokens.play(roots, str(place / "tally"), 300 * scale, tokens.SLOW)
            reported, wrong = tokens.judge(f"{export}/space", str(place / "tally"), tokens.SLOW)
            progress(kills, kills, len(ended + wrong))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return kills, f"nfs-ganesha, version 3, two clients (libnfs); {reported:,} transactions", ended + wrong


def killer(scale: float, place: Path, progress: Progress) -> Result:
    """A soak: producers, consumers, a purger, and a SIGKILL every 0.1 to 0.5 s."""
    account = soak.run(
        place / "soak",
        600 * scale,
        sites=soak.every_layout(place / "queues"),
        progress=lambda _, now: progress(now.kills, 2_000 * scale, len(now.wrong)),
        pace=0.02,
    )
    done = f"{account.put:,} put, {account.acked:,} acknowledged, {account.by_dirq:,} of that by dirq 1.8"
    return account.kills, f"{len(LAYOUTS)} layouts, {account.seconds:.0f} s; {done}", account.wrong


def fuzzing(scale: float, place: Path, progress: Progress) -> Result:
    """Names that are almost valid, and a directory with every kind of foreign entry."""
    count, accepted, wrong = int(2_000_000 * scale), 0, []
    for seed in range(max(1, count // 100_000)):
        some, bad = hostile.fuzz(100_000, seed)
        accepted, wrong = accepted + some, wrong + bad
        progress(seed * 100_000, count, len(wrong))
    tests, detail, bad = _tests("test_hostile", place)
    return (
        max(1, count // 100_000) * 100_000,
        f"{accepted:,} were valid; {tests} tests, {detail}",
        wrong + bad,
    )


def _tests(name: str, place: Path) -> Result:
    """Run a test file unchanged, for campaigns that do not scale."""
    place.mkdir(parents=True, exist_ok=True)
    report = place / "report.xml"
    command = [
        "-m",
        "pytest",
        "-n0",
        "-q",
        "-p",
        "no:randomly",
        f"--junitxml={report}",
        f"tests/reliability/{name}.py",
    ]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=False, stdout=subprocess.DEVNULL, timeout=1800)
    cases = list(ET.parse(report).iter("testcase"))
    bad = [
        case.get("name", "")
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return (
        len(cases) - skipped,
        f"{skipped} skipped" if skipped else "none skipped",
        [f"failed: {each}" for each in bad],
    )


def cells(name: str, what: str) -> Callable[[float, Path, Progress], Result]:
    """Return a campaign that runs a test file; each test is one cell."""

    def run(_scale: float, place: Path, _progress: Progress) -> Result:
        count, detail, wrong = _tests(name, place)
        return count, f"{what}; {detail}", wrong

    return run


def transactions(scale: float, _place: Path, progress: Progress) -> Result:
    """Schedules of transactions, with deaths, recoveries that die too, and lost replies."""
    from lab import transactions

    result: Result = transactions.campaign(scale, progress)
    return result


def streams(scale: float, place: Path, progress: Progress) -> Result:
    """Streams beside producers, consumers and a purger, while drivers, JVMs and Python processes of Spark are killed."""
    from lab import stream_faults

    runs, wrong = max(1, round(20 * scale)), []
    put = acked = kills = drivers = 0
    for seed in range(1, runs + 1):
        account = stream_faults.run(place / str(seed), seed, kills=3)
        put, acked = put + account.put, acked + account.acked
        kills, drivers = kills + len(account.kills), drivers + account.drivers
        wrong += [f"seed {seed}: {each}" for each in account.wrong]
        progress(kills, 3 * runs, len(wrong))
        shutil.rmtree(place / str(seed))
    done = f"{put:,} put, {acked:,} acknowledged by plain consumers, the others streamed once"
    return kills, f"{runs} runs, {drivers} drivers; {done}", wrong


CAMPAIGNS: dict[str, tuple[Callable[[float, Path, Progress], Result], str, tuple[str, ...]]] = {
    "interleavings": (interleavings, "schedules", ()),
    "model": (
        cells("test_spin", "leases, buckets and registers of transactions, every state"),
        "models",
        ("spin", "gcc"),
    ),
    "kills": (kills, "kill points", ("strace",)),
    "errors": (errors, "failing calls", ("strace",)),
    "power-loss": (power_loss, "disk images", ("loop",)),
    "reordered": (reordered, "disk images", ("loop", "fuse", "ext4")),
    "network": (lost_replies, "messages", ("fuse",)),
    "nfs": (real_nfs, "messages", ("root", "fuse", "nfs")),
    "nfs-transactions": (nfs_transactions, "kills", ("root", "fuse", "nfs")),
    "full-disk": (
        cells("test_full_disk", "bytes and inodes of ext4, tmpfs, xfs, btrfs; read-only in mid-run"),
        "cells",
        ("mount",),
    ),
    "clocks": (
        cells("test_clocks", "seconds and a day apart, steps back under load"),
        "cells",
        ("faketime",),
    ),
    "hostile": (fuzzing, "fuzzed names", ()),
    "users": (cells("test_users", "three users, three modes, three umasks"), "cells", ("root",)),
    "soak": (killer, "kills", ()),
    "transactions": (transactions, "states", ()),
    "streams": (streams, "kills", ("spark",)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="size of the campaigns; 1 takes about an hour (default %(default)g)",
    )
    parser.add_argument(
        "--only", default="", help=f"comma-separated names, from {','.join(CAMPAIGNS)} (default: all)"
    )
    parser.add_argument("--no-page", action="store_true", help="print the figures, do not update the page")
    parser.add_argument(
        "--table", action="store_true", help="generate the page from the stored figures, run nothing"
    )
    options = parser.parse_args()
    if options.table:
        write_down({})
        return 0
    chosen = options.only.split(",") if options.only else list(CAMPAIGNS)
    if unknown := [name for name in chosen if name not in CAMPAIGNS]:
        parser.error(f"unknown campaign {unknown[0]!r}; choose from {', '.join(CAMPAIGNS)}")
    roomy = "/dev/shm" if os.path.isdir("/dev/shm") else None
    place = Path(tempfile.mkdtemp(prefix="dirqueue-campaign-", dir=roomy))
    failed = False
    try:
        for name in chosen:
            failed |= run(name, options.scale, place / name, page=not options.no_page)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 1 if failed else 0


def run(name: str, scale: float, place: Path, *, page: bool) -> bool:
    """Run one campaign, print and record its figures. Return whether anything was wrong."""
    function, unit, needs = CAMPAIGNS[name]
    absent = capabilities.missing([each for each in needs if each != "nfs"]) + (
        nfs.missing() if "nfs" in needs else []
    )
    if absent:
        print(f"{name}: skipped, needs {', '.join(absent)}")
        return False
    began = time.monotonic()
    count, detail, wrong = function(scale, place, Progress(name))
    took = time.monotonic() - began
    end = "\n" if sys.stderr.isatty() else ""
    print(f"{end}{name}: {count:,} {unit}, {detail}, {len(wrong)} violations, {took:.0f} s", flush=True)
    for each in wrong[:5]:
        print(f"  {each}")
    if page:
        entry = {
            "count": count,
            "unit": unit,
            "detail": detail,
            "violations": len(wrong),
            "seconds": round(took),
        }
        write_down({name: entry | {"scale": scale, "date": f"{datetime.now(UTC):%Y-%m-%d}"}})
    return bool(wrong)


def write_down(news: dict[str, dict[str, Any]]) -> None:
    """Store new figures, and generate the table of the page from all stored figures."""
    with FileLock(Path(tempfile.gettempdir()) / "dirqueue-campaign.lock"):  # campaigns may run in parallel
        book = json.loads(BOOK.read_text()) if BOOK.exists() else {}
        book |= news
        BOOK.write_text(json.dumps({each: book[each] for each in CAMPAIGNS if each in book}, indent=1) + "\n")
        page = PAGE.read_text()
        marks = re.compile(r"(<!-- figures -->\n).*(\n<!-- end of figures -->)", re.DOTALL)
        PAGE.write_text(marks.sub(lambda match: match[1] + table(book) + match[2], page))


def table(book: dict[str, dict[str, Any]]) -> str:
    """Return the figures as the page shows them."""
    rows = ["| campaign | size | violations | detail | took | day | again |", "|---|---|---|---|---|---|---|"]
    for name in (each for each in CAMPAIGNS if each in book):
        it = book[name]
        again = f"`--only {name}`" + (f" `--scale {it['scale']:g}`" if it["scale"] != 1 else "")
        rows.append(
            f"| {name} | {it['count']:,} {it['unit']} | {it['violations']} | {it['detail']} | {it['seconds']:,} s "
            f"| {it['date']} | {again} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())

"""Plant known bugs one by one and check that the tests notice them: `make mutants`.

The first line of tests/mutants/NAME.patch says what the bug breaks; `tests:` names the tests that must notice it. The
patch is applied to a copy of the tree, where one of these tests must fail (an error of pytest does not count); in a copy
without the patch they must pass. A change is located by the text of its lines, not by line numbers: a patch that fits
nowhere, or in two places, is a failure too.
"""

import argparse
import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PATCHES = ROOT / "tests/mutants"
PAGE = ROOT / "docs/mutants.md"
#: What is copied: the package, the tests and their configuration.
COPIED = ("dirqueue", "tests", "pyproject.toml")
#: Longer than any list of tests takes on a slow machine.
SECONDS = 1800

Hunk = list[str]


class Broken(Exception):
    """The patch no longer fits the code."""


class Mutant(NamedTuple):
    """One planted bug."""

    name: str
    what: str
    tests: tuple[str, ...]
    #: Whether CI runs it: its tests take seconds and need only Python.
    quick: bool
    #: File -> the changes in it.
    changes: dict[str, list[Hunk]]


def read(path: Path) -> Mutant:
    """Parse a patch file."""
    lines = path.read_text().splitlines()
    head = {}
    changes: dict[str, list[Hunk]] = {}
    file = ""
    for line in lines[1:]:
        if line.startswith("+++ "):
            file = line.split()[1].removeprefix("b/")
            changes[file] = []
        elif line.startswith("@@"):
            changes[file].append([])
        elif file and not line.startswith("--- "):
            changes[file][-1].append(line or " ")
        elif ": " in line and not file:
            key, _, value = line.partition(": ")
            head[key] = value
    return Mutant(path.stem, lines[0], tuple(head["tests"].split()), head.get("quick") == "yes", changes)


def mutants(names: tuple[str, ...] = ()) -> list[Mutant]:
    """Return all planted bugs, or only those with these names."""
    found = [read(path) for path in sorted(PATCHES.glob("*.patch"))]
    if unknown := set(names) - {each.name for each in found}:
        raise SystemExit(f"no such bug: {', '.join(sorted(unknown))}")
    return [each for each in found if not names or each.name in names]


def mutate(text: str, hunk: Hunk) -> str:
    """Return the text with one change applied, with less context if the lines around it have changed."""
    lines = text.split("\n")
    first = next(n for n, line in enumerate(hunk) if line[0] in "-+")
    last = len(hunk) - next(n for n, line in enumerate(reversed(hunk)) if line[0] in "-+")
    cuts = sorted(
        ((above, below) for above in range(first + 1) for below in range(len(hunk) - last + 1)), key=sum
    )
    for above, below in cuts:
        part = hunk[above : len(hunk) - below]
        old = [line[1:] for line in part if line[0] in "- "]
        # A single line may match in the wrong place.
        if len(old) < 2 or not any(line[0] == " " and line.strip() for line in part):
            continue
        places = [n for n in range(len(lines) - len(old) + 1) if lines[n : n + len(old)] == old]
        if len(places) > 1:
            raise Broken("fits in more than one place")
        if places:
            new = [line[1:] for line in part if line[0] in "+ "]
            return "\n".join(lines[: places[0]] + new + lines[places[0] + len(old) :])
    raise Broken("fits nowhere")


def mutated(mutant: Mutant, tree: Path = ROOT) -> dict[str, str]:
    """Return the changed files of a tree. Raise Broken if the patch does not fit or the result is not valid Python."""
    texts = {}
    for file, hunks in mutant.changes.items():
        try:
            text = (tree / file).read_text()
            for hunk in hunks:
                text = mutate(text, hunk)
            compile(text, file, "exec")
        except (Broken, OSError, SyntaxError) as error:
            raise Broken(f"{mutant.name}: {file}: {error}") from None
        texts[file] = text
    return texts


def plant(mutant: Mutant, tree: Path) -> None:
    """Write the bug into a tree."""
    for file, text in mutated(mutant, tree).items():
        (tree / file).write_text(text)


@contextlib.contextmanager
def copy() -> Iterator[Path]:
    """Yield a copy of the tree; remove it afterwards."""
    place = Path(tempfile.mkdtemp(prefix="dirqueue-mutant-"))
    try:
        for name in COPIED:
            source, target = ROOT / name, place / name
            target.parent.mkdir(exist_ok=True)
            if source.is_dir():
                shutil.copytree(
                    source, target, ignore=shutil.ignore_patterns("__pycache__", "mutants", "spark")
                )
            else:
                shutil.copy(source, target)
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


class Verdict(NamedTuple):
    """The result of a run of tests."""

    #: passed, failed, skipped, hung, or "exit N" for an error of pytest.
    how: str
    #: The first test that failed, or the end of the output.
    why: str = ""


def run(tests: tuple[str, ...], place: Path) -> Verdict:
    """Run these tests in a copy of the tree until one fails."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n0",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    env = os.environ | {"PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in [each for each in env if each.startswith(("COVERAGE_", "PYTEST_"))]:
        del env[name]
    env.pop("TMPDIR", None)
    try:
        done = subprocess.run(
            command, cwd=place, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Verdict("hung")
    if done.returncode == 1 and (failed := re.search(r"^FAILED (\S+)", done.stdout, re.MULTILINE)):
        return Verdict("failed", failed[1])
    if done.returncode == 0:
        # If every test was skipped, none can have noticed.
        return Verdict("passed" if " passed" in done.stdout else "skipped", done.stdout[-300:])
    return Verdict(f"exit {done.returncode}", done.stdout[-2000:] + done.stderr[-2000:])


_locks: dict[tuple[str, ...], threading.Lock] = {}


@functools.cache
def _sound(tests: tuple[str, ...]) -> Verdict:
    with copy() as place:
        return run(tests, place)


def baseline(tests: tuple[str, ...]) -> Verdict:
    """Run these tests without a bug, once for each list of tests."""
    with _locks.setdefault(tests, threading.Lock()):
        return _sound(tests)


def judge(mutant: Mutant) -> tuple[str, str]:
    """Return "yes" if the bug was noticed, else what happened instead; and the failed test or the output."""
    sound = baseline(mutant.tests)
    if sound.how != "passed":
        return f"{sound.how} without it", sound.why
    with copy() as place:
        try:
            plant(mutant, place)
        except Broken as error:
            return "no patch", str(error)
        verdict = run(mutant.tests, place)
    return (
        "yes" if verdict.how == "failed" else "no" if verdict.how == "passed" else verdict.how
    ), verdict.why


def page(found: list[Mutant]) -> str:
    """Return docs/mutants.md; every bug must have been noticed."""
    rows = [
        f"| {each.name} | {each.what} | {', '.join(f'`{file}`' for file in each.changes)} | {tests_in(each)} |"
        for each in found
    ]
    return "\n".join(
        [
            "# Planted bugs",
            "",
            "Generated by `make mutants`; edit `tests/mutants/` instead.",
            "",
            "A test that cannot fail proves nothing. Bugs that queues like this one have had are therefore planted one by one",
            "in a copy of the tree. The tests named beside each bug must fail there, and pass without it.",
            "",
            f"{len(found)} bugs are planted; `make mutants` tries them all and fails if one goes unnoticed.",
            "",
            "| bug | what it does | where | noticed by |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def tests_in(mutant: Mutant) -> str:
    """Return the tests of a bug as the page shows them."""
    return "<br>".join(f"`{each.removeprefix('tests/')}`" for each in mutant.tests)


def main() -> int:
    """Try all bugs, or the named ones, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="try only these bugs (default: all)")
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="how many to try at once (default %(default)s)",
    )
    options = parser.parse_args()
    found = mutants(tuple(options.names))
    width = max(len(each.name) for each in found)
    print(f"{'planted bug':{width}} {'noticed':>8} {'seconds':>8}  what it does; noticed by")
    survivors = []

    def timed(mutant: Mutant) -> tuple[Mutant, str, str, float]:
        start = time.monotonic()
        return mutant, *judge(mutant), time.monotonic() - start

    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, verdict, why, took in pool.map(timed, found):
            print(f"{mutant.name:{width}} {verdict:>8} {took:8.1f}  {mutant.what}; {why}", flush=True)
            if verdict != "yes":
                survivors.append(mutant.name)
    print(f"{len(found) - len(survivors)} of {len(found)} noticed", *survivors)
    if not survivors and not options.names:
        PAGE.write_text(page(found))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

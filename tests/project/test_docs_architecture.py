"""docs/architecture.md, docs/glossary.md and CONTRIBUTING.md describe the tree as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PATH = re.compile(r"`((?:dirqueue|tests|docs|scripts|benchmarks|examples)/[\w./-]*)`")
#: Files that say what one layout is, beside its own folder and what speaks its programs' API.
OWN = ("dirqueue/layouts/vsqs/", "dirqueue/compat/")
#: Two or more states written side by side: a list of states by hand.
STATES = re.compile(
    r'"(?:ready|delayed|leased)",\s+"(?:delayed|leased|dead)",\s+"(?:leased|dead|done|expired|acked)"'
)


def row(change: str) -> set[str]:
    """Return the files that the last table names for a change."""
    [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {change} ")]
    return set(PATH.findall(line))


def files(pattern: re.Pattern[str]) -> set[str]:
    """Return the modules of the package in which it occurs."""
    found = (ROOT / "dirqueue").rglob("*.py")
    return {str(file.relative_to(ROOT)) for file in found if pattern.search(file.read_text())}


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/glossary.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    """So that the way through the house does not end at a wall."""
    named = PATH.findall((ROOT / page).read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_names_in_the_walk_exist() -> None:
    """`Class.method` beside a file is in that file."""
    walk = re.findall(r"`(dirqueue/[\w/]+\.py)` `(\w+)(?:\.(\w+))?`", PAGE)
    assert len(walk) >= 8
    for path, name, method in walk:
        text = (ROOT / path).read_text()
        assert re.search(rf"^(?:class|def) {name}\b", text, re.MULTILINE), f"{name} is not in {path}"
        assert not method or re.search(rf"^    (?:async )?def {method}\b", text, re.MULTILINE), (
            f"{name}.{method}"
        )


def test_the_picture_shows_the_rooms_that_exist() -> None:
    """Every module and folder of the package is in it, and nothing that is gone."""
    picture = PAGE.split("```text")[1].split("```")[0]
    shown = {name.rstrip("/") for name in re.findall(r"(?<!\S)\w+(?:\.py|/)(?=[\s:,])", picture)}
    rooms = {path.name for path in (ROOT / "dirqueue").iterdir() if not path.name.startswith("_")}
    within = {path.name for room in ("layouts", "disk") for path in (ROOT / "dirqueue" / room).iterdir()}
    assert rooms - {"py.typed"} - shown == set()
    assert shown - rooms - within == set()


@pytest.mark.parametrize(
    "room",
    [
        "dirqueue",
        "dirqueue/layouts",
        "dirqueue/layouts/native",
        "dirqueue/disk",
        "dirqueue/tools",
        "dirqueue/space",
    ],
)
def test_every_file_of_a_room_is_named(room: str) -> None:
    """One that the page leaves out is one nobody finds."""
    named = {path.rstrip("/") for path in PATH.findall(PAGE)}
    found = {
        f"{room}/{path.name}" for path in (ROOT / room).iterdir() if path.name[0].isalpha() and path.is_file()
    }
    assert (
        found - named - {f"{room}/description.py", "dirqueue/py.typed", "dirqueue/layouts/null.py"} == set()
    )


def test_adding_a_layout_touches_the_files_that_the_page_counts() -> None:
    """Those that name an existing layout by its name."""
    found = {path for path in files(re.compile('"vsqs"')) if not path.startswith(OWN)}
    assert row("add a layout") == found
    assert f"| 1 folder + {len(found)} |" in PAGE


def test_adding_a_state_touches_the_files_that_the_page_counts() -> None:
    """At least those that list states by hand."""
    assert files(STATES) - row("add a state") == set()
    assert f"| add a state | {len(row('add a state'))} |" in PAGE


def test_a_quirk_touches_as_many_files_as_the_page_counts() -> None:
    """From the quirk that mount.py handles alone to the one that most modules know."""
    text = (ROOT / "dirqueue" / "disk" / "mount.py").read_text()
    quirks = re.findall(r"self\.(\w+) = (?:network|False)$", text, re.MULTILINE)
    assert len(quirks) >= 5
    counts = [len(files(re.compile(rf"\b{quirk}\b"))) for quirk in quirks]
    assert f"| add a quirk of a filesystem | {min(counts)} to {max(counts)} |" in PAGE

"""docs/protocol.md is normative: its figures, keys, names and transitions are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dirqueue import states
from dirqueue.disk import clock, identity, mount
from dirqueue.layouts.native import names, publish, staged, staging
from dirqueue.settings import FORMAT, Settings

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "protocol.md").read_text()


def defaults() -> dict[str, object]:
    """Return the settings that the page lists, with the defaults that it gives."""
    section = PAGE.split("\n## Settings\n")[1].split("\n## ")[0]
    found: dict[str, object] = {}
    for line in section.splitlines():
        if match := re.match(r"\| (`.*?`) \| (.+?) \|", line):
            keys = re.findall(r"`(\w+)`", match[1])
            values = match[2].replace("`", "").split(", ")
            found |= dict(zip(keys, map(json.loads, values), strict=True))
    return found


def test_the_page_lists_every_setting_with_its_default() -> None:
    """A client that lacks one would refuse, or misread, a queue."""
    assert defaults() == {"format": FORMAT, **Settings()._asdict()}


def test_the_perl_client_knows_every_setting_with_its_default() -> None:
    """The client is written from the page."""
    text = (DOCS / "protocol.pl").read_text().split("my %DEFAULT = (")[1].split("\n);")[0]
    given = dict(re.findall(r"(\w+) => ([^,]+)", text))
    words = {"undef": None, "'auto'": "auto", "'fifo'": "fifo"}
    assert {
        key: words[value] if value in words else float(value) for key, value in given.items()
    } == defaults()


def test_every_suffix_is_in_the_grammar() -> None:
    """What the parser accepts beside messages."""
    grammar = PAGE.split("```text")[1].split("```")[0]
    kinds = (
        names.NEW,
        names.ERROR,
        names.ERROR_NEW,
        names.BATCH,
        names.STAGING,
        names.SLICE,
        names.PART,
        "ack",
    )
    assert [kind for kind in kinds if f'".{kind}"' not in grammar] == []


def test_everything_that_lies_in_a_queue_is_on_the_page() -> None:
    """Furniture and files of a moment."""
    tree = PAGE.split("\nQUEUE/\n")[1].split("```")[0]
    wanted = names.FURNITURE | {".clock-TOKEN", ".create-TOKEN"}
    assert {name for name in wanted if f"\n  {name}" not in tree} == set()


def test_every_transition_is_in_the_diagram() -> None:
    """From state to state, as states.py has them."""
    drawn = set(re.findall(r"^    (\S+) --> (\S+):", PAGE, re.MULTILINE))
    wanted = {(before, after or "[*]") for (before, _), after in states.TRANSITIONS.items()}
    assert wanted - drawn == set()


def test_the_local_filesystems_are_those_of_the_code() -> None:
    """Every other one is a network filesystem."""
    [listed] = re.findall(r"gives its type as (.*?)\.\s+Every other", PAGE, re.DOTALL)
    assert set(re.split(r",\s+|\s+or\s+", listed)) == mount.LOCAL - {"unknown"}


@pytest.mark.parametrize(
    ("said", "figure"),
    [
        ("above {:,} bytes", publish.DEEP * mount.Mount("ext4").name_bytes),
        ("({:,} on tmpfs)", publish.DEEP * mount.Mount("tmpfs").name_bytes),
        ("about {:,} names", publish.DEEP),
        ("every\n{} puts", publish.LOOK_EVERY),
        ("leaves a slice after {:,} messages", publish.SLICE_SIZE),
        ("of at most {:,}", publish.SLICE_SIZE),
        ("not before TIME + {} s", 2 * publish.SLICE_SECONDS),
        ("for {:.0f} s at most", staging.SETTLE_SECONDS),
        ("stays at {} when it gets there", names.MAX_ATTEMPTS),
        ("for at most a minute" if clock.TRUST_NS == 60 * 10**9 else "trusted for another time", 0),
        ("a difference below {:.0f} ms is none", clock.NOISE * 1000),
        ("{} MiB on xfs and btrfs", mount.BALLAST["xfs"] >> 20),
        ("{} KiB on other local disks", mount.BALLAST_ELSEWHERE >> 10),
        ("the newest ten are kept" if staged.KEEP == 10 else "another number is kept", 0),
        ("counts as 10^15" if identity.MIN_TIME == 10**15 else "counts as something else", 0),
    ],
)
def test_a_figure_of_the_page_is_that_of_the_code(said: str, figure: float) -> None:
    """Spelt as the page spells it."""
    flat = re.sub(r"\s+", " ", PAGE)
    assert re.sub(r"\s+", " ", said.format(figure)) in flat

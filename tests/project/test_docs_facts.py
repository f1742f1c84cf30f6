"""Figures and lists that a page repeats are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dirqueue.cli import count, queues
from dirqueue.disk.clock import PLAUSIBLE
from dirqueue.layouts.native import claim, publish
from dirqueue.settings import Settings
from dirqueue.tools.check.codes import CODES
from dirqueue.web import handler, server
from dirqueue.worker.events import LEVELS

DOCS = Path(__file__).parents[2] / "docs"


def words(page: str) -> str:
    """Return a page with every run of spaces and line breaks as one space."""
    return " ".join((DOCS / page).read_text().split())


def test_hooks_of_the_page_are_the_events_of_a_worker() -> None:
    """In the order of the code."""
    found = re.search(r"`f` is called with each such event: ([\w, ]+) \|", words("howto/workers.md"))
    assert found is not None
    assert found[1].split(", ") == list(LEVELS)


def test_limits_of_the_web_page_are_those_of_the_server() -> None:
    """Connections, seconds and bytes."""
    page = words("howto/web.md")
    assert server.SHARE == 4
    assert f"{server.CONNECTIONS} connections at a time, or a quarter" in page
    assert f"{handler.REQUEST_SECONDS:g} seconds for the request and {handler.ANSWER_SECONDS:g} for" in page
    assert f"{handler.HEAD_BYTES >> 10} KiB for its head" in page
    assert f"{handler.ORDER_BYTES >> 20} MiB for its body" in page


def test_json_page_names_every_key_of_stat_and_list() -> None:
    """The keys are a contract."""
    table = (DOCS / "reference" / "json.md").read_text().split("## A queue:")[1].split("\n## ")[0]
    named = set(
        re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.split("\n") if "|" in line))
    )
    assert {*count.COLUMNS, *queues.COLUMNS, "converting"} == named


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("howto/putting.md", f"up to {publish.AHEAD_BYTES >> 20} MiB or {publish.SLICE_SIZE:,} of them"),
        ("protocol.md", f"at most every {claim.LOST_SECONDS:g} s"),
        ("faq.md", f"The lease runs out ({Settings().lease:g} seconds by default)"),
        ("howto/dead-letters.md", f"`max_attempts` times ({Settings().max_attempts})"),
    ],
)
def test_a_page_repeats_a_figure_of_the_code(page: str, text: str) -> None:
    """A constant that changes changes the page."""
    assert text in words(page)


def test_two_days_is_what_the_clocks_may_differ_by() -> None:
    """Both pages that promise it say it in words."""
    assert PLAUSIBLE == 2 * 86400 * 1_000_000
    for page in ("guarantees.md", "protocol.md"):
        assert "more than two days" in words(page)


def test_codes_that_pages_mention_exist() -> None:
    """A code of `check` is looked up by its number."""
    pages = " ".join(words(str(path.relative_to(DOCS))) for path in DOCS.rglob("*.md"))
    assert set(re.findall(r"\bQ\d\d\b", pages)) <= CODES.keys()

"""`make campaign`: what it runs, what it stores, and that the page shows the same."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reliability.md").read_text()
BOOK = json.loads((ROOT / "docs/reliability.json").read_text())


@pytest.fixture(scope="module")
def campaign():
    """Give scripts/campaign.py as a module."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import campaign
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    return campaign


def test_page_shows_the_stored_figures(campaign):
    """The table of the page is generated from docs/reliability.json alone."""
    assert campaign.table(BOOK) in PAGE


def test_page_explains_every_campaign(campaign):
    """Each row of figures has a row that explains the campaign."""
    how = PAGE.partition("## How")[2]
    assert [name for name in campaign.CAMPAIGNS if f"| {name} |" not in how] == []


def test_stored_figures_have_no_violation():
    """Only runs without violations are published."""
    assert {name: row["violations"] for name, row in BOOK.items() if row["violations"]} == {}


def test_write_down_changes_only_the_new_figures(campaign, tmp_path, monkeypatch):
    """A new row is added to the stored figures and to the page; all others stay unchanged."""
    page, book = tmp_path / "page.md", tmp_path / "book.json"
    page.write_text("before\n<!-- figures -->\nold\n<!-- end of figures -->\nafter\n")
    monkeypatch.setattr(campaign, "PAGE", page)
    monkeypatch.setattr(campaign, "BOOK", book)
    row = {
        "count": 1200,
        "unit": "things",
        "detail": "all",
        "violations": 0,
        "seconds": 3,
        "date": "2026-01-01",
    }
    campaign.write_down({"soak": row | {"scale": 1.0}})
    campaign.write_down({"kills": row | {"scale": 0.5}})
    assert list(json.loads(book.read_text())) == ["kills", "soak"]
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert lines[4] == "| kills | 1,200 things | 0 | all | 3 s | 2026-01-01 | `--only kills` `--scale 0.5` |"
    assert lines[5].endswith("| `--only soak` |")


@pytest.mark.timeout(120)
def test_campaign_runs_from_the_command_line(tmp_path):
    """A small campaign prints its figures; an unknown name is refused with a list of the valid ones."""
    script = [sys.executable, str(ROOT / "scripts/campaign.py"), "--no-page", "--scale", "0.001"]
    done = subprocess.run(
        [*script, "--only", "soak"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("soak: ")
    assert "0 violations" in done.stdout
    refused = subprocess.run([*script, "--only", "nonsense"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "unknown campaign 'nonsense'; choose from interleavings, model, kills" in refused.stderr

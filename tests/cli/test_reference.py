"""The man page and the reference say what the parser says."""

import subprocess
import sys

import pytest
from support.running import ROOT, environment

from dirqueue.cli.exits import Exit


@pytest.mark.parametrize("script", ["reference.py", "comparison.py"])
def test_the_generated_pages_are_up_to_date(script):
    """The script would write what is there."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / script, "--check"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_man_page_has_every_verb_and_every_status():
    """And the sections that people look for."""
    page = (ROOT / "docs" / "man" / "dirqueue.1").read_text().replace("\\-", "-")
    for section in ("NAME", "SYNOPSIS", "VERBS", "EXIT STATUS", "ENVIRONMENT", "FILES", "ASSUMPTIONS"):
        assert f".SH {section}\n" in page
    for status in Exit:
        assert f".B {int(status)}\n" in page
    assert ".SS dirqueue put QUEUE" in page


def test_every_exit_status_has_a_test():
    """One test per row, named after the number."""
    import re

    tested = re.findall(
        r"^def test_(\d+)_", (ROOT / "tests" / "cli" / "test_errors.py").read_text(), re.MULTILINE
    )
    assert sorted(map(int, tested)) == sorted(map(int, Exit))


@pytest.mark.parametrize("page", ["cli", "json", "exit-status", "check"])
def test_reference_pages_are_there(page):
    """Each is linked from somewhere, so each must exist."""
    assert (ROOT / "docs" / "reference" / f"{page}.md").read_text().startswith("# ")

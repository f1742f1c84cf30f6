"""Producers, consumers, a purger and a killer for half a minute, checked as in the hours of `make soak`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab import faultfs, soak

pytestmark = pytest.mark.timeout(600)


def test_soak_of_all_layouts_and_real_dirq_loses_no_message(tmp_path):
    """A SIGKILL every 0.1 to 0.5 s, two of six queues shared with dirq 1.8: no message is lost, torn or doubled."""
    account = soak.run(tmp_path, 15.0, sites=soak.every_layout(tmp_path / "queues"), pace=0.03)
    assert account.wrong == [], str(account)
    assert account.seconds >= 15.0
    assert account.kills >= 8
    assert account.acked > 0
    assert account.by_dirq > 0


def test_soak_with_sync_loses_no_message(tmp_path):
    """The same with sync=True, the default."""
    account = soak.run(tmp_path, 6.0, sites=soak.every_layout(tmp_path / "queues", sync=True))
    assert account.wrong == [], str(account)
    assert account.kills >= 3


@pytest.mark.needs("fuse")
def test_soak_of_two_hosts_loses_no_message(tmp_path):
    """The same on a network filesystem that loses replies, mounted twice."""
    with (
        faultfs.mounted(tmp_path / "server", tmp_path / "one", lost=0.02, seed=1) as one,
        faultfs.mounted(tmp_path / "server", tmp_path / "two", lost=0.02, seed=2) as two,
    ):
        site = soak.Site([f"{one}/queue", f"{two}/queue"], settings={"lease": 2.0})
        account = soak.run(tmp_path, 6.0, sites=[site])
    assert account.wrong == [], str(account)
    assert account.acked > 0


def test_script_shows_progress_and_totals(tmp_path):
    """The script prints its progress to stderr, and the totals to stdout at the end."""
    script = Path(__file__).parents[2] / "scripts/soak.py"
    done = subprocess.run(
        [sys.executable, str(script), "--seconds", "1.5"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "kills" in done.stderr
    assert done.stdout.endswith("0 violations\n")
    assert (
        list(tmp_path.glob("dirqueue-soak-*")) == []
    )  # nothing stays behind but the locks of killed purgers

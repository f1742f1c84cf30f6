"""Everybody at once, and a killer: a minute of it, with the same account as the hours of `make soak`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab import faultfs, soak

pytestmark = pytest.mark.timeout(600)


def test_a_minute_of_all_layouts_and_real_dirq_costs_no_message(tmp_path):
    """SIGKILL every 0.1 to 0.5 seconds, six queues, dirq 1.8 on two of them: nothing lost, torn, doubled or revived."""
    account = soak.run(tmp_path, 60.0, sites=soak.every_layout(tmp_path / "queues"), pace=0.03)
    assert account.wrong == [], str(account)
    assert account.seconds >= 60.0
    assert account.kills >= 30
    assert account.acked > 0
    assert account.by_dirq > 0


def test_a_killer_among_workers_that_sync_costs_no_message(tmp_path):
    """The same with fsync, as it is by default."""
    account = soak.run(tmp_path, 6.0, sites=soak.every_layout(tmp_path / "queues", sync=True))
    assert account.wrong == [], str(account)
    assert account.kills >= 3


@pytest.mark.needs("fuse")
def test_a_killer_among_two_hosts_costs_no_message(tmp_path):
    """The same on a network filesystem that loses replies, mounted twice."""
    with (
        faultfs.mounted(tmp_path / "server", tmp_path / "one", lost=0.02, seed=1) as one,
        faultfs.mounted(tmp_path / "server", tmp_path / "two", lost=0.02, seed=2) as two,
    ):
        site = soak.Site([f"{one}/queue", f"{two}/queue"], settings={"lease": 2.0})
        account = soak.run(tmp_path, 6.0, sites=[site])
    assert account.wrong == [], str(account)
    assert account.acked > 0


def test_the_script_shows_its_progress_and_the_account(tmp_path):
    """`make soak` says how it goes while it goes, and what came of it at the end."""
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
    assert list(tmp_path.glob("dirqueue-soak-*")) == []  # but for locks of purgers that were killed

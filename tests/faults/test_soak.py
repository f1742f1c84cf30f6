"""Everybody at once, and a killer: a short soak, with the same account as the long one."""

import pytest
from lab import faultfs, soak

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "no sync"])
def test_a_killer_among_the_workers_costs_no_message(sync, tmp_path):
    """SIGKILL every 0.1 to 0.5 seconds: nothing lost, torn, doubled, acknowledged twice or from nowhere."""
    account = soak.run(tmp_path, 8.0, settings={"sync": sync})
    assert account.wrong == [], str(account)
    assert account.kills >= 5
    assert account.acked > 0


@pytest.mark.needs("fuse")
def test_a_killer_among_two_hosts_costs_no_message(tmp_path):
    """The same on a network filesystem that loses replies, mounted twice."""
    with (
        faultfs.mounted(tmp_path / "server", tmp_path / "one", lost=0.02, seed=1) as one,
        faultfs.mounted(tmp_path / "server", tmp_path / "two", lost=0.02, seed=2) as two,
    ):
        account = soak.run(tmp_path, 6.0, paths=[f"{one}/queue", f"{two}/queue"], settings={"lease": 2.0})
    assert account.wrong == [], str(account)
    assert account.acked > 0

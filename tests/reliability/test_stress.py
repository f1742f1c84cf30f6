"""`dirqueue doctor --stress`, which users run on their own mounts."""

import pytest
from lab import faultfs

import dirqueue
from dirqueue.tools.doctor.stress import stress

pytestmark = pytest.mark.timeout(300)


def test_stress_on_a_good_filesystem_keeps_every_promise_and_leaves_nothing(tmp_path):
    """All promises are kept on a local directory, the report has figures, and no file stays behind."""
    findings = stress(str(tmp_path), seconds=1.5)
    assert [finding.promise for finding in findings if not finding.held] == []
    assert not findings[0].detail.endswith("of 0 messages")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("fuse")
def test_stress_takes_two_mounts_of_one_directory(tmp_path):
    """The second path is another mount of the same directory; lost replies break no promise."""
    with (
        faultfs.mounted(tmp_path / "server", tmp_path / "one", lost=0.02, seed=1) as one,
        faultfs.mounted(tmp_path / "server", tmp_path / "two", lost=0.02, seed=2) as two,
    ):
        findings = stress(one, two, seconds=1.5)
    assert [finding for finding in findings if not finding.held] == []


@pytest.mark.needs("fuse")
def test_stress_reports_a_filesystem_that_fails(tmp_path):
    """A server on which fsync fails is reported with the errno."""
    with faultfs.mounted(tmp_path / "server", tmp_path / "one", refuse={"fsync": "EIO"}) as one:
        findings = stress(one, seconds=1.0)
    assert [finding.promise for finding in findings if not finding.held] == ["no call fails"]
    assert "EIO" in findings[-1].detail


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_stress_runs_on_other_layouts(layout, tmp_path):
    """The same promises hold for the formats of other programs."""
    findings = stress(str(tmp_path), seconds=1.0, layout=layout)
    assert [finding for finding in findings if not finding.held] == []
    assert list(tmp_path.iterdir()) == []


def test_stress_refuses_two_different_directories(tmp_path):
    """Two paths must lead to the same directory."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with pytest.raises(dirqueue.QueueError, match="not the same directory"):
        stress(str(tmp_path / "one"), str(tmp_path / "two"))
    assert list((tmp_path / "one").iterdir()) == []

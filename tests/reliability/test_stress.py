"""What users run against their own mount: `dirqueue doctor --stress`."""

import pytest
from lab import faultfs

import dirqueue
from dirqueue.tools.doctor.stress import stress

pytestmark = pytest.mark.timeout(300)


def test_a_good_filesystem_keeps_every_promise_and_is_left_clean(tmp_path):
    """All promises hold on a local directory, with figures, and nothing stays behind."""
    findings = stress(str(tmp_path), seconds=1.5)
    assert [finding.promise for finding in findings if not finding.held] == []
    assert not findings[0].detail.endswith("of 0 messages")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("fuse")
def test_two_mounts_are_two_hosts(tmp_path):
    """The second path is another mount of the same directory; lost replies break no promise."""
    with (
        faultfs.mounted(tmp_path / "server", tmp_path / "one", lost=0.02, seed=1) as one,
        faultfs.mounted(tmp_path / "server", tmp_path / "two", lost=0.02, seed=2) as two,
    ):
        findings = stress(one, two, seconds=1.5)
    assert [finding for finding in findings if not finding.held] == []


@pytest.mark.needs("fuse")
def test_a_filesystem_that_fails_is_told(tmp_path):
    """A server that cannot make a name durable fails the calls, and is found out."""
    with faultfs.mounted(tmp_path / "server", tmp_path / "one", refuse={"fsync": "EIO"}) as one:
        findings = stress(one, seconds=1.0)
    assert [finding.promise for finding in findings if not finding.held] == ["no call fails"]
    assert "EIO" in findings[-1].detail


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_the_layouts_of_others_can_be_tried_too(layout, tmp_path):
    """The same promises hold for the formats of other programs."""
    findings = stress(str(tmp_path), seconds=1.0, layout=layout)
    assert [finding for finding in findings if not finding.held] == []
    assert list(tmp_path.iterdir()) == []


def test_two_different_directories_are_refused(tmp_path):
    """Paths that do not share files are no two hosts."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with pytest.raises(dirqueue.QueueError, match="not the same directory"):
        stress(str(tmp_path / "one"), str(tmp_path / "two"))
    assert list((tmp_path / "one").iterdir()) == []

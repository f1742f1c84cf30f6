"""The power goes at any instant: what put and ack promised is on the disk."""

import pytest
from lab import powerloss

pytestmark = [pytest.mark.timeout(600), pytest.mark.needs("loop")]

COUNTS = {"ext4": 300, "xfs": 120, "btrfs": 80}


@pytest.mark.parametrize("kind", COUNTS)
def test_nothing_acknowledged_is_lost_or_torn(kind, tmp_path, require):
    """Images taken after every call that may change the disk, mounted again: all that was promised is whole."""
    require(kind)
    taken, wrong = powerloss.photograph(kind, tmp_path, COUNTS[kind])
    assert wrong == []
    assert taken == COUNTS[kind]


def test_without_sync_the_newest_messages_are_lost_and_nothing_else_is_promised(tmp_path, require):
    """sync=False shows the loss that the documentation names: puts of the last seconds are gone, or empty."""
    require("ext4")
    _taken, wrong = powerloss.photograph("ext4", tmp_path, 20, every_call=False, sync=False)
    assert wrong != []
    assert all("lost" in each or "back after ack" in each or "torn" in each for each in wrong)


@pytest.mark.needs("fuse")
def test_no_order_of_block_writes_loses_what_was_acknowledged(tmp_path, require):
    """Between two flushes a disk writes what it likes in any order: random subsets of the real block writes."""
    require("ext4")
    taken, wrong = powerloss.reorder(tmp_path, 150, seed=1)
    assert wrong == []
    assert taken == 150


@pytest.mark.needs("fuse")
def test_the_logging_disk_shows_what_is_lost_without_sync(tmp_path, require):
    """The control: without fsync the same disk loses messages."""
    require("ext4")
    _taken, wrong = powerloss.reorder(tmp_path, 20, seed=1, sync=False)
    assert wrong != []

"""The power goes at any instant: what put and ack promised is on the disk."""

import pytest
from lab import powerloss

pytestmark = [pytest.mark.timeout(600), pytest.mark.needs("loop")]

COUNTS = {"ext4": 300, "xfs": 120, "btrfs": 80}
REORDERED = 150


def test_that_is_at_least_500_images_and_150_reordered_ones():
    """The numbers that the documentation gives."""
    assert sum(COUNTS.values()) >= 500
    assert REORDERED >= 150


@pytest.mark.parametrize("kind", COUNTS)
def test_nothing_acknowledged_is_lost_or_torn(kind, tmp_path, require):
    """Images taken after every call that may change the disk, mounted again: all that was promised is whole."""
    require(kind)
    taken, wrong = powerloss.photograph(kind, tmp_path, COUNTS[kind])
    assert wrong == []
    assert taken == COUNTS[kind]


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_the_formats_of_others_are_as_durable(layout, tmp_path, require):
    """The same for the other layouts, which their own programs write without any sync."""
    require("ext4")
    taken, wrong = powerloss.photograph("ext4", tmp_path, 40, layout=layout)
    assert wrong == []
    assert taken == 40


@pytest.mark.parametrize("kind", COUNTS)
def test_without_sync_the_newest_puts_and_acks_are_lost_and_nothing_else(kind, tmp_path, require):
    """sync=False shows exactly the loss that the documentation names, and does show it."""
    require(kind)
    taken, losses, wrong = powerloss.photograph_unsynced(kind, tmp_path, 10)
    assert wrong == []
    assert taken == 10
    assert [each for each in losses if each.startswith("put is gone")]


@pytest.mark.needs("fuse")
def test_no_order_of_block_writes_loses_what_was_acknowledged(tmp_path, require):
    """Between two flushes a disk writes what it likes in any order: random subsets of the real block writes."""
    require("ext4")
    taken, wrong = powerloss.reorder(tmp_path, REORDERED, seed=1)
    assert wrong == []
    assert taken == REORDERED


@pytest.mark.needs("fuse")
def test_the_logging_disk_shows_what_is_lost_without_sync(tmp_path, require):
    """The control: without fsync the same disk loses messages."""
    require("ext4")
    _taken, wrong = powerloss.reorder(tmp_path, 20, seed=1, sync=False)
    assert wrong != []

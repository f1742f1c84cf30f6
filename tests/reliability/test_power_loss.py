"""Power loss at any instant: what put and ack promised is on the disk."""

import pytest
from lab import powerloss

pytestmark = [pytest.mark.timeout(600), pytest.mark.needs("loop")]

COUNTS = {"ext4": 300, "xfs": 120, "btrfs": 80}
REORDERED = 150


def test_images_are_at_least_500_and_150_reordered():
    """The documentation gives these numbers."""
    assert sum(COUNTS.values()) >= 500
    assert REORDERED >= 150


@pytest.mark.parametrize("kind", COUNTS)
def test_power_loss_loses_or_tears_no_acknowledged_message(kind, tmp_path, require):
    """Images are taken after every call that may change the disk, and mounted: all promised messages are complete."""
    require(kind)
    taken, wrong = powerloss.photograph(kind, tmp_path, COUNTS[kind])
    assert wrong == []
    assert taken == COUNTS[kind]


@pytest.mark.parametrize("links", [False, True], ids=["files", "links"])
@pytest.mark.parametrize("kind", COUNTS)
def test_flush_of_another_process_gives_no_message_two_names(kind, links, tmp_path, require):
    """On btrfs a flush of one directory shows what came from another, and leaves out its departure."""
    require(kind)
    taken, wrong = powerloss.flush_beside(kind, tmp_path, links=links)
    assert wrong == []
    assert taken == 10


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
def test_other_layouts_are_as_durable(layout, tmp_path, require):
    """The same holds for the other layouts, although the original programs never sync."""
    require("ext4")
    taken, wrong = powerloss.photograph("ext4", tmp_path, 40, layout=layout)
    assert wrong == []
    assert taken == 40


@pytest.mark.parametrize("kind", COUNTS)
def test_power_loss_leaves_no_message_without_its_attributes(kind, tmp_path, require):
    """They are on the disk before their message is, put by itself or in a batch."""
    require(kind)
    taken, wrong = powerloss.photograph(kind, tmp_path, 60, attributes={"colour": "blue"})
    assert [each for each in wrong if kind != "btrfs" or " times: " not in each] == []
    assert taken == 60


@pytest.mark.parametrize("kind", COUNTS)
def test_sync_false_loses_only_the_newest_puts_and_acks(kind, tmp_path, require):
    """sync=False causes the documented loss, and only that."""
    require(kind)
    taken, losses, wrong = powerloss.photograph_unsynced(kind, tmp_path, 10)
    assert wrong == []
    assert taken == 10
    assert [each for each in losses if each.startswith("put is gone")]


@pytest.mark.needs("fuse")
def test_reordered_block_writes_lose_nothing_acknowledged(tmp_path, require):
    """A disk may reorder the writes between two flushes: random subsets of the real block writes are tried."""
    require("ext4")
    taken, wrong = powerloss.reorder(tmp_path, REORDERED, seed=1)
    assert wrong == []
    assert taken == REORDERED


@pytest.mark.needs("fuse")
def test_sync_false_loses_messages_on_the_logging_disk(tmp_path, require):
    """The control: without fsync the same disk loses messages."""
    require("ext4")
    _taken, wrong = powerloss.reorder(tmp_path, 20, seed=1, sync=False)
    assert wrong != []

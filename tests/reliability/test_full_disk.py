"""A full disk: put fails cleanly, and existing messages can still be claimed, ended and purged."""

import contextlib
import errno
import os

import pytest
from lab import images
from lab.census import Census

import dirqueue

pytestmark = [pytest.mark.timeout(600), pytest.mark.needs("mount")]

MESSAGES = 20


@contextlib.contextmanager
def small(kind, place, require):
    """Mount a small filesystem."""
    if kind.startswith("tmpfs"):
        point = place / "mount"
        point.mkdir()
        options = "size=1M,nr_inodes=10k" if kind == "tmpfs" else "size=8M,nr_inodes=60"
        images.run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point))
        try:
            yield str(point)
        finally:
            if images.run("umount", str(point), check=False).returncode:
                images.run("umount", "-l", str(point), check=False)
        return
    name, _, inodes = kind.partition(" ")
    require("loop", name)
    image = place / "image"
    if inodes:
        image.write_bytes(b"")
        os.truncate(image, 8 << 20)
        images.run("mkfs.ext4", "-q", "-F", "-N", "64", str(image))
    else:
        images.make(name, image)
    with images.mounted(name, image, place / "mount") as point:
        yield point


def fill(point):
    """Fill the filesystem until no space, or no inode, is left."""
    number, size = 0, 1 << 20
    while size:
        number += 1
        try:
            fd = os.open(f"{point}/filler{number}", os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            return
        try:
            while True:
                os.write(fd, b"f" * size)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            size //= 4
        finally:
            os.close(fd)


@pytest.mark.parametrize("kind", ["ext4", "ext4 inodes", "tmpfs", "tmpfs inodes", "xfs", "btrfs"])
def test_full_disk_stops_only_producers(kind, tmp_path, require):
    """A put raises ENOSPC and leaves nothing; the waiting messages can be claimed, ended in every way, and purged."""
    with small(kind, tmp_path, require) as point:
        queue = dirqueue.Queue(f"{point}/queue", lease=600.0)
        ids = [queue.put(b"m%d" % number) for number in range(MESSAGES)]
        fill(point)
        with pytest.raises(dirqueue.QueueAccess) as caught:
            for _ in range(2000):
                ids.append(queue.put(b"x" * 60_000))
        assert caught.value.errno == errno.ENOSPC
        assert Census(queue.path).unfinished == []
        leases = [queue.get(timeout=0) for _ in range(4)]
        seen = {lease.message.id for lease in leases}
        for _ in ids[4:]:
            lease = queue.get(timeout=0)
            seen.add(lease.message.id)
            lease.ack()
        assert seen == set(ids)
        leases[0].retry(0.0, "no luck")
        leases[1].release()
        leases[2].renew()
        leases[3].reject("never")
        queue.purge()
        assert queue.stats().dead == 1
        again = [queue.get(timeout=0), queue.get(timeout=0)]
        for lease in (*again, leases[2]):
            lease.ack()
        assert len(queue) == 0
        for name in os.listdir(point):
            if name.startswith("filler"):
                os.unlink(f"{point}/{name}")
        queue.put(b"room again")
        queue.close()


def test_disk_that_turns_read_only_is_reported_and_breaks_nothing(tmp_path, require):
    """While the disk is mounted read-only every verb raises one clear error; afterwards all of them work again."""
    with small("ext4", tmp_path, require) as point:
        queue = dirqueue.Queue(f"{point}/queue", lease=600.0)
        queue.put(b"one")
        queue.put(b"two")
        lease = queue.get(timeout=0)
        images.run("mount", "-o", "remount,ro", point)
        for verb in (lambda: queue.put(b"x"), lambda: queue.get(timeout=0), lease.ack, lease.renew):
            with pytest.raises(dirqueue.QueueAccess, match="read-only"):
                verb()
        images.run("mount", "-o", "remount,rw", point)
        lease.ack()
        assert queue.get(timeout=0).message.body == b"two"
        queue.close()

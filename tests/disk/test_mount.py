"""What one mounted filesystem can do, and its quirks by name."""

import os

import pytest

from dirqueue.disk import fs, mount
from dirqueue.disk.mount import Mount


@pytest.mark.parametrize(
    ("fstype", "remote"),
    [("ext4", False), ("tmpfs", False), ("nfs4", True), ("fuse.sshfs", True), ("cifs", True)],
)
def test_what_is_not_known_to_be_local_is_remote(fstype, remote):
    """A lost reply is possible wherever there is a network."""
    assert mount.Mount(fstype).replies_can_be_lost is remote


def test_a_mount_that_cannot_rename_without_replacing_links(tmp_path, monkeypatch):
    """The ways narrow from renameat2 to link to rename, and each publishes."""

    def cannot(*_, **__):
        raise NotImplementedError

    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        mount = Mount("ext4")
        monkeypatch.setattr(fs, "rename_noreplace", cannot)
        (tmp_path / "a.new").write_bytes(b"a")
        mount.publish("a.new", "a", fd)
        assert mount.publishes_by == "link"
        (tmp_path / "b.new").write_bytes(b"b")
        with pytest.raises(FileExistsError):
            mount.publish("b.new", "a", fd)

        def no_links(*_, **__):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(fs, "link", no_links)
        mount.publish("b.new", "b", fd)
        assert mount.publishes_by == "rename"
        assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    finally:
        os.close(fd)

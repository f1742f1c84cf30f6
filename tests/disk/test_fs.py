"""Every call of the filesystem that can fail, and each branch on an errno, reached by the fault it is for."""

import ctypes
import errno
import io
import os
import socket

import pytest
from support.failing import HARD, failing, names, nothing_left_open
from support.kit import replaced

from dirqueue.disk import fs


@pytest.fixture
def place(tmp_path):
    """Give an open directory."""
    fd = os.open(tmp_path, fs.DIRECTORY)
    yield fd
    os.close(fd)


class Libc:
    """The C library, its calls replaced: by nothing, or by one that fails with an errno."""

    def __init__(self, code=None):
        self._real = fs._load_libc()
        call = None if code is None else lambda *_: -1
        self.renameat2 = self.syncfs = self.statx = call
        self.get_errno = lambda: code
        self.buffer = self._real.buffer

    def fail(self, src, dst):
        return type(self._real).fail(self, src, dst)


# --- calls that a kernel or a filesystem may lack ---------------------------------------------------------


@pytest.mark.parametrize("code", [None, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_a_call_that_is_missing_is_told_from_one_that_fails(place, code):
    """No such function, or one that kernel or filesystem refuse: NotImplementedError, so another way is taken."""
    with replaced(fs, _libc=Libc(code)):
        with pytest.raises(NotImplementedError):
            fs.rename_noreplace("a", "b", place)
        with pytest.raises(NotImplementedError):
            fs.syncfs(place)


@pytest.mark.parametrize("code", names([errno.EEXIST, errno.EIO, errno.ENOSPC]))
def test_a_call_of_the_c_library_that_fails_says_its_errno(place, code):
    """Anything else is an OSError with that errno."""
    with replaced(fs, _libc=Libc(code)):
        with pytest.raises(OSError, match=os.strerror(code)) as caught:
            fs.rename_noreplace("a", "b", place)
        assert (caught.value.errno, caught.value.filename, caught.value.filename2) == (code, "a", "b")
        with pytest.raises(OSError, match=os.strerror(code)):
            fs.syncfs(place)


def test_the_c_library_itself(place, tmp_path):
    """The real calls: no name is replaced, a missing one is named, and a flush is a flush."""
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    with pytest.raises(FileExistsError):
        fs.rename_noreplace("a", "b", place)
    with pytest.raises(FileNotFoundError):
        fs.rename_noreplace("c", "d", place)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        fs.syncfs(1 << 20)
    fs.syncfs(place)
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"a", b"b")
    assert ctypes.get_errno() == errno.EBADF


def test_the_length_that_the_server_has(place, tmp_path):
    """By statx where there is one; by stat where there is none or it is refused; gone is gone."""
    (tmp_path / "a").write_bytes(b"12345")
    assert fs.served_size("a", place) == 5
    with pytest.raises(FileNotFoundError):
        fs.served_size("b", place)
    for code in (None, errno.ENOSYS, errno.EPERM):  # EPERM: an old container's filter of calls
        with replaced(fs, _libc=Libc(code)):
            assert fs.served_size("a", place) == 5
            with pytest.raises(FileNotFoundError):
                fs.served_size("b", place)


def test_space_is_reserved_for_real(place, tmp_path):
    """The file has its length and its blocks at once."""
    fd = os.open(tmp_path / "a", os.O_WRONLY | os.O_CREAT)
    try:
        fs.fallocate(fd, 1 << 16)
        facts = os.fstat(fd)
    finally:
        os.close(fd)
    assert facts.st_size == 1 << 16
    assert facts.st_blocks * 512 >= 1 << 16


# --- sequences of calls -----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["write", "fsync", "close"])
@pytest.mark.parametrize("code", names((*HARD, errno.ENOSPC, errno.EDQUOT, errno.EINTR)))
def test_a_file_that_cannot_be_written_is_not_left_behind(place, tmp_path, call, code):
    """Write, fsync or close fails: the error comes, the half of a file goes, no descriptor stays."""
    fault = failing(call, code, done=call == "close")
    with nothing_left_open(), fault, pytest.raises(OSError, match=os.strerror(code)):
        fs.create("a", b"data", place, sync=True)
    assert os.listdir(tmp_path) == []


def test_a_failed_write_whose_close_fails_too_says_the_first_error(place, tmp_path):
    """What came first says more."""
    with (
        failing("write", errno.ENOSPC),
        failing("close", errno.EIO, done=True),
        pytest.raises(OSError, match=os.strerror(errno.ENOSPC)),
    ):
        fs.create("a", b"data", place, sync=False)
    assert os.listdir(tmp_path) == []


def test_a_short_write_goes_on_where_it_stopped(place, tmp_path):
    """A write of three bytes at a time makes a whole file."""
    with replaced(fs, write=lambda fd, data: os.write(fd, bytes(data)[:3])):
        fs.create("a", b"0123456789", place, sync=False)
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_write_that_writes_nothing_is_a_full_disk(place, tmp_path):
    """Not an endless loop."""
    with (
        replaced(fs, write=lambda fd, data: 0),
        pytest.raises(OSError, match=os.strerror(errno.ENOSPC)),
    ):
        fs.create("a", b"0123456789", place, sync=False)
    assert os.listdir(tmp_path) == []


def test_a_rename_whose_reply_was_lost_is_known_by_its_target(place, tmp_path):
    """Done and told to be missing: good. Missing for real: an error."""
    (tmp_path / "a").write_bytes(b"x")
    with failing("rename", errno.ENOENT, done=True):
        fs.move("a", "b", place)
    assert os.listdir(tmp_path) == ["b"]
    with pytest.raises(FileNotFoundError):
        fs.move("a", "c", place)


@pytest.mark.parametrize(
    "code", names([errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EBUSY, errno.ENOTDIR])
)
def test_a_directory_that_does_not_go_is_no_error(place, tmp_path, code):
    """In use, gone, or none: that is an answer."""
    (tmp_path / "a").mkdir()
    with failing("rmdir", code):
        assert not fs.remove_directory("a", place)
    assert fs.remove_directory("a", place)


@pytest.mark.parametrize("code", names(HARD))
def test_a_directory_that_may_not_be_removed_is_an_error(place, tmp_path, code):
    """Anything else is told."""
    (tmp_path / "a").mkdir()
    with failing("rmdir", code), pytest.raises(OSError, match=os.strerror(code)):
        fs.remove_directory("a", place)


@pytest.mark.parametrize("code", names([errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF]))
def test_a_filesystem_that_cannot_flush_a_directory_is_believed(place, tmp_path, code):
    """Some network filesystems refuse fsync on a directory: nobody can do more."""
    with failing("fsync", code):
        fs.sync_directory(".", place)


@pytest.mark.parametrize("code", names((*HARD, errno.ENOSPC)))
def test_a_directory_that_cannot_be_flushed_is_an_error(place, tmp_path, code):
    """Any other answer means that the names are not durable."""
    with failing("fsync", code), pytest.raises(OSError, match=os.strerror(code)):
        fs.sync_directory(".", place)


@pytest.mark.parametrize("call", ["open", "scandir"])
def test_a_directory_removed_on_another_host_is_a_missing_one(place, call):
    """ESTALE is how NFS says it."""
    with failing(call, errno.ESTALE), pytest.raises(FileNotFoundError):
        list(fs.listing(".", place))
    with failing(call, errno.EIO), pytest.raises(OSError, match=os.strerror(errno.EIO)):
        list(fs.listing(".", place))


def test_an_entry_without_a_type_that_is_gone_is_left_out(place, tmp_path):
    """A filesystem that tells no types, and a name that went since it was listed."""
    (tmp_path / "a").write_bytes(b"")
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(str(tmp_path / "s"))
        assert sorted(entry.name for entry in fs.listing(".", place)) == ["a", "s"]

        class Listed:
            def __init__(self, name):
                self.name = name

            def is_file(self, *, follow_symlinks):
                return False

            is_dir = is_file

            def is_symlink(self):
                return False

            def stat(self, *, follow_symlinks):
                return os.stat(tmp_path / self.name, follow_symlinks=False)

        class Found(list):
            def __enter__(self):
                return iter(self)

            def __exit__(self, *_):
                pass

        with replaced(fs, scandir=lambda fd: Found([Listed("a"), Listed("gone"), Listed("s")])):
            assert [entry.name for entry in fs.listing(".", place)] == ["a", "s"]


def test_a_stream_is_written_out_whole_or_not_at_all(tmp_path):
    """Short writes go on; an error takes the file away."""
    path = str(tmp_path / "a")
    with replaced(fs, write=lambda fd, data: os.write(fd, bytes(data)[:4096])):
        fs.copy_out(io.BytesIO(b"x" * 10_000), path)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert (tmp_path / "a").read_bytes() == b"x" * 10_000
    fs.remove_path(path)
    fs.remove_path(path)
    with failing("write", errno.ENOSPC), pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        fs.copy_out(io.BytesIO(b"x"), path)
    assert os.listdir(tmp_path) == []


def test_directories_are_made_as_deep_as_they_are_wanted(tmp_path):
    """Those that are there are left as they are."""
    fs.make_directories(str(tmp_path / "a/b/c"))
    fs.make_directories(str(tmp_path / "a/b/c"))
    assert (tmp_path / "a/b/c").is_dir()
    with failing("mkdir", errno.EEXIST, done=True):  # somebody else was faster
        fs.make_directories(str(tmp_path / "d"))
    assert (tmp_path / "d").is_dir()


def test_what_is_gone_is_not_there(place, tmp_path):
    """A missing name, and a name below a file."""
    (tmp_path / "a").write_bytes(b"")
    for name in ("b", "a/b"):
        assert not fs.exists(name, place)
        assert not fs.is_file(name, place)
    assert fs.is_file("a", place)
    with failing("stat", errno.EIO), pytest.raises(OSError, match=os.strerror(errno.EIO)):
        fs.exists("a", place)


# --- a file that another host takes away ---------------------------------------------------------------------


@pytest.mark.parametrize("code", names(sorted(fs.STALE)))
@pytest.mark.parametrize("meanwhile", ["removed", "replaced", "nothing"])
def test_a_file_that_another_host_takes_away_while_it_is_read(tmp_path, place, code, meanwhile):
    """NFS: as if it had been opened a moment later; and no loop without a bound."""
    (tmp_path / "f").write_bytes(b"old")
    real, tries = fs.read, []

    def read(fd, size):
        tries.append(fd)
        if meanwhile != "nothing" and len(tries) > 1:
            return real(fd, size)
        os.unlink(tmp_path / "f")
        if meanwhile != "removed":
            (tmp_path / "f").write_bytes(b"new")
        raise OSError(code, os.strerror(code))

    with nothing_left_open(), replaced(fs, read=read):
        if meanwhile == "replaced":
            assert fs.read_file("f", place) == b"new"
        else:
            with pytest.raises(FileNotFoundError if meanwhile == "removed" else OSError) as caught:
                fs.read_file("f", place)
            assert caught.value.errno == (errno.ENOENT if meanwhile == "removed" else code)
    assert len(tries) == {"removed": 1, "replaced": 2, "nothing": fs.STALE_TRIES}[meanwhile]

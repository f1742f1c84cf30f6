"""What the doctor tries: each probe returns what works, or raises what does not.

Layer: tools.  Touches: names in the doctor's scratch directory.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN
from typing import Any, NamedTuple

from dirqueue.disk import fs, mount
from dirqueue.disk.clock import Clock
from dirqueue.disk.mount import Mount
from dirqueue.errors import QueueError
from dirqueue.layouts.native import links
from dirqueue.tools.doctor.racer import STEP_SECONDS

PASS, WARN, FAIL = "pass", "warn", "fail"

#: Names that the two processes race for.
ROUNDS = 200
RACER = "import sys; from dirqueue.tools.doctor.racer import main; main(sys.argv[1:])"
#: How far the server's clock may be off before leases get shorter or longer than asked for.
SKEW_SECONDS = 1.0
#: Space and names below which a queue is about to stop.
LOW_BYTES = 64 << 20
LOW_INODES = 1000
#: The longest name that a message can get: priority and id, end, attempts, token, .ack.
LONGEST = 34 + 17 + 7 + 101 + 4
PATIENCE_SECONDS = 60


class Probe(NamedTuple):
    """What one probe found: pass, warn (works, with a drawback) or fail."""

    name: str
    result: str
    detail: str


class _Failed(Exception):
    """A probe found that something does not work."""


class _Drawback(Exception):
    """A probe found that something works with a drawback."""


def check_shared(path: str, also: str | None, name: str) -> None:
    """Refuse a second path by which what was just made at the first is not there."""
    if also and not os.path.isdir(os.path.join(also, name)):
        raise QueueError(
            f"{also!r} is not the same directory as {path!r}: they do not share files", path=also
        )


class Scratch:
    """The directory in which everything is tried."""

    def __init__(self, path: str, other: str) -> None:
        self.path = path
        self.other = other
        self.fd = fs.open(path, fs.DIRECTORY)
        self.mount = mount.of(self.fd, path)

    def close(self) -> None:
        fs.close(self.fd)

    def run(self, probe: Callable[[Scratch], str]) -> Probe:
        name = probe.__name__.removeprefix("_probe_").replace("_", "-")
        try:
            return Probe(name, PASS, probe(self))
        except (_Failed, QueueError) as failed:
            return Probe(name, FAIL, str(failed))
        except _Drawback as drawback:
            return Probe(name, WARN, str(drawback))
        except (OSError, NotImplementedError) as error:
            code = errno.errorcode.get(getattr(error, "errno", 0) or 0, "not implemented")
            return Probe(name, FAIL, f"{error!s} [{code}]")

    def file(self, name: str, data: bytes = b"") -> str:
        fs.create(name, data, self.fd, sync=False)
        return name

    def race(self, verb: str, make: Callable[[str], Any] | None) -> tuple[int, int, int]:
        """Let two processes do `verb` to the same names at once; return both successes and the strange errors."""
        for number in range(ROUNDS):
            if make:
                make(f"{verb}-{number}")
        command = [sys.executable, "-c", RACER, verb, str(ROUNDS)]
        racers = [
            subprocess.Popen(
                [*command, place, racer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for place, racer in ((self.path, "one"), (self.other, "two"))
        ]
        try:
            for racer in racers:
                if (racer.stdout and racer.stdout.readline()) != "ready\n":
                    raise QueueError("the doctor's helper process did not start", path=self.path)
            start = time.monotonic() + STEP_SECONDS
            for racer in racers:
                if racer.stdin:
                    racer.stdin.write(f"{start}\n")
                    racer.stdin.flush()
            counts = [racer.communicate(timeout=PATIENCE_SECONDS)[0].split() for racer in racers]
        finally:
            for racer in racers:
                racer.kill()
                racer.wait()
                for pipe in (racer.stdin, racer.stdout):
                    if pipe:
                        pipe.close()
        (one, odd), (two, odder) = counts
        return int(one), int(two), int(odd) + int(odder)

    def exactly_once(self, verb: str, make: Callable[[str], Any] | None) -> str:
        one, two, odd = self.race(verb, make)
        if one + two != ROUNDS or odd:
            raise _Failed(
                f"two processes did {verb} to {ROUNDS} names: {one} + {two} successes, {odd} strange errors"
            )
        return f"{ROUNDS} names, two processes: each was won once ({one} + {two})"


# --- the probes; the name after _probe_ is the one in the report -----------------------------------------------


def _probe_create(scratch: Scratch) -> str:
    """A name that exists cannot be created."""
    scratch.file("created")
    try:
        scratch.file("created")
    except FileExistsError:
        return scratch.exactly_once("create", None)
    raise _Failed("O_EXCL does not refuse a name that exists")


def _probe_names(scratch: Scratch) -> str:
    """The longest name of a message fits, and upper case differs from lower."""
    scratch.file("1" * LONGEST)
    scratch.file("token-A")
    if fs.exists("token-a", scratch.fd):
        raise _Drawback(f"{LONGEST} characters fit, but A and a are the same name")
    return f"{LONGEST} characters fit"


def _probe_rename(scratch: Scratch) -> str:
    """A claim: of two processes that rename one name, one wins."""
    return scratch.exactly_once("rename", scratch.file)


def _probe_rooms(scratch: Scratch) -> str:
    """Claims go to another directory; and an emptied bucket is removed without what just came into it."""
    fs.mkdir("room", fs.DIR_MODE, dir_fd=scratch.fd)
    scratch.file("bucket.new", b"body")
    fs.mkdir("bucket", fs.DIR_MODE, dir_fd=scratch.fd)
    fs.rename("bucket.new", "bucket/message", src_dir_fd=scratch.fd, dst_dir_fd=scratch.fd)
    if fs.remove_directory("bucket", scratch.fd) or fs.read_file("bucket/message", scratch.fd) != b"body":
        raise _Failed("a directory was removed with what is in it")
    return scratch.exactly_once("claim", scratch.file)


def _probe_ack(scratch: Scratch) -> str:
    """An ack: of two processes that unlink one name, one wins."""
    return scratch.exactly_once("unlink", scratch.file)


def _probe_replace(scratch: Scratch) -> str:
    """A publish does not overwrite."""
    mount = Mount(scratch.mount.fstype)
    scratch.file("fresh.new", b"fresh")
    mount.publish("fresh.new", "fresh", scratch.fd)
    scratch.file("later.new", b"later")
    try:
        mount.publish("later.new", "fresh", scratch.fd)
    except FileExistsError:
        return f"a name that exists is not overwritten (by {mount.publishes_by})"
    raise _Drawback(
        "a name that exists would be overwritten; ids are unique, so that none is asked for twice"
    )


def _probe_directory(scratch: Scratch) -> str:
    """A batch appears by one rename of its directory."""
    fs.mkdir("batch.new", fs.DIR_MODE, dir_fd=scratch.fd)
    scratch.file("batch.new/message", b"body")
    fs.rename("batch.new", "batch", src_dir_fd=scratch.fd, dst_dir_fd=scratch.fd)
    if fs.read_file("batch/message", scratch.fd) != b"body" or fs.exists("batch.new", scratch.fd):
        raise _Failed("a renamed directory did not keep what was in it")
    return "a directory is renamed whole"


def _probe_mkdir_race(scratch: Scratch) -> str:
    """dirq-normal locks by making a directory."""
    return scratch.exactly_once("mkdir", None)


def _probe_links(scratch: Scratch) -> str:
    """Hard links work and count."""
    scratch.file("linked")
    fs.link("linked", "link", src_dir_fd=scratch.fd, dst_dir_fd=scratch.fd)
    if fs.stat("linked", dir_fd=scratch.fd).st_nlink != 2:
        raise _Failed("a linked file does not show two names")
    return "hard links work"


def _probe_link_race(scratch: Scratch) -> str:
    """dirq-simple locks by a hard link."""
    return scratch.exactly_once("link", scratch.file)


def _probe_symlinks(scratch: Scratch) -> str:
    """Short messages can be symbolic links: made in one call, read, claimed by rename, linked like a file."""
    body = b":" + b"x" * links.LIMIT
    try:
        fs.symlink(body, "symlink", dir_fd=scratch.fd)
    except OSError as error:
        raise _Drawback(f"messages are files even with links=True: {os.strerror(error.errno or 0)}") from None
    try:
        fs.symlink(b":other", "symlink", dir_fd=scratch.fd)
    except FileExistsError:
        pass
    else:
        raise _Failed("symlink does not refuse a name that exists")
    fs.rename("symlink", "claimed", src_dir_fd=scratch.fd, dst_dir_fd=scratch.fd)
    if fs.readlink(b"claimed", dir_fd=scratch.fd) != body:
        raise _Failed("a renamed symbolic link has another target")
    try:
        fs.link("claimed", "second", src_dir_fd=scratch.fd, dst_dir_fd=scratch.fd, follow_symlinks=False)
        linked = fs.readlink(b"second", dir_fd=scratch.fd) == body
    except OSError:
        linked = False
    hard = "" if linked else "; they cannot be hard-linked, which only publishing without renameat2 needs"
    return f"symbolic links hold {links.LIMIT:,} bytes{hard}"


def _probe_list(scratch: Scratch) -> str:
    """What was made shows, what was removed does not, in the other process's view too."""
    scratch.file("shown")
    if not any(entry.name == "shown" for entry in fs.listing(".", scratch.fd)):
        raise _Failed("a new name does not show in a listing")
    if scratch.other != scratch.path and not os.path.exists(os.path.join(scratch.other, "shown")):
        raise _Drawback("a new name does not show in the other mount at once: its directory is cached")
    fs.unlink("shown", dir_fd=scratch.fd)
    if any(entry.name == "shown" for entry in fs.listing(".", scratch.fd)):
        raise _Failed("a removed name still shows in a listing")
    return "listings show what is there"


def _probe_lock(scratch: Scratch) -> str:
    name = scratch.file("lock")
    one, two = (fs.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=scratch.fd) for _ in range(2))
    try:
        fs.flock(one, LOCK_EX | LOCK_NB)
        try:
            fs.flock(two, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            pass
        else:
            raise _Failed(
                "flock() locks nothing: two descriptors have one lock; no queue in one file is safe here"
            )
        fs.flock(one, LOCK_UN)
        fs.flock(two, LOCK_EX | LOCK_NB)
    finally:
        fs.close(one)
        fs.close(two)
    return "flock() keeps others out"


def _probe_sync(scratch: Scratch) -> str:
    """Files and directories can be made durable."""
    fs.create("durable", b"x", scratch.fd, sync=True)
    began = time.monotonic()
    try:
        fs.fsync(scratch.fd)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF):
            raise _Drawback("a directory cannot be synced: the server alone answers for new names") from None
        raise
    took = (time.monotonic() - began) * 1000
    if scratch.mount.fstype in mount.IN_MEMORY:
        raise _Drawback("nothing here survives a restart: it is memory")
    return f"files and directories can be synced (a directory took {took:.1f} ms)"


def _probe_clock(scratch: Scratch) -> str:
    """The server's clock, by which leases are judged, against ours."""
    clock = Clock(scratch)
    offset = (clock.now() - time.time_ns() // 1000) / 1_000_000
    if abs(offset) > SKEW_SECONDS:
        raise _Drawback(
            f"the file server's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} ours; "
            "leases follow the server's, but set the clocks"
        )
    return f"the file server's clock and ours differ by less than {SKEW_SECONDS:g} s"


def _probe_notify(scratch: Scratch) -> str:
    """Inotify wakes a waiting consumer."""
    try:
        from inotify_simple import INotify, flags
    except ImportError:
        raise _Drawback("consumers poll: pip install 'dirqueue[watch]' makes them wake at once") from None
    try:
        watch = INotify()
    except AttributeError:
        raise _Drawback("consumers poll: only Linux has inotify") from None
    try:
        watch.add_watch(scratch.path, flags.CREATE | flags.MOVED_TO)
        scratch.file("noticed")
        reported = bool(watch.read(timeout=2000))
    finally:
        watch.close()
    if not reported:
        raise _Drawback("inotify is silent here: consumers poll")
    if scratch.mount.inotify_is_silent:
        raise _Drawback("inotify reports only what this host does: consumers poll for the rest")
    return "inotify wakes consumers"


def _probe_space(scratch: Scratch) -> str:
    """Room for messages, and for the claims that a full disk must not stop."""
    facts = fs.statvfs(scratch.fd)
    free, inodes = facts.f_bavail * facts.f_frsize, facts.f_favail
    short = [f"{free >> 20} MB"] if free < LOW_BYTES else []
    short += [f"{inodes} names"] if facts.f_files and inodes < LOW_INODES else []
    if short:
        raise _Drawback(f"only {' and '.join(short)} left")
    if scratch.mount.ballast:
        scratch_file = fs.open("ballast", fs.CREATE, fs.FILE_MODE, dir_fd=scratch.fd)
        try:
            fs.fallocate(scratch_file, scratch.mount.ballast)
        finally:
            fs.close(scratch_file)
    reserve = scratch.mount.ballast
    kept = f"{reserve >> 10} kB can be held back" if reserve else "nothing needs to be held back"
    return f"{free >> 20} MB free; for claims on a full disk {kept}"


PROBES = (
    _probe_create, _probe_names, _probe_rename, _probe_rooms, _probe_ack, _probe_replace, _probe_directory,
    _probe_mkdir_race, _probe_links, _probe_link_race, _probe_symlinks, _probe_list, _probe_lock, _probe_sync,
    _probe_clock,
    _probe_notify, _probe_space,
)  # fmt: skip

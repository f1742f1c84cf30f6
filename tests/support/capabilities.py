"""Probe what this machine lets a test do.

A test names what it needs, `@pytest.mark.needs("strace", "loop")`, and is skipped if a probe fails.
A probe tries the operation itself and never checks the platform name; each runs once per process.
"""

import ctypes.util
import functools
import importlib.util
import os
import shutil
import subprocess

from support import postgres

SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

#: Programs that only have to be installed.
PROGRAMS = frozenset({"chromium", "faketime", "gcc", "make", "node", "perl", "rsync", "spin", "tmux"})


def _works(*command: str) -> bool:
    """Return whether a command can be run and succeeds."""
    env = os.environ | {"PATH": SEARCH_PATH}
    null = subprocess.DEVNULL
    try:
        done = subprocess.run(command, env=env, stdin=null, stdout=null, stderr=null, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _opens(device: str) -> bool:
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _formats(kind: str) -> bool:
    """Return whether a loop device can be formatted and mounted as this kind of filesystem."""
    if not (has("loop") and shutil.which(f"mkfs.{kind}", path=SEARCH_PATH)):
        return False
    _works("modprobe", kind)
    with open("/proc/filesystems", encoding="ascii") as known:
        return kind in known.read().split()


PROBES = {
    "root": lambda: os.geteuid() == 0,
    "strace": lambda: _works("strace", "-f", "-o", "/dev/null", "true"),  # ptrace may be forbidden
    "mount": lambda: has("root") and _works("unshare", "--mount", "true"),
    "loop": lambda: has("mount") and _opens("/dev/loop-control") and _works("losetup", "--find"),
    "fuse": lambda: (
        _opens("/dev/fuse") and _works("fusermount3", "-V") and ctypes.util.find_library("fuse3") is not None
    ),
    "ext4": lambda: _formats("ext4"),
    "xfs": lambda: _formats("xfs"),
    "btrfs": lambda: _formats("btrfs"),
    "spark": lambda: importlib.util.find_spec("pyspark") is not None,
    "postgres": lambda: importlib.util.find_spec("psycopg") is not None and postgres.is_installed(),
}


@functools.cache
def has(name: str) -> bool:
    """Return whether this machine has the capability.

    Raises:
        KeyError: the name is unknown; otherwise a misspelt name would skip its test on every machine.
    """
    if name in PROGRAMS:
        return shutil.which(name, path=SEARCH_PATH) is not None
    return PROBES[name]()


def missing(names: list[str]) -> list[str]:
    """Return the names that this machine lacks, in order and without duplicates."""
    return [name for name in dict.fromkeys(names) if not has(name)]

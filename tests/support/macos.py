"""Take away what macOS lacks, before dirqueue is imported; run as `python -c "import support.macos; ..."`.

What is left is Linux without Linux's own calls: it shows that nothing needs them, not that macOS behaves the same.
"""

import ctypes
import errno
import fcntl
import importlib.abc
import os
import signal
import socket
import sys

#: Names that Python has on Linux and not on macOS 13 (3.11 to 3.13).
MISSING = {
    "os": """posix_fallocate posix_fadvise fdatasync pipe2 sched_getaffinity sched_setaffinity getrandom memfd_create
        eventfd pidfd_open copy_file_range splice getxattr setxattr listxattr removexattr setresuid setresgid getresuid
        getresgid O_TMPFILE O_PATH O_DIRECT O_NOATIME O_LARGEFILE O_RSYNC waitid P_PIDFD setns unshare""".split(),
    "signal": "sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPWR SIGPOLL SIGSTKFLT pidfd_send_signal".split(),
    "socket": "SOCK_CLOEXEC SOCK_NONBLOCK AF_NETLINK SO_PEERCRED SO_PASSCRED SO_DOMAIN SO_PROTOCOL".split(),
    "select": "epoll EPOLLIN EPOLLOUT EPOLL_CLOEXEC".split(),
    "time": "CLOCK_BOOTTIME CLOCK_TAI clock_settime".split(),
    "resource": "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO".split(),
    "fcntl": "F_SETLEASE F_GETLEASE F_OFD_SETLK F_SETPIPE_SZ F_ADD_SEALS F_NOTIFY".split(),
}
#: Calls of Linux's C library that are looked up at run time.
NO_LIBC = ("renameat2", "syncfs", "statx", "prctl", "inotify_init1")
#: macOS's number; the kernel here knows no such command, so it is counted and flushed by fsync.
F_FULLFSYNC = 51
#: How often the drive was flushed.
flushes: list[int] = []


class _NoInotify(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "inotify_simple":
            raise ImportError(name)


def _without_proc(path, *rest, real=os.open, **how):
    if isinstance(path, str) and path.startswith("/proc"):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return real(path, *rest, **how)


def _fcntl(fd, command, *rest, real=fcntl.fcntl):
    if command != F_FULLFSYNC:
        return real(fd, command, *rest)
    flushes.append(fd)
    os.fsync(fd)
    return 0


class _Library:
    def __init__(self, *words, **how):
        self._library = ctypes._dlopen_real(*words, **how)

    def __getattr__(self, name):
        if name in NO_LIBC:
            raise AttributeError(name)
        return getattr(self._library, name)


def take_away():
    """Do it, for this process."""
    assert "dirqueue" not in sys.modules
    for module, names in MISSING.items():
        for name in (
            names if module != "select" else ()
        ):  # Python's own selectors were made for Linux when it was built
            found = sys.modules.get(module) or __import__(module)
            if hasattr(found, name):
                delattr(found, name)
    sys.platform = "darwin"
    sys.meta_path.insert(0, _NoInotify())
    os.open = _without_proc
    fcntl.fcntl, fcntl.F_FULLFSYNC = _fcntl, F_FULLFSYNC
    ctypes._dlopen_real, ctypes.CDLL = ctypes.CDLL, _Library


__all__ = ["MISSING", "flushes", "signal", "socket", "take_away"]

"""The few system calls that Python's os module lacks, by ctypes.

Layer: disk, below fs.py, which alone uses it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any


class Libc:
    """The few calls that Python's os module lacks."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self.get_errno = ctypes.get_errno
        self.renameat2: Any = getattr(library, "renameat2", None)
        self.syncfs: Any = getattr(library, "syncfs", None)
        self.statx: Any = getattr(library, "statx", None)
        self.buffer: Any = lambda facts: (ctypes.c_char * len(facts)).from_buffer(facts)

    def fail(self, src: str, dst: str | None) -> None:
        code = self.get_errno()
        if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
            raise NotImplementedError
        raise OSError(code, os.strerror(code), src, None, dst)

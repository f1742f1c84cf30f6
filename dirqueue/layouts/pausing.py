"""Pausing: while the file `paused` is there, nothing is claimed from a queue.

    native, vsqs    QUEUE/paused    their programs pass over a file that is none of theirs
    dirq, text      QUEUE.paused    beside the queue: dirq counts whatever lies in its directory, and text is one file

Layer: layouts.  Touches: these two names.
A person may make it with `touch` and remove it with `rm`: only the name counts. What is in it is for people.
Crash: it is there or not; one that is empty pauses as well.
"""

from __future__ import annotations

import os
import time
from typing import ClassVar, cast

from dirqueue.disk.directory import Directory
from dirqueue.layouts.base import Layout, refuse
from dirqueue.layouts.native import pausing
from dirqueue.layouts.native.names import PAUSED
from dirqueue.layouts.native.pausing import Sign
from dirqueue.settings import Settings

#: While messages are got, this often a look shows whether the queue was paused: one call.
GLANCE_SECONDS = 1.0
#: While it is paused, this often whoever waits looks whether that is over.
RESUMED_SECONDS = 0.1


def beside(directory: Directory) -> Sign:
    """Return the name beside the queue."""
    path = os.path.abspath(directory.path)
    return Sign(f"{path}.{PAUSED}", -1, os.path.dirname(path))


class Pausable:
    """The part of a layout, other than the native one, that pauses."""

    lacks: ClassVar[dict[str, str]]
    directory: Directory
    settings: Settings
    #: Whether the file is in the directory of the queue.
    pauses_inside: ClassVar[bool] = False
    #: What the last look showed, and when the next one is due, by the monotonic clock.
    _rests, _glance_at = False, 0.0

    def rests(self) -> bool:
        """Return whether nothing may be claimed: called for every claim, a call on the disk once a second."""
        now = time.monotonic()
        if self._rests or now >= self._glance_at:
            self._glance_at = now + GLANCE_SECONDS
            self._rests = self.paused()
        return self._rests

    def pause(self) -> bool:
        self._need_pause()
        self._glance_at = 0.0
        return pausing.pause(self.directory, self._sign(), sync=self.settings.sync)

    def resume(self) -> bool:
        self._need_pause()
        return pausing.resume(self.directory, self._sign(), sync=self.settings.sync)

    def paused(self) -> bool:
        return (
            "pause" not in self.lacks
            and self.directory.find()
            and pausing.is_paused(self.directory, self._sign())
        )

    def _need_pause(self) -> None:
        if "pause" in self.lacks:
            refuse(cast("Layout", self), "pause", "be paused")
        self.directory.need()

    def _sign(self) -> Sign:
        return pausing.inside(self.directory) if self.pauses_inside else beside(self.directory)

"""Who pins messages for a stream or a claim: its note in the queue, and the heartbeat that keeps its lots.

Layer: edges.  Touches: .spark/pins/CONSUMER/owner (see layouts/native/pins.py).
Invariant: the note names the one process that speaks for the consumer. The process that comes later takes over, and
the earlier one learns it at its next call of `check`.
Crash: without a heartbeat for the timeout of the note, the lots go back to the queue. A consumer whose name is in no
checkpoint yet is *provisional*: its timeout is short, and if its process died on this host, the next consumer to start
here gives its lots back.
"""

from __future__ import annotations

import json
import os
from typing import Any

from dirqueue.disk import fs
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import new_token
from dirqueue.errors import QueueError, access_error
from dirqueue.layouts.native import Native, names, pins
from dirqueue.layouts.native.pins import Pins
from dirqueue.renewer import RENEWER
from dirqueue.settings import Settings

#: Seconds without a heartbeat after which a claim, or a stream that no checkpoint knows yet, loses its messages.
TIMEOUT = 300.0
#: Seconds between two heartbeats, at most.
BEAT_SECONDS = 60.0


class Consumer:
    """One consumer, as the process that speaks for it sees it."""

    def __init__(self, native: Native, name: str, kind: str) -> None:
        self.pins = Pins(native.directory, native.settings, name)
        self.name = name
        self._directory = native.directory
        self._about = {
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "kind": kind,
            "process": new_token(),
        }

    def register(self, timeout: float, *, keep: bool = False, provisional: bool = False) -> None:
        """Write the note, in place of that of an earlier process, and keep it fresh from now on."""
        self.pins.register(timeout, keep=keep, provisional=provisional, **self._about)
        RENEWER.watch(self, min(timeout / 4, BEAT_SECONDS))

    def renew(self) -> None:
        """Give one heartbeat; LeaseLost, which check() reports too, if the lots went back to the queue."""
        self.pins.beat()

    def stop(self) -> None:
        """End the heartbeat."""
        RENEWER.forget(self)

    def check(self) -> bool:
        """Return whether the note is still there; QueueError if another process has taken over."""
        about = _note(self._directory, self.name)
        if about is not None and about.get("process") != self._about["process"]:
            raise QueueError(
                f"another query uses the same checkpoint of {self._directory.path!r} (on {about.get('host')}, process "
                f"{about.get('pid')}): stop one of them, or give each a checkpoint of its own",
                path=self._directory.path,
            )
        return about is not None


def _note(directory: Directory, consumer: str) -> dict[str, Any] | None:
    """Return the content of a consumer's note, {} if it is not valid, or None if there is none."""
    try:
        about = json.loads(fs.read_file(f"{pins.PINS}/{consumer}/{pins.OWNER}", directory.fd))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise access_error(directory.path, "read the pinned messages of", error) from error
    except names.MALFORMED:
        return {}
    return about if isinstance(about, dict) else {}


def release_abandoned(directory: Directory, settings: Settings) -> int:
    """Give back the lots of consumers that are past their timeout, or died here before a checkpoint knew them.

    Return how many lots went back.
    """
    if not directory.find():
        return 0
    for name in pins.consumers(directory):
        try:
            about = _note(directory, name) or {}
            if about.get("provisional") is True and _died_here(about):
                fs.utime(f"{pins.PINS}/{name}/{pins.OWNER}", (0, 0), dir_fd=directory.fd)
        except OSError:
            continue  # RACE: another process gave them back; or they are another user's
    return pins.release_stale(directory, settings)


def _died_here(about: dict[str, Any]) -> bool:
    """Return whether the process of a note was on this host and is dead; another may have its number by now."""
    pid, started = about.get("pid"), about.get("started")
    if about.get("host") != os.uname().nodename or type(pid) is not int or type(started) is not int:
        return False
    return os.path.exists("/proc/self") and _started(pid) != started


def _started(pid: int) -> int | None:
    """Return when a process began, in ticks since the start of the machine; None if it is dead, or nobody can know."""
    try:
        facts = fs.read_file(f"/proc/{pid}/stat", -1).rpartition(b")")[2].split()
        # What is dead and not yet reaped is dead.
        return None if facts[0] in (b"Z", b"X") else int(facts[19])
    except (OSError, IndexError, ValueError):
        return None

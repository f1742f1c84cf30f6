"""What every queue that is compared looks like to the workloads: put, get and ack.

`get` returns (handle, body), or None when there is nothing now; `wait` blocks, for those that know how to.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

Got = tuple[Any, bytes] | None


class Peer:
    """One queue, open at one path."""

    title: ClassVar[str]
    #: What must be importable, and the distribution that says its version.
    module: ClassVar[str] = ""
    package: ClassVar[str] = ""
    #: Whether several processes may use it at once, by its own word.
    shared: ClassVar[bool] = True
    #: Whether it has an acknowledgement, so that a message that was got can be kept until the work is done.
    acks: ClassVar[bool] = True
    #: Seconds for which a message is taken, where the peer knows such a thing.
    lease: ClassVar[float] = 600.0
    #: What reaches the disk before put returns: nothing, the file, all.
    syncs: ClassVar[str] = "no"
    #: Whether one receive looks at every message, so that it is measured only as long as time allows.
    linear: ClassVar[bool] = False

    def __init__(self, path: str) -> None:
        raise NotImplementedError

    def put(self, body: bytes) -> Any:
        raise NotImplementedError

    def get(self) -> Got:
        raise NotImplementedError

    def ack(self, handle: Any) -> None:
        """Acknowledge; nothing to do where get has already removed the message."""

    def wait(self, seconds: float) -> Got:
        """Poll each 10 ms, as a user of a queue without a blocking get would."""
        deadline = time.monotonic() + seconds
        while (found := self.get()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return found

    def recover(self) -> None:
        """Do what the peer's documentation says to get back what a dead consumer took, where it must be asked."""

    def preload(self, bodies: list[bytes]) -> bool:
        """Fill the queue by a faster way than put, if there is one; return whether that was done."""
        return False

    def close(self) -> None:
        """Let go."""

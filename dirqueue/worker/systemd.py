"""Notifying systemd that the worker is ready, alive or stopping; only when the environment asks for it.

Layer: conveniences.  The protocol is one datagram to the socket in NOTIFY_SOCKET.
"""

from __future__ import annotations

import os
import socket

MICROS = 1_000_000


class Notifier:
    """Sends the state of the worker to the service manager, if there is one."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the NUL of an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        #: Seconds between signs of life, half of what the manager waits; None if it does not wait.
        self.every = self._watchdog()

    def _watchdog(self) -> float | None:
        if not self._address or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
            return None
        try:
            micros = int(os.environ.get("WATCHDOG_USEC", ""))
        except ValueError:
            return None
        return micros / MICROS / 2 if micros > 0 else None

    def send(self, *lines: str) -> None:
        """Send lines such as READY=1. A manager that does not listen is no reason to stop working."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
                to.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return

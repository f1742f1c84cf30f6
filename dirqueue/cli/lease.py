"""The verbs that end or renew a lease by its handle: ack, retry, release, reject, renew.

Layer: edges.  A shell script can hold a lease across processes; the handle is the exact name of the lease.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dirqueue.cli import output
from dirqueue.cli.arguments import open_queue, seconds, verb
from dirqueue.cli.exits import Exit
from dirqueue.errors import LeaseLost

if TYPE_CHECKING:
    from dirqueue.lease import Lease


def add(subparsers: Any) -> None:
    """Add the verbs."""
    _verb(subparsers, "ack", ack, "acknowledge a held message: its work is done, and it is removed")
    parser = _verb(
        subparsers,
        "retry",
        retry,
        "report a failure: the message is delivered again, or is dead after max_attempts",
    )
    parser.add_argument(
        "--delay",
        type=seconds,
        metavar="TIME",
        help="how long to wait before it is delivered again, e.g. 5m (default: the queue's backoff)",
    )
    parser.add_argument("--error", metavar="TEXT", help="why it failed; kept with the message")
    _verb(subparsers, "release", release, "give a held message back at once, without counting a failure")
    parser = _verb(subparsers, "reject", reject, "give up on a held message: it is dead")
    parser.add_argument(
        "--reason", default="rejected", metavar="TEXT", help="why; kept with the message (default: rejected)"
    )
    parser = _verb(
        subparsers,
        "renew",
        renew,
        "extend the lease of a message",
        description="The handle changes: the new one is printed, and the old one is invalid.",
    )
    parser.add_argument(
        "--lease",
        type=seconds,
        metavar="TIME",
        help="how long to hold it from now on (default: the queue's setting)",
    )


def _verb(
    subparsers: Any, name: str, run: Callable[[argparse.Namespace], int], help: str, description: str = ""
) -> argparse.ArgumentParser:
    parser = verb(subparsers, name, run, help, description=description)
    parser.add_argument("handles", metavar="HANDLE", nargs="+", help="what `get --hold` printed")
    return parser


def _each(args: argparse.Namespace, end: Callable[[Lease[bytes]], None]) -> int:
    """End each lease; if one is lost, the others are ended too."""
    queue = open_queue(args.queue)
    status = Exit.OK
    for handle in args.handles:
        try:
            end(queue.lease(handle))
        except LeaseLost as error:
            output.complain(str(error))
            status = Exit.LEASE_LOST
    return status


def ack(args: argparse.Namespace) -> int:
    """Acknowledge messages."""
    return _each(args, lambda lease: lease.ack())


def retry(args: argparse.Namespace) -> int:
    """Report failures."""
    return _each(args, lambda lease: lease.retry(args.delay, args.error))


def release(args: argparse.Namespace) -> int:
    """Give messages back."""
    return _each(args, lambda lease: lease.release())


def reject(args: argparse.Namespace) -> int:
    """Reject messages."""
    return _each(args, lambda lease: lease.reject(args.reason))


def renew(args: argparse.Namespace) -> int:
    """Renew leases and print their new handles."""

    def again(lease: Lease[bytes]) -> None:
        lease.renew(args.lease)
        output.line(lease.handle)

    return _each(args, again)

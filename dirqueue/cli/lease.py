"""The verbs that end or renew a lease by its handle: ack, retry, release, reject, renew.

Layer: edges.  A shell script holds a lease across processes; the handle is the exact name of the lease.
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
    _verb(subparsers, "ack", ack, "say that the work on a held message is done: it is gone for good")
    parser = _verb(
        subparsers,
        "retry",
        retry,
        "say that the work failed: the message comes again, or is dead after max_attempts",
    )
    parser.add_argument(
        "--delay", type=seconds, metavar="TIME", help="not before (5m); by the queue's backoff if not given"
    )
    parser.add_argument("--error", metavar="TEXT", help="why; kept beside the message")
    _verb(subparsers, "release", release, "give a held message back at once, not counted as a failure")
    parser = _verb(subparsers, "reject", reject, "say that the work never will succeed: the message is dead")
    parser.add_argument("--reason", default="rejected", metavar="TEXT", help="why; kept beside the message")
    parser = _verb(
        subparsers,
        "renew",
        renew,
        "hold on to a message",
        description="The handle changes: the new one is printed, and the old one is of no use any more.",
    )
    parser.add_argument(
        "--lease", type=seconds, metavar="TIME", help="from now on; the queue's setting if not given"
    )


def _verb(
    subparsers: Any, name: str, run: Callable[[argparse.Namespace], int], help: str, description: str = ""
) -> argparse.ArgumentParser:
    parser = verb(subparsers, name, run, help, description=description)
    parser.add_argument("handles", metavar="HANDLE", nargs="+", help="what `get --hold` printed")
    return parser


def _each(args: argparse.Namespace, end: Callable[[Lease[bytes]], None]) -> int:
    """End each lease; one that is lost does not keep the others from being ended."""
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
    """End leases: done."""
    return _each(args, lambda lease: lease.ack())


def retry(args: argparse.Namespace) -> int:
    """End leases: failed."""
    return _each(args, lambda lease: lease.retry(args.delay, args.error))


def release(args: argparse.Namespace) -> int:
    """End leases: not mine."""
    return _each(args, lambda lease: lease.release())


def reject(args: argparse.Namespace) -> int:
    """End leases: hopeless."""
    return _each(args, lambda lease: lease.reject(args.reason))


def renew(args: argparse.Namespace) -> int:
    """Renew leases and print their new handles."""

    def again(lease: Lease[bytes]) -> None:
        lease.renew(args.lease)
        output.line(lease.handle)

    return _each(args, again)

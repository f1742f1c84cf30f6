"""The verb `get`: a message to standard output, acknowledged when it is there.

Layer: edges.
Invariant: a message whose body could not be written is given back, uncounted.
"""

from __future__ import annotations

import argparse
import stat
import sys
from typing import TYPE_CHECKING, Any

from dirqueue.cli import output
from dirqueue.cli.arguments import described, json_option, open_queue, raw_option, seconds, verb, whole
from dirqueue.cli.exits import Exit, OutputError
from dirqueue.disk import fs
from dirqueue.errors import Empty, SettingsError

if TYPE_CHECKING:
    from dirqueue.lease import Lease
    from dirqueue.queue import Queue


def add(subparsers: Any) -> None:
    """Add the verb."""
    parser = verb(
        subparsers,
        "get",
        get,
        "get the next message: write its body to standard output, then acknowledge it",
        description="If the body cannot be written, the message stays in the queue. Exit status 3: there was none.",
    )
    parser.add_argument(
        "--hold",
        action="store_true",
        help="print the handle of the lease instead of the body, and leave the message leased: "
        "cat, ack, retry, release, reject and renew take the handle, from any process",
    )
    parser.add_argument(
        "-n", "--count", type=whole, metavar="N", help="up to N messages, a line end after each"
    )
    parser.add_argument("--all", action="store_true", help="all that are there, a line end after each")
    parser.add_argument(
        "-0", "--null", action="store_true", help="with -n or --all: NUL instead of a line end"
    )
    wait = parser.add_mutually_exclusive_group()
    wait.add_argument(
        "--timeout",
        type=seconds,
        default=0.0,
        metavar="TIME",
        help="how long to wait for a message, e.g. 30s (default: do not wait)",
    )
    wait.add_argument("--wait", action="store_true", help="wait for a message as long as it takes")
    parser.add_argument(
        "--lease", type=seconds, metavar="TIME", help="how long to hold it (default: the queue's setting)"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print no message if nothing came")
    raw_option(parser)
    parser.add_argument(
        "--exec",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="run COMMAND for one message, as `work` does; exit status 0: done, 75: it is delivered again, 1: dead; "
        "all that follows is the command",
    )
    json_option(parser)


def get(args: argparse.Namespace) -> int:
    """Write messages to standard output until there are enough, or no more."""
    queue = open_queue(args.queue, create=True)  # another process may be about to make it
    limit = None if args.all else args.count or 1
    timeout = None if args.wait else args.timeout
    if args.exec is not None:
        return _execute(queue, args, timeout)
    done = 0
    try:
        while limit is None or done < limit:
            lease = queue.get(timeout=0 if done else timeout, lease=args.lease)
            _hand_over(queue, lease, args, many=limit != 1)
            done += 1
    except Empty as empty:
        if not done:
            if not args.quiet:
                output.complain(str(empty))
            return Exit.EMPTY
    return Exit.OK


def _execute(queue: Queue[bytes], args: argparse.Namespace, timeout: float | None) -> int:
    if args.hold or args.all or args.count or args.json:
        raise SettingsError(
            "--exec takes one message and prints nothing about it: leave out --hold, -n, --all and --json"
        )
    from dirqueue.cli.work import once

    status = once(queue, args.exec, timeout, args.lease)
    if status == Exit.EMPTY and not args.quiet:
        output.complain(f"nothing to get from {queue.path!r}")
    return status


def _hand_over(queue: Queue[bytes], lease: Lease[bytes], args: argparse.Namespace, *, many: bool) -> None:
    if args.hold:
        try:
            text = (
                output.dumps(described(lease.message) | {"handle": lease.handle})
                if args.json
                else lease.handle
            )
            output.write(text.encode() + b"\n")
        except BaseException:
            lease.release()
            raise
        return
    with lease as message:  # renewed, should the reader be slow
        try:
            if args.json:
                output.write(output.dumps(described(message)).encode() + b"\n")
            else:
                end = (b"\0" if args.null else b"\n") if many else b""
                output.body(message, end, raw=args.raw)
            if queue.settings.sync:
                _make_durable()
        except (OSError, OutputError):
            lease.release()
            raise


def _make_durable() -> None:
    """CRASH: what goes to a file must be on disk before its message is gone from there."""
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # no file at all, as in a test
    if stat.S_ISREG(fs.fstat(fd).st_mode):
        try:
            fs.fsync(fd)
        except OSError as error:
            raise output.output_error(error) from error

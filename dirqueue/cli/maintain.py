"""The verbs that put things right: redrive, purge.

Layer: edges.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dirqueue.cli import output
from dirqueue.cli.arguments import json_option, open_queue, path_of, verb, whole
from dirqueue.cli.output import Exit
from dirqueue.errors import DirQueueError

if TYPE_CHECKING:
    from dirqueue.layouts.base import Purged


def add(subparsers: Any) -> None:
    """Add the verbs."""
    parser = verb(
        subparsers,
        "redrive",
        redrive,
        "make dead messages ready again, their attempts forgotten",
        description="Prints the ids. Exit status 3: there was none to redrive.",
    )
    parser.add_argument("ids", metavar="ID", nargs="*", help="only these; all if none is given")
    parser.add_argument("--match", metavar="REGEX", help="only those whose error matches")
    parser.add_argument("--limit", type=whole, metavar="N", help="at most N, the oldest first")
    parser.add_argument("--dry-run", action="store_true", help="only print the ids")

    parser = verb(
        subparsers,
        "purge",
        purge,
        "remove what crashes and time have left behind",
        description="Made for cron: says nothing unless something is wrong; a queue that somebody else is purging is "
        "left to them. Never needed for correctness, and safe beside everything.",
        queue=False,
    )
    parser.add_argument(
        "paths", metavar="QUEUE", nargs="+", help="the directory of a queue; with -r, of many"
    )
    parser.add_argument(
        "-r", "--recursive", action="store_true", help="purge every queue under each directory"
    )
    parser.add_argument(
        "-j", "--jobs", type=whole, default=min(8, os.cpu_count() or 1), metavar="N", help="so many at a time"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="one line for each queue")
    json_option(parser)


def redrive(args: argparse.Namespace) -> int:
    """Redrive dead messages, and say which."""
    queue = open_queue(args.queue)
    with output.progress("redrive", None) as step:
        ids = queue.redrive(
            args.ids or None, match=args.match, limit=args.limit, dry_run=args.dry_run, progress=step
        )
    for id in ids:
        output.line(id)
    missing = [] if args.match or args.limit else [id for id in args.ids if id not in set(ids)]
    for id in missing:
        output.complain(f"there is no dead message {id} in {queue.path!r}")
    return Exit.FAILED if missing else Exit.OK if ids else Exit.EMPTY


def purge(args: argparse.Namespace) -> int:
    """Purge queues, several at a time; one that fails does not keep the others from being purged."""
    from concurrent.futures import ThreadPoolExecutor

    status = Exit.OK
    paths = list(_paths(args))
    with ThreadPoolExecutor(args.jobs) as pool, output.progress("purge", len(paths)) as step:
        for path, done in zip(paths, pool.map(_purge, paths), strict=True):
            step()
            if isinstance(done, DirQueueError):
                output.complain(str(done))
                status = max(status, output.status_of(done))
            else:
                _report(path, done, args)
    return status


def _paths(args: argparse.Namespace) -> Iterator[str]:
    if not args.recursive:
        yield from map(path_of, args.paths)
        return
    from dirqueue.tools import discover

    for root in args.paths:
        yield from discover.find(root)


def _purge(path: str) -> Purged | DirQueueError:
    from dirqueue.queue import Queue

    try:
        with Queue(path, create=False) as queue:
            return queue.purge()
    except DirQueueError as error:
        return error


def _report(path: str, done: Purged, args: argparse.Namespace) -> None:
    if args.json:
        output.line(output.dumps({"queue": path} | done._asdict()))
    elif args.verbose:
        output.line("\t".join((path, _summary(done._asdict().items()))))


def _summary(counts: Iterable[tuple[str, int]]) -> str:
    told = [f"{name}={count}" for name, count in counts if count]
    return "busy: somebody else is at it" if told == ["busy=1"] else " ".join(told) or "clean"

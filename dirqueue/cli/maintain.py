"""The verbs for maintenance: redrive, purge.

Layer: edges.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dirqueue.cli import exits, output
from dirqueue.cli.arguments import json_option, open_queue, path_of, seconds, verb, whole
from dirqueue.cli.exits import Exit
from dirqueue.errors import QueueError

if TYPE_CHECKING:
    from dirqueue.layouts.base import Purged


def add(subparsers: Any) -> None:
    """Add the verbs."""
    parser = verb(
        subparsers,
        "redrive",
        redrive,
        "make dead messages ready again, with no attempts counted",
        description="Prints the ids. Exit status 3: there was none to redrive.",
    )
    parser.add_argument("ids", metavar="ID", nargs="*", help="only these (default: all)")
    parser.add_argument("--match", metavar="REGEX", help="only those whose error matches")
    parser.add_argument("--limit", type=whole, metavar="N", help="at most N, the oldest first")
    parser.add_argument("--dry-run", action="store_true", help="only print the ids")

    parser = verb(
        subparsers,
        "purge",
        purge,
        "remove what crashes have left behind, and messages past their time",
        description="Made for cron: prints nothing unless something is wrong; a queue that another process is purging "
        "is skipped. Refuses a directory that is not a queue. Never needed for correctness, and safe at any time.",
        queue=False,
    )
    parser.add_argument(
        "paths", metavar="QUEUE", nargs="+", help="the directory of a queue; with -r, of many"
    )
    parser.add_argument(
        "-r", "--recursive", action="store_true", help="purge every queue under each directory"
    )
    parser.add_argument(
        "-j",
        "--jobs",
        type=whole,
        default=min(8, os.cpu_count() or 1),
        metavar="N",
        help="queues to purge at a time (default: one per processor, at most 8)",
    )
    parser.add_argument(
        "--older-than",
        type=seconds,
        metavar="AGE",
        help="move ready messages that were put longer ago, e.g. 7d, to the dead letters",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="one line for each queue")
    json_option(parser)


def redrive(args: argparse.Namespace) -> int:
    """Redrive dead messages, and print their ids."""
    queue = open_queue(args.queue)
    with output.progress("redrive", None) as step:
        ids = queue.redrive(
            args.ids or None, match=args.match, limit=args.limit, dry_run=args.dry_run, progress=step
        )
    for id in ids:
        output.line(id)
    driven = set(ids)
    missing = [] if args.match or args.limit else [id for id in args.ids if id not in driven]
    for id in missing:
        output.complain(f"there is no dead message {id} in {queue.path!r}")
    return Exit.FAILED if missing else Exit.OK if ids else Exit.EMPTY


def purge(args: argparse.Namespace) -> int:
    """Purge queues, several at a time; the others are purged too if one fails."""
    from concurrent.futures import ThreadPoolExecutor

    status = Exit.OK
    paths = list(_paths(args))
    with ThreadPoolExecutor(args.jobs) as pool, output.progress("purge", len(paths)) as step:
        for path, done in zip(
            paths, pool.map(lambda path: _purge(path, args.older_than), paths), strict=True
        ):
            step()
            if isinstance(done, Exception):
                output.complain(exits.sentence_of(done) + _hint(done, path, args))
                status = max(status, exits.status_of(done))
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


def _purge(path: str, older_than: float | None) -> Purged | Exception:
    try:
        with open_queue(path, resolve=False) as queue:
            return queue.purge(older_than=older_than)
    except Exception as error:  # noqa: BLE001 - whatever it is, the others are purged
        return error


def _hint(error: Exception, path: str, args: argparse.Namespace) -> str:
    """Return what to write instead where a root was named and its queues were meant."""
    if type(error) is not QueueError or args.recursive or "below it:" not in str(error):
        return ""
    return f" (to purge all of them: dirqueue purge -r {shlex.quote(path)})"


def _report(path: str, done: Purged, args: argparse.Namespace) -> None:
    if args.json:
        output.line(output.dumps({"queue": path} | done._asdict()))
    elif args.verbose:
        output.line("\t".join((output.one_line(path), _summary(done._asdict().items()))))


def _summary(counts: Iterable[tuple[str, int]]) -> str:
    parts = [f"{name}={count}" for name, count in counts if count]
    return "busy: another process is purging it" if parts == ["busy=1"] else " ".join(parts) or "clean"

"""The verb `work`: run a program, or a Python function, for each message.

Layer: edges.  The work itself is done by `dirqueue.worker`; here is its command line.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dirqueue.cli import output
from dirqueue.cli.arguments import open_queue, seconds, verb, whole
from dirqueue.cli.exits import Exit
from dirqueue.errors import SettingsError

if TYPE_CHECKING:
    from dirqueue.cli.worker_hooks import Hooked
    from dirqueue.queue import Queue
    from dirqueue.queueset import QueueSet
    from dirqueue.worker import Counts

#: Those of a QueueSet.
ORDERS = ("fair", "given", "time")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
DESCRIPTION = (
    "Of several queues, one worker handles the messages of all. COMMAND gets the body on its standard input, or as an "
    "argument where {} stands, or as a file where {path} stands; {id} is the id. Exit status 0: acknowledge; 65: "
    "reject; 75 or any other: retry by the queue's policy. The last of its output is kept as the error. A single "
    "MODULE:FUNCTION is called with each message instead, in child processes; if it is async, in one event loop. "
    "After SIGTERM or Ctrl-C running handlers may finish; a second one stops them and gives their messages back at "
    "once. SIGUSR1 prints a status line. On Linux a killed worker takes its commands with it."
)


def add(subparsers: Any) -> None:
    """Add the verb."""
    parser = verb(
        subparsers,
        "work",
        work,
        "run a command or a function for each message",
        description=DESCRIPTION,
        queue=False,
    )
    parser.command = "target"  # type: ignore[attr-defined] # ours, see cli.main
    parser.add_argument("queues", metavar="QUEUE", nargs="+", help="the directory of a queue, or several")
    parser.add_argument(
        "target", nargs="*", metavar="-- COMMAND", help="the command and its arguments, or MODULE:FUNCTION"
    )
    parser.add_argument(
        "--order",
        choices=ORDERS,
        default=ORDERS[0],
        help="of several queues: each in its turn (fair), the first that has something (given), or the one with the "
        "oldest message (time) (default: fair)",
    )
    parser.add_argument(
        "-j",
        "--jobs",
        type=whole,
        default=1,
        metavar="N",
        help="number of messages handled at the same time (default 1)",
    )
    parser.add_argument(
        "--threads", action="store_true", help="with MODULE:FUNCTION: threads instead of processes"
    )
    parser.add_argument(
        "--lease",
        type=seconds,
        metavar="TIME",
        help="how long to lease a message; renewed while it is handled (default: the queue's setting)",
    )
    parser.add_argument(
        "--max-attempts",
        type=int,
        metavar="N",
        help="deliveries before a message is dead, 0: no limit; for this worker (default: the queue's setting)",
    )
    parser.add_argument(
        "--backoff",
        type=seconds,
        metavar="TIME",
        help="pause after a first failure, doubled after each further one; for this worker (default: the queue's "
        "setting)",
    )
    parser.add_argument(
        "--time-limit",
        type=seconds,
        metavar="TIME",
        help="stop a handler that runs longer than this, e.g. 5m, and retry its message",
    )
    parser.add_argument("--limit", type=whole, metavar="N", help="end after N messages")
    parser.add_argument(
        "--until-empty",
        action="store_true",
        help="end when nothing is ready; exit status 1 if a message went to dead/, 75 if one failed and is to be "
        "tried again, 3 if there was none, 130 if stopped before",
    )
    parser.add_argument(
        "--idle", type=seconds, metavar="TIME", help="end when nothing was ready for this long, e.g. 30s"
    )
    parser.add_argument(
        "--drain",
        type=seconds,
        default=60.0,
        metavar="TIME",
        help="how long running handlers get to finish after SIGTERM (default 60s)",
    )
    parser.add_argument(
        "--on-dead",
        metavar="CMD",
        help="run this shell command for each message that this worker moves to dead/, those that it finds out of "
        "attempts, expired or unreadable too: it gets queue, id, attempts, error and trace as JSON on its standard "
        "input, and $DIRQUEUE_QUEUE, _ID, _ATTEMPTS, _ERROR",
    )
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="serve /metrics for Prometheus: deliveries, errors and durations (default host: 127.0.0.1)",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="print a line for each message that was handled; -vv also for each that is begun",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print no lines for failures either")


def work(args: argparse.Namespace) -> int:
    """Work until stopped, until empty, or until the limit is reached."""
    from dirqueue.cli.worker_hooks import Failures, Farewell, Metrics, OnDead, joined
    from dirqueue.worker import Worker
    from dirqueue.worker.outcome import is_async

    names, target = _split(args.queues, args.target)
    handler, is_function = handler_of(target)
    if is_async(handler):
        if args.threads:
            raise SettingsError(f"{target[0]} is async: -j says how many run at once, without --threads")
        many = {"concurrency": args.jobs}
    else:
        many = {"processes": args.jobs} if is_function and not args.threads else {"threads": args.jobs}
    _log(args)

    def status() -> Mapping[str, Any]:
        return worker.status()

    failures = Failures()
    parties: list[Hooked] = [failures]
    if not args.quiet:
        parties.append(Farewell(status, args.drain))
    if args.on_dead:
        parties.append(OnDead(args.on_dead))
    if args.metrics:
        parties.append(Metrics(status, args.metrics))
    worker = Worker(
        _source(names, args),
        handler,
        lease=args.lease,
        time_limit=args.time_limit,
        limit=args.limit,
        drain=args.drain,
        hooks=joined(*parties),
        **many,
    )
    if not args.until_empty and args.idle is None:
        worker.run()
        return Exit.OK
    counts = worker.run_until_empty(args.idle or 0.0)
    if failures.stopped:
        return Exit.INTERRUPTED
    if failures.dead:
        return Exit.FAILED
    if failures.backing_off:
        return Exit.TRY_AGAIN
    return Exit.OK if any(counts) else Exit.EMPTY


def _split(words: list[str], target: list[str]) -> tuple[list[str], list[str]]:
    """Return the queues and the command: what follows --, else MODULE:FUNCTION at the end, else all but the first."""
    if not target:
        at = -1 if _FUNCTION.fullmatch(words[-1]) else 1
        words, target = words[:at], words[at:]
    if not words:
        raise SettingsError(f"there is no queue to work on: give it before {' '.join(target)!r:.60}")
    return words, target


def _source(names: list[str], args: argparse.Namespace) -> Queue[bytes] | QueueSet:
    from dirqueue.queueset import QueueSet

    given = {"max_attempts": args.max_attempts, "backoff": args.backoff}
    given = {name: value for name, value in given.items() if value is not None}
    queues = [open_queue(name, create=True, **given) for name in names]
    for queue in queues:
        if not queue.layout.directory.find() and not args.quiet:
            output.complain(f"there is no queue at {queue.path!r} yet: the first put makes it")
    return queues[0] if len(queues) == 1 else QueueSet(queues, order=args.order)


def once(queue: Queue[bytes], command: Sequence[str], timeout: float | None, lease: float | None) -> int:
    """Run a command for one message, waiting up to `timeout` for it. Return how it ended, as an exit status."""
    from dirqueue.worker import Worker
    from dirqueue.worker.command import Command

    worker = Worker(queue, Command(command), lease=lease, limit=1)
    return _status(worker.run() if timeout is None else worker.run_until_empty(timeout))


def _status(counts: Counts) -> Exit:
    if counts.acked:
        return Exit.OK
    if counts.lost:
        return Exit.LEASE_LOST
    if counts.retried:
        return Exit.TRY_AGAIN
    if counts.dead:
        return Exit.FAILED
    return Exit.INTERRUPTED if counts.released else Exit.EMPTY


def handler_of(target: Sequence[str]) -> tuple[Callable[[Any], object], bool]:
    """Return the handler that the arguments name, and whether it is a Python function."""
    if len(target) == 1 and _FUNCTION.fullmatch(target[0]):
        return _function(target[0]), True
    from dirqueue.worker.command import Command

    return Command(target), False


def _function(name: str) -> Callable[[Any], object]:
    import importlib

    sys.path.insert(0, "")  # as with python -m: modules beside us are found
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise SettingsError(f"cannot import {module!r} of {name!r}: {error}") from error
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise SettingsError(f"there is no function {path!r} in module {module!r}")
    return found  # type: ignore[no-any-return]


def _log(args: argparse.Namespace) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(args.verbose, 2)]
    logger = logging.getLogger("dirqueue.worker")
    logger.setLevel(logging.CRITICAL if args.quiet else level)
    handler = logging.StreamHandler()
    lines = logging.Formatter("time=%(asctime)s.%(msecs)03dZ %(message)s", "%Y-%m-%dT%H:%M:%S")
    lines.converter = time.gmtime
    handler.setFormatter(lines)
    logger.handlers[:] = [handler]
    logger.propagate = False

"""The verb for Spark: drain, fill, report, purge, replay.

Layer: edges.  Needs the extra `spark`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from dirqueue import states
from dirqueue.cli import output
from dirqueue.cli.arguments import json_option, path_of, verb, whole
from dirqueue.cli.exits import Exit
from dirqueue.errors import DirQueueError, SettingsError

FORMATS = ("parquet", "json", "csv", "orc", "text")
_COLUMNS = (
    "queue",
    *states.VISIBLE,
    "oldest_s",
    "put_last_hour",
    "done_last_hour",
)


def add(subparsers: Any) -> None:
    """Add the verb and its own verbs."""
    parser = verb(
        subparsers,
        "spark",
        _nothing,
        "run a ready-made Spark job: drain, fill, report, purge or replay",
        description="Runs on this machine unless --master or Spark's configuration names another place; no Java need "
        "be installed.",
        queue=False,
    )
    jobs = parser.add_subparsers(metavar="JOB", required=True)
    _add_drain(jobs)
    _add_fill(jobs)
    _add_report(jobs)
    _add_purge(jobs)
    _add_replay(jobs)


def _job(jobs: Any, name: str, run: Any, help: str, description: str = "", *, queue: bool = True) -> Any:
    parser = verb(jobs, name, _in_one_sentence(run), help, description=description, queue=queue)
    parser.add_argument(
        "--master", metavar="URL", help="where Spark runs (default: as Spark is configured, else local[*])"
    )
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting for Spark; may be repeated",
    )
    parser.add_argument(
        "--progress", action="store_true", help="report progress on stderr (default: only on a terminal)"
    )
    return parser


def _add_drain(jobs: Any) -> None:
    parser = _job(
        jobs,
        "drain",
        drain,
        "move all messages of a queue to files, each exactly once",
        "Made for cron: takes what is there, and resumes after a crash. Bodies that are not UTF-8 text go to the "
        "column raw, in base64 for json and csv. Exit status 3: the queue was empty.",
    )
    parser.add_argument("output", metavar="OUTPUT", help="a directory; new files are added to it")
    parser.add_argument(
        "--format", choices=FORMATS, default="parquet", help="format of the files (default parquet)"
    )
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="directory for the state of the job (default OUTPUT.checkpoint)"
    )
    parser.add_argument(
        "--batch", type=whole, default=100_000, metavar="N", help="messages in one batch (default 100000)"
    )
    parser.add_argument(
        "--binary", action="store_true", help="write all bodies as bytes; parquet and orc only"
    )
    parser.add_argument("--keep", action="store_true", help="keep drained messages in done/")
    parser.add_argument("--records", action="store_true", help="write a row for each record of a message")
    json_option(parser)


def _add_fill(jobs: Any) -> None:
    parser = _job(
        jobs,
        "fill",
        fill,
        "put one message for each row of a table or of files, all visible at once",
        "The body is the column `value`, or the whole row as JSON. Columns `priority` and `delay` are honoured.",
        queue=False,
    )
    parser.add_argument("source", metavar="SOURCE", help="files, or the name of a table")
    parser.add_argument("queue", metavar="QUEUE", help="the directory of the queue")
    parser.add_argument("--format", metavar="FORMAT", help="format of the files (default: by their suffix)")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of Spark's reader; may be repeated",
    )
    parser.add_argument("--value", metavar="SQL", help="an expression for the body")
    parser.add_argument("--where", metavar="SQL", help="put only the rows that match this condition")
    parser.add_argument(
        "--records",
        type=whole,
        metavar="N",
        help="pack N rows into each message (default: one message a row)",
    )
    parser.add_argument("--app", metavar="NAME", help="with --fill-version: a repeated fill does nothing")
    parser.add_argument("--fill-version", type=int, metavar="N", help="versions of an app only grow")
    json_option(parser)


def _add_report(jobs: Any) -> None:
    parser = _job(
        jobs, "report", report, "count many queues: depth, age, throughput, failures by reason", queue=False
    )
    _add_queues(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="one JSON object per queue")
    how.add_argument("--table", action="store_true", help="a table, as on a terminal")
    parser.add_argument("--records", action="store_true", help="count the records in messages too")
    parser.add_argument(
        "--chart",
        metavar="FILE",
        help="also write a chart: FILE.svg, or FILE.png where matplotlib is installed",
    )


def _add_purge(jobs: Any) -> None:
    parser = _job(jobs, "purge", purge, "purge many queues, spread over the executors", queue=False)
    _add_queues(parser)
    json_option(parser)


def _add_replay(jobs: Any) -> None:
    parser = _job(
        jobs,
        "replay",
        replay,
        "make dead messages ready again, chosen by a SQL condition",
        "Exit status 3: none matched.",
    )
    parser.add_argument(
        "--where",
        default="true",
        metavar="SQL",
        help="condition on id, value, error, attempts, priority, size, enqueued_at, until (default: all)",
    )
    parser.add_argument("--dry-run", action="store_true", help="count the messages, change nothing")
    parser.add_argument(
        "--records", action="store_true", help="ask the condition of each record; a message goes back whole"
    )
    json_option(parser)


def _add_queues(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "queues", metavar="QUEUE", nargs="+", help="a queue, a pattern, or a directory with queues under it"
    )
    parser.add_argument(
        "--tasks", type=whole, metavar="N", help="number of tasks (default: one for each queue, up to 64)"
    )


def _nothing(_: argparse.Namespace) -> int:
    return Exit.USAGE


def _session(args: argparse.Namespace) -> Any:
    output.need("pyspark", "spark")
    output.need("pyarrow", "spark")
    from dirqueue.spark.sessions import prepare, session

    conf = _pairs(args.conf, "--conf")
    prepare(quiet=True)
    return session(args.master, **conf)


class SparkError(DirQueueError):
    """An error of Spark, as its first sentence."""


def _in_one_sentence(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Wrap a job so that a page of traces becomes one sentence: our own if there is one, else Spark's first."""

    def wrapped(args: argparse.Namespace) -> int:
        try:
            return run(args)
        except Exception as error:
            if not type(error).__module__.startswith(("pyspark.", "py4j.")):
                raise
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            ours = [line.partition(": ")[2] for line in lines if line.startswith("dirqueue.errors.")]
            raise SparkError(ours[-1] if ours else lines[0]) from error

    return wrapped


def _pairs(given: list[str], option: str) -> dict[str, str]:
    pairs = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise SettingsError(f"{option} takes KEY=VALUE, not {each!r:.60}")
        pairs[key] = value
    return pairs


def _show(done: Any, args: argparse.Namespace) -> None:
    counts = asdict(done)
    output.line(output.dumps(counts) if args.json else "\t".join(f"{k}={v}" for k, v in counts.items()))


def _tasks(args: argparse.Namespace) -> Callable[[int, int], None] | None:
    """Return a function that reports progress, or None if it is not wanted."""

    def show(done: int, all: int) -> None:
        output.complain(f"{done} of {all} tasks done")

    return show if args.progress or output.on_terminal(sys.stderr) else None


def drain(args: argparse.Namespace) -> int:
    """Drain a queue and print the number of messages."""
    spark = _session(args)
    from dirqueue.spark.jobs.drain import drain as run

    def show(rows: int) -> None:
        output.complain(f"{rows} messages written")

    done = run(
        spark,
        path_of(args.queue),
        args.output,
        checkpoint=args.checkpoint,
        format=args.format,
        batch=args.batch,
        binary=args.binary,
        keep=args.keep,
        records=args.records,
        progress=show if args.progress or output.on_terminal(sys.stderr) else None,
    )
    _show(done, args)
    return Exit.OK if done.messages else Exit.EMPTY


def fill(args: argparse.Namespace) -> int:
    """Fill a queue and print the number of messages."""
    spark = _session(args)
    from dirqueue.spark.jobs.fill import fill as run

    done = run(
        spark,
        args.source,
        path_of(args.queue),
        format=args.format,
        value=args.value,
        where=args.where,
        app=args.app,
        version=args.fill_version,
        options=_pairs(args.option, "--option"),
        records=args.records,
        progress=_tasks(args),
    )
    _show(done, args)
    return Exit.OK


def report(args: argparse.Namespace) -> int:
    """Count queues and print a table."""
    if args.chart and not args.chart.lower().endswith((".svg", ".png")):
        raise SettingsError(f"the chart is an SVG or PNG image: name it FILE.svg, not {args.chart!r:.60}")
    spark = _session(args)
    from dirqueue.disk import fs
    from dirqueue.spark.jobs.report import report as run

    queues = [path_of(queue) for queue in args.queues]
    done = run(spark, queues, tasks=args.tasks, records=args.records, progress=_tasks(args))
    if args.chart:
        directory = fs.open(os.path.dirname(os.path.abspath(args.chart)), fs.DIRECTORY)
        try:
            image = done.to_png() if args.chart.lower().endswith(".png") else done.to_svg().encode()
            fs.replace_file(os.path.basename(args.chart), image, directory, sync=False)
        finally:
            fs.close(directory)
    lines = [asdict(line) for line in done.lines]
    if not args.json and len(lines) > 1:
        lines.append(asdict(done.total))
    output.records(lines, (*_COLUMNS, "records") if args.records else _COLUMNS, args)
    if not args.json:
        for reason, count in sorted(done.total.failures.items(), key=lambda pair: -pair[1])[:10]:
            output.line(f"{count}\t{reason}")
    for line in done.lines:
        if line.error:
            output.complain(line.error)
    return Exit.FAILED if any(line.error for line in done.lines) else Exit.OK


def purge(args: argparse.Namespace) -> int:
    """Purge queues and print what was removed."""
    spark = _session(args)
    from dirqueue.spark.jobs.purge import purge as run

    done = run(spark, [path_of(queue) for queue in args.queues], tasks=args.tasks, progress=_tasks(args))
    counts = {"queues": done.queues, **done.purged._asdict(), "failed": len(done.failed)}
    output.line(output.dumps(counts) if args.json else "\t".join(f"{k}={v}" for k, v in counts.items() if v))
    for problem in done.failed.values():
        output.complain(problem)
    return Exit.FAILED if done.failed else Exit.OK


def replay(args: argparse.Namespace) -> int:
    """Replay dead messages and print the number of them."""
    spark = _session(args)
    from dirqueue.spark.jobs.replay import replay as run

    done = run(
        spark,
        path_of(args.queue),
        args.where,
        dry_run=args.dry_run,
        records=args.records,
        progress=_tasks(args),
    )
    _show(done, args)
    return Exit.OK if done.matched else Exit.EMPTY

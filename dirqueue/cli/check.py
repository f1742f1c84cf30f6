"""The verbs that examine: check a queue, doctor a filesystem.

Layer: edges.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dirqueue import layouts
from dirqueue.cli import exits, output
from dirqueue.cli.arguments import VARIABLE, base, path_of, table_option, verb
from dirqueue.cli.exits import Exit
from dirqueue.errors import DirQueueError, SettingsError

if TYPE_CHECKING:
    from dirqueue.tools.check import Code, Finding

COLUMNS = ("code", "level", "name", "place", "repaired", "detail", "meaning", "cure")
CODE_COLUMNS = ("code", "level", "name", "meaning", "cure")


def add(subparsers: Any) -> None:
    """Add the verbs."""
    parser = verb(
        subparsers,
        "check",
        check,
        "check queues against the protocol, name by name",
        description="Never touches what it cannot parse, and never removes a message. Works beside producers and "
        "consumers. Refuses a directory that is not a queue. Exit status 5: there are problems that were not repaired; "
        "notes alone are no problem.",
        queue=False,
    )
    parser.add_argument("queues", metavar="QUEUE", nargs="*", help="the directory of a queue")
    parser.add_argument("--repair", action="store_true", help="fix what can be fixed safely")
    parser.add_argument("--deep", action="store_true", help="open every message, not only read its name")
    parser.add_argument(
        "--codes", action="store_true", help="list what is checked, and what can be done about it"
    )
    table_option(parser)

    parser = verb(
        subparsers,
        "doctor",
        doctor,
        "find out whether a directory's filesystem is good enough for a queue",
        description="Tries everything with two real processes, in a directory of its own that it removes. "
        "Exit status 5: the layout cannot be used there, or with --stress a promise did not hold.",
        queue=False,
    )
    parser.add_argument(
        "directory",
        metavar="DIRECTORY",
        nargs="?",
        help=f"where (default: ${VARIABLE}, else the current directory)",
    )
    parser.add_argument(
        "second",
        metavar="AGAIN",
        nargs="?",
        help="the same directory by another mount, as another host sees it: for the second process",
    )
    parser.add_argument("--also", metavar="DIRECTORY", dest="second_named", help="AGAIN, by name")
    parser.add_argument(
        "--stress",
        action="store_true",
        help="then put it under load: producers, consumers, one of them killed, and every message counted",
    )
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=float,
        default=5.0,
        help="seconds of load before the counting (default: 5)",
    )
    parser.add_argument(
        "--layout",
        choices=[name for name in layouts.NAMES if layouts.describe(name).needs],
        default="native",
        help="the layout whose verdict is the exit status (default: native)",
    )
    table_option(parser)


def check(args: argparse.Namespace) -> int:
    """Check queues; show what is wrong, and what it means."""
    from dirqueue.tools import check as checking

    if args.codes:
        output.records(
            ({"code": code} | each._asdict() for code, each in checking.CODES.items()), CODE_COLUMNS, args
        )
        return Exit.OK
    if not args.queues:
        raise SettingsError("check needs a QUEUE, or --codes")
    status = Exit.OK
    for queue in args.queues:
        path = path_of(queue)
        try:
            with output.progress("check") as step:
                found = checking.check(path, repair=args.repair, deep=args.deep, progress=step)
        except DirQueueError as error:  # the other queues are checked
            output.complain(exits.sentence_of(error))
            status = max(status, exits.status_of(error))
            continue
        rows = [_row(path, each, checking.CODES[each.code]) for each in found]
        if output.tabular(args):
            _show(output.one_line(path), rows)
        else:
            output.records(rows, COLUMNS, args)
        if any(row["level"] == checking.PROBLEM and not row["repaired"] for row in rows):
            status = max(status, Exit.PROBLEMS)
    return status


def _row(path: str, finding: Finding, code: Code) -> dict[str, Any]:
    return {"queue": path} | finding._asdict() | code._asdict()


def _show(path: str, rows: list[dict[str, Any]]) -> None:
    """Show findings to a person: grouped by code, each explained once."""
    if not rows:
        output.line(f"{path}: {output.paint('clean', 'green')}")
    last = ""
    for row in rows:
        if row["code"] != last:
            last = row["code"]
            colour = "red" if row["level"] == "problem" else "yellow"
            head = output.paint(f"{last} {row['name']}", colour)
            output.line(f"{path}: {head} ({row['level']}): {row['meaning']}")
            output.line(f"    {row['cure']}")
        detail = f" ({output.one_line(row['detail'])})" if row["detail"] else ""
        output.line(
            f"      {output.one_line(row['place'])}{detail}{' - repaired' if row['repaired'] else ''}"
        )


def doctor(args: argparse.Namespace) -> int:
    """Examine a filesystem; show what works, and which layouts can be used."""
    from dirqueue.settings import check_seconds
    from dirqueue.tools.doctor import FAIL, PASS, examine

    path, also = base() if args.directory is None else args.directory, args.second or args.second_named
    check_seconds("--seconds", args.seconds, above=True)
    findings = []
    with output.progress("doctor") as step:
        report = examine(path, also, step)
        if args.stress:
            from dirqueue.tools.doctor.stress import stress

            findings = stress(path, also, args.seconds, step, args.layout)
    rows = [
        {"what": kind, "name": each[0], "result": each.result.upper(), "detail": each.detail}
        for kind, group in (("probe", report.probes), ("layout", report.verdicts))
        for each in group
    ]
    for each in findings:
        result = (PASS if each.held else FAIL).upper()
        rows.append({"what": "stress", "name": each.promise, "result": result, "detail": each.detail})
    if args.json:
        for row in rows:
            output.line(output.dumps({"path": path, "filesystem": report.fstype} | row))
    else:
        output.records(rows, ("what", "name", "result", "detail"), args)
    good = report.good_for(args.layout) and all(each.held for each in findings)
    return Exit.OK if good else Exit.PROBLEMS

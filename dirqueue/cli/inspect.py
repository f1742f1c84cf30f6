"""The verbs that show messages and claim none: peek, cat, ls.

Layer: edges.  Touches: nothing. What vanishes meanwhile is left out.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dirqueue import codecs, states
from dirqueue.cli import exits, output
from dirqueue.cli.arguments import (
    described,
    json_option,
    open_queue,
    raw_option,
    table_option,
    verb,
    whole,
)
from dirqueue.cli.exits import Exit
from dirqueue.errors import InvalidId, LeaseLost, MessageNotFound, SettingsError
from dirqueue.message import Message
from dirqueue.tools.lookup import find_all

if TYPE_CHECKING:
    from dirqueue.queue import Queue

COLUMNS = ("id", "state", "attempts", "priority", "enqueued_at", "until", "size", "handle", "error")
TERMINAL_COLUMNS = ("id", "state", "attempts", "age", "until", "size", "error")


def add(subparsers: Any) -> None:
    """Add the verbs."""
    parser = verb(
        subparsers,
        "peek",
        peek,
        "show the body of the next message, without claiming it",
        description="Exit status 3: there is none.",
    )
    parser.add_argument(
        "-n", "--count", type=whole, metavar="N", help="up to N messages, a line end after each"
    )
    parser.add_argument("-0", "--null", action="store_true", help="with -n: NUL instead of a line end")
    parser.add_argument(
        "--state", choices=states.VISIBLE, default=states.READY, help="in which state (default: ready)"
    )
    raw_option(parser)
    json_option(parser)

    parser = verb(subparsers, "cat", cat, "show the bodies of messages in whatever state")
    parser.add_argument("ids", metavar="ID", nargs="+", help="an id, or the handle of a lease")
    raw_option(parser)
    json_option(parser)

    parser = verb(
        subparsers,
        "ls",
        ls,
        "list messages, the oldest first",
        description="Without --state: those that wait or are held. Exit status 3: there are none.",
    )
    parser.add_argument(
        "--state", action="append", choices=(*states.VISIBLE, "all"), help="in which state; may be repeated"
    )
    parser.add_argument("--match", metavar="REGEX", help="only those whose error matches")
    parser.add_argument("--limit", type=whole, metavar="N", help="at most N of each state")
    table_option(parser)


def peek(args: argparse.Namespace) -> int:
    """Show the next bodies."""
    queue = open_queue(args.queue)
    found = 0
    for message in queue.peek(args.state, args.count or 1):
        try:
            data = message.data
        except MessageNotFound:
            continue
        found += 1
        end = b"" if args.count is None else b"\0" if args.null else b"\n"
        _show(message, data, end, args)
    if not found:
        output.complain(f"there is nothing {args.state} in {queue.path!r}")
    return Exit.OK if found else Exit.EMPTY


def _show(message: Message[bytes], data: bytes, end: bytes, args: argparse.Namespace) -> None:
    if args.json:
        output.line(output.dumps(described(message)))
    else:
        output.body(data, end, raw=args.raw)


def cat(args: argparse.Namespace) -> int:
    """Show bodies by id or handle."""
    queue = open_queue(args.queue)
    status = Exit.OK
    found = find_all(queue.layout, args.ids) if len(args.ids) > 1 else {}
    for id in args.ids:
        try:
            message = Message(found[id], queue.layout, codecs.BYTES) if id in found else _message(queue, id)
            _show(message, message.data, b"", args)
        except (MessageNotFound, LeaseLost) as error:
            output.complain(exits.sentence_of(error))
            status = max(status, exits.status_of(error))
    return status


def _message(queue: Queue[bytes], id: str) -> Message[bytes]:
    try:
        return queue.message(id)
    except InvalidId as error:
        try:
            return queue.lease(id).message
        except SettingsError:
            raise error from None


def ls(args: argparse.Namespace) -> int:
    """List messages as a table."""
    queue = open_queue(args.queue)
    wanted = (
        states.VISIBLE if "all" in (args.state or ()) else tuple(dict.fromkeys(args.state or states.LIVE))
    )
    columns = TERMINAL_COLUMNS if output.tabular(args) else COLUMNS
    return Exit.OK if output.records(_rows(queue, wanted, args), columns, args) else Exit.EMPTY


def _rows(queue: Queue[bytes], wanted: tuple[str, ...], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    pattern = _pattern(args.match)
    for state in wanted:
        # What the error says is known only after a look at each, so then the limit comes last.
        left = args.limit
        for message in queue.peek(state, None if pattern else left):
            try:
                row = described(message, body=False)
            except MessageNotFound:
                continue  # RACE: it moved on
            if pattern and not pattern.search(row["error"] or ""):
                continue
            if left == 0:
                break
            left = left and left - 1
            row["age"] = output.age(message.enqueued_at)
            if not args.json:
                row["until"] = message.until
            yield row


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise SettingsError(f"--match {text!r:.60} is not a regular expression: {error}") from None

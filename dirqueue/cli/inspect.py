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
    _error_option(parser)
    raw_option(parser)
    json_option(parser)

    parser = verb(subparsers, "cat", cat, "show the bodies of messages in whatever state")
    parser.add_argument(
        "ids",
        metavar="ID",
        nargs="*",
        help="an id, or the handle of a lease; of a text file, all of it if none is given",
    )
    _error_option(parser)
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


def _error_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--error",
        action="store_true",
        help="instead of the body why the last delivery failed: the error, and the traceback or output under it",
    )


def peek(args: argparse.Namespace) -> int:
    """Show the next bodies."""
    queue = open_queue(args.queue)
    found = 0
    for message in queue.peek(args.state, args.count or 1):
        end = b"" if args.count is None else b"\0" if args.null else b"\n"
        try:
            _show(message, end, args)
        except MessageNotFound:
            continue  # RACE: it moved on
        found += 1
    if not found:
        output.complain(f"there is nothing {args.state} in {queue.path!r}")
    return Exit.OK if found else Exit.EMPTY


def _show(message: Message[bytes], end: bytes, args: argparse.Namespace) -> None:
    if args.json:
        output.line(output.dumps(described(message)))
    elif args.error:
        failure = message.failure
        if failure is None:
            output.complain(f"{message.id} has no failure on record")
        else:
            output.text(failure.text + (end or b"\n").decode(), raw=args.raw)
    else:
        output.body(message, end, raw=args.raw)


def cat(args: argparse.Namespace) -> int:
    """Show bodies by id or handle."""
    queue = open_queue(args.queue)
    if not args.ids:
        from dirqueue.cli.edit import show

        return show(queue, raw=args.raw)
    status = Exit.OK
    found = find_all(queue.layout, args.ids) if len(args.ids) > 1 else {}
    for id in args.ids:
        try:
            message = Message(found[id], queue.layout, codecs.BYTES) if id in found else message_of(queue, id)
            _show(message, b"", args)
        except (MessageNotFound, LeaseLost) as error:
            output.complain(exits.sentence_of(error))
            status = max(status, exits.status_of(error))
    return status


def message_of(queue: Queue[bytes], id: str) -> Message[bytes]:
    """Return the message of an id, or of the handle of a lease."""
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
            if pattern and not ((why := message.failure) and pattern.search(why.text)):
                continue
            try:
                row = described(message, body=False)
            except MessageNotFound:
                continue  # RACE: it moved on
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

"""The verbs for one message that nobody holds: rm, change, show.

Layer: edges.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from dirqueue import codecs, states
from dirqueue.cli import exits, output
from dirqueue.cli.arguments import described, json_option, open_queue, raw_option, seconds, verb, whole
from dirqueue.cli.exits import Exit
from dirqueue.cli.inspect import message_of
from dirqueue.errors import MessageNotFound, SettingsError
from dirqueue.message import Message
from dirqueue.tools.lookup import find_all

if TYPE_CHECKING:
    from dirqueue.queue import Queue

#: How much of a body `show` shows.
BODY_BYTES, BODY_LINES = 4096, 16


def add(subparsers: Any) -> None:
    """Add the verbs."""
    parser = verb(
        subparsers,
        "rm",
        rm,
        "remove messages that nobody holds, in whatever state",
        description="One that waits is cancelled: with keep_done it goes to done/. One that is held is refused: ack, "
        "reject or release it by its handle. Exit status 1: one was not removed; the others were.",
        aliases=("cancel",),
    )
    parser.add_argument("ids", metavar="ID", nargs="+", help="what put printed; ls lists them")

    parser = verb(
        subparsers,
        "change",
        change,
        "give messages that wait another delay or priority",
        description="Prints the ids, since another priority makes another id. Exit status 1: one was claimed or gone; "
        "the others were changed.",
    )
    parser.add_argument("ids", metavar="ID", nargs="+", help="what put printed; ls lists them")
    parser.add_argument(
        "--delay",
        type=seconds,
        metavar="TIME",
        help="how long until it is ready, from now, e.g. 5m; 0: at once",
    )
    parser.add_argument(
        "-p", "--priority", type=whole, metavar="N", help="1 is the most urgent, in a queue with priorities"
    )

    parser = verb(
        subparsers,
        "show",
        show,
        "show everything that is known of one message",
        description="Where its file is, how often and by whom it was tried, why it failed, and how its body begins.",
    )
    parser.add_argument("id", metavar="ID", help="an id, or the handle of a lease")
    raw_option(parser)
    json_option(parser)


def rm(args: argparse.Namespace) -> int:
    """Remove messages."""
    from dirqueue.tools.removal import remove

    removed = remove(open_queue(args.queue), args.ids)
    for reason in removed.failed.values():
        output.complain(reason)
    return Exit.FAILED if removed.failed else Exit.OK


def change(args: argparse.Namespace) -> int:
    """Change messages, and print their ids."""
    if args.delay is None and args.priority is None:
        raise SettingsError("say what to change: --delay TIME, --priority N, or both")
    queue = open_queue(args.queue)
    if args.priority and not queue.settings.priorities and "priority" not in queue.layout.lacks:
        raise SettingsError("--priority needs a queue with priorities: dirqueue create QUEUE --priorities")
    status = Exit.OK
    ids = [queue.layout.check_id(id) for id in args.ids]
    found = find_all(queue.layout, ids) if len(ids) > 1 else {}
    for id in ids:
        try:
            message = Message(found[id], queue.layout, codecs.BYTES) if id in found else queue.message(id)
            output.line(message.change(delay=args.delay, priority=args.priority).id)
        except MessageNotFound as error:
            output.complain(exits.sentence_of(error))
            status = Exit.FAILED
    return status


def show(args: argparse.Namespace) -> int:
    """Show one message."""
    queue = open_queue(args.queue)
    message = message_of(queue, args.id)
    if args.json:
        output.line(output.dumps(described(message) | {"path": _path(queue, message)}))
        return Exit.OK
    with message.open() as file:
        head = file.read(BODY_BYTES)
    facts = [(name, text) for name, text in _facts(queue, message) if text]
    width = max(len(name) for name, _ in facts)
    for name, text in facts:
        label = output.paint(f"{name:<{width}}", "bold")
        output.line(f"{label}  {output.one_line(text)}")
    error = message.error
    if error and "\n" in error:
        _block("error", error, "")
    _body(queue, message, head, raw=args.raw)
    return Exit.OK


def _path(queue: Queue[bytes], message: Message[bytes]) -> str:
    return os.path.join(queue.path, message.entry.place.partition("@")[0])


def _facts(queue: Queue[bytes], message: Message[bytes]) -> list[tuple[str, str]]:
    """Return what is known, by name; what is not known is empty."""
    limit = queue.settings.max_attempts
    state, until = message.state, message.until
    of = f" of {limit}" if limit and "attempts" not in queue.layout.lacks else ""
    ends = {states.DELAYED: "due", states.LEASED: "lease ends"}.get(
        state, "ended" if state in states.ENDED else ""
    )
    failure = message.failure
    first, *more = (failure.error.splitlines() or [""]) if failure else [""]
    return [
        ("id", message.id),
        ("queue", queue.path),
        ("state", state),
        ("attempts", f"{message.attempts}{of}"),
        ("priority", "" if message.priority is None else str(message.priority)),
        ("put", output.moment(message.enqueued_at)),
        ("last leased", output.moment(message.leased_at)),
        (ends, output.moment(until) if ends else ""),
        ("held by", message.token),
        ("handle", message.entry.place if state == states.LEASED else ""),
        ("failed", output.moment(failure.at) if failure else ""),
        ("error", first + (" ..." if more else "")),
        ("size", f"{message.size:,} bytes"),
        ("file", _path(queue, message)),
    ]


def _block(name: str, text: str, note: str) -> None:
    output.line("")
    output.line(output.paint(name, "bold") + note)
    for line in text.split("\n"):
        output.line(f"  {output.one_line(line)}")


def _body(queue: Queue[bytes], message: Message[bytes], head: bytes, *, raw: bool) -> None:
    if raw:
        output.line("")
        output.write(head)
        return
    lines = head.decode("utf-8", "surrogateescape").split("\n")
    cut = len(head) < message.size or len(lines) > BODY_LINES
    note = f"  (the beginning; all of it: dirqueue cat {queue.path} {message.id})" if cut else ""
    _block("body", "\n".join(lines[:BODY_LINES]), output.one_line(note))

"""Arguments that many verbs share, and the queue they mean.

Layer: edges.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dirqueue.errors import QueueNotFound

if TYPE_CHECKING:
    from datetime import datetime

    from dirqueue.message import Message
    from dirqueue.queue import Queue

#: Where relative queue names are looked for.
VARIABLE = "DIRQUEUE_DIR"
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def verb(
    subparsers: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    help: str,
    *,
    description: str = "",
    queue: bool = True,
    creates: bool = False,
    aliases: tuple[str, ...] = (),
) -> argparse.ArgumentParser:
    """Add one verb; most have a queue as their first argument."""
    text = help[0].upper() + help[1:] + "."
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=help, description=f"{text} {description}".strip(), aliases=aliases
    )
    parser.set_defaults(run=run, creates=creates)
    if queue:
        parser.add_argument("queue", metavar="QUEUE", help="the directory or file of the queue")
    return parser


def json_option(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="one JSON object per line")


def table_option(parser: argparse.ArgumentParser) -> None:
    """Add --json and --table."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="one JSON object per line")
    how.add_argument("--table", action="store_true", help="a table, as on a terminal")


def flag(parser: argparse.ArgumentParser, *names: str, help: str) -> None:
    """Add an option that is true where it stands, and may be followed by true or false; see `main.Parser`."""
    parser.add_argument(
        *names, nargs="?", const=True, default=False, type=_truth, metavar="true|false", help=help
    )


def raw_option(parser: argparse.ArgumentParser) -> None:
    """Add --raw."""
    parser.add_argument(
        "--raw", action="store_true", help="do not escape control characters of bodies on a terminal"
    )


def base() -> str:
    """Return the directory that relative queues are in."""
    return os.environ.get(VARIABLE) or "."


def path_of(name: str) -> str:
    """Return the path of a queue's name: relative ones are in $DIRQUEUE_DIR, except ./here and ../there."""
    base = os.environ.get(VARIABLE)
    if not base or not name or os.path.isabs(name) or name.split("/", 1)[0] in (".", ".."):
        return name
    return os.path.join(base, name)


def open_queue(
    name: str, *, create: bool = False, into: bool = False, resolve: bool = True, **settings: Any
) -> Queue[bytes]:
    """Open a queue for a verb.

    One that is missing is an error unless `create`, and a directory that is no queue is one, unless messages go `into`
    it and no queues are below it. With `resolve`, see `path_of`.
    """
    from dirqueue.queue import Queue

    path = path_of(name) if resolve else name
    try:
        queue = Queue(path, create=create, **settings)
    except QueueNotFound as error:
        from dirqueue.tools import conversion

        raise conversion.explained(error) from None
    if not into or _may_be_root(queue.path):
        from dirqueue.tools import discover

        (discover.refuse_root if into else discover.need_queue)(queue.path)
    return queue


def _may_be_root(path: str) -> bool:
    """Return whether a look into a directory can tell that messages are meant for a queue below it.

    COST: two calls, and no module more, for a put into a new queue, or a native one that was used.
    """
    from dirqueue.layouts.native.names import LEASED_ROOM

    return os.path.exists(path) and not os.path.lexists(os.path.join(path, LEASED_ROOM))


def described(message: Message[bytes], *, body: bool = True) -> dict[str, Any]:
    """Return a message as JSON shows it: text as `body`, bytes that are not UTF-8 as `body_base64`."""
    fields = message.to_dict()
    fields["handle"] = message.entry.place if message.state == "leased" else None
    if not body:
        fields.pop("trace")
    else:
        data = message.data
        try:
            fields["body"] = data.decode()
        except UnicodeDecodeError:
            import base64

            fields["body_base64"] = base64.b64encode(data).decode()
    return fields


def seconds(text: str) -> float:
    """Read a duration: seconds, or a number with s, m, h or d."""
    unit = _UNITS.get(text[-1:].lower())
    try:
        return float(text) if unit is None else float(text[:-1]) * unit
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: write 90, 90s, 5m, 2h or 1d") from None


def moment(text: str) -> datetime:
    """Read an instant in ISO 8601; one without a time zone is local time."""
    import datetime as dt

    try:
        return dt.datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an instant: write 2027-01-01T06:00 for local time, or 2027-01-01T06:00Z"
        ) from None


def pair(text: str) -> tuple[str, str]:
    """Read NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def whole(text: str) -> int:
    """Read a whole number of at least 1."""
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")


def at_least_0(text: str) -> int:
    """Read a whole number, 0 included."""
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")


def _truth(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")

"""The verb `settings`: what a queue goes by, where that comes from, and changing it.

Layer: edges.  Touches: queue.json, by `Queue.configure`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dirqueue import settings as settings_
from dirqueue import stored_settings
from dirqueue.cli import output
from dirqueue.cli.arguments import open_queue, seconds, table_option, verb
from dirqueue.cli.exits import Exit
from dirqueue.errors import SettingsError
from dirqueue.layouts import describe, signs

if TYPE_CHECKING:
    from dirqueue.queue import Queue

COLUMNS = ("setting", "value", "source", "changeable")
#: What takes a setting back to its default.
DEFAULT = "default"
WORDS = {"yes": True, "no": False}


def add(subparsers: Any) -> None:
    """Add the verb."""
    parser = verb(
        subparsers,
        "settings",
        settings,
        "show the settings of a queue, or change them",
        description="Without a value: what is in force for whoever opens the queue without settings of their own, and "
        "where that comes from. With NAME=VALUE: the queue keeps it from now on, for everybody. Workers and consume() "
        f"take it up within a second. NAME={DEFAULT} takes it back to the default.",
    )
    parser.add_argument(
        "words",
        metavar="NAME[=VALUE]",
        nargs="*",
        help="a setting to show, or to change; durations may be written 90s, 5m, 2h, 1d",
    )
    table_option(parser)


def settings(args: argparse.Namespace) -> int:
    """Show settings, or change them."""
    changes, reset, shown = _sorted(args.words)
    queue = open_queue(args.queue)
    if changes or reset:
        signs.need_queue(queue.path, "configured")
        before = queue.settings
        after = queue.configure(reset=reset, **changes)
        if before == after:
            output.complain("nothing has changed: the queue goes by that already")
        else:
            output.complain(
                "changed; workers and consume() take it up within a second, programs that call get() by "
                "themselves when they open the queue again or call refresh()"
            )
        shown += [*changes, *reset]
    output.records(_rows(queue, shown or settings_.NAMES), COLUMNS, args)
    return Exit.OK


def _sorted(words: list[str]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the settings to change, those to take back, and those to show."""
    changes: dict[str, Any] = {}
    reset, shown = [], []
    for word in words:
        name, equals, text = word.partition("=")
        settings_.check_name(name)
        if not equals:
            shown.append(name)
        elif text == DEFAULT:
            reset.append(name)
        else:
            changes[name] = _value(name, text)
    return changes, reset, shown


def _value(name: str, text: str) -> Any:
    """Read a value as JSON would, yes and no as shown, a duration with its unit; anything else is text."""
    if text in WORDS:
        return WORDS[text]
    try:
        return json.loads(text)
    except ValueError:
        pass
    if isinstance(getattr(settings_.Settings(), name), float):
        try:
            return seconds(text)
        except argparse.ArgumentTypeError as error:
            raise SettingsError(f"{name}: {error}") from None
    return text


def _rows(queue: Queue[bytes], names: Iterable[str]) -> Iterator[dict[str, Any]]:
    kept = stored_settings.stored(queue.layout.directory) or {}
    layout = describe(queue.layout.name)
    for name in dict.fromkeys(names):
        source = settings_.FILE if name in kept else layout.name if name in layout.defaults else "default"
        yield {
            "setting": name,
            "value": layout.name if name == "layout" else getattr(queue.settings, name),
            "source": "recognised" if name == "layout" and name not in kept else source,
            "changeable": layout.keeps_settings and name not in settings_.FIXED,
        }

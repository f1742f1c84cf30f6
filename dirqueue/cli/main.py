"""Which verbs there are, and how one command runs from its words to its exit status.

Layer: edges.
A verb module has `add(subparsers)`, which adds its verbs with `arguments.verb`, and one function per verb that takes
the namespace and returns an exit status. Only the module of the verb that is used gets imported.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from dirqueue import __version__
from dirqueue.cli import output
from dirqueue.cli.output import Exit
from dirqueue.settings import FORMAT

#: Verb modules in the order of the help, and the verbs each has. One that is not installed is left out.
MODULES: dict[str, tuple[str, ...]] = {
    "put": ("put",),
    "get": ("get",),
    "lease": ("ack", "retry", "release", "reject", "renew"),
    "inspect": ("peek", "cat", "ls"),
    "move": ("mv",),
    "work": ("work",),
    "queues": ("create", "delete", "clear", "flush", "list"),
    "count": ("stat", "stats", "shape"),
    "monitor": ("monitor", "top"),
    "metrics": ("metrics",),
    "web": ("web",),
    "maintain": ("redrive", "purge"),
    "convert": ("convert",),
    "check": ("check", "doctor"),
    "spark": ("spark",),
    "completion": ("completion",),
}

EPILOG = "A queue is a directory; a relative one is looked for in $DIRQUEUE_DIR, if that is set."


class Formatter(argparse.HelpFormatter):
    """Help as wide as the terminal, asked without shutil: argparse makes one of these for every argument."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_width())


@functools.cache
def _width() -> int:
    try:
        return min(120, os.get_terminal_size(1).columns - 2)
    except OSError:
        return 78


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one sentence."""

    def __init__(self, **how: Any) -> None:
        super().__init__(formatter_class=Formatter, **how)

    def error(self, message: str) -> NoReturn:
        verb = self.prog.partition(" ")[2]
        output.complain(f"{verb + ': ' if verb else ''}{message} (see {self.prog} --help)")
        sys.exit(Exit.USAGE)


def build(verb: str | None = None) -> Parser:
    """Return the whole parser, or one that knows a single verb, which is all that running it takes."""
    parser = Parser(prog="dirqueue", description="A work queue that is just a directory.", epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"dirqueue {__version__} (format {FORMAT})")
    subparsers = parser.add_subparsers(metavar="VERB", required=True, parser_class=Parser)
    for module, verbs in MODULES.items():
        if verb is None or verb in verbs:
            found = _load(module)
            if found is not None:
                found.add(subparsers)
    return parser


def _load(name: str) -> Any:
    module = f"{__package__}.{name}"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command; every way out is an exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    known = words and any(words[0] in verbs for verbs in MODULES.values())
    creates = False
    try:
        args = build(words[0] if known else None).parse_args(words)
        creates = getattr(args, "creates", False)
        status = int(args.run(args))
        output.finish()
        return status
    except SystemExit as stop:  # argparse: --help, --version and usage
        return stop.code if isinstance(stop.code, int) else Exit.OK
    except BaseException as error:  # noqa: BLE001 - the one place where every error ends
        return output.failed(error, creates=creates)

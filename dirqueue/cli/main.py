"""The verbs, and how one command runs from its arguments to its exit status.

Layer: edges.
A verb module has `add(subparsers)`, which adds its verbs with `arguments.verb`, and one function per verb that takes
the namespace and returns an exit status. Only the module of the verb in use is imported.
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
from dirqueue.cli import exits, output
from dirqueue.cli.exits import Exit
from dirqueue.settings import FORMAT

#: Verb modules in the order of the help, and the verbs of each. One that is not installed is left out.
MODULES: dict[str, tuple[str, ...]] = {
    "put": ("put",),
    "get": ("get",),
    "lease": ("ack", "retry", "release", "reject", "renew"),
    "inspect": ("peek", "cat", "ls"),
    "message": ("show", "change", "rm", "cancel"),
    "move": ("mv",),
    "work": ("work",),
    "queues": ("create", "delete", "clear", "flush", "list"),
    "settings": ("settings",),
    "count": ("stat", "stats", "shape"),
    "monitor": ("monitor", "top"),
    "metrics": ("metrics",),
    "web": ("web",),
    "maintain": ("redrive", "purge"),
    "pause": ("pause", "resume"),
    "wait": ("wait",),
    "space": ("space",),
    "convert": ("convert",),
    "export": ("export", "import"),
    "edit": ("edit",),
    "check": ("check", "doctor"),
    "entroq": ("entroq",),
    "spark": ("spark",),
    "completion": ("completion",),
}

EPILOG = (
    "A queue is a directory, or a text file; a relative one is looked for in $DIRQUEUE_DIR, if that is set."
)


class Formatter(argparse.HelpFormatter):
    """Help as wide as the terminal, found without shutil: argparse makes a formatter for every argument."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_width())


@functools.cache
def _width() -> int:
    try:
        return min(120, os.get_terminal_size(1).columns - 2)
    except OSError:
        return 78


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, and whose options may stand anywhere among the arguments."""

    def __init__(self, **how: Any) -> None:
        super().__init__(formatter_class=Formatter, **how)
        self._mixing = False
        #: The argument that all that follows `--` belongs to, if there is one.
        self.command = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse what is before `--`, and leave what follows as it is, if that is a command."""
        if not self.command or args is None or "--" not in args:
            return self._parse(args, namespace)
        end = args.index("--")
        found, extra = self._parse(args[:end], namespace)
        setattr(found, self.command, args[end + 1 :])
        return found, extra

    def _parse(self, args: Any, namespace: Any) -> Any:
        """Parse the options first where a list of arguments follows, which argparse would end at an option."""
        args = self._with_values(sys.argv[1:] if args is None else args)
        lists = [action for action in self._get_positional_actions() if action.nargs in ("*", "+", "?")]
        if self._mixing or not lists or self._takes_the_rest():
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False

    def _with_values(self, words: Sequence[str]) -> list[str]:
        """Give a flag that may have a value its own: argparse would take what follows, which may be the queue."""
        flags = {
            name
            for action in self._get_optional_actions()
            if action.nargs == "?" and action.const is True
            for name in action.option_strings
        }
        found: list[str] = []
        for word in words:
            if not found or found[-1] not in flags:
                found.append(word)
            elif word.lower() in ("true", "false"):
                found[-1] += f"={word}"
            else:
                found[-1:] = [f"{found[-1]}=true", word]
        return found

    def _takes_the_rest(self) -> bool:
        """Return whether an argument is a command with options of its own."""
        rest = (argparse.REMAINDER, argparse.PARSER)
        return any(action.nargs in rest for action in self._get_positional_actions())

    def error(self, message: str) -> NoReturn:
        verb = self.prog.partition(" ")[2]
        output.complain(f"{verb + ': ' if verb else ''}{message} (see {self.prog} --help)")
        sys.exit(Exit.USAGE)


def build(verb: str | None = None) -> Parser:
    """Return the whole parser, or one with a single verb, which is enough to run it."""
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
    """Run one command and return its exit status, whatever happens."""
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
        return _failed(error, exits.status_of(error, creates=creates))


def _failed(error: BaseException, status: Exit) -> int:
    """Report an error on stderr; return its exit status."""
    if status is Exit.PIPE:
        output.abandon_stdout()
    elif status is not Exit.INTERRUPTED:
        if os.environ.get("DIRQUEUE_TRACE"):
            import traceback

            traceback.print_exception(error)
        output.complain(exits.sentence_of(error))
    return status

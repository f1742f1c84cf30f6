"""The verb `completion`: a script for completion in the shell.

Layer: edges.  Needs the extra `cli`.
"""

from __future__ import annotations

import argparse
from typing import Any

from dirqueue.cli import output
from dirqueue.cli.arguments import verb
from dirqueue.cli.exits import Exit

SHELLS = ("bash", "zsh", "tcsh")
#: Arguments that name files or directories, so that the shell offers them.
_FILES = ("file",)
_DIRECTORIES = ("queue", "queues", "target", "root", "paths", "directory", "also")


def add(subparsers: Any) -> None:
    """Add the verb."""
    parser = verb(
        subparsers,
        "completion",
        completion,
        "print a completion script for the shell",
        description='For bash: eval "$(dirqueue completion bash)".',
        queue=False,
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def completion(args: argparse.Namespace) -> int:
    """Print the script."""
    from dirqueue.cli.main import build

    shtab = output.need("shtab", "cli")
    parser = build()
    for each in verbs_of(parser).values():
        for action in each._actions:  # noqa: SLF001 - argparse has no other way to ask
            if action.dest in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.dest in _DIRECTORIES:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    output.line(shtab.complete(parser, args.shell))
    return Exit.OK


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each verb, by all its names."""
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return dict(action.choices)
    return {}

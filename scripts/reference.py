"""Write docs/reference/{cli,exit-status,check}.md and docs/man/dirqueue.1 from the parser; `--check` compares."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path

from dirqueue import __version__
from dirqueue.cli.completion import verbs_of
from dirqueue.cli.exits import Exit
from dirqueue.cli.main import build
from dirqueue.tools import check

DOCS = Path(__file__).parents[1] / "docs"
NOTE = "<!-- made by scripts/reference.py; edit the parser -->\n"

Verb = tuple[list[str], argparse.ArgumentParser]

#: A bar inside a table.
_BAR = "\\|"

ENVIRONMENT = {
    "DIRQUEUE_DIR": "where relative queue names are looked for; ./here and ../there are not",
    "NO_COLOR": "if set, no colours on a terminal",
    "DIRQUEUE_TRACE": "if set, an error shows where in the program it came from",
}
FILES = {
    "ID": "a message that is ready",
    "ID.UNTIL.N": "delayed: claimable from UNTIL on, delivered N times so far",
    "ID.UNTIL.N.TOKEN": "leased: the Nth delivery, held by TOKEN until UNTIL",
    "ID.new, ID.batch.new/": "being written",
    "ID.batch/, ID.slice/": "directories of messages",
    "dead/": "rejected, or out of attempts",
    "done/": "acknowledged, where the queue keeps them",
    "queue.json": "settings, if the queue was created with some",
}
ASSUMPTIONS = (
    "The filesystem has atomic rename within a directory (dirqueue doctor finds out). "
    "All hosts see one directory; their clocks need not agree. "
    "Who can write to the directory can do everything to the queue. "
    "A message may be delivered twice (a consumer that was too slow, or died after the work): make the work repeatable."
)


def main() -> int:
    """Write, or compare."""
    pages = {
        "reference/cli.md": cli(),
        "reference/exit-status.md": exit_status(),
        "reference/check.md": codes(),
        "man/dirqueue.1": man(),
    }
    stale = [name for name, text in pages.items() if not _same(DOCS / name, text)]
    if "--check" in sys.argv:
        for name in stale:
            print(f"docs/{name} is out of date: run scripts/reference.py")
        return 1 if stale else 0
    for name, text in pages.items():
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(text)
    return 0


def _same(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


# --- what the parser says, in words of our own: argparse's own layout differs between versions of Python ------


def verbs(above: argparse.ArgumentParser | None = None, prefix: str = "") -> list[Verb]:
    """Each verb with its other names, and verbs of verbs after them."""
    found: dict[int, Verb] = {}
    for name, each in verbs_of(above or build()).items():
        found.setdefault(id(each), ([], each))[0].append(prefix + name)
    return [
        every for names, each in found.values() for every in [(names, each), *verbs(each, f"{names[0]} ")]
    ]


def actions(each: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments of a verb, without --help."""
    return [action for action in each._actions if action.help and action.dest != "help"]


def words(action: argparse.Action) -> str:
    """How an argument is written."""
    if not action.option_strings:
        return str(action.metavar or action.dest)
    value = ""
    if action.nargs != 0:
        value = " " + (action.metavar if isinstance(action.metavar, str) else "|".join(action.choices or ()))
    return ", ".join(action.option_strings) + value


def positional(action: argparse.Action) -> str:
    """How a positional argument stands in the synopsis."""
    name = str(action.metavar or "|".join(action.choices or ()) or action.dest)
    return {"*": f"[{name}...]", "+": f"{name}...", "?": f"[{name}]", "...": f"[{name}...]"}.get(
        str(action.nargs), name
    )


def synopsis(name: str, each: argparse.ArgumentParser) -> str:
    """One line: the verb, its arguments, its options."""
    found = actions(each)
    parts = [positional(action) for action in found if not action.option_strings]
    options = " [OPTION...]" if any(action.option_strings for action in found) else ""
    return " ".join(["dirqueue", name, *parts]) + options


def exits() -> list[tuple[int, str, str]]:
    """Number, name and meaning of each exit status."""
    rows = re.findall(r"^    (\w+) = (\d+)  #: (.*)$", inspect.getsource(Exit), re.MULTILINE)
    return [(int(number), name, meaning) for name, number, meaning in rows]


# --- pages ---------------------------------------------------------------------------------------------------


def cli() -> str:
    """Every verb."""
    parts = [
        f"# The command line\n\n{NOTE}",
        (
            "`dirqueue VERB ...`, or `python -m dirqueue VERB ...`. Data goes to stdout, talk to stderr; a table on a\n"
            "terminal, tab-separated lines elsewhere, with `--json` [one object per line](json.md). Durations are\n"
            "seconds, or a number with `s`, `m`, `h` or `d`. The outcome is the [exit status](exit-status.md).\n"
        ),
        "| variable | |\n|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in ENVIRONMENT.items()),
        "",
    ]
    for names, each in verbs():
        parts.append(
            f"## {' · '.join(names)}\n\n```text\n{synopsis(names[0], each)}\n```\n\n{each.description}\n"
        )
        rows = [
            f"| `{words(action).replace('|', _BAR)}` | {(action.help or '').replace('|', _BAR)} |"
            for action in actions(each)
        ]
        if rows:
            parts.append("| argument | |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def exit_status() -> str:
    """The table of exit statuses."""
    rows = "\n".join(f"| {number} | {meaning} |" for number, _, meaning in exits())
    return (
        f"# Exit status\n\n{NOTE}\nThe same for every verb, so that scripts can tell what happened.\n\n"
        f"| status | meaning |\n|---|---|\n{rows}\n\n"
        "An error is one sentence on stderr that begins with `dirqueue: `. The numbers from 64 to 78 are those of\n"
        "sysexits.h.\n"
    )


def codes() -> str:
    """What check knows."""
    rows = "\n".join(
        f"| {code} | {problem.name} | {problem.level} | {problem.meaning} | {problem.cure} |"
        for code, problem in check.CODES.items()
    )
    return (
        f"# What `dirqueue check` finds\n\n{NOTE}\n"
        "Only problems make its exit status 5; notes do no harm, and a queue in use\n"
        "often has some. `--repair` does what the last column says it does and nothing else.\n\n"
        f"| code | name | level | meaning | cure |\n|---|---|---|---|---|\n{rows}\n"
    )


def man() -> str:
    """The manual page."""
    lines = [
        '.\\" made by scripts/reference.py; edit the parser',
        f'.TH DIRQUEUE 1 "" "dirqueue {__version__}" "User Commands"',
        ".SH NAME",
        "dirqueue \\- a work queue that is just a directory",
        ".SH SYNOPSIS",
        ".B dirqueue",
        ".I VERB",
        "[\\fIARGUMENT\\fR...]",
        ".SH DESCRIPTION",
        (
            "A queue is a directory, and a message is a file in it whose name says what it is doing. Data goes "
            "to stdout, talk to stderr. On a terminal a table is shown, elsewhere tab-separated lines, with "
            "\\-\\-json one object per line. Durations are seconds, or a number with s, m, h or d."
        ),
        ".SH VERBS",
    ]
    for names, each in verbs():
        lines += [".SS " + roff(synopsis(names[0], each)), roff(str(each.description))]
        if len(names) > 1:
            lines += [".br", "Also: " + roff(", ".join(names[1:])) + "."]
        for action in actions(each):
            lines += [".TP", f".B {roff(words(action))}", roff(str(action.help))]
    lines.append(".SH EXIT STATUS")
    for number, _, meaning in exits():
        lines += [".TP", f".B {number}", roff(meaning)]
    for title, table in (("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)):
        lines.append(f".SH {title}")
        for name, meaning in table.items():
            lines += [".TP", f".B {roff(name)}", roff(meaning)]
    lines += [".SH ASSUMPTIONS", roff(ASSUMPTIONS)]
    return "\n".join(lines) + "\n"


def roff(text: str) -> str:
    """Text as roff takes it."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    sys.exit(main())

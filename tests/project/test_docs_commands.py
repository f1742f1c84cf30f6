"""Every `dirqueue ...` in the README and the docs is a command that the real parser takes."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dirqueue.cli import main

ROOT = Path(__file__).parents[2]
#: Made from the parser itself, or figures that no one types.
GENERATED = {"docs/reference/cli.md", "docs/reference/check.md", "docs/benchmarks.md", "docs/mutants.md"}
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    if str(page.relative_to(ROOT)) not in GENERATED
)
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Fences that people type from; `text output` shows what a command printed.
TYPED = {"console", "console compare", "text", "sh"}
SPAN = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"(?:^|[\s(=/])dirqueue\s+(?=[-a-z])")
#: What a page may call the thing in the place of a parser's placeholder.
PLACEHOLDERS = {"QUEUE": {"QUEUE", "DIR", "DIRECTORY"}}
#: Options of other programs that pages name: make's, pytest's, Spark's, mount's, and scripts/campaign.py's.
OTHERS = {
    "--basetemp",
    "--randomly-seed",
    "--py-files",
    "--archives",
    "-ousetrash",
    "--only",
    "--scale",
    "--campaign",
}


class Refused(Exception):
    """What the parser says."""


class Command(NamedTuple):
    """The words after `dirqueue`: a whole command, or one that is only mentioned, as in `dirqueue ls --json`."""

    words: list[str]
    whole: bool


def words_of(text: str) -> list[str]:
    """Return the words up to the end of one shell command; what follows it, or encloses it, is left out."""
    words: list[str] = []
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.wordchars += ":"
    lexer.commenters = ""
    try:
        for word in lexer:
            if set(word) <= set("|;&()<>\n") or word == "...":
                break
            words.append(word)
    except ValueError:  # the quote that the command is in
        pass
    return words


def commands(text: str) -> Iterator[Command]:
    """Yield the commands of a page: in fences line by line, in spans as they are."""
    verbs = {verb for each in main.MODULES.values() for verb in each}
    for mark, fence in FENCE.findall(text):
        for line in (fence if mark in TYPED else "").replace("\\\n", " ").splitlines():
            for match in COMMAND.finditer(line):
                yield Command(words_of(line[match.end() :]), whole=True)
    for span in SPAN.findall(FENCE.sub("", text)):
        if match := COMMAND.match(f" {span}"):
            yield Command(words_of(span[match.end() - 1 :]), whole=False)
        elif span.split()[0] in verbs and " -" in span:
            yield Command(words_of(span), whole=False)


def parser_of(words: list[str]) -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the parser of the verb (and the verb's own verb) that words begin with, and the rest of the words."""
    parser: argparse.ArgumentParser = main.build()
    while True:
        inner = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        if not inner or not words:
            return parser, words
        if words[0].startswith("-"):
            return parser, words
        if words[0] not in inner[0].choices:
            raise Refused(f"there is no verb {words[0]!r}")
        parser, words = inner[0].choices[words[0]], words[1:]


def check(command: Command) -> None:
    """Raise Refused if the real parser would not take it."""
    parser, rest = parser_of(command.words)
    known = parser._option_string_actions
    for word in rest:
        if word == "--":
            break
        option = word.partition("=")[0] if word.startswith("--") else word[:2]
        if word.startswith("-") and len(word) > 1 and option not in known:
            raise Refused(f"{parser.prog} has no option {option!r}")
    try:
        values = vars(parser.parse_args(rest))
    except SystemExit:  # --version, --help
        return
    except Refused as error:
        if command.whole or not re.search("required|expected", str(error)):
            raise
        return
    for action in parser._get_positional_actions():
        allowed, value = PLACEHOLDERS.get(str(action.metavar)), values.get(action.dest)
        if allowed and isinstance(value, str) and value.isupper() and value not in allowed:
            raise Refused(f"{value} stands where {parser.prog} takes {action.metavar}")


@pytest.fixture(autouse=True)
def _complaints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the parser raise what it would print."""

    def error(parser: argparse.ArgumentParser, message: str) -> None:
        raise Refused(f"{parser.prog}: {message}")

    monkeypatch.setattr(main.Parser, "error", error)


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_are_taken_by_the_parser(page: str) -> None:
    """Verbs, options, and in fences all of it."""
    wrong = []
    for command in commands((ROOT / page).read_text()):
        try:
            check(command)
        except Refused as error:
            wrong.append(f"dirqueue {' '.join(command.words)}: {error}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_options_that_a_page_names_exist(page: str) -> None:
    """An option alone in a span belongs to some verb."""
    known = set(OTHERS)
    todo: list[argparse.ArgumentParser] = [main.build()]
    while todo:
        parser = todo.pop()
        known |= parser._option_string_actions.keys()
        for each in parser._actions:
            if isinstance(each, argparse._SubParsersAction):
                todo += each.choices.values()
    spans = SPAN.findall(FENCE.sub("", (ROOT / page).read_text()))
    named = {re.split(r"[\s=]", span)[0] for span in spans if re.match(r"--?[a-z]", span)}
    assert named - known == set()


@pytest.mark.parametrize(
    "text",
    [
        "`dirqueue put --move FILE`",
        "`dirqueue ls QUEUE --colour`",
        "`dirqueue frobnicate QUEUE`",
        "`ls --stat dead`",
        "`dirqueue spark drain QUEUE --nothing`",
        "```console\n$ echo a | dirqueue put\n```\n",
        '```text\nx="$(dirqueue get q --holding)"\n```\n',
        "```text\n*/5 * * * *  dirqueue work q --until-full -- send-mail\n```\n",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(text: str) -> None:
    """The control: each of these is wrong in one way."""
    [command] = commands(text)
    with pytest.raises(Refused):
        check(command)


@pytest.mark.parametrize(
    "text",
    [
        "`dirqueue put QUEUE --move --file FILE`",
        "`dirqueue work -j`",
        "`redrive --match --limit --dry-run`",
        '```console\n$ test "$(dirqueue stat orders --json | cut -d: -f2)" = 0\n```\n',
        "```text\ndirqueue work q --until-empty -- sh -c 'exit 65' --no-such-option-of-ours\n```\n",
    ],
)
def test_a_command_that_exists_is_taken(text: str) -> None:
    """What is only mentioned may be incomplete; what follows `--` is another program's."""
    for command in commands(text):
        check(command)

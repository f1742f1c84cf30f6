"""How the command behaves beside its answers: terminals, colours, start-up, where queues are looked for."""

import argparse
import json
import os
import re
import subprocess
import sys
import unicodedata

import pytest
from support.running import command, environment
from support.terminal import on_a_terminal

from dirqueue import Queue, __version__
from dirqueue.__main__ import main as dirqueue
from dirqueue.cli import main, output


def test_a_terminal_gets_a_table_in_colour(queue):
    """A header in bold; without a terminal there is none."""
    queue.put(b"x")
    status, shown = on_a_terminal("ls", queue.path)
    assert status == 0
    assert "\x1b[1mID" in shown


def test_no_color_is_respected(queue):
    """The same table without escapes."""
    queue.put(b"x")
    shown = on_a_terminal("ls", queue.path, NO_COLOR="1")[1]
    assert shown.startswith("ID ")
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("answer", "status", "left"), [(b"n\n", 1, True), (b"\n", 1, True), (b"y\n", 0, False)]
)
def test_delete_asks_on_a_terminal(queue, answer, status, left):
    """Anything but yes is no."""
    queue.put(b"x")
    done, shown = on_a_terminal("delete", queue.path, answer=answer)
    assert "with 1 messages? [y/N]" in shown
    assert done == status
    assert os.path.exists(queue.path) == left


def test_a_batch_shows_progress_on_a_terminal_only(queue, real):
    """And the ids are the same lines as ever."""
    status, shown = on_a_terminal("put", queue.path, "a", "b")
    assert status == 0
    assert len(set(re.findall(r"\d{25}", shown))) == 2
    assert real("put", queue.path, "a", "b").err == ""


def test_progress_without_rich_is_silent(monkeypatch, capsys):
    """The bar is an extra; without it the work is the same."""
    monkeypatch.setattr(output, "on_terminal", lambda stream=None: True)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with output.progress("x", 3) as step:
        step()
    assert capsys.readouterr() == ("", "")


def test_progress_with_rich_draws_a_bar(monkeypatch, capsys):
    """On stderr, so that the data stays clean."""
    pytest.importorskip("rich")
    monkeypatch.setattr(output, "on_terminal", lambda stream=None: True)
    with output.progress("counting", 3) as step:
        step()
    assert capsys.readouterr().out == ""


# --- start-up ------------------------------------------------------------------------------------------------

#: What the start of `dirqueue put` must never load: slow, or somebody else's.
HEAVY = {
    "asyncio", "concurrent.futures", "dirqueue.cli.get", "dirqueue.tools",
    "filelock", "inotify_simple", "logging", "rich", "shtab", "subprocess", "tempfile", "traceback",
}  # fmt: skip


def test_put_imports_argparse_and_what_a_queue_needs(tmp_path):
    """No other verb, no extra, nothing slow: six modules of its own beside argparse and the library's."""
    count = "import sys; from dirqueue.__main__ import main; code = main(['put', 'q', 'x']); "
    done = subprocess.run(
        [sys.executable, "-c", count + "print(code, *sys.modules, file=sys.stderr)"],
        env=environment(), cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    code, *loaded = done.stderr.split()
    assert code == "0"
    assert not HEAVY & set(loaded)
    library = subprocess.run(
        [sys.executable, "-c", "import sys, argparse, dirqueue; dirqueue.Queue('q').put(b'x'); print(*sys.modules)"],
        env=environment(), cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    extra = set(loaded) - set(library.stdout.split()) - {"_locale", "locale"}  # argparse's own
    assert extra == {"dirqueue.__main__"} | {
        f"dirqueue.cli{name}" for name in ("", ".arguments", ".exits", ".main", ".output", ".put")
    }


def test_a_verb_loads_its_own_module_only():
    """The parser for one verb knows that verb only."""
    from dirqueue.cli.completion import verbs_of

    assert list(verbs_of(main.build("put"))) == ["put"]
    assert {"put", "get", "stat", "stats", "doctor"} <= set(verbs_of(main.build()))


def test_the_table_of_modules_has_every_verb():
    """Else a verb would not be found without the others."""
    from dirqueue.cli.completion import verbs_of

    for module, verbs in main.MODULES.items():
        if main._load(module) is not None:
            assert set(verbs_of(main.build(verbs[0]))) == set(verbs)


def test_python_m_dirqueue_and_the_script_are_one():
    """The entry point is the same function."""
    import tomllib

    from support.running import ROOT

    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"dirqueue": "dirqueue.__main__:main"}
    done = subprocess.run(command("--version"), env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == f"dirqueue {__version__} (format 1)\n"


def test_help_is_there_for_every_verb(capsys):
    """Each has a description, and each argument says what it is."""
    from dirqueue.cli.completion import verbs_of

    assert dirqueue(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, each in verbs_of(main.build()).items():
        assert name in shown
        assert each.description.endswith(".")
        options = [action for action in each._actions if not isinstance(action, argparse._SubParsersAction)]
        assert all(action.help for action in options), name


# --- where queues are ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "base"), [("q", "dir"), ("./q", "here"), ("../here/q", "here"), ("{}/abs", "")]
)
def test_dirqueue_dir_is_for_plain_relative_names(dq, tmp_path, monkeypatch, name, base):
    """A name with ./ or ../ is what it says, and so is an absolute one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("DIRQUEUE_DIR", str(tmp_path / "dir"))
    assert dq("put", name.format(tmp_path), "x").status == 0
    assert len(Queue(tmp_path / base / os.path.basename(name), create=False)) == 1


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("5m", 300), ("2H", 7200), ("1d", 86400)]
)
def test_durations(text, seconds):
    """Seconds, or a number with a unit."""
    from dirqueue.cli import arguments

    assert arguments.seconds(text) == seconds


def test_completion_scripts_know_the_verbs(dq):
    """For each shell, made by shtab; bash takes its own."""
    pytest.importorskip("shtab")
    for shell in ("bash", "zsh", "tcsh"):
        done = dq("completion", shell)
        assert done.status == 0
        assert "redrive" in done.out
    script = dq("completion", "bash").out
    assert subprocess.run(["bash", "-n"], input=script.encode(), check=False).returncode == 0


def test_closed_streams_are_no_defect(tmp_path):
    """`>&-` and `2>&-`: the message is put, and nothing else happens."""
    words = " ".join(command("put", tmp_path / "q", "x", "-q"))
    for closed in (">&-", "2>&-", "<&-"):
        assert subprocess.run(f"{words} {closed}", shell=True, env=environment(), check=False).returncode == 0
    assert len(Queue(tmp_path / "q")) == 3


def test_json_is_one_object_per_line_everywhere(dq, queue):
    """Every verb that has --json prints lines that parse, with the documented keys only."""
    from support.running import ROOT

    contract = (ROOT / "docs" / "reference" / "json.md").read_text()
    queue.put(b"x")
    queue.put(b"dead")
    queue.put(b"held")
    for verb in ("peek", "ls", "stat", "shape", "purge", "check", "get"):
        for line in dq(verb, queue.path, "--json").lines:
            for key in json.loads(line):
                assert f"`{key}`" in contract, f"docs/reference/json.md does not say what {key} of {verb} is"


# --- options anywhere ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["put", "{q}", "--delay", "5m", "hello"],
        ["put", "--delay", "5m", "{q}", "hello"],
        ["put", "{q}", "hello", "--delay", "5m"],
        ["put", "--json", "{q}", "--delay=5m", "hello", "-q"],
    ],
)
def test_put_takes_options_anywhere(dq, queue, words):
    """Before, between and after the queue and the bodies."""
    assert dq(*(word.format(q=queue.path) for word in words)).status == 0
    assert [message.data for message in queue.peek("delayed")] == [b"hello"]


def test_bodies_that_look_like_options_follow_two_dashes(dq, queue):
    """And options before the dashes are still options."""
    assert dq("put", queue.path, "--no-sync", "--", "--delay", "-x").status == 0
    assert sorted(message.data for message in queue.peek()) == [b"--delay", b"-x"]
    done = dq("put", queue.path, "--dleay", "5m", "x")
    assert (done.status, "unrecognized arguments: --dleay" in done.err) == (2, True)
    assert "QUEUE" in dq("put").err


def test_every_verb_with_a_list_of_arguments_takes_options_among_them(dq, queue, tmp_path):
    """Also where two arguments come before the list."""
    ids = [queue.put(b"%d" % number) for number in range(4)]
    assert dq("cat", queue.path, ids[0], "--json", ids[1]).status == 0
    assert (
        dq("mv", queue.path, "--limit", "9", tmp_path / "to", ids[0], "--state", "ready", ids[1]).lines
        == ids[:2]
    )
    handles = [dq("get", queue.path, "--hold").lines[0] for _ in range(2)]
    assert dq("retry", queue.path, handles[0], "--error", "no", handles[1], "--delay", "0").status == 0
    for _ in ids[2:]:
        queue.get(timeout=0).reject("no")
    assert sorted(dq("redrive", queue.path, ids[2], "--limit", "5", ids[3]).lines) == ids[2:]
    assert len(dq("stat", queue.path, "--json", tmp_path / "to").lines) == 2
    assert dq("purge", queue.path, "-v", tmp_path / "to").status == 0
    assert dq("get", queue.path, "--quiet", "--exec", "grep", "-q", ".").status == 0


# --- what a terminal may be sent -----------------------------------------------------------------------------

#: Clears the screen by ESC, by C1, turns the text around, rings, deletes; and letters that are two columns wide.
NASTY = "\x1b[2J\x9b2J\u202e\x07\x7f日本"
CONTROLS = {"\x1b", "\x9b", "\u202e", "\x07", "\x7f"}


@pytest.mark.parametrize("words", [["peek"], ["cat"], ["get"], ["get", "-n", "1"]])
def test_a_body_on_a_terminal_is_escaped_unless_raw(queue, words):
    """Line ends and tabs stay; a pipe and --raw get the bytes as they are."""
    id = queue.put(f"a\tb\n{NASTY}".encode() + b"\xff")
    verb, *options = words
    where = [queue.path, id] if verb == "cat" else [queue.path]
    status, shown = on_a_terminal(verb, *where, *options, NO_COLOR="1")
    assert status == 0
    assert not CONTROLS & set(shown)
    assert "\\x1b[2J\\x9b2J\\u202e\\x07\\x7f日本\\xff" in shown
    assert "a\tb\r\n" in shown or "a       b\r\n" in shown


def test_raw_and_pipes_get_bodies_as_they_are(queue, dq):
    """--raw is for people who want their terminal to obey."""
    body = f"{NASTY}\n".encode()
    queue.put(body)
    assert dq("peek", queue.path).out.encode("utf-8", "surrogateescape") == body
    assert "\x1b[2J" in on_a_terminal("peek", queue.path, "--raw")[1]


def test_names_with_control_characters_are_escaped_everywhere(dq, tmp_path):
    """In tables, tab-separated lines, JSON, errors and purge -v: no character controls a terminal."""
    root = tmp_path / "root"
    path = root / NASTY
    with Queue(path, sync=False) as queue:
        queue.put(NASTY)
        queue.get(timeout=0).reject(NASTY)
        queue.put(b"")
    for words in (
        ["list", root], ["list", root, "--table"], ["list", root, "--json"], ["stat", path, "--json"],
        ["ls", path, "--state", "all", "--json"], ["ls", path, "--state", "all", "--table"],
        ["purge", path, "-v"], ["purge", path, "--json"], ["monitor", root, "--once"],
        ["monitor", root, "--once", "--json"], ["check", path, "--table"], ["shape", path, "--by", "queue"],
        ["put", path, "--json", "x"], ["stat", path / "nope"], ["delete", path, "--dry-run"],
    ):  # fmt: skip
        done = dq(*words)
        assert done.out + done.err, words
        assert not CONTROLS & set(done.out + done.err), words
    assert json.loads(dq("list", root, "--json").out)["queue"] == str(path)


def test_json_of_a_name_that_is_not_utf8_is_valid(real, tmp_path):
    r"""Each byte that is not UTF-8 is the four letters \xHH: any reader of JSON takes it."""
    path = os.path.join(os.fsencode(tmp_path), b"q\xe9")
    os.mkdir(path)
    with Queue(os.fsdecode(path), sync=False) as queue:
        queue.put(b"x")
    for words in (["list", tmp_path], ["stat", os.fsdecode(path)], ["monitor", tmp_path, "--once"]):
        done = subprocess.run(command(*words, "--json"), env=environment(), capture_output=True, check=True)
        assert json.loads(done.stdout.decode("utf-8"))["queue"] == f"{tmp_path}/q\\xe9"
    assert f'queue="{tmp_path}/q\\\\xe9"' in real("metrics", tmp_path).out


def test_a_table_is_aligned_where_letters_are_two_columns_wide(dq, tmp_path):
    """East Asian letters take two columns, combining ones none."""
    for name in ("日本語", "abc", "e\u0301e\u0301"):
        Queue(tmp_path / name, sync=False).put(b"")
    head, *rows = dq("list", tmp_path, "--table").lines
    column = head.index("LAYOUT")
    for row in rows:
        before = row[: row.index("native")]
        wide = sum(unicodedata.east_asian_width(c) in "WF" for c in before)
        none = sum(bool(unicodedata.combining(c)) for c in before)
        assert len(before) + wide - none == column, row


def test_no_bar_is_drawn_over_lines_that_are_typed(queue):
    """`put --lines` at a terminal shows what is typed, and then the ids."""
    pytest.importorskip("rich")
    status, shown = on_a_terminal("put", queue.path, "--lines", answer=b"one\ntwo\n\x04")
    assert status == 0
    assert sorted(message.data for message in queue.peek()) == [b"one", b"two"]
    assert "\x1b" not in shown
    assert "━" not in shown

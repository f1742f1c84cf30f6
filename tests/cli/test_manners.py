"""How the command behaves beside its answers: terminals, colours, start-up, where queues are looked for."""

import argparse
import json
import os
import pty
import re
import subprocess
import sys

import pytest
from support.running import command, environment

from dirqueue import Queue, __version__
from dirqueue.__main__ import main as dirqueue
from dirqueue.cli import main, output


def on_a_terminal(*words, answer=b"", **extra):
    """Run the command with a terminal as its stdin, stdout and stderr; return its status and what was shown."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command(*words),
        env=environment(TERM="xterm", COLUMNS="120", **extra),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    if answer:
        os.write(master, answer)
    shown = b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # the other end is closed: it is over
            break
        if not data:
            break
        shown += data
    os.close(master)
    return process.wait(timeout=50), shown.decode()


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


def test_the_table_of_modules_tells_which_verbs_they_have():
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

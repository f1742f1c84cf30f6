"""`dirqueue space`: list, stats, find, purge, export, import; and mv between its queues."""

import json

import pytest

from dirqueue import Space
from dirqueue.cli.main import run as main


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command line; return its exit status, what it printed and what it complained."""
    monkeypatch.delenv("DIRQUEUE_DIR", raising=False)

    def run(*words):
        status = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "spool"
    with Space(root, sync=False) as space:
        space.put("a", b"one")
        space.put("a/b", b"two", id="order-17")
        space.put("c", b"three", delay=600)
    return root


def test_list(run, root):
    assert run("space", "list", root) == (0, "a\na/b\nc\n", "")
    assert run("space", "list", root, "--prefix", "a") == (0, "a\na/b\n", "")
    assert run("space", "list", root, "c", "none") == (0, "c\n", "")
    assert run("space", "list", root, "none") == (3, "", "")


def test_stats(run, root):
    status, out, err = run("space", "stats", root, "--json", "--limit", "2")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (status, err) == (0, "")
    assert [(row["queue"], row["ready"], row["total"]) for row in rows] == [("a", 1, 1), ("a/b", 1, 1)]
    assert run("space", "stats", root, "--table")[0] == 0
    assert run("space", "stats", root, "none")[0] == 3


def test_find(run, root):
    status, out, _ = run("space", "find", root, "order-17")
    assert status == 0
    assert out.startswith("a/b\t")
    assert out.endswith("two\n")
    status, out, _ = run("space", "find", root, "order-17", "--json", "--queue", "a/b")
    assert json.loads(out)["body"] == "two"
    status, out, err = run("space", "find", root, "order-18")
    assert (status, out) == (3, "")
    assert "there is no message 'order-18'" in err


def test_purge(run, root):
    assert run("space", "purge", root) == (0, "", "")
    assert run("space", "purge", root, "-v") == (0, "clean\n", "")
    assert json.loads(run("space", "purge", root, "--json")[1])["busy"] == 0


def test_export_and_import(run, root, tmp_path, monkeypatch):
    status, out, err = run("space", "export", root)
    assert (status, err, len(out.splitlines())) == (0, "", 3)
    assert run("space", "export", root, tmp_path / "copy") == (0, "", "")
    assert (tmp_path / "copy").read_text() == out
    status, _, err = run("space", "export", root, tmp_path / "copy")
    assert status != 0
    assert err.count("\n") == 1
    assert run("space", "import", tmp_path / "new", tmp_path / "copy") == (0, "3 put, 0 skipped\n", "")
    with open(tmp_path / "copy", encoding="ascii") as file:
        monkeypatch.setattr("sys.stdin", file)
        assert run("space", "import", tmp_path / "new") == (0, "2 put, 1 skipped\n", "")
    status, _, err = run("space", "import", tmp_path / "new", tmp_path / "none")
    assert status != 0
    assert err.count("\n") == 1


def test_move_between_queues_of_a_space(run, root):
    status, _, err = run("mv", root / "a", root / "d")
    assert (status, err) == (0, "")
    assert run("space", "list", root, "d") == (0, "d\n", "")


def test_missing_space_is_one_sentence(run, tmp_path):
    for verb in ("list", "stats", "purge", "export"):
        status, out, err = run("space", verb, tmp_path / "none")
        assert status != 0
        assert out == ""
        assert err.count("\n") == 1


def test_queue_is_no_space(run, root, tmp_path):
    """It was listed as empty, and an import put queues among its messages."""
    copy = tmp_path / "copy"
    assert run("space", "export", root, copy)[0] == 0
    for verb in ("list", "stats", "purge", "export", "import"):
        status, out, err = run("space", verb, root / "a", *[copy] * (verb == "import"))
        assert (status, out) == (1, "")
        assert err.endswith("is a queue, not a directory of queues: name the directory that it lies in\n")
    assert not (root / "a/a").exists()


def test_stray_message_leaves_a_space_a_space(run, root):
    """Somebody put one into the root by mistake."""
    (root / f"{10**24}").write_bytes(b"x")
    assert run("space", "list", root)[0] == 0


def test_export_names_the_file_that_is_there_already(run, root, tmp_path):
    (tmp_path / "copy").write_text("mine")
    status, _, err = run("space", "export", root, tmp_path / "copy")
    assert (status, err) == (1, f"dirqueue: cannot write '{tmp_path}/copy': File exists\n")
    assert (tmp_path / "copy").read_text() == "mine"


def test_import_says_what_a_line_lacks(run, tmp_path):
    (tmp_path / "copy").write_text('{"queue": "a", "body": "aa"}\n')
    status, _, err = run("space", "import", tmp_path / "new", tmp_path / "copy")
    assert (status, err) == (2, "dirqueue: line 1 is not as `export` writes them: it has no 'own_id'\n")

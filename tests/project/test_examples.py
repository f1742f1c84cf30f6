"""Every example in the README and the docs runs, and every link leads to something."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
BLOCK = re.compile(r"^```(python|console)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: Pages whose examples need Spark run with the Spark tests.
NEEDS_SPARK = {"howto/spark.md"}


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Return (language, mark, text) of each block of a page that is to be run."""
    return BLOCK.findall(page.read_text())


def runnable() -> list[Path]:
    """Return the pages that have something to run here."""
    return [page for page in PAGES if blocks(page) and str(page.relative_to(ROOT))[5:] not in NEEDS_SPARK]


@pytest.mark.parametrize("page", runnable(), ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """Its Python blocks run as one program, and its shell blocks one after the other, in an empty directory."""
    script = []
    for number, (language, mark, text) in enumerate(blocks(page)):
        if language == "python":
            script.append(f"#line {number}\n{text}")
        else:
            script.append(f"_shell({text!r}, {mark.strip() == 'compare'})\n")
    program = tmp_path / "page.py"
    program.write_text(SHELL + "\n".join(script))
    work = tmp_path / "work"
    work.mkdir()
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=work,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{page.name}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


SHELL = '''
import subprocess as _subprocess


def _shell(block, compare):
    """Run the lines after "$ " in one shell; compare the output if asked to."""
    wanted, lines = [], []
    for line in block.splitlines():
        if line.startswith("$ "):
            lines.append(line[2:])
        elif lines and lines[-1].endswith("\\\\"):
            lines[-1] += "\\n" + line.removeprefix("> ")
        else:
            wanted.append(line)
    done = _subprocess.run(["bash", "-c", "\\n".join(lines)], capture_output=True, text=True)
    if done.stderr:
        print(done.stderr)
    if done.returncode not in (0, 3):
        raise SystemExit(f"exit {done.returncode} of {lines}: {done.stdout} {done.stderr}")
    if compare and done.stdout.splitlines() != wanted:
        raise SystemExit(f"{lines} printed {done.stdout!r}, the page says {wanted!r}")


'''


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_to_files_and_headings(page: Path) -> None:
    """A relative link names a file that exists, and a heading in it if it has an anchor."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for path, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {path}, which is not there"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {path}#{anchor}"


def test_every_page_is_linked_from_the_index() -> None:
    """A page that no list names is one that nobody finds."""
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / path).resolve() for path in re.findall(r"\]\(([^)#\s]+)\)", index.read_text())}
    assert [page.name for page in PAGES if page != index and page.resolve() not in linked] == []


def test_make_targets_that_a_page_names_exist() -> None:
    """`make TARGET` in the pages is a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in LINKED for name in re.findall(r"[`$] ?make ([a-z-]+)", page.read_text())}
    assert len(named) > 5
    assert named - targets == set()


def test_reference_pages_match_the_docstrings() -> None:
    """scripts/api_reference.py would write what is there."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "api_reference.py", "--check"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_words_counted_by_processes_that_are_killed_are_exact() -> None:
    """examples/mapreduce.py counts as a plain Counter does, with more than a hundred different words too."""
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / "mapreduce.py", "--kills", "8"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    killed, words = re.match(r"(\d+) processes killed\n\d+ documents, (\d+) words\n", done.stdout).groups()
    assert int(words) > 100
    assert int(killed) >= 2  # the work may be done before the last of them
    assert done.stdout.endswith("the counts are exact\n")
    assert not done.stderr

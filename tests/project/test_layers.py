"""The import contract holds, covers every module, and can fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import PATIENCE

import dirqueue

PACKAGE = Path(dirqueue.__file__).parent
PROJECT = PACKAGE.parent


def lint(folder):
    """Run import-linter with the contract of the project on the package in a folder."""
    linter = Path(sys.executable).parent / "lint-imports"
    if not linter.exists():
        pytest.skip("needs import-linter")
    return subprocess.run(
        [linter, "--config", PROJECT / "pyproject.toml", "--no-cache"],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip


@pytest.fixture
def copy(tmp_path):
    """Return a copy of the package."""
    shutil.copytree(PACKAGE, tmp_path / "dirqueue", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_contract_is_kept(copy):
    """A module imports only from the rows below its own, and every module is in a row."""
    done = lint(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["stray.py", "stray/__init__.py"])
def test_a_module_that_is_in_no_row_breaks_the_contract(copy, name):
    """Also one that imports nothing."""
    path = copy / "dirqueue" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('"""Nobody placed this."""\n')
    done = lint(copy)
    assert done.returncode == 1, done.stdout
    assert "stray" in done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("errors.py", "import dirqueue.settings"),
        ("disk/fs.py", "import dirqueue.layouts"),
        ("layouts/__init__.py", "def late():\n    from dirqueue import queue"),
        ("queue.py", "import dirqueue.tools.discover"),
        ("worker/__init__.py", "import dirqueue.tools.discover"),
    ],
)
def test_an_import_from_above_breaks_the_contract(copy, module, line):
    """Also one inside of a function, and one from the same row."""
    with open(copy / "dirqueue" / module, "a", encoding="utf-8") as file:
        file.write(f"\n\n{line}\n")
    done = lint(copy)
    assert done.returncode == 1, done.stdout

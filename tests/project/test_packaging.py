"""What pyproject.toml says about the package, and what others say about it."""

import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import dirqueue

PACKAGE = Path(dirqueue.__file__).parent
PROJECT = PACKAGE.parent
CONFIG = tomllib.loads((PROJECT / "pyproject.toml").read_text())


def test_the_version_is_written_in_one_place():
    """dirqueue/__init__.py, which the build reads."""
    assert "version" in CONFIG["project"]["dynamic"]
    assert "version" not in CONFIG["project"]
    assert CONFIG["tool"]["hatch"]["version"]["path"] == "dirqueue/__init__.py"
    text = (PACKAGE / "__init__.py").read_text()
    assert re.findall(r'(?m)^__version__ = "(.+)"$', text) == [dirqueue.__version__]


def test_the_readme_and_every_tested_python_are_named():
    """The index shows the one and filters by the others."""
    project = CONFIG["project"]
    assert project["readme"] == "README.md"
    named = [each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each]
    assert named == ["3.11", "3.12", "3.13", "3.14"]
    assert project["requires-python"] == f">={named[0]}"


def test_what_only_developers_need_is_no_extra():
    """Users are offered what the package does; who works on it installs groups, which the Makefile names."""
    groups = CONFIG["dependency-groups"]
    assert {"core", "test", "docs", "bench"} <= groups.keys()
    assert not groups.keys() & CONFIG["project"]["optional-dependencies"].keys()
    used = re.findall(r"--group (\w+)", (PROJECT / "Makefile").read_text())
    assert used
    assert set(used) <= groups.keys()


def test_a_wheel_has_the_page_and_the_manual(tmp_path):
    """What is not Python is easily forgotten: the web page, the man page, the types, the readme."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=PROJECT, check=True, capture_output=True, timeout=50,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    data = f"dirqueue-{dirqueue.__version__}.data/data/share/man/man1/dirqueue.1"
    assert {data, "dirqueue/web/static/views.js", "dirqueue/py.typed"} <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/"))]
    assert "# dirqueue\n" in metadata


def test_every_page_is_in_the_contents_of_the_site():
    """The site's table of contents is made from the index, and its diagrams from those of the pages."""
    conf = runpy.run_path(str(PROJECT / "docs" / "site" / "conf.py"))
    index = (PROJECT / "docs" / "index.md").read_text()
    trees = re.findall(r"```\{toctree\}\n(?::.*\n)*\n([^`]*)```", conf["contents"](index))
    listed = {line for tree in trees for line in tree.split()}
    pages = {
        path.relative_to(PROJECT / "docs").with_suffix("").as_posix()
        for path in (PROJECT / "docs").rglob("*.md")
    }
    assert pages - listed == {"index"}
    assert "site/api" in listed
    drawn = conf["MERMAID"].sub(conf["diagram"], MERMAID)
    assert 'begin -> ready [label="put"];' in drawn
    assert 'ready -> gone [label="ack\\nclear"];' in drawn


MERMAID = "```mermaid\nstateDiagram-v2\n    [*] --> ready: put\n    ready --> [*]: ack · clear\n```\n"


def test_no_extra_is_empty():
    """An extra that installs nothing only looks like a requirement."""
    assert [
        name for name, packages in CONFIG["project"]["optional-dependencies"].items() if not packages
    ] == []


def test_every_extra_that_is_named_exists():
    """In the code, the docs and the extras themselves."""
    known = set(CONFIG["project"]["optional-dependencies"])
    files = [
        *PACKAGE.rglob("*.py"),
        *PROJECT.glob("*.md"),
        *PROJECT.glob("docs/**/*.md"),
        PROJECT / "pyproject.toml",
    ]
    assert len(files) > 100
    named = {}
    for path in files:
        for extras in re.findall(r"dirqueue\[([a-z,]+)\]", path.read_text()):
            named |= dict.fromkeys(extras.split(","), path.name)
    assert {"watch", "spark"} <= named.keys() <= known, named

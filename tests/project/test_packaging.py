"""What pyproject.toml says about the package, and what others say about it."""

import re
import tomllib
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

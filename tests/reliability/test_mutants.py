"""Planted bugs must be noticed by the tests: the quick ones are tried here, all of them by `make mutants`."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "scripts/mutants.py").exists(), reason="this is a copy of the tree in which a bug is planted"
)


@pytest.fixture(scope="module")
def script():
    """Give scripts/mutants.py."""
    spec = importlib.util.spec_from_file_location("mutants_script", ROOT / "scripts/mutants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


NAMES = sorted(path.stem for path in (ROOT / "tests/mutants").glob("*.patch"))
QUICK = [name for name in NAMES if "\nquick: yes\n" in (ROOT / f"tests/mutants/{name}.patch").read_text()]


def test_planted_bugs_are_many_and_some_are_quick():
    """Bugs do not disappear from the list unnoticed."""
    assert len(NAMES) >= 100
    assert 3 <= len(QUICK) <= 40


@pytest.mark.parametrize("name", NAMES)
def test_planted_bug_still_fits_the_code(script, name):
    """Each change fits exactly one place, and the result is valid Python."""
    (mutant,) = script.mutants((name,))
    assert mutant.what
    assert mutant.tests
    for file, text in script.mutated(mutant).items():
        assert file.startswith("dirqueue/")
        assert text != (ROOT / file).read_text()


@pytest.mark.timeout(300)
def test_named_tests_of_every_bug_exist(script):
    """The tests that must notice the bugs exist; a renamed test is found here."""
    wanted = sorted({test for mutant in script.mutants() for test in mutant.tests})
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COVERAGE_"))}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        *wanted,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.timeout(300)
def test_planted_bug_is_noticed(script, name):
    """The named tests fail in a copy of the tree with the bug."""
    (mutant,) = script.mutants((name,))
    with script.copy() as place:
        script.plant(mutant, place)
        verdict = script.run(mutant.tests, place)
    assert verdict.how == "failed", verdict


def test_patch_that_fits_nowhere_or_twice_is_refused(script):
    """A patch is never applied in the wrong place."""
    text = "a\nb\nc\na\nb\nd\n"
    assert script.mutate(text, [" c", "-a", "+x"]) == "a\nb\nc\nx\nb\nd\n"
    assert script.mutate(text, [" moved", "-b", "+x", " d"]) == "a\nb\nc\na\nx\nd\n", (
        "some context may change"
    )
    wrong = {
        "more than one": [[" a", "-b", "+x"]],
        "nowhere": [[" q", "-r", "+x"], [" moved", "-c", "+x"], ["-d", "+x"]],
    }
    for reason, hunks in wrong.items():
        for hunk in hunks:
            with pytest.raises(script.Broken, match=reason):
                script.mutate(text, hunk)


def test_page_names_every_bug(script):
    """docs/mutants.md is up to date."""
    assert script.PAGE.read_text() == script.page(script.mutants())

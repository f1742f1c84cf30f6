"""Does the suite bite? A few planted bugs are tried here, all of them by `make mutants`."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "scripts/mutants.py").exists(), reason="a copy of the tree in which a bug is planted"
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


def test_there_are_many_bugs_and_some_are_tried_here():
    """A list that shrank unseen would prove little."""
    assert len(NAMES) >= 35
    assert 3 <= len(QUICK) <= 6


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_bug_still_fits_the_code(script, name):
    """In one place of each file, and what comes out is Python."""
    (mutant,) = script.mutants((name,))
    assert mutant.what
    assert mutant.tests
    for file, text in script.mutated(mutant).items():
        assert file.startswith("dirqueue/")
        assert text != (ROOT / file).read_text()


@pytest.mark.timeout(300)
def test_every_test_that_is_to_notice_is_there(script):
    """A test that was renamed would notice nothing."""
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
def test_a_planted_bug_is_noticed(script, name):
    """In a copy of the tree with the bug, the tests that are to notice fail."""
    (mutant,) = script.mutants((name,))
    with script.copy() as place:
        script.plant(mutant, place)
        verdict = script.run(mutant.tests, place)
    assert verdict.how == "failed", verdict


def test_a_patch_that_fits_nowhere_or_twice_is_refused(script):
    """It must not be planted in the wrong place."""
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


def test_the_page_names_every_bug(script):
    """docs/mutants.md is what `make mutants` writes."""
    assert script.PAGE.read_text() == script.page(script.mutants())

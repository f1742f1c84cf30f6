"""Other versions of pyspark than the one that is installed, each in a directory of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BATCHES = ["rows", "links", "records", "claim", "work", "fill", "report"]


def tried(version, tmp_path):
    """Install a version beside the others, run older.py with it and return what it found."""
    place, scratch = tmp_path / "packages", tmp_path / "scratch"
    scratch.mkdir()
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(place), f"pyspark=={version}"]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the index has no pyspark {version}: {done.stderr[-200:]}")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(place), str(HERE)])}
    env.pop("SPARK_HOME", None)
    done = subprocess.run(
        [sys.executable, str(HERE / "older.py"), str(scratch)],
        env=env, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", ["4.0.*", "4.1.*", "4.2.*"])
def test_a_version_does_what_the_page_says(without_java, tmp_path, version):
    """All of them read and write; a stream works from 4.2 on, and is refused in one sentence before."""
    found = tried(version, tmp_path)
    assert found["version"].startswith(version[:4])
    assert found["batches"] == BATCHES
    if version == "4.2.*":
        assert found["stream"] == "works"
    else:
        assert "a stream of dirqueue needs pyspark 4.2 or newer, and this is 4." in found["stream"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_version_without_sources_in_python_is_refused(without_java, tmp_path):
    """In one sentence, before a Java is started."""
    found = tried("3.5.*", tmp_path)
    assert found["refused"].startswith("dirqueue needs pyspark 4.0 or newer, and this is 3.5.")

"""The examples of the page about Spark run as they stand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from project.test_examples import ROOT, SHELL, blocks

PAGE = ROOT / "docs" / "howto" / "spark.md"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_examples_of_the_page_run(without_java, tmp_path):
    """Python blocks as one program, shell blocks one after the other, in an empty directory, without any Java."""
    script = []
    for language, mark, text in blocks(PAGE):
        if language == "python":
            script.append(text)
        else:
            script.append(f"_shell({text!r}, {mark.strip() == 'compare'})\n")
    program = tmp_path / "page.py"
    program.write_text(SHELL + "\n".join(script))
    work = tmp_path / "work"
    work.mkdir()
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, str(program)], cwd=work, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"

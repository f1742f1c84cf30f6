"""The types that users see."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(300)
def test_users_see_the_right_types(tmp_path):
    """Mypy in strict mode agrees with every assert_type."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "--config-file", "",
         HERE / "typing_api.py"],
        capture_output=True, text=True, check=False, cwd=HERE.parent.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

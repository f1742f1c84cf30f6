"""Plant known bugs one by one and see whether the tests notice: `make mutants`.

Each tests/mutants/*.patch says in its first line what is broken and in its second which tests should notice. It is
applied to a copy of the tree; the tests must fail there. A patch that no longer applies counts as a failure.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these")
    options = parser.parse_args()
    patches = sorted((ROOT / "tests/mutants").glob("*.patch"))
    if options.names:
        patches = [patch for patch in patches if patch.stem in options.names]
    survivors = 0
    print(f"{'planted bug':28} {'noticed':>8} {'seconds':>8}  what")
    for patch in patches:
        what, tests = patch.read_text().splitlines()[:2]
        start = time.monotonic()
        verdict = try_one(patch, tests.removeprefix("tests: ").split())
        survivors += verdict != "yes"
        print(f"{patch.stem:28} {verdict:>8} {time.monotonic() - start:8.1f}  {what}", flush=True)
    print(f"{len(patches) - survivors} of {len(patches)} noticed")
    return 1 if survivors else 0


def try_one(patch: Path, tests: list[str]) -> str:
    place = Path(tempfile.mkdtemp(prefix="dirqueue-mutant-"))
    try:
        for name in ("dirqueue", "tests", "pyproject.toml"):
            source, target = ROOT / name, place / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "mutants"))
            else:
                shutil.copy(source, target)
        with patch.open() as text:
            if subprocess.run(["patch", "-p1", "-s", "-d", str(place)], stdin=text, check=False).returncode:
                return "no patch"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:randomly", *tests]
        env = os.environ | {"PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
        env.pop("TMPDIR", None)
        done = subprocess.run(
            command, cwd=place, env=env, capture_output=True, text=True, timeout=1800, check=False
        )
        if done.returncode not in (0, 1):
            print(done.stdout[-2000:], done.stderr[-2000:])
            return f"exit {done.returncode}"
        return "no" if done.returncode == 0 else "yes"
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

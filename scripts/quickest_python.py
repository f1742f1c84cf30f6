"""Print the quickest Python of this version on this machine: how it was built makes a tenth of a difference.

What is measured against C should not measure an interpreter that was built without its optimisations, where there is
another one. `make bench` asks this; with one Python on the machine the answer is that one.
"""

from __future__ import annotations

import os
import subprocess
import sys

#: Calls, attributes and arithmetic, as between two system calls; only of a Python that can make a virtualenv.
LOOP = """
import ensurepip, time, venv
class Thing:
    __slots__ = ("left",)
    def __init__(self, left): self.left = left
    def less(self): self.left = self.left - 1
def run():
    began = time.process_time()
    for number in range(100_000): Thing(number).less()
    return time.process_time() - began
print(min(run() for _ in range(5)))
"""


def seconds(python: str) -> float:
    """Return the CPU seconds of the loop; infinity if this Python cannot be used."""
    done = subprocess.run([python, "-c", LOOP], check=False, capture_output=True, text=True)
    return float(done.stdout) if done.returncode == 0 else float("inf")


def main() -> None:
    """Measure the Python that runs this first, so that it is chosen when all are alike."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    others = [f"{where}/{name}" for where in ("/usr/bin", "/usr/local/bin")]
    print(min([sys.executable, *filter(os.path.exists, others)], key=seconds))


if __name__ == "__main__":
    main()

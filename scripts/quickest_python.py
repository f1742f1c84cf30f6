"""Print the path of the fastest Python of this version on this machine.

Builds of one version differ by about a tenth, and a comparison with C should not use the slower one. `make bench` runs
this script; if there is only one Python, it prints that one.
"""

from __future__ import annotations

import os
import subprocess
import sys

#: Calls, attributes and arithmetic, as between two system calls. The imports exclude a Python without venv.
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
    """Return the CPU seconds of the loop; infinity if this Python is unusable."""
    done = subprocess.run([python, "-c", LOOP], check=False, capture_output=True, text=True)
    return float(done.stdout) if done.returncode == 0 else float("inf")


def main() -> None:
    """Print the fastest; the running Python is measured first, so that it wins a tie."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    others = [f"{where}/{name}" for where in ("/usr/bin", "/usr/local/bin")]
    print(min([sys.executable, *filter(os.path.exists, others)], key=seconds))


if __name__ == "__main__":
    main()

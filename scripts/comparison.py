"""Write the comparison in the README from docs/comparison.json; `--check` only compares."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PART = re.compile(
    r"(<!-- comparison: made from docs/comparison.json by make reference -->\n).*?(<!-- end -->)", re.DOTALL
)


def table() -> str:
    """Return the table, dated."""
    data = json.loads((ROOT / "docs" / "comparison.json").read_text())
    rows = [data["columns"], ["---"] * len(data["columns"]), *data["rows"]]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return (
        "\n".join(lines)
        + f"\n\nAs of {data['date']}. {data['how'].replace('docs/benchmarks.md', '[benchmarks](docs/benchmarks.md)')}\n"
    )


def main() -> int:
    """Write it, or compare."""
    page = ROOT / "README.md"
    text = page.read_text()
    made = PART.sub(lambda found: found[1] + table() + found[2], text)
    if "--check" in sys.argv:
        if made != text:
            print("README.md is not what docs/comparison.json says: run make reference")
        return int(made != text)
    page.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())

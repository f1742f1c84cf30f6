"""Write docs/pictures/text.svg: a text queue at work, as `dirqueue cat FILE` shows it on a terminal."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dirqueue import Queue

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "text.svg"
STYLES = {"-": "bold", "=": "green", "!": "red", "#": "dim"}
WRITTEN = b"# Scans of May. Lines that begin with - wait; move one to change its turn.\n-resize may/001.jpg\n-resize may/002.jpg\n"


def story(path: Path) -> None:
    """Three people and programs at one file: one writes it, one puts, one works."""
    path.write_bytes(WRITTEN)
    time.sleep(0.3)
    with Queue(path, sync=False) as queue:
        queue.put("resize may/003.tif\nwith the colours of the original")
        queue.put("resize may/004.jpg")
        queue.put("resize may/005.jpg")
        queue.get(timeout=0).ack()
        queue.get(timeout=0).ack()
        queue.get(timeout=0).reject("no such format")
        queue.get(timeout=0)  # held: it stays a dash


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.tq"
        story(path)
        lines = path.read_text().splitlines()
    console = Console(record=True, width=100, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    style = ""
    console.print(Text("$ dirqueue cat jobs.tq"))
    for line in lines:
        style = style if line.startswith((" ", "\\")) else STYLES.get(line[:1], "")
        console.print(Text(line, style="dim" if line.startswith("\\") else style))
    picture = console.export_svg(title="jobs.tq at work")
    # A page of ours loads nothing from elsewhere: the fonts are those of the reader.
    picture = re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    PICTURE.write_text(re.sub(r"\s*<!--.*?-->", "", picture, flags=re.DOTALL))


if __name__ == "__main__":
    main()

"""Remake the golden trees: `python tests/peers/golden/make.py`. The real dirq 1.8 and vsqs 0.3 must be installed."""

import os
import sys
import tempfile
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
warnings.simplefilter("ignore")  # vsqs and dirq are old

from peers.golden.real import PLAYERS  # noqa: E402
from peers.golden.stories import HERE, play  # noqa: E402


def main():
    for name, player in PLAYERS.items():
        with tempfile.TemporaryDirectory() as top:
            path = Path(top, "q")
            text = f"# What {player.program} leaves on disk. Made by make.py; see stories.py.\n"
            for chapter, lines in play(player, path).items():
                text += f"\n== {chapter}\n" + "".join(f"{line}\n" for line in lines)
        (HERE / f"{name}.txt").write_text(text, encoding="utf-8")
        sys.stdout.write(f"{name}.txt\n")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # the watchers of vsqs would keep it

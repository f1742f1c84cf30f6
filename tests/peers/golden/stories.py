"""What happens to a queue, told once and played by the real programs and by ours, with a clock that is wound by hand.

After each chapter the whole directory is written down: mode, number of names, path, bytes. `make.py` has the real
dirq 1.8 and vsqs 0.3 play and keeps what they leave in *.txt; test_golden.py has ours play and compares.
"""

import ast
import os
import stat
from pathlib import Path

HERE = Path(__file__).parent
DIGIT = 7
SCHEMA = {"body": "string", "header": "table?", "raw": "binary?"}
PIECES = (
    {"body": "first"},
    {"body": "grüße\n", "header": {"b": "2", "a\t": "\\\n", "": ""}, "raw": b"\xff\x00\r\n"},
    {"body": "", "header": {}},
    {"body": "last", "header": {"key": "välue"}},
)
BODIES = (b"first", "grüße\n".encode(), b"", b"\xff\x00\r\n")


class FakeTime:
    """Stands in for the time module: each reading is a 64th of a second later, which binary fractions can say."""

    def __init__(self):
        self.now = 1_700_000_000_000_000_000
        self.step = 15_625_000

    def time_ns(self):
        self.now += self.step
        return self.now

    def time(self):
        return self.time_ns() / 1e9

    def sleep(self, seconds):
        self.now += int(seconds * 1e9)


def written(path):
    """Return everything in a directory, one line for each entry."""
    lines = []
    for each in sorted(Path(path).rglob("*")):
        facts = each.lstat()
        data = repr(each.read_bytes()) if each.is_file() else ""
        links = facts.st_nlink if each.is_file() else "-"
        lines.append(
            f"{stat.filemode(facts.st_mode)} {links} {each.relative_to(path).as_posix()} {data}".rstrip()
        )
    return lines


def play(cls, path):
    """Have a new player tell the story; return chapter -> what the directory holds then."""
    before = os.umask(0o022)
    try:
        player = cls(path)
        chapters = {}
        for name in player.story():
            player.pause()
            chapters[name] = written(path)
        return chapters
    finally:
        os.umask(before)


class Player:
    """The story: `put`, `hold` the oldest free one, `end` or `give_back` what is held."""

    things = ()
    #: Whether the format has a verb to give a message back.
    gives_back = True

    def pause(self):
        """Tidy up before the directory is looked at."""

    def story(self):
        """Yield the name of each chapter when it is told."""
        for thing in self.things:
            self.put(thing)
        yield "four were put"
        self.hold()
        yield "the first is held"
        self.end()
        yield "the first is done"
        self.hold()
        self.hold()
        yield "the second and the third are held"
        if self.gives_back:
            self.give_back()
            yield "the second is given back, the third is held"
            self.hold()
        self.end()
        yield "one of them is done, the other is still held"


def load(name):
    """Return the chapters that a file keeps."""
    chapters = {}
    for line in (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            lines = chapters[line.removeprefix("== ")] = []
        elif line and not line.startswith("#"):
            lines.append(line)
    return chapters


def rebuild(lines, path):
    """Make the directory that these lines tell of; names of one file are found by what stands behind the dot."""
    path.mkdir()
    for line in lines:
        mode, links, rest = line.split(" ", 2)
        name, _, data = rest.partition(" ")
        target = path / name
        if mode[0] == "d":
            target.mkdir()
        elif links == "2" and name.endswith(".lck"):
            os.link(path / name.removesuffix(".lck"), target)
        else:
            target.write_bytes(ast.literal_eval(data))

"""Entries that get into the directory of a queue only by accident or malice."""

import os
import random
import socket

from dirqueue.layouts.native import names

ID = "1700000000000000000000001"
UNTIL = "1700000000000000"
LATER = "9000000000000000"


def shapes():
    """Return one valid name of every kind."""
    return [
        ID, f"{ID}.{UNTIL}.1", f"{ID}.{UNTIL}.1.token", f"{ID}.{LATER}.1.token", f"{ID}.new", f"{ID}.error",
        f"{ID}.batch", f"{ID}.slice", f"{ID}.batch.new", f"{ID}.{UNTIL}.1.token.ack",
    ]  # fmt: skip


def strange_names():
    """Return names of plain files that are not messages."""
    return [
        "README", ".hidden", "..data", "...", " ", "\n", "a\nb", "-rf", "*", "~", "#x#", "x.swp", ".nfs00000001",
        "0" * 25, "0" + ID[1:], ID + "\n", " " + ID, ID + " ", "+" + ID[1:], "1_" + ID[2:], "²" * 25, "٣" * 25,
        "１" * 25, ID[:-1], ID + ".", f"{ID}..1", f"{ID}.1.1", f"{ID}.{UNTIL}.-1", f"{ID}.{UNTIL}.01.t",
        f"{ID}.{UNTIL}.1.", f"{ID}.{UNTIL}.1.tok/en".replace("/", "\\"), f"{ID}.{UNTIL}.1.tok en", f"{ID}.NEW",
        f"{ID}.new.new", f"{ID}.batch.x", "9" * 255, ID * 10, "x" * 255, "é" * 100, "\udcff\udcfe", f"{ID}.\udcff",
        "queue.json.bak", "core", "lost+found", "CON", "%s%n", "${HOME}", "`id`", "a;b", "'", '"',
    ]  # fmt: skip


def plant(path, outside):
    """Fill a directory with entries of every kind; return their number. Links point to the file `outside`."""
    planted = 0
    for number, name in enumerate(shapes()):
        # Each kind of name on something that is not a plain file; the ids differ so that all can exist together.
        other = name.replace(ID, str(int(ID) + number))
        kinds = (_fifo, _symlink, _dangling, _directory, _socket, _loop)
        for step, kind in enumerate(kinds):
            target = os.path.join(path, other.replace("0000000", f"{step + 1}000000", 1))
            if kind is _directory and name.endswith((".batch", ".slice", ".new")):
                continue
            kind(target, outside)
            planted += 1
    for name in strange_names():
        with open(os.path.join(path, name), "wb") as file:
            file.write(b"foreign")
        planted += 1
    return planted


def plant_links(path, outside):
    """Fill the rooms, a slice and a batch with links that are named like messages and are none; return their paths.

    They lead outside, to themselves, to each other, into the queue, nowhere, or to a directory; targets contain colons.
    """
    targets = [outside, "/nonexistent", "..", ".", "leased", ID, " :x", "x:", "/:", os.path.dirname(outside)]
    rooms = {
        "": (
            ID,
            f"{ID}.{UNTIL}.1",
            f"{ID}.{UNTIL}.1.token",
            f"{ID}.new",
            f"{ID}.error",
            f"{ID}.{UNTIL}.1.token.ack",
        ),
        "leased": (f"{ID}.{UNTIL}.1.token", f"{ID}.{UNTIL}.1"),
        f"later/{UNTIL[:-8]}00000000": (f"{ID}.{UNTIL}.0", f"{ID}.{UNTIL}.2"),
        f"dead/{UNTIL}": (f"{ID}.{UNTIL}.1",),
        f"done/{UNTIL}": (f"{ID}.{UNTIL}.1",),
        f"{ID}.slice": (ID,),
        f"{ID}.batch": (ID, f"{ID}.{UNTIL}.0"),
        f"{ID}.batch/{ID}.part": (ID,),
    }
    planted = []
    for room, names_there in rooms.items():
        os.makedirs(os.path.join(path, room), exist_ok=True)
        for name in names_there:
            for target in targets:
                other = name.replace(ID, str(int(ID) + len(planted)))
                planted.append(os.path.join(path, room, other))
                os.symlink(target, planted[-1])
    return planted


class Watch:
    """Replaces the calls of `fs` that could follow a link, and notes when one reaches a file or directory outside."""

    def __init__(self, fs, *outside):
        self._fs = fs
        self._outside = {(os.stat(each).st_dev, os.stat(each).st_ino) for each in outside}
        self._real = {name: getattr(fs, name) for name in ("open", "stat")}
        self.reached = []

    def __enter__(self):
        real = self._real

        def opened(path, *arguments, **named):
            fd = real["open"](path, *arguments, **named)
            self._note("open", path, os.fstat(fd))
            return fd

        def looked(path, *arguments, **named):
            facts = real["stat"](path, *arguments, **named)
            self._note("stat", path, facts)
            return facts

        self._fs.open, self._fs.stat = opened, looked
        return self

    def __exit__(self, *_):
        self._fs.open, self._fs.stat = self._real["open"], self._real["stat"]

    def _note(self, call, path, facts):
        if (facts.st_dev, facts.st_ino) in self._outside:
            self.reached.append((call, path))


def _fifo(path, outside):
    os.mkfifo(path)


def _symlink(path, outside):
    os.symlink(outside, path)


def _dangling(path, outside):
    os.symlink("/nonexistent/nowhere", path)


def _loop(path, outside):
    os.symlink(os.path.basename(path), path)


def _directory(path, outside):
    os.mkdir(path)
    with open(os.path.join(path, "inside"), "wb") as file:
        file.write(b"foreign")


def _socket(path, outside):
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as line:
        os.chdir(os.path.dirname(path))  # the path of a socket is limited to 108 bytes
        try:
            line.bind(os.path.basename(path))
        finally:
            os.chdir(here)


def tree(path):
    """Return every entry with its kind, content or target, without following anything."""
    found = {}
    for root, directories, files in os.walk(path):
        for name in directories + files:
            full = os.path.join(root, name)
            facts = os.lstat(full)
            kind = facts.st_mode & 0o170000
            if kind == 0o120000:
                content = os.readlink(full)
            elif kind == 0o100000:
                with open(full, "rb") as file:
                    content = file.read()
            else:
                content = None
            found[os.path.relpath(full, path)] = (kind, content)
    return found


def fuzz(count, seed=0):
    """Parse `count` fuzzed names; return (number of valid ones, violations): no exception, and exact rebuilds."""
    accepted, wrong = 0, []
    for name in fuzzed(count, seed):
        try:
            parsed = names.parse(name)
            if parsed is not None:
                accepted += 1
                good = parsed.text == name and name.isascii() and "/" not in name and parsed.id in name
                if not good or names.micros_of(parsed.id) < 0:
                    wrong.append(f"accepted: {name!r}")
        except Exception as error:  # noqa: BLE001
            wrong.append(f"{name!r}: {error!r}")
    return accepted, wrong


def fuzzed(count, seed=0):
    """Yield almost valid names: valid ones with a few characters changed."""
    dice = random.Random(seed)
    alphabet = "0123456789.newbatchslicetok-_ /\\\0\n²٣é" + "\udcff"
    good = [*shapes(), *strange_names()]
    for _ in range(count):
        name = list(dice.choice(good))
        for _ in range(dice.randrange(4)):
            place = dice.randrange(len(name) + 1)
            action = dice.randrange(3)
            if action == 0:
                name.insert(place, dice.choice(alphabet))
            elif name:
                place = min(place, len(name) - 1)
                if action == 1:
                    name[place] = dice.choice(alphabet)
                else:
                    del name[place]
        yield "".join(name)

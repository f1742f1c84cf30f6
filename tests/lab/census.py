"""The contents of a directory, read without the library: only with the documented names of the formats.

Bodies are unique, so counting bodies counts messages.
"""

import json
import os
import re

ID = r"[1-9][0-9]{24,33}"
UNCLAIMED = re.compile(rf"{ID}(\.(?P<until>[0-9]{{16}})\.[0-9]+)?")
#: What leased/ holds; without a token it was given back while the disk had no space for a bucket.
HELD = re.compile(rf"{ID}\.[0-9]{{16}}\.[0-9]+(\.[A-Za-z0-9_-]+)?")
DIRECTORY = re.compile(rf"{ID}\.(batch|slice|part)")
UNFINISHED = re.compile(rf"{ID}\.(new|batch\.new)|{ID}\.[0-9]{{16}}\.[0-9]+\.[A-Za-z0-9_-]+\.ack")
MESSAGE = re.compile(rf"{ID}(\.[0-9]{{16}}\.[0-9]+(\.[A-Za-z0-9_-]+)?)?")
NOTE = re.compile(rf"{ID}\.error(\.new)?")
RECORD = re.compile(r"0|[1-9][0-9]{0,18}")
BUCKET = re.compile(r"[1-9][0-9]{15}")
#: The rooms, and how long a bucket in them is, in microseconds; 0: no buckets.
ROOMS = {"leased": 0, "later": 60_000_000, "dead": 3_600_000_000, "done": 3_600_000_000}
FURNITURE = frozenset((".ballast", "queue.json", ".purge.lock", ".spark", "paused", "attributes", *ROOMS))

VSQS = re.compile(r"[1-9][0-9]{15}(\.[1-9][0-9]{15})?|[1-9][0-9]{12}(\.[1-9][0-9]{12})?")
DIRQ_DIRECTORY, ELEMENT = re.compile(r"[0-9a-f]{8}"), re.compile(r"[0-9a-f]{14}")


class Census:
    """The bodies by state, and all names that do not belong to the layout."""

    def __init__(self, path, layout="native"):
        self.waiting, self.dead, self.done, self.unfinished, self.notes, self.foreign = [], [], [], [], [], []
        getattr(self, "_" + layout.replace("-", "_"))(path)

    def _native(self, path):
        self._read(path, self.waiting, UNCLAIMED, top=True)
        for room, length in ROOMS.items():
            if os.path.isdir(os.path.join(path, room)):
                self._room(os.path.join(path, room), room, length)
        for root, _, names in os.walk(os.path.join(path, ".spark")):
            for name in names:
                if UNFINISHED.fullmatch(name):
                    self.unfinished.append(name)
                elif not RECORD.fullmatch(name):
                    self.foreign.append(os.path.join(root, name))

    def _room(self, path, room, length):
        into = {"dead": self.dead, "done": self.done}.get(room, self.waiting)
        if not length:
            self._read(path, into, HELD)
            return
        for entry in _entries(path):
            if not BUCKET.fullmatch(entry.name) or int(entry.name) % length or not entry.is_dir():
                self.foreign.append(f"{room}/{entry.name}")
            else:
                self._read(
                    entry.path, into, UNCLAIMED, times=range(int(entry.name), int(entry.name) + length)
                )

    def _read(self, path, into, messages, *, top=False, times=None):
        """Read one directory: what it may hold of messages, and the times that their names may say in a bucket."""
        for entry in _entries(path):
            found = messages.fullmatch(entry.name)
            if found and _is_message(entry) and (times is None or int(found["until"] or 0) in times):
                into.append(_body(entry.path))
            elif DIRECTORY.fullmatch(entry.name) and entry.is_dir():
                self._read(entry.path, into, messages, times=times)
            elif UNFINISHED.fullmatch(entry.name) or (top and entry.name.startswith((".clock-", ".create-"))):
                self.unfinished.append(entry.name)
            elif NOTE.fullmatch(entry.name):
                self.notes.append(entry.name)
            elif not (top and entry.name in FURNITURE):
                self.foreign.append(entry.name)

    def _vsqs(self, path):
        for entry in _entries(path):
            if VSQS.fullmatch(entry.name):
                self.waiting.append(_body(entry.path))
            elif entry.name.endswith(".new") and VSQS.fullmatch(entry.name[:-4]):
                self.unfinished.append(entry.name)
            elif entry.name != "queue.json":
                self.foreign.append(entry.name)

    def _dirq_simple(self, path):
        for directory in _entries(path):
            if not DIRQ_DIRECTORY.fullmatch(directory.name):
                self.foreign += [] if directory.name == "queue.json" else [directory.name]
                continue
            names = {entry.name for entry in _entries(directory.path)}
            for name in sorted(names):
                stem, kind = name[:14], name[14:]
                if ELEMENT.fullmatch(name):
                    self.waiting.append(_body(os.path.join(directory.path, name)))
                elif not ELEMENT.fullmatch(stem) or kind not in (".lck", ".tmp"):
                    self.foreign.append(name)
                elif kind == ".tmp" or stem not in names:
                    self.unfinished.append(name)

    def _dirq_normal(self, path):
        for directory in _entries(path):
            if directory.name in ("temporary", "obsolete"):
                self.unfinished += [f"{directory.name}/{entry.name}" for entry in _entries(directory.path)]
            elif not DIRQ_DIRECTORY.fullmatch(directory.name):
                self.foreign += [] if directory.name == "queue.json" else [directory.name]
            else:
                for entry in _entries(directory.path):
                    inside = {each.name for each in _entries(entry.path)} - {"locked"}
                    if not ELEMENT.fullmatch(entry.name) or inside - {"body"}:
                        self.foreign += [entry.name, *inside]
                    else:
                        self.waiting.append(_body(os.path.join(entry.path, "body")) if inside else b"no body")

    def complaints(self, *, known, promised, acked, maybe_acked=()):
        """Return the violations of what was promised; all arguments are lists of bodies."""
        there = self.waiting + self.dead
        wrong = [f"torn or unknown: {body[:40]!r}" for body in {*there, *self.done} - set(known)]
        wrong += [f"{there.count(body)} times: {body[:40]!r}" for body in set(there) if there.count(body) > 1]
        wrong += [f"back after ack: {body[:40]!r}" for body in set(acked) & set(there)]
        gone = set(promised) - set(there) - set(self.done) - set(acked) - set(maybe_acked)
        wrong += [f"lost: {body[:40]!r}" for body in gone]
        wrong += [f"foreign: {name}" for name in self.foreign]
        return wrong


def _entries(path):
    return sorted(os.scandir(path), key=lambda entry: entry.name)


def _is_message(entry):
    """Return whether an entry is a file, or a link whose target begins with a colon; nothing is followed."""
    return entry.is_file(follow_symlinks=False) or (
        entry.is_symlink() and os.readlink(entry.path).startswith(":")
    )


def _body(path):
    if os.path.islink(path):
        return os.readlink(os.fsencode(path))[1:]
    with open(path, "rb") as file:
        return file.read()


def bodies(path):
    """Return the contents of all files, and of all links, below a directory."""
    return {_body(os.path.join(root, name)) for root, _, names in os.walk(path) for name in names}


def _rename(old, new):
    """Rename; if the reply was lost and the repeated call fails, the new name exists."""
    try:
        os.rename(old, new)
    except FileNotFoundError:
        if not os.path.lexists(new):
            raise


def expire(path):
    """Make the leases of a dead process look as if they had expired long ago."""
    for root, directories, files in os.walk(path):
        for name in files:
            full, parts = os.path.join(root, name), name.split(".")
            if len(parts) == 4 and parts[1].isdigit() and len(parts[1]) == 16:
                _rename(full, os.path.join(root, ".".join([parts[0], "1700000000000000", *parts[2:]])))
            elif VSQS.fullmatch(name) and len(parts) == 2:
                long_ago = "1700000000000000"[: len(parts[0])]
                _rename(full, os.path.join(root, f"{parts[0]}.{long_ago}"))
            elif name.endswith(".lck"):
                os.utime(full, (1_700_000_000, 1_700_000_000))
        if "locked" in directories:
            os.utime(root, (1_700_000_000, 1_700_000_000))


def uncarried(path, attributes):
    """Return the names of messages of a native queue, ended ones too, that do not carry these attributes."""
    wrong = []
    for _, inner, names in os.walk(path):
        inner[:] = [each for each in inner if each != "attributes" and not each.endswith(".new")]
        for name in filter(MESSAGE.fullmatch, names):
            id = name.partition(".")[0]
            put = int(id[-25:-9])
            try:
                with open(os.path.join(path, "attributes", str(put - put % 60_000_000), id), "rb") as file:
                    kept = json.loads(file.read())["attributes"]
            except (OSError, ValueError) as error:
                kept = error
            if kept != attributes:
                wrong.append(f"without its attributes: {name}: {kept!r}")
    return wrong


def carried(path):
    """Return the files that hold attributes."""
    return [name for _, _, names in os.walk(os.path.join(path, "attributes")) for name in names]

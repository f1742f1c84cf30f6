"""The contents of a directory, read without the library: only with the documented names of the formats.

Bodies are unique, so counting bodies counts messages.
"""

import os
import re

ID = r"[1-9][0-9]{24,33}"
MESSAGE = re.compile(rf"{ID}(\.[0-9]{{16}}\.[0-9]+(\.[A-Za-z0-9_-]+)?)?")
DIRECTORY = re.compile(rf"{ID}\.(batch|slice|part)")
UNFINISHED = re.compile(rf"{ID}\.(new|batch\.new)|{ID}\.[0-9]{{16}}\.[0-9]+\.[A-Za-z0-9_-]+\.ack")
NOTE = re.compile(rf"{ID}\.error(\.new)?")
RECORD = re.compile(r"0|[1-9][0-9]{0,18}")
FURNITURE = frozenset((".ballast", "queue.json", ".purge.lock", ".spark", "dead", "done"))

VSQS = re.compile(r"[1-9][0-9]{15}(\.[1-9][0-9]{15})?|[1-9][0-9]{12}(\.[1-9][0-9]{12})?")
DIRQ_DIRECTORY, ELEMENT = re.compile(r"[0-9a-f]{8}"), re.compile(r"[0-9a-f]{14}")


class Census:
    """The bodies by state, and all names that do not belong to the layout."""

    def __init__(self, path, layout="native"):
        self.waiting, self.dead, self.done, self.unfinished, self.notes, self.foreign = [], [], [], [], [], []
        getattr(self, "_" + layout.replace("-", "_"))(path)

    def _native(self, path):
        self._read(path, self.waiting, top=True)
        for name, into in (("dead", self.dead), ("done", self.done)):
            if os.path.isdir(os.path.join(path, name)):
                self._read(os.path.join(path, name), into)
        for root, _, names in os.walk(os.path.join(path, ".spark")):
            for name in names:
                if UNFINISHED.fullmatch(name):
                    self.unfinished.append(name)
                elif not RECORD.fullmatch(name):
                    self.foreign.append(os.path.join(root, name))

    def _read(self, path, into, *, top=False):
        for entry in _entries(path):
            if MESSAGE.fullmatch(entry.name) and entry.is_file():
                into.append(_body(entry.path))
            elif DIRECTORY.fullmatch(entry.name) and entry.is_dir():
                self._read(entry.path, into)
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


def _body(path):
    with open(path, "rb") as file:
        return file.read()


def _rename(old, new):
    """Rename; if the reply was lost and the repeated call fails, the new name exists."""
    try:
        os.rename(old, new)
    except FileNotFoundError:
        if not os.path.exists(new):
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

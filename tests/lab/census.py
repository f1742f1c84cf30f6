"""What lies in a directory, read without the library: only the names that the design document promises.

Bodies are unique, so counting bodies counts messages.
"""

import os
import re

ID = r"[1-9][0-9]{24,33}"
MESSAGE = re.compile(rf"{ID}(\.[0-9]{{16}}\.[0-9]+(\.[A-Za-z0-9_-]+)?)?")
DIRECTORY = re.compile(rf"{ID}\.(batch|slice|part)")
UNFINISHED = re.compile(rf"{ID}\.(new|batch\.new)|{ID}\.[0-9]{{16}}\.[0-9]+\.[A-Za-z0-9_-]+\.ack")
NOTE = re.compile(rf"{ID}\.error(\.new)?")
FURNITURE = frozenset((".ballast", "queue.json", "queue.json.new", ".purge.lock", "dead", "done"))


class Census:
    """Bodies by place, and every name that is none of ours."""

    def __init__(self, path):
        self.waiting, self.dead, self.done, self.unfinished, self.notes, self.foreign = [], [], [], [], [], []
        self._read(path, self.waiting, top=True)
        for name, into in (("dead", self.dead), ("done", self.done)):
            if os.path.isdir(os.path.join(path, name)):
                self._read(os.path.join(path, name), into)

    def _read(self, path, into, *, top=False):
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if MESSAGE.fullmatch(entry.name) and entry.is_file():
                with open(entry.path, "rb") as file:
                    into.append(file.read())
            elif DIRECTORY.fullmatch(entry.name) and entry.is_dir():
                self._read(entry.path, into)
            elif UNFINISHED.fullmatch(entry.name):
                self.unfinished.append(entry.name)
            elif NOTE.fullmatch(entry.name):
                self.notes.append(entry.name)
            elif not (top and (entry.name in FURNITURE or entry.name.startswith(".clock-"))):
                self.foreign.append(entry.name)

    def complaints(self, *, known, promised, acked, maybe_acked=()):
        """Compare with what was promised; each list holds bodies. Empty if all is well."""
        there = self.waiting + self.dead
        wrong = [f"torn or from nowhere: {body[:40]!r}" for body in {*there, *self.done} - set(known)]
        wrong += [f"{there.count(body)} times: {body[:40]!r}" for body in set(there) if there.count(body) > 1]
        wrong += [f"back after ack: {body[:40]!r}" for body in set(acked) & set(there)]
        gone = set(promised) - set(there) - set(self.done) - set(acked) - set(maybe_acked)
        wrong += [f"lost: {body[:40]!r}" for body in gone]
        wrong += [f"foreign: {name}" for name in self.foreign]
        return wrong

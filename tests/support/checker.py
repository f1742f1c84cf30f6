"""Read a native queue directory with nothing but the grammar of docs/protocol.md: no code of the package.

`survey` classifies every entry; `problems` lists violations that no crash may cause.
"""

import json
import os
import re
from collections import defaultdict
from typing import NamedTuple

ID = r"[1-9][0-9]{12}|[1-9][0-9]{15}|[1-9][0-9]{24,33}"
UNTIL = r"[1-9][0-9]{15}|[1-9][0-9]{12}"
COUNT = r"0|[1-9][0-9]{0,5}"
TOKEN = r"[A-Za-z0-9_-]{1,100}"
KINDS = {
    "ready": rf"(?P<id>{ID})",
    "new": rf"(?P<id>{ID})\.new",
    "delayed": rf"(?P<id>{ID})\.(?P<until>{UNTIL})\.(?P<n>{COUNT})",
    "leased": rf"(?P<id>{ID})\.(?P<until>{UNTIL})(?:\.(?P<n>{COUNT})\.(?P<token>{TOKEN}))?",
    "acked": rf"(?P<id>{ID})\.(?:{UNTIL})\.(?:{COUNT})\.(?:{TOKEN})\.ack",
    "note": rf"(?P<id>{ID})\.error",
    "note.new": rf"(?P<id>{ID})\.error\.new",
    "staging": rf"(?P<id>{ID})\.batch\.new",
    "batch": rf"(?P<id>{ID})\.batch",
    "slice": rf"(?P<id>{ID})\.slice",
    "part": rf"(?P<id>{ID})\.part",
}
FURNITURE = {"queue.json", "dead", "done", ".purge.lock", ".ballast"}
MESSAGES = ("ready", "delayed", "leased")


class Found(NamedTuple):
    """One entry, as parsed by the grammar."""

    kind: str
    id: str
    path: str
    where: str  # live, dead or done
    attempts: int


def kind_of(name):
    """Return the kind of a name and its match, or None."""
    for kind, pattern in KINDS.items():
        if match := re.fullmatch(pattern, name, re.ASCII):
            return kind, match
    return None


def survey(path):
    """Return every entry of the queue; staging directories are not entered."""
    path = os.fspath(path)
    found = []

    def walk(directory, where):
        for name in sorted(os.listdir(directory)):
            full = os.path.join(directory, name)
            if directory == path and name in ("dead", "done"):
                walk(full, name)
                continue
            if name in FURNITURE or name.startswith((".clock-", ".create-")):
                continue
            known = kind_of(name)
            if known is None:
                found.append(Found("foreign", "", full, where, 0))
                continue
            kind, match = known
            found.append(Found(kind, match["id"], full, where, int(match.groupdict().get("n") or 0)))
            if kind in ("batch", "slice", "part"):
                walk(full, where)

    if os.path.isdir(path):
        walk(path, "live")
    return found


def messages(path):
    """Return {id: body} and {id: where} of all messages."""
    bodies, where = {}, {}
    for each in survey(path):
        if each.kind in MESSAGES:
            with open(each.path, "rb") as file:
                bodies[each.id] = file.read()
            where[each.id] = each.where
    return bodies, where


def problems(path):
    """Return the violations in the directory as sentences; an empty list if there are none."""
    wrong = []
    names = defaultdict(list)
    for each in survey(path):
        if each.kind == "foreign":
            wrong.append(f"{each.path} is not a valid name")
        elif each.kind in MESSAGES:
            names[each.id].append(each)
            if os.stat(each.path).st_nlink != 1:
                # Only a publish or redrive by link that was killed leaves two names of one file.
                wrong.append(f"{each.path} has more than one name")
        elif each.kind == "note":
            with open(each.path, "rb") as file:
                try:
                    json.loads(file.read())["error"]
                except (ValueError, KeyError):
                    wrong.append(f"{each.path} is torn")
    wrong += [f"{id} has {len(them)} names" for id, them in names.items() if len(them) != 1]
    return wrong


def leftovers(path):
    """Return the paths that a purge should have removed."""
    return [each.path for each in survey(path) if each.kind in ("new", "note.new", "staging", "acked")]

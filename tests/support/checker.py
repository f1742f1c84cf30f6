"""Read a native queue directory with nothing but the grammar of docs/protocol.md: no code of the package.

`survey` classifies every entry; `problems` lists violations that no crash may cause, the wrong room among them;
`leftovers` and `orphans` list what a crash may leave and a purge has to remove.
"""

import json
import os
import re
import zlib
from collections import defaultdict
from typing import NamedTuple

ID = r"[1-9][0-9]{12}|[1-9][0-9]{15}|[1-9][0-9]{24,33}"
UNTIL = r"[1-9][0-9]{15}|[1-9][0-9]{12}"
COUNT = r"0|[1-9][0-9]{0,5}"
TOKEN = r"[A-Za-z0-9_-]{1,100}"
NUMBER = r"0|[1-9][0-9]{0,8}"
KEY = r"[A-Za-z0-9_-]{1,36}|=[a-z2-7]{32}"
CARD = rf"~(?P<version>{NUMBER})~(?P<side>{NUMBER})(?:~(?:{KEY}))?"
KINDS = {
    "ready": rf"(?P<id>{ID})",
    "new": rf"(?P<id>{ID})\.new",
    "delayed": rf"(?P<id>{ID})\.(?P<until>{UNTIL})\.(?P<n>{COUNT})",
    "leased": rf"(?P<id>{ID})\.(?P<until>{UNTIL})(?:\.(?P<n>{COUNT})\.(?P<token>{TOKEN}))?",
    "acked": rf"(?P<id>{ID})\.(?P<until>{UNTIL})\.(?P<n>{COUNT})\.(?:{TOKEN})\.ack",
    "task": rf"(?P<id>{ID})\.(?P<until>{UNTIL})\.(?:(?P<n>{COUNT})|0\.(?:{TOKEN})){CARD}",
    "held task": rf"(?P<id>{ID})\.(?P<until>{UNTIL})\.(?P<n>[1-9][0-9]{{0,5}})\.(?P<token>{TOKEN}){CARD}",
    "acked task": rf"(?P<id>{ID})\.(?P<until>{UNTIL})\.(?P<n>{COUNT})\.(?:{TOKEN}){CARD}\.ack",
    "note": rf"(?P<id>{ID})\.error",
    "note.new": rf"(?P<id>{ID})\.error\.new",
    "staging": rf"(?P<id>{ID})\.batch\.new",
    "batch": rf"(?P<id>{ID})\.batch",
    "slice": rf"(?P<id>{ID})\.slice",
    "part": rf"(?P<id>{ID})\.part",
}
BUCKET = r"[1-9][0-9]{15}"
MINUTE, HOUR = 60_000_000, 3_600_000_000
#: Rooms -> how long a bucket in them is, in microseconds; 0: no buckets.
ROOMS = {"leased": 0, "later": MINUTE, "dead": HOUR, "done": HOUR}
FURNITURE = {"queue.json", ".purge.lock", ".ballast", "paused", "attributes"}
#: What the kinds with a card are without it; a free task whose time has come may lie at the top too.
UNCARDED = {"task": "delayed", "held task": "leased", "acked task": "acked"}
MESSAGES = ("ready", "delayed", "leased", "task", "held task")
DIRECTORIES = ("batch", "slice", "part", "staging")
NOTES = ("note", "note.new")
#: What may lie where. A cancelled message is for a moment a tombstone where it lay.
ALLOWED = {
    "top": {"ready", "new", "acked", "batch", "slice", "staging"},
    "leased": {"leased", "acked", *NOTES},
    "later": {"delayed", "acked", "batch", *NOTES},
    "dead": {"delayed", *NOTES},
    "done": {"delayed"},
    "slice": {"ready", "new", "acked"},
    "batch": {"ready", "delayed", "acked", "part"},
    "part": {"ready", "delayed", "acked"},
}
#: What an earlier format, or a full disk that has no inode for a bucket, keeps there too.
ALSO = {
    "top": {"delayed", "leased", *NOTES},
    "leased": {"delayed"},
    "later": set(),
    "dead": set(),
    "done": {"note"},
    "slice": {"delayed", "leased", *NOTES},
    "batch": {"leased", *NOTES},
    "part": {"leased", *NOTES},
}


class Found(NamedTuple):
    """One entry, as parsed by the grammar."""

    kind: str
    id: str
    path: str
    where: str  # live, dead or done
    attempts: int
    until: int = 0
    #: The kind of directory that it lies in: top, a room, batch, slice or part.
    place: str = "top"
    #: The bucket that it lies in, at whatever depth; None if in none.
    bucket: int | None = None
    #: The version, and the number of the side file, that a card says; None without one.
    version: int | None = None
    side: int | None = None


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

    def walk(directory, where, place, bucket):
        for name in sorted(os.listdir(directory)):
            full = os.path.join(directory, name)
            if place == "top" and name in ROOMS:
                walk(full, name if name in ("dead", "done") else "live", name, None)
                continue
            if place == "top" and (name in FURNITURE or name.startswith((".clock-", ".create-"))):
                continue
            if ROOMS.get(place) and bucket is None and re.fullmatch(BUCKET, name, re.ASCII):
                walk(full, where, place, int(name))
                continue
            known = kind_of(name)
            if known is None:
                found.append(Found("foreign", "", full, where, 0, 0, place, bucket))
                continue
            kind, match = known
            said = match.groupdict()
            until = said.get("until") or ""
            micros = int(until or 0) * (1000 if len(until) == 13 else 1)
            card = [None if said.get(word) is None else int(said[word]) for word in ("version", "side")]
            attempts = int(said.get("n") or 0)
            found.append(Found(kind, said["id"], full, where, attempts, micros, place, bucket, *card))
            if kind in ("batch", "slice", "part"):
                walk(full, where, kind, bucket)

    if os.path.isdir(path):
        walk(path, "live", "top", None)
    return found


def messages(path):
    """Return {id: body} and {id: where} of all messages."""
    bodies, where = {}, {}
    for each in survey(path):
        if each.kind in MESSAGES:
            bodies[each.id] = body_of(each.path)
            where[each.id] = each.where
    return bodies, where


def body_of(path):
    """Return the body of a message: a file, or a link whose target is a colon and the body."""
    if os.path.islink(path):
        target = os.readlink(os.fsencode(path))
        assert target[:1] == b":", f"{path} leads to {target!r}"
        return target[1:]
    with open(path, "rb") as file:
        return file.read()


def problems(path, *, earlier=False):
    """Return the violations in the directory as sentences; an empty list if there are none.

    Args:
        earlier: Names may also lie where an earlier format had them.
    """
    wrong = []
    names = defaultdict(list)
    for each in survey(path):
        if each.kind == "foreign":
            wrong.append(f"{each.path} is not a valid name")
            continue
        wrong += [f"{each.path} {reason}" for reason in _misplaced(each, earlier)]
        if _is_directory(each.path) != (each.kind in DIRECTORIES):
            wrong.append(f"{each.path} is not what its name says")
        elif each.kind in MESSAGES:
            names[each.id].append(each)
            wrong += [f"{each.path} {reason}" for reason in _misread(path, each)]
            if os.path.islink(each.path) and os.readlink(each.path)[:1] != ":":
                wrong.append(f"{each.path} is a link that leads elsewhere")
            if os.lstat(each.path).st_nlink != 1 and each.version is None:
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


def side_of(path, id, number):
    """Return where the side file of a task lies; `path` is its queue."""
    own = id[-25:]
    part = f"{zlib.crc32(own.encode()) & 0xFF:02x}"
    return os.path.join(os.path.dirname(os.path.abspath(path)), ".space", "side", part, f"{own}.{number}")


def _misread(path, each):
    """Yield why the side file that a task means is not its own."""
    if not each.side:
        return
    try:
        with open(side_of(path, each.id, each.side), "rb") as file:
            if json.loads(file.readline())["version"] > each.version:
                yield "means a side file of a later version"
    except FileNotFoundError:
        yield "means a side file that is not there"
    except (ValueError, KeyError):
        yield "means a side file that is torn"


def _is_directory(path):
    return os.path.isdir(path) and not os.path.islink(path)


def _misplaced(each, earlier):
    """Yield why an entry does not belong where it lies."""
    kind = UNCARDED.get(each.kind, each.kind)
    free = each.kind == "task" and each.place in ("top", "slice")
    if kind not in ALLOWED[each.place] and not free and not (earlier and kind in ALSO[each.place]):
        yield f"does not belong in {each.place}"
    length = ROOMS.get(each.place)
    if length and each.bucket is None and not (earlier and each.where != "live"):
        yield "lies in no bucket"
    room = "later" if each.where == "live" else each.where
    if each.bucket is not None and each.bucket % ROOMS[room]:
        yield "lies in a bucket that begins at no full minute or hour"
    elif kind == "delayed" and each.bucket not in (None, each.until - each.until % ROOMS[room]):
        yield "lies in the bucket of another time"


def leftovers(path):
    """Return the paths that a purge should have removed."""
    kinds = ("new", "note.new", "staging", "acked", "acked task")
    return [each.path for each in survey(path) if each.kind in kinds]


def orphans(path):
    """Return the notes that do not lie beside their message, which has failed before: a crash may leave them."""
    found = survey(path)
    tried = {
        (os.path.dirname(each.path), each.id) for each in found if each.kind in MESSAGES and each.attempts
    }
    return [e.path for e in found if e.kind == "note" and (os.path.dirname(e.path), e.id) not in tried]


def empty_buckets(path):
    """Return the buckets that hold nothing."""
    return [
        os.path.join(path, room, bucket)
        for room, length in ROOMS.items()
        if length and os.path.isdir(os.path.join(path, room))
        for bucket in sorted(os.listdir(os.path.join(path, room)))
        if not os.listdir(os.path.join(path, room, bucket))
    ]

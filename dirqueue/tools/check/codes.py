"""What can be wrong with a native queue: each invariant of the protocol has a code.

Layer: tools, pure values.
"""

from __future__ import annotations

from typing import NamedTuple

PROBLEM, NOTE = "problem", "note"


class Code(NamedTuple):
    """One thing that can be wrong."""

    name: str
    level: str  #: "problem", or "note" for what is harmless
    meaning: str
    cure: str  #: what repair does, or what a person can do


#: Code, name, level; what it means; what repair does, or what a person can do.
_TABLE = """
Q01 settings (problem)
queue.json cannot be read, so nobody can open the queue
fix the file, or move it away to get the defaults

Q02 foreign (note)
not a name of dirqueue's: everybody ignores it
never touched; move it away

Q03 wrong-type (problem)
named like a message or a directory of messages, but of another type: never delivered
never touched; move it away

Q04 two-names (problem)
one message has two names: it may be delivered twice
repair removes the name that is behind

Q05 twins (problem)
two files have one id: ids are never given twice, so one is a copy made by hand
never touched; move one away

Q06 unfinished (note)
its producer died while writing: nobody reads it
repair removes it

Q07 unfinished-batch (note)
a batch whose producer died before it was committed: nobody reads it
repair removes it

Q08 leftover-error (note)
the reason of a failure, but its message is gone
repair removes it

Q09 leftover-ack (note)
an acknowledged message whose consumer died before its name was gone
repair removes it

Q10 empty-directory (note)
a slice or batch that was used up
repair removes it

Q11 too-deep (problem)
a directory of messages deeper than anybody looks: never delivered
move it up into the queue

Q12 future-id (problem)
put in the future: the producer's clock was wrong, and it is delivered last
set the clock; the message is good

Q13 far-end (problem)
its lease or delay ends more than a year from now
a lease: dirqueue release QUEUE HANDLE (ls --json shows the handle); a delay: Queue(...).message(ID).change(delay=0)

Q14 priority (note)
its id has a priority and the queue has none, or the other way round: it is out of order
nothing to do: it is delivered

Q15 wrong-directory (note)
it lies in a slice or batch of another priority: it is out of order
nothing to do: it is delivered

Q16 out-of-attempts (note)
delivered max_attempts times and never acknowledged
repair moves it to dead/, as the next get would

Q17 leftover-probe (note)
a file that measured the clock, left by a process that died
repair removes it

Q19 no-reserve (note)
the space held back for a full disk is gone
repair makes it again

Q20 other-filesystem (problem)
a directory of the queue is a mount of its own: renames into it fail
unmount it, or make the whole queue the mount

Q21 unreadable (problem)
a directory that cannot be listed, or a message that cannot be opened (--deep): deliveries fail
give the consumers the right to read it

Q22 linked (note)
a message with another name elsewhere: whoever has that can change the body (--deep)
as put --link makes them

Q23 read-only (problem)
nothing can be written into the queue: no put, no get
check owner, group, mode and mount

Q24 half-converted (problem)
a conversion to another layout was interrupted: some of the messages are in another directory
run dirqueue convert again: it continues
"""


def _read(table: str) -> dict[str, Code]:
    found = {}
    for block in table.strip().split("\n\n"):
        head, meaning, cure = block.split("\n")
        code, name, level = head.split()
        found[code] = Code(name, level.strip("()"), meaning, cure)
    return found


CODES = _read(_TABLE)


class Finding(NamedTuple):
    """Something found: where, with what detail, and whether it was repaired."""

    code: str
    place: str
    detail: str = ""
    repaired: bool = False

    @property
    def level(self) -> str:
        """How bad it is: "problem" or "note"."""
        return CODES[self.code].level

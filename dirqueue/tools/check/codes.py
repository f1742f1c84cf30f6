"""What can be wrong with a native queue or a text queue: each invariant has a code.

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
a slice, batch or bucket that was used up
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

Q25 misplaced (problem)
a message or batch in a room or bucket where consumers need not look for it, or look too late
repair moves it to its place

Q26 abandoned (note)
a transaction whose process died before it was committed: what it held comes back, what it was to put is not there
repair undoes it, as the next get would

Q27 half-applied (note)
a transaction that is decided, and whose process died before it brought this name to its end
repair does so, as the next get would

Q28 outside-its-space (problem)
a name of a transaction, and no .space/ beside the queue that tells what was decided: never delivered
move the queue back into its space

Q29 no-side-file (problem)
a task whose side file is missing, damaged or of a later version: its body, error or own id cannot be told
bring the file back from a copy of .space/side/, or reject the task

Q30 leftover-side-file (note)
a side file that no name means, left by a process that died before it changed a task
repair removes it, as purge of the space does

T01 foreign-line (note)
a line that begins with a character that the format does not have: everybody passes over it
never touched; a person can correct it

T02 carriage-return (note)
lines that end as in other systems: read by all, but no body can hold the character
nothing to do: it is delivered

T03 byte-order-mark (problem)
textqueue 1.1 passes over the first message because of it
remove the first three bytes with an editor

T04 not-utf-8 (problem)
a message with bytes that are not text: textqueue 1.1 passes over what lies near it
correct it, or cancel it and put it again: dirqueue writes such bodies as base64

T05 nul (problem)
a hole of NUL bytes, as a program leaves that wrote to a file that was cut
remove them with an editor

T06 no-line-end (note)
the last line does not end: a program that appends may add to it
the next put ends it

T07 behind (note)
the file is older than its journal: somebody saved an old copy, or a process was killed
the next get or put merges them

T08 no-stamp (note)
nothing in the file says what it has seen of its journal
the next get or put adds it

T09 two-stamps (note)
the file was put together from copies: what is in it counts
remove one of the two comments with their variables

T10 journal (problem)
the journal is damaged: leases and attempts behind that place are forgotten, messages are not
the next get or put begins another

T11 leftover-file (note)
a file that was about to replace the queue, left by a process that died
repair removes it
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

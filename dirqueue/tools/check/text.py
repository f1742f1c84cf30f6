"""Check a queue that is one file, line by line.

Layer: tools.  Touches: with `repair`, a leftover beside the file; the file itself never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dirqueue.disk import fs
from dirqueue.disk.beside import Beside
from dirqueue.errors import access_error
from dirqueue.layouts.text import names, stamp
from dirqueue.layouts.text.grammar import BOM, items
from dirqueue.layouts.text.journal import Journal
from dirqueue.layouts.text.turn import Ledger
from dirqueue.tools.check.codes import Finding


def check(home: Beside, *, repair: bool, progress: Callable[[], None]) -> list[Finding]:
    """Return what is wrong with a text queue, in the order of the codes."""
    ledger = Ledger(home)
    try:
        looked = ledger.look()
        data = looked[0] if looked else b""
        found = [*_lines(data, progress), *_beside(home, data)]
        if repair:
            found = [each._replace(repaired=_repaired(home, each)) for each in found]
    except OSError as error:
        raise access_error(home.path, "check", error) from error
    finally:
        ledger.close()
    return sorted(found, key=lambda each: each[:2])


def _lines(data: bytes, progress: Callable[[], None]) -> Iterator[Finding]:
    if data.startswith(BOM):
        yield Finding("T03", "byte 0")
    for item in items(data):
        progress()
        where = f"byte {item.offset}"
        if b"\0" in item.text:
            yield Finding("T05", where)
        if item.foreign:
            yield Finding("T01", where, repr(item.text[:30].decode("utf-8", "replace")))
            continue
        try:
            item.text.decode()
        except UnicodeDecodeError as error:
            yield Finding("T04", where, error.reason)
    if b"\r" in data:
        yield Finding("T02", f"byte {data.index(bytes((13,)))}")
    if data and data[-1:] not in (b"\n", b"\r"):
        yield Finding("T06", f"byte {len(data)}")


def _beside(home: Beside, data: bytes) -> Iterator[Finding]:
    stamps = stamp.find(data)
    if home.fd < 0:
        return
    try:
        seal = stamp.load(fs.read_file(names.LOCK, home.fd))
    except FileNotFoundError:
        return
    if seal is not None:
        journal = Journal(home)
        try:
            journal.open(seal.part)
            for _ in journal.read(seal.end):
                pass
        except FileNotFoundError:
            pass
        finally:
            journal.close()
        if (journal.end, journal.chain) != (seal.end, seal.chain):
            yield Finding("T10", names.segment(seal.part), f"whole up to {journal.end} of {seal.end}")
        if stamps and min(each.seen for each in stamps) < seal.seen:
            yield Finding("T07", f"byte {stamps[0].offset}")
    if not stamps and data:
        yield Finding("T08", "byte 0")
    if len(stamps) > 1:
        yield Finding("T09", f"byte {stamps[1].offset}")
    if fs.exists(names.NEW, home.fd):
        yield Finding("T11", names.NEW)


def _repaired(home: Beside, finding: Finding) -> bool:
    return finding.code == "T11" and fs.discard(names.NEW, home.fd)

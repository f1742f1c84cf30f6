"""Check a queue against its protocol, name by name or line by line, and fix what can be fixed safely.

Layer: tools.  Touches: with `repair`, what the table in `codes` says, by exact name; without it, one probe file.
Invariant: what cannot be parsed is reported and never touched; a message that waits or is held is never removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from dirqueue import settings as settings_
from dirqueue import stored_settings
from dirqueue.disk import fs
from dirqueue.disk.beside import Beside
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.errors import DirQueueError, QueueNotFound, Unsupported, access_error
from dirqueue.layouts import detect, locate, signs
from dirqueue.layouts.native import Native, sidefile
from dirqueue.tools import conversion
from dirqueue.tools.check import text
from dirqueue.tools.check.codes import CODES, NOTE, PROBLEM, Code, Finding
from dirqueue.tools.check.repair import repaired
from dirqueue.tools.check.walk import Walker

__all__ = ["CODES", "NOTE", "PROBLEM", "Code", "Finding", "check"]


def check(
    path: str, *, repair: bool = False, deep: bool = False, progress: Callable[[], None] | None = None
) -> list[Finding]:
    """Return what is wrong with the queue at `path`, in the order of the codes. Refuse what is not a queue.

    Args:
        path: The directory.
        repair: Fix what the table says can be fixed.
        deep: Open every file, not only read its name.
        progress: Called once per name.
    """
    directory = locate(path, create=False)
    try:
        directory.need()
    except QueueNotFound as error:
        raise conversion.explained(error) from None
    if isinstance(directory, Beside):
        if directory.fd < 0:
            detect(directory)  # nothing beside it says that it is a queue
        return text.check(directory, repair=repair, progress=progress or (lambda: None))
    signs.need_queue(path, "repaired" if repair else "checked")
    found: list[Finding] = []
    unfinished = conversion.interrupted(path)
    if unfinished is not None:
        found.append(Finding("Q24", os.path.basename(path) + conversion.SUFFIX, str(unfinished)))
    try:
        given = stored_settings.stored(directory) or {}
    except DirQueueError as error:
        found.append(Finding("Q01", settings_.FILE, str(error)))
        given = {}
        directory.need()
    name = given.get("layout", "auto")
    if (detect(directory) if name == "auto" else name) != "native":
        if unfinished is not None:
            return found
        raise Unsupported(f"check knows the native layout, and {path!r} has another", path=path)
    layout = Native(directory, settings_.build(given))
    try:
        found += Walker(layout, deep=deep, progress=progress or (lambda: None)).run()
        found += _leftover_sides(path, layout)
        if repair:
            found = repaired(layout, found)
    except OSError as error:
        raise access_error(path, "check", error) from error
    finally:
        layout.close()
    return sorted(found, key=lambda each: each[:2])


def _leftover_sides(path: str, layout: Native) -> list[Finding]:
    """Report the side files of the space around a queue that no name means."""
    if not fs.exists(f"../{sidefile.SIDES}", layout.directory.fd):
        return []
    from dirqueue.space.sides import orphans

    root = Directory(os.path.dirname(os.path.abspath(path)), create=False)
    root.need()
    try:
        found = orphans(root, micros(layout.settings.stale))
    finally:
        root.close()
    return [Finding("Q30", f"../{each}") for each in found]

"""Check a native queue against its protocol, name by name, and mend what can be mended safely.

Layer: mechanisms.  Touches: with `repair`, what the table in `codes` says, by exact name; without it, nothing that
stays.
Invariant: what cannot be parsed is reported and never touched; a message that waits or is held is never removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from dirqueue import fs
from dirqueue import settings as settings_
from dirqueue.errors import DirQueueError, Unsupported, access_error
from dirqueue.home import Home
from dirqueue.layouts import detect
from dirqueue.layouts.native import Native

from .codes import CODES, NOTE, PROBLEM, Code, Finding
from .mend import Mender
from .walk import Walker

__all__ = ["CODES", "NOTE", "PROBLEM", "Code", "Finding", "check"]


def check(
    path: str, *, repair: bool = False, deep: bool = False, progress: Callable[[], None] | None = None
) -> list[Finding]:
    """Return what is wrong with the queue at `path`, in the order of the codes.

    Args:
        path: The directory.
        repair: Mend what the table says can be mended.
        deep: Look at every file, not only at every name.
        progress: Called once per name.
    """
    home = Home(path, create=False)
    home.need()
    found: list[Finding] = []
    try:
        given = settings_.loads(_read_settings(home), f"{path}/{settings_.FILE}")
    except DirQueueError as error:
        found.append(Finding("Q01", settings_.FILE, str(error)))
        given = {}
    name = given.get("layout", "auto")
    if (detect(home) if name == "auto" else name) != "native":
        raise Unsupported(f"check knows the native layout, and {path!r} has another", path=path)
    layout = Native(home, settings_.build(given))
    try:
        found += Walker(layout, deep=deep, progress=progress or (lambda: None)).run()
        if repair:
            mender = Mender(layout)
            found = [each._replace(repaired=mender.mend(each)) for each in found]
    except OSError as error:
        raise access_error(path, "check", error) from error
    finally:
        layout.close()
    return sorted(found, key=lambda each: each[:2])


def _read_settings(home: Home) -> bytes:
    try:
        return fs.read_file(settings_.FILE, home.fd)
    except FileNotFoundError:
        return b"{}"
    except OSError as error:
        raise access_error(os.path.join(home.path, settings_.FILE), "read", error) from error

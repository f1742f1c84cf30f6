"""The settings that a queue was created with: reading and writing `queue.json`.

Layer: mechanisms.  Touches: queue.json, .create-TOKEN.
Invariant: settings are written once, and complete. Of two processes that create a queue, one does, and the other one's
settings must be equal.
"""

from __future__ import annotations

import os
from typing import Any

from dirqueue import settings, states
from dirqueue.disk import fs, identity
from dirqueue.disk.directory import Directory
from dirqueue.errors import LayoutError, QueueError, SettingsError, access_error
from dirqueue.layouts import NAMES, describe, detect, open_layout


def stored(directory: Directory) -> dict[str, Any] | None:
    """Return the settings that the queue was created with; None if it was created without, by a put."""
    if not directory.find():
        return None
    where = os.path.join(directory.path, settings.FILE)
    try:
        text = fs.read_file(settings.FILE, directory.fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        directory.close()
        raise access_error(where, "read", error) from error
    found = settings.loads(text, where)
    if found.get("layout", "auto") not in ("auto", *NAMES):
        known = ", ".join(NAMES)
        raise LayoutError(f"{where} names the layout {found['layout']!r:.60}; known are {known}", path=where)
    return found


def create(path: str, given: dict[str, Any]) -> bool:
    """Create a queue with settings; an error if it exists with others, or is in use without.

    Return whether they are stored in it: the formats of other programs have no place for them.
    """
    text = settings.dumps(given)
    asked = settings.loads(text)
    directory = Directory(path)
    if given.get("layout", "auto") != "auto":
        if not describe(given["layout"]).keeps_settings:
            _create_foreign(directory, given)
            return False
        open_layout(directory, settings.build(given), given)  # raises Unsupported before anything is made
    directory.make()
    try:
        found = stored(directory)
        if found is None and asked:
            if any(
                entry.state in states.VISIBLE
                for entry in open_layout(directory, settings.build({})).entries(states.VISIBLE)
            ):
                in_use = f"{path!r} is a queue in use without settings: empty it first, or create another"
                raise QueueError(in_use, path=path)
            _store(directory, text)
            found = stored(directory)
        if (found or {}) != asked:
            raise SettingsError(
                f"{path!r} was created with {found or {}}, not with {asked}: use another path"
            )
    finally:
        directory.close()
    return True


def _create_foreign(directory: Directory, given: dict[str, Any]) -> None:
    """Create a directory that is recognised as being in that format."""
    found, wanted = detect(directory), given["layout"]
    if directory.find() and found not in (wanted, "native"):
        raise LayoutError(
            f"{directory.path!r} is a {found} queue, not {wanted}: use another path", path=directory.path
        )
    if stored(directory) is not None:
        raise SettingsError(f"{directory.path!r} has a {settings.FILE}, which {wanted} has no place for")
    layout = open_layout(directory, settings.build(given), given)
    try:
        layout.create()
    except OSError as error:
        raise access_error(directory.path, "create", error) from error
    finally:
        directory.close()


def _store(directory: Directory, text: bytes) -> None:
    """Write the settings, unless another process just did."""
    new = f".create-{identity.new_token()}"
    try:
        fs.create(new, text, directory.fd, sync=True)
        directory.mount.publish(new, settings.FILE, directory.fd)
        directory.sync()
    except FileExistsError:
        fs.discard(new, directory.fd)
    except OSError as error:
        fs.discard(new, directory.fd)
        raise access_error(directory.path, "create", error) from error

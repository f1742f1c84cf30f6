"""What a queue was created with: reading and writing `queue.json`.

Layer: mechanisms.  Touches: queue.json, .create-TOKEN.
Invariant: settings are written once, complete; of two who create, one does and the other must agree with it.
"""

from __future__ import annotations

import os
from typing import Any

from dirqueue import fs, names, settings
from dirqueue.errors import LayoutError, QueueError, SettingsError, access_error
from dirqueue.home import Home
from dirqueue.layouts import KEEPS_SETTINGS, detect, open_layout

LIVE = ("ready", "delayed", "leased", "dead", "done")


def stored(home: Home) -> dict[str, Any] | None:
    """Return what the queue was created with; None if it just began to exist."""
    if not home.find():
        return None
    where = os.path.join(home.path, settings.FILE)
    try:
        text = fs.read_file(settings.FILE, home.fd)
    except FileNotFoundError:
        return None
    except OSError as error:
        home.close()
        raise access_error(where, "read", error) from error
    return settings.loads(text, where)


def create(path: str, given: dict[str, Any]) -> bool:
    """Make a queue with settings; an error if it is there with others, or is in use without.

    Returns whether they are kept there: the formats of others have no place for them.
    """
    text = settings.dumps(given)
    asked = settings.loads(text)
    home = Home(path)
    if given.get("layout", "auto") not in (*KEEPS_SETTINGS, "auto"):
        _create_foreign(home, given)
        return False
    if given.get("layout") == "vsqs":
        open_layout(home, settings.build(given), given)  # what it cannot do it says before anything is made
    home.make()
    try:
        found = stored(home)
        if found is None and asked:
            if any(entry.state in LIVE for entry in open_layout(home, settings.build({})).entries(LIVE)):
                in_use = f"{path!r} is a queue in use without settings: empty it first, or create another"
                raise QueueError(in_use, path=path)
            _store(home, text)
            found = stored(home)
        if (found or {}) != asked:
            raise SettingsError(
                f"{path!r} was created with {found or {}}, not with {asked}: use another path"
            )
    finally:
        home.close()
    return True


def _create_foreign(home: Home, given: dict[str, Any]) -> None:
    """Make a directory that is recognised as being of that format."""
    found, wanted = detect(home), given["layout"]
    if home.find() and found not in (wanted, "native"):
        raise LayoutError(f"{home.path!r} is a {found} queue, not {wanted}: use another path", path=home.path)
    if stored(home) is not None:
        raise SettingsError(f"{home.path!r} has a {settings.FILE}, which {wanted} has no place for")
    layout = open_layout(home, settings.build(given), given)
    try:
        layout.create()
    except OSError as error:
        raise access_error(home.path, "create", error) from error
    finally:
        home.close()


def _store(home: Home, text: bytes) -> None:
    """Write the settings unless somebody else just did."""
    new = f".create-{names.new_token()}"
    try:
        fs.create(new, text, home.fd, sync=True)
        home.mount.publish(new, settings.FILE, home.fd)
        home.sync()
    except FileExistsError:
        fs.discard(new, home.fd)
    except OSError as error:
        fs.discard(new, home.fd)
        raise access_error(home.path, "create", error) from error

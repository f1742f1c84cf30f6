"""The settings that a space was created with: reading and writing .space/space.json.

Layer: objects.  Touches: .space/space.json, .space/create-TOKEN.
They are those that a new queue of the space is created with; queues that exist keep their own.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from dirqueue import settings
from dirqueue.disk import fs, identity
from dirqueue.disk.directory import Directory
from dirqueue.errors import SettingsError, access_error
from dirqueue.layouts.native.conditions import SPACE

FILE = f"{SPACE}/space.json"
#: How the names begin of settings and queues that are being made.
UNFINISHED = f"{SPACE}/create-"
#: How often settings are written again that a purge took for the leftover of a dead process.
TRIES = 6


def read(directory: Directory) -> dict[str, Any]:
    """Return the settings that new queues are created with; none if the space was created without."""
    if not directory.find():
        return {}
    where = os.path.join(directory.path, FILE)
    try:
        return settings.loads(fs.read_file(FILE, directory.fd), where)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise access_error(where, "read", error) from error


def create(path: str, given: dict[str, Any]) -> None:
    """Create a space; SettingsError if it was created with other settings."""
    text = settings.dumps(given)
    asked = settings.loads(text)
    directory = Directory(path)
    directory.foreign = True  # no reserve of its own: its queues have one
    directory.make()
    try:
        fs.make_inner(SPACE, directory.fd)
        found = read(directory)
        if not found and asked:
            _store(directory, text)
            found = read(directory)
    except OSError as error:
        raise access_error(path, "create", error) from error
    finally:
        directory.close()
    if found != asked:
        raise SettingsError(f"{path!r} was created with {found}, not with {asked}: use another path")


def _store(directory: Directory, text: bytes) -> None:
    """Publish the settings of a space. Raises plain OSError."""
    for _ in range(TRIES):
        new = f"{UNFINISHED}{identity.new_token()}"
        fs.create(new, text, directory.fd, sync=True)
        try:
            directory.mount.publish(new, FILE, directory.fd)
        except FileExistsError:
            fs.discard(new, directory.fd)  # RACE: another process just did
        except FileNotFoundError:
            continue  # RACE: we were stopped for so long that a purge took it away
        directory.sync(SPACE)
        return
    raise OSError(errno.EBUSY, "what is being made is removed each time", FILE)

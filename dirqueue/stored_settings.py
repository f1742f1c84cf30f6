"""The settings that a queue keeps: reading, writing and changing `queue.json`.

Layer: mechanisms.  Touches: queue.json, .create-TOKEN.
Invariant: whoever reads finds all of one version. Of two processes that create a queue, one does, and the other one's
settings must be equal. Of two that change it, one comes after the other.
Crash: the old settings or the new ones; purge removes a `.create-TOKEN`.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from dirqueue import settings, states
from dirqueue.disk import fs, identity
from dirqueue.disk.beside import Beside
from dirqueue.disk.directory import Directory
from dirqueue.errors import LayoutError, QueueAccess, QueueError, SettingsError, Unsupported, access_error
from dirqueue.layouts import NAMES, describe, detect, locate, open_layout
from dirqueue.layouts.base import Layout
from dirqueue.layouts.native import staging

#: How long to wait for another process that changes settings, or purges.
LOCK_SECONDS = 10.0
#: Settings that say what becomes of a failed message: only those of consumers count.
POLICY = ("max_attempts", "backoff", "max_backoff")


def stored(directory: Directory) -> dict[str, Any] | None:
    """Return the settings that the queue was created with; None if it was created without, by a put."""
    directory.find()
    if directory.fd < 0:
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
    directory = locate(path, layout=given.get("layout", "auto"))
    if given.get("layout", "auto") != "auto":
        if not describe(given["layout"]).keeps_settings:
            _create_foreign(directory, given)
            return False
        open_layout(directory, settings.build(given), given)  # raises Unsupported before anything is made
    elif isinstance(directory, Beside) and directory.find():
        detect(directory)  # raises LayoutError before anything is written into a file of somebody else
    try:
        _make(directory, given)
        found = stored(directory)
        if found is None and asked:
            named = settings.build({"layout": given.get("layout", "auto")})
            if any(
                entry.state in states.VISIBLE
                for entry in open_layout(directory, named).entries(states.VISIBLE)
            ):
                in_use = f"{path!r} is a queue in use without settings: empty it first, or create another"
                raise QueueError(in_use, path=path)
            _store(directory, text)
            found = stored(directory)
        if (found or {}) != asked:
            raise SettingsError(
                f"{path!r} was created with {found or {}}, not with {asked}: use another path, or `dirqueue settings`"
            )
    finally:
        directory.close()
    return True


#: The kind of file, size and times of a queue.json: what tells one version from another.
Version = tuple[int, int, int, int] | None


def version(layout: Layout) -> Version:
    """Return what tells the present settings from earlier ones; None if there are none."""
    directory = layout.directory
    if not describe(layout.name).keeps_settings or not directory.find():
        return None
    try:
        found = fs.stat(settings.FILE, dir_fd=directory.fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise access_error(os.path.join(directory.path, settings.FILE), "read", error) from error
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def change(layout: Layout, changes: Mapping[str, Any], reset: Iterable[str] = ()) -> None:
    """Change what a queue keeps; settings in `reset` are not kept any more.

    RACE: two that change settings wait for each other, by the lock of those who clean up.
    """
    from filelock import FileLock, Timeout

    directory = layout.directory
    dropped = {*reset}
    for name in (*changes, *dropped):
        settings.check_name(name)
        if name in settings.FIXED:
            raise SettingsError(f"{name} cannot be changed: {settings.FIXED[name]}")
    settings.build(changes)
    if not describe(layout.name).keeps_settings:
        raise SettingsError(f"{directory.path!r} is a {layout.name} queue, which has no place for settings")
    directory.need()
    try:
        with FileLock(layout.purge_lock(), timeout=LOCK_SECONDS):
            before = stored(directory) or {}
            kept = {name: value for name, value in before.items() if name not in dropped} | dict(changes)
            if layout.name != "native":
                kept.setdefault("layout", layout.name)  # settings alone would make it native once it is empty
            open_layout(
                locate(directory.path, layout=layout.name), settings.build(kept), kept
            )  # raises Unsupported
            if kept != before:
                _replace(directory, settings.dumps(kept))
    except Timeout:
        raise QueueAccess(
            f"cannot change the settings of {directory.path!r}: a purge or another change is at work; try again",
            path=directory.path,
            errno=errno.EBUSY,
            strerror="busy",
        ) from None
    except OSError as error:
        if isinstance(error, QueueError):
            raise
        raise access_error(directory.path, "change the settings of", error) from error


def _replace(directory: Directory, text: bytes) -> None:
    new = f".create-{identity.new_token()}"
    try:
        _write(directory, new, text)
        _rename(directory, new)
    except BaseException:
        fs.discard(new, directory.fd)
        raise
    directory.sync()


def _write(directory: Directory, new: str, text: bytes) -> None:
    fs.create(new, text, directory.fd, sync=True)
    if directory.mount.closes_late:
        staging.settle(directory, [(new, len(text))])


def _rename(directory: Directory, new: str) -> None:
    try:
        fs.rename_in(new, settings.FILE, directory.fd)
    except OSError as error:
        if not staging.is_refused(directory, error, settings.FILE):
            raise
        raise Unsupported(
            f"the filesystem of {directory.path!r} ({directory.mount.fstype}) replaces no file, so the settings of a "
            "queue cannot be changed there: make another queue with these settings, and move the messages",
            path=directory.path,
            capability="configure",
        ) from None


class Unbound:
    """Settings for consumers that were given to a queue object, are not kept in the queue, and so bind nobody else.

    An object that only puts has no use for them: that is reported, once for each queue, when the object ends.
    """

    reported: ClassVar[set[str]] = set()

    def __init__(self, text: str) -> None:
        self._text = text
        self._end: weakref.finalize[..., Any] | None = None

    def put(self, queue: Any) -> None:
        """The object has put a message."""
        if self._end is None:
            self._end = weakref.finalize(queue, self._report, queue.path)

    def drop(self) -> None:
        """The object consumes too, by these settings: there is nothing to report."""
        if self._end is not None:
            self._end.detach()

    def _report(self, path: str) -> None:
        if path not in self.reported:
            self.reported.add(path)
            import logging  # COST: 4 ms, for whoever only puts

            logging.getLogger("dirqueue.queue").warning(
                "%s was given to a queue object that only put messages into %r: that binds no consumer; "
                "Queue.create(path, ...) or `dirqueue settings` does",
                self._text,
                path,
            )


def unbound(given: Mapping[str, Any], kept: Mapping[str, Any]) -> Unbound | None:
    """Return the settings of an object that bind nobody else, if there are any."""
    named = [f"{name}={given[name]!r}" for name in POLICY if name in given and name not in kept]
    return Unbound(", ".join(named)) if named else None


def _make(directory: Directory, given: dict[str, Any]) -> None:
    """Make the home of a queue."""
    if not isinstance(directory, Beside):
        directory.make()
        return
    layout = open_layout(directory, settings.build({"layout": "text", "sync": given.get("sync", True)}))
    try:
        layout.create()
    except OSError as error:
        raise access_error(directory.path, "create", error) from error
    finally:
        layout.close()
    directory.make()


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
        _write(directory, new, text)
        directory.mount.publish(new, settings.FILE, directory.fd)
        directory.sync()
    except OSError as error:
        fs.discard(new, directory.fd)
        if error.errno != errno.EEXIST and not staging.is_refused(directory, error, settings.FILE):
            raise access_error(directory.path, "create", error) from error

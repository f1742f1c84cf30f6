"""Batches that several writers fill, that one rename shows, and that an identity makes unrepeatable.

    STAGING.batch.new/ID.part/...   what the writers of one job write; each part belongs to one attempt
    BATCH.batch.new/ID.part/...     the parts that won, moved here by the committer
    BATCH.batch.new/ID.new          the record of an identity, about to be published
    .spark/txn/APP/VERSION          this version is committed: a small file that names its batch

Layer: layouts.  Touches: the names above, and BATCH.batch.
Invariant: with an identity the commit point is the record, without one it is the rename to BATCH.batch. A staging
directory that a record names is shown, never removed; and a record is published out of its staging directory, so
that none can name a directory that was removed before. A late writer can reach STAGING only, so nothing it does is
ever seen; and it cannot make STAGING, so that nothing it does comes back after commit or abort took STAGING away.
Crash: before the commit point nothing is visible and the staging is removed when it is stale; between the record and
the rename whoever comes next (a repeated write, a purge, a consumer) does the rename.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from dirqueue.disk import fs, identity
from dirqueue.disk.clock import micros
from dirqueue.disk.directory import Directory
from dirqueue.disk.identity import new_id, new_token
from dirqueue.errors import SettingsError, access_error
from dirqueue.layouts.native import names
from dirqueue.layouts.native.attempt import remove, vanished
from dirqueue.layouts.native.extras import discard_unseen
from dirqueue.layouts.native.names import ATTRIBUTES, BATCH, MALFORMED, NEW, PART, SPARK, STAGING
from dirqueue.layouts.native.publish import SLICE_SIZE
from dirqueue.layouts.native.staging import is_refused, settle
from dirqueue.settings import Settings

RECORDS = f"{SPARK}/txn"
#: Versions kept for each application; whatever is not newer than the newest counts as written.
KEEP = 10
MAX_VERSION = 2**63 - 1
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,100}")
_VERSION = re.compile(r"0|[1-9][0-9]{0,18}")


class Identity(NamedTuple):
    """What makes a batch the same batch when it is written again: versions of an application only grow."""

    app: str
    version: int


def begin(directory: Directory, staging: str | None = None) -> str:
    """Make the staging directory of a job, once and before its writers begin; return what they call it."""
    staging = new_id() if staging is None else names.check_id(staging)
    directory.make()
    try:
        try:
            fs.make_inner(f"{staging}.{STAGING}", directory.fd)
        except FileNotFoundError:
            directory.remake()  # RACE: another process removed the queue
            fs.make_inner(f"{staging}.{STAGING}", directory.fd)
    except OSError as error:
        raise access_error(directory.path, "put to", error) from error
    return staging


def touch(directory: Directory, staging: str, *, ahead: float = 0) -> None:
    """Keep a staging directory from becoming stale: for a job whose writers have nothing to write for a while.

    Args:
        ahead: Seconds for which nobody may come to touch it again: its time is set ahead by so much.

    Raises:
        QueueError: the directory is gone: the job is over, or it was left alone for the queue's `stale` seconds.
    """
    directory.need()
    place = f"{names.check_id(staging)}.{STAGING}"
    try:
        fs.utime(place, dir_fd=directory.fd)
    except FileNotFoundError:
        raise vanished(directory, staging) from None
    except OSError as error:
        raise access_error(directory.path, "put to", error) from error
    if ahead:
        when = (directory.clock.now() + micros(ahead)) * 1000
        # Touched is enough for now. RACE: it may be committed just now; and only its owner can set it ahead.
        with contextlib.suppress(OSError):
            fs.utime(place, ns=(when, when), dir_fd=directory.fd)


def commit(
    directory: Directory,
    settings: Settings,
    staging: str,
    parts: Sequence[str],
    identity: Identity | None = None,
    *,
    carrying: bool = False,
) -> bool:
    """Show these parts, and only these, as one batch; False if the identity was written before.

    Args:
        carrying: Whether messages were given something to carry: what is not shown must not leave that behind.
    """
    directory.make()
    if identity is not None:
        check_identity(identity)
    try:
        return _commit(directory, settings, staging, parts, identity, carrying=carrying)
    except OSError as error:
        raise access_error(directory.path, "put to", error) from error


def _commit(
    directory: Directory,
    settings: Settings,
    staging: str,
    parts: Sequence[str],
    identity: Identity | None,
    *,
    carrying: bool,
) -> bool:
    if identity is not None and newest(directory, identity.app) >= identity.version:
        roll_forward(directory, _key(identity.app))
        abort(directory, staging, carrying=carrying)
        return False
    batch = _assemble(directory, settings, staging, parts, carrying=carrying) if parts else ""
    if identity is not None and not _record(directory, identity, batch, staging):
        # RACE: another committer of the same version was faster; its batch is the one.
        remove(directory, f"{batch}.{STAGING}", carrying=carrying)
        roll_forward(directory, _key(identity.app))
        abort(directory, staging, carrying=carrying)
        return False
    # CRASH: with an identity the batch is committed here, and whoever comes next shows it.
    if batch:
        try:
            fs.move(f"{batch}.{STAGING}", f"{batch}.{BATCH}", directory.fd)
        except FileNotFoundError:
            if identity is None:
                raise vanished(directory, staging) from None
            # RACE: another process rolled it forward, and it may be consumed: what a record names is not removed.
        if settings.sync:
            directory.sync()
    abort(directory, staging, carrying=carrying)
    if identity is not None:
        _prune(directory, _key(identity.app))
    return True


def _assemble(
    directory: Directory, settings: Settings, staging: str, parts: Sequence[str], *, carrying: bool
) -> str:
    """Move the winners out of reach of late writers; return the id of the batch, by its most urgent message."""
    found = [names.parse(part) for part in parts]
    if any(each is None or each.kind != PART for each in found):
        raise SettingsError(f"these are not parts of a batch: {parts!r:.80}")
    urgent = min(names.priority_of(each.id) or 0 for each in found if each is not None)
    batch = f"{urgent or ''}{new_id()}"
    new = f"{batch}.{STAGING}"
    fs.make_inner(new, directory.fd)
    try:
        for part in parts:
            fs.move(f"{names.check_id(staging)}.{STAGING}/{part}", f"{new}/{part}", directory.fd)
        if settings.sync:
            directory.sync(new)
    except FileNotFoundError:
        remove(directory, new, carrying=carrying)
        raise vanished(directory, staging) from None
    except BaseException:
        remove(directory, new, carrying=carrying)
        raise
    return batch


def abort(directory: Directory, staging: str, *, carrying: bool = False) -> None:
    """Remove what writers staged, what that carries, and the place for it; never what is committed.

    RACE: a writer may still be at it (Spark cancels the tasks of a failed job in its own time). Renamed away first, the
    directory gets no new parts; a part that is open gets at most what it has room for, and is emptied until it goes.
    """
    if not directory.find():
        return
    taken = f"{identity.new_id()}.{STAGING}"
    try:
        fs.move(f"{names.check_id(staging)}.{STAGING}", taken, directory.fd)
    except FileNotFoundError:
        return
    went = 1
    for _ in range(SLICE_SIZE):
        before, went = went, remove(directory, taken, carrying=carrying)
        if not fs.exists(taken, directory.fd) or not (before or went):
            return  # gone; or it cannot be removed, and purge will find it


# --- identities --------------------------------------------------------------------------------------------


def check_identity(identity: Identity) -> None:
    """Raise SettingsError for an invalid identity."""
    if not identity.app:
        raise SettingsError(
            f"the application of a batch is a text that is not empty, not {identity.app!r:.60}"
        )
    if type(identity.version) is not int or not 0 <= identity.version <= MAX_VERSION:
        raise SettingsError(
            f"the version of a batch is a whole number from 0 to {MAX_VERSION}, not {identity.version!r:.60}"
        )


def _key(app: str) -> str:
    """Return the directory of an application: its name if that is plain, else its likeness and a hash."""
    if _PLAIN.fullmatch(app):
        return app
    likeness = re.sub(r"[^A-Za-z0-9_-]", "_", app)[:40]
    return f"{likeness}.{hashlib.sha256(app.encode()).hexdigest()[:32]}"


def newest(directory: Directory, app: str) -> int:
    """Return the newest version that is committed for an application; -1 if there is none."""
    return max(_versions(directory, _key(app)), default=-1)


def _versions(directory: Directory, key: str) -> list[int]:
    try:
        found = [entry.name for entry in fs.listing(f"{RECORDS}/{key}", directory.fd)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in found if _VERSION.fullmatch(name))


def _record(directory: Directory, identity: Identity, batch: str, staging: str) -> bool:
    """Record that the version is committed; return False if another process has done so."""
    folder = f"{RECORDS}/{_key(identity.app)}"
    for each in (SPARK, RECORDS, folder):
        if fs.make_inner(each, directory.fd):
            directory.sync(each.rpartition("/")[0] or ".")
    text = {"app": identity.app, "version": identity.version, "batch": batch, "by": new_token()}
    data = json.dumps(text).encode()
    # RACE: published out of the directory that it names, so that it fails if that was removed as stale (this process
    # may have been stopped for that long); from then on nobody removes it.
    new = f"{f'{batch}.{STAGING}' if batch else folder}/{new_id()}.{NEW}"
    name = f"{folder}/{identity.version}"
    try:
        fs.create(new, data, directory.fd, sync=True)
        if directory.mount.closes_late:
            settle(directory, [(new, len(data))])
        _claim_name(directory, new, name)
    except FileNotFoundError:
        raise vanished(directory, staging) from None
    except OSError as error:
        if error.errno != errno.EEXIST and not is_refused(directory, error, name):
            raise
    finally:
        fs.discard(new, directory.fd)
    directory.sync(folder)
    # NFS: a link may be made and its reply lost; what the record says is the proof.
    return fs.read_file(name, directory.fd) == data


def _claim_name(directory: Directory, new: str, name: str) -> None:
    """Give the record its name if nobody has it: by a link, which is exclusive on NFS too, else by a rename."""
    try:
        fs.link(new, name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL):
            raise
        # COMPAT: without links a look narrows what cannot be excluded; HDFS refuses to rename onto a file.
        if fs.exists(name, directory.fd):
            raise FileExistsError(errno.EEXIST, name) from None
        fs.move(new, name, directory.fd)


def roll_forward(directory: Directory, key: str | None = None) -> int:
    """Show every batch that is committed and not visible yet; return how many there were."""
    keys = _applications(directory) if key is None else [key]
    return sum(_show(directory, each, version) for each in keys for version in _versions(directory, each))


def _applications(directory: Directory) -> list[str]:
    """Return the directories of all applications that have records."""
    try:
        return [entry.name for entry in fs.listing(RECORDS, directory.fd)]
    except FileNotFoundError:
        return []


def _batch(directory: Directory, key: str, version: int) -> str:
    """Return the batch that a record names; empty if it names none, is gone, or is not as we write them."""
    try:
        return names.check_id(json.loads(fs.read_file(f"{RECORDS}/{key}/{version}", directory.fd))["batch"])
    except (FileNotFoundError, *MALFORMED):
        return ""


def _show(directory: Directory, key: str, version: int) -> bool:
    batch = _batch(directory, key, version)
    if not batch:
        return False
    try:
        fs.rename_in(f"{batch}.{STAGING}", f"{batch}.{BATCH}", directory.fd)
    except FileNotFoundError:
        return False  # shown long ago
    directory.sync()
    return True


def _prune(directory: Directory, key: str) -> None:
    """Forget versions that newer ones imply; what they committed is shown first."""
    for version in _versions(directory, key)[:-KEEP]:
        _show(directory, key, version)
        fs.discard(f"{RECORDS}/{key}/{version}", directory.fd)


# --- what crashes leave ------------------------------------------------------------------------------------


def stale_staging(directory: Directory, settings: Settings, place: str) -> bool:
    """Return whether a staging directory may be removed.

    It may when nobody wrote to it, or to one of its parts, for the queue's `stale` seconds by the id's clock and by the
    server's, and no record names it.
    """
    try:
        return _untouched(directory, settings, place) and not _committed(directory, place)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False  # RACE: shown or removed meanwhile; or it is another user's


def remove_staging(directory: Directory, settings: Settings, place: str) -> bool:
    """Remove a staging directory if it is stale, or show it if a record names it. Return whether it was removed.

    RACE: a slow writer may be about to show it, so it is renamed away first and never shown in part; a slow committer
    may have published its record just before that, and then it is shown after all.
    """
    taken = f"{new_id()}.{STAGING}"
    try:
        if not _untouched(directory, settings, place):
            return False
        if _committed(directory, place):
            roll_forward(directory)
            return False
        fs.move(place, taken, directory.fd)
        if _committed(directory, place):
            fs.move(taken, f"{_id_of(place)}.{BATCH}", directory.fd)
            directory.sync()
            return False
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    if fs.exists(ATTRIBUTES, directory.fd):
        discard_unseen(directory, taken)
    fs.remove_tree(taken, directory.fd)
    return True


def _untouched(directory: Directory, settings: Settings, place: str) -> bool:
    oldest = directory.clock.now() - micros(settings.stale)
    if names.micros_of(_id_of(place)) >= oldest or not directory.clock.plausible:
        return False
    parts = [each.name for each in fs.listing(place, directory.fd) if each.is_dir(follow_symlinks=False)]
    times = [fs.mtime_of(each, directory.fd) for each in (place, *(f"{place}/{part}" for part in parts))]
    return max(times) * 1_000_000 < oldest


def _committed(directory: Directory, place: str) -> bool:
    """Return whether a record names the batch in this staging directory."""
    batch = _id_of(place)
    return any(
        _batch(directory, key, version) == batch
        for key in _applications(directory)
        for version in _versions(directory, key)
    )


def _id_of(place: str) -> str:
    return place.rpartition("/")[2].partition(".")[0]


def clean(directory: Directory, oldest: float) -> int:
    """Remove unfinished records last touched before that time (seconds since the epoch); return how many."""
    gone = 0
    try:
        for key in _applications(directory):
            for entry in list(fs.listing(f"{RECORDS}/{key}", directory.fd)):
                parsed = names.parse(entry.name)
                path = f"{RECORDS}/{key}/{entry.name}"
                if parsed and parsed.kind == NEW and fs.mtime_of(path, directory.fd) < oldest:
                    gone += fs.discard(path, directory.fd)
    except (FileNotFoundError, NotADirectoryError):
        pass
    return gone

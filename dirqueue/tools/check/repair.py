"""What repair does about each finding.

Layer: tools.  Touches: exact names that were found wrong.
Invariant: what was found is judged again by its age before it goes, and a batch that is committed is shown.
Crash: at any call; the next check finds the rest.
"""

from __future__ import annotations

from dirqueue.disk import ballast, fs
from dirqueue.layouts.native import Native, conditions, names, staged
from dirqueue.layouts.native.names import DELAYED, LEASED, LEASED_ROOM, READY
from dirqueue.layouts.native.resolve import Resolver
from dirqueue.layouts.native.rooms import Rooms
from dirqueue.tools.check.codes import Finding


def repaired(layout: Native, findings: list[Finding]) -> list[Finding]:
    """Fix what can be fixed; return the findings with what became of them."""
    staged.roll_forward(layout.directory)
    layout.directory.clock.now()
    if not layout.directory.clock.plausible:
        return findings  # what is being written may look old
    return [each._replace(repaired=_repair(layout, each)) for each in findings]


def _repair(layout: Native, finding: Finding) -> bool:
    """Fix one finding; return whether it was fixed."""
    directory, place = layout.directory, finding.place
    match finding.code:
        case "Q04" | "Q06" | "Q08" | "Q09" | "Q17" | "Q30":
            return fs.discard(place, directory.fd)
        case "Q07":
            # RACE: it may have been written to, or shown, since it was found.
            return staged.remove_staging(directory, layout.settings, place)
        case "Q10":
            return fs.remove_directory(place, directory.fd)
        case "Q16":
            return _bury(layout, place)
        case "Q25":
            return _put_in_place(layout, place)
        case "Q26" | "Q27":
            return _resolve(layout, place)
        case "Q19":
            directory.keep_ballast()
            return ballast.kept(directory)
    return False


def _bury(layout: Native, place: str) -> bool:
    prefix, _, text = place.rpartition("/")
    name = names.parse(text)
    if name is not None:
        layout.bury_unclaimed(prefix + "/" if prefix else "", name, layout.directory.clock.now())
    return not fs.exists(place, layout.directory.fd)


def _resolve(layout: Native, place: str) -> bool:
    """Bring a name of a transaction to its end."""
    folder = names.folder_of(place)
    condition = conditions.parse(place[len(folder) :])
    if condition is not None:
        Resolver(layout.directory, layout.settings).resolve(folder, [condition], layout.directory.clock.now())
    return not fs.exists(place, layout.directory.fd)


def _put_in_place(layout: Native, place: str) -> bool:
    """Move a message or a batch to where consumers look for it."""
    directory, folder = layout.directory, names.folder_of(place)
    name = names.parse(place[len(folder) :])
    if name is None:
        return False
    target = name.text
    if name.kind == DELAYED:
        target = names.later(name.id, name.until, name.attempts, names.raised(name.text))
    elif name.kind == LEASED:
        # Its holder knows it by this name: not even a card is changed.
        target = f"{LEASED_ROOM}/{name.text}"
    try:
        if name.kind == READY:
            directory.mount.rename(place, target, directory.fd)  # others can make that name
        else:
            Rooms(directory, sync=layout.settings.sync).move(place, target)
    except (FileNotFoundError, FileExistsError):
        return False
    for each in (names.folder_of(target), folder) if layout.settings.sync else ():
        directory.sync(each[:-1] or ".")
    return True

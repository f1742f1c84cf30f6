"""What repair does about each finding.

Layer: tools.  Touches: exact names that were found wrong.
Invariant: what was found is judged again by its age before it goes, and a batch that is committed is shown.
Crash: at any call; the next check finds the rest.
"""

from __future__ import annotations

from dirqueue.disk import ballast, fs
from dirqueue.layouts.native import Native, names, staged
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
        case "Q04" | "Q06" | "Q08" | "Q09" | "Q17":
            return fs.discard(place, directory.fd)
        case "Q07":
            # RACE: it may have been written to, or shown, since it was found.
            return staged.remove_staging(directory, layout.settings, place)
        case "Q10":
            return fs.remove_directory(place, directory.fd)
        case "Q16":
            return _bury(layout, place)
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

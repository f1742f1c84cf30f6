"""What repair does about each finding.

Layer: mechanisms.  Touches: exact names that were found wrong.
Crash: at any call; the next check finds the rest.
"""

from __future__ import annotations

from dirqueue.disk import fs
from dirqueue.disk.directory import BALLAST
from dirqueue.layouts.native import Native, names
from dirqueue.tools.check.codes import Finding


class Mender:
    """What repair does, by code."""

    def __init__(self, layout: Native) -> None:
        self._layout = layout
        self._fd = layout.directory.fd
        self._now = layout.directory.clock.now()

    def mend(self, finding: Finding) -> bool:
        """Mend one thing; whether it was."""
        place = finding.place
        match finding.code:
            case "Q04" | "Q06" | "Q08" | "Q09" | "Q17" | "Q18":
                return fs.discard(place, self._fd)
            case "Q07":
                fs.remove_tree(place, self._fd)
                return not fs.exists(place, self._fd)
            case "Q10":
                return fs.remove_directory(place, self._fd)
            case "Q16":
                return self._bury(place)
            case "Q19":
                self._layout.directory.keep_ballast()
                return fs.exists(BALLAST, self._fd)
        return False

    def _bury(self, place: str) -> bool:
        prefix, _, text = place.rpartition("/")
        name = names.parse(text)
        if name is not None:
            self._layout.bury_unclaimed(prefix + "/" if prefix else "", name, self._now)
        return not fs.exists(place, self._fd)

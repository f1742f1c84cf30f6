"""Whether a directory's filesystem is good enough for a queue: everything is tried, with two real processes.

Layer: tools.  Touches: one directory `.doctor-TOKEN` in the directory that is examined, removed at the end.
Crash: the directory stays, and can be removed by hand.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from dirqueue import layouts
from dirqueue.disk import fs, identity
from dirqueue.disk.directory import Directory
from dirqueue.errors import access_error
from dirqueue.tools.doctor.probes import FAIL, PASS, PROBES, WARN, Probe, Scratch, check_shared

__all__ = ["FAIL", "NEEDS", "PASS", "WARN", "Probe", "Report", "Verdict", "examine"]

#: What each layout cannot do without, by the names of the probes.
NEEDS = {name: needs for name in layouts.NAMES if (needs := layouts.describe(name).needs)}


class Verdict(NamedTuple):
    """Whether a layout can be used here, and if not why."""

    layout: str
    result: str
    detail: str


class Report(NamedTuple):
    """All that was found about one directory."""

    path: str
    fstype: str
    probes: list[Probe]
    verdicts: list[Verdict]

    def good_for(self, layout: str) -> bool:
        """Return whether the layout can be used."""
        return all(each.result != FAIL for each in self.verdicts if each.layout == layout)


def examine(path: str, also: str | None = None, progress: Callable[[], None] | None = None) -> Report:
    """Try everything a queue needs in the directory at `path`.

    Args:
        path: An existing directory: a queue, or where one is to be.
        also: The same directory by another mount, for the second process (two mounts of one NFS export).
        progress: Called once per probe.
    """
    directory = Directory(path, create=False)
    directory.need()
    name = f".doctor-{identity.new_token()}"
    try:
        fs.mkdir(name, fs.DIR_MODE, dir_fd=directory.fd)
    except OSError as error:
        raise access_error(path, "write to", error) from error
    try:
        check_shared(path, also, name)
        scratch = Scratch(os.path.join(path, name), os.path.join(also or path, name))
        probes = []
        for probe in PROBES:
            probes.append(scratch.run(probe))
            if progress:
                progress()
        scratch.close()
    finally:
        fs.remove_tree(name, directory.fd)
    report = Report(path, directory.mount.fstype, probes, _verdicts(probes))
    directory.close()
    return report


def _verdicts(probes: list[Probe]) -> list[Verdict]:
    found = {probe.name: probe for probe in probes}
    verdicts = []
    for layout, needs in NEEDS.items():
        bad = [found[name] for name in needs if found[name].result == FAIL]
        reason = "; ".join(f"{each.name}: {each.detail}" for each in bad)
        verdicts.append(Verdict(layout, FAIL if bad else PASS, reason or "everything it needs works here"))
    return verdicts

"""The facts about the machine that a reader needs to judge a figure. No names, no paths."""

from __future__ import annotations

import datetime as dt
import os
import platform
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import floor
import peers

HERE = Path(__file__).parent


def facts() -> dict[str, Any]:
    """Return the facts of this machine and of what is compared."""
    return {
        "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "compiler": bool(floor.binary()),
        "perl_directory_queue": floor.perl(),
        "commit": _commit(),
        "load_before": os.getloadavg(),
        "versions": {name: peers.version(name) for name in peers.PEERS if peers.available(name)},
        "missing": [peers.PEERS[name].title for name in peers.PEERS if not peers.available(name)],
    }


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    found = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return found[0] if found else platform.machine()


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, check=False, capture_output=True, text=True
    )
    return done.stdout.strip() or "not a checkout"

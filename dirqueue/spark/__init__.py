"""The queue as a Spark table: read, write and stream it, and run the work on executors.

Layer: edges.  Needs `pip install 'dirqueue[spark]'`; nothing is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_HOMES = {
    "claim": "claims",
    "drain": "jobs.drain",
    "fill": "jobs.fill",
    "purge": "jobs.purge",
    "replay": "jobs.replay",
    "report": "jobs.report",
    "session": "sessions",
    "work": "workers",
}
__all__ = ["claim", "drain", "fill", "purge", "replay", "report", "session", "work"]

if TYPE_CHECKING:
    from dirqueue.spark.claims import claim
    from dirqueue.spark.jobs.drain import drain
    from dirqueue.spark.jobs.fill import fill
    from dirqueue.spark.jobs.purge import purge
    from dirqueue.spark.jobs.replay import replay
    from dirqueue.spark.jobs.report import report
    from dirqueue.spark.sessions import session
    from dirqueue.spark.workers import work


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dirqueue.spark' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"dirqueue.spark.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)

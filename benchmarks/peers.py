"""The queues that are compared, by name, and which of them are here.

Each is used as its own documentation says, with its own defaults, unless its class says otherwise.
"""

from __future__ import annotations

import importlib.util
import tempfile
from importlib import metadata

from figures import Figures
from peer import Peer
from peers_files import (
    DirqNormal,
    DirqSimple,
    DirQueue,
    DirQueueDurable,
    DirQueueNormal,
    DirQueueSimple,
    DirQueueVsqs,
    Floor,
    HueyFile,
    Kombu,
    Maildir,
    Vsqs,
)
from peers_other import (
    DiskCache,
    HueySqlite,
    LiteQueue,
    LocalQueue,
    PersistAck,
    PersistFile,
    PersistSqlite,
    QueueLib,
    TextQueue,
)

#: By a short name, in the order in which tables show them.
PEERS: dict[str, type[Peer]] = {
    "floor": Floor,
    "dirqueue": DirQueue,
    "dirqueue-sync": DirQueueDurable,
    "dirqueue-dirq-simple": DirQueueSimple,
    "dirqueue-dirq-normal": DirQueueNormal,
    "dirqueue-vsqs": DirQueueVsqs,
    "dirq-simple": DirqSimple,
    "dirq-normal": DirqNormal,
    "vsqs": Vsqs,
    "maildir": Maildir,
    "huey-file": HueyFile,
    "kombu": Kombu,
    "persist-file": PersistFile,
    "queuelib": QueueLib,
    "textqueue": TextQueue,
    "persist-sqlite": PersistSqlite,
    "persist-ack": PersistAck,
    "litequeue": LiteQueue,
    "localqueue": LocalQueue,
    "diskcache": DiskCache,
    "huey-sqlite": HueySqlite,
}


def available(name: str) -> bool:
    """Return whether this peer is installed (and, of dirqueue's own layouts, built)."""
    peer = PEERS[name]
    if peer.module and importlib.util.find_spec(peer.module) is None:
        return False
    if issubclass(peer, DirQueue) and peer.layout != "auto":
        from dirqueue import DirQueueError

        with tempfile.TemporaryDirectory() as path:
            try:
                peer(f"{path}/q").close()
            except (DirQueueError, ImportError, KeyError):
                return False
    return True


def version(name: str) -> str:
    """Return the version of the distribution that a peer comes from."""
    package = PEERS[name].package
    try:
        return metadata.version(package) if package else "Python's own"
    except metadata.PackageNotFoundError:
        return "source tree"


def of_our_kind(name: str, figures: Figures) -> bool:
    """Return whether a peer is compared with first: it is made for several processes and loses nothing to a kill."""
    died = figures.find(group="death", peer=name)
    return PEERS[name].shared and (not any(row["lost"] for row in died) if died else PEERS[name].acks)

"""What tests of the native layout's error branches share."""

import os
import stat

from support.checker import leftovers
from support.kit import LONG, files

from dirqueue import Queue
from dirqueue.disk import mount
from dirqueue.layouts.native import attempt, staged
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.staged import Identity
from dirqueue.layouts.native.supply import claimable


def remote(queue):
    """Treat the directory as one on a network filesystem."""
    queue.layout.directory.make()
    queue.layout.directory.mount = mount.Mount("nfs4")
    return queue


def held_names(queue):
    """Return the places of messages that wait or are held, and of the directories of messages at the top."""
    rooms = ("", "leased/", *(f"later/{bucket}/" for bucket in listed(queue, "later")))
    return sorted(room + name for room in rooms for name in listed(queue, room) if name[0].isdigit())


def listed(queue, room):
    """Return the names in a room; none if there is no such room."""
    path = os.path.join(queue.path, room)
    return sorted(os.listdir(path)) if os.path.isdir(path) else []


def place_of(queue, id):
    """Return the only place of a message, wherever it is, in whatever form."""
    found = [place for place in files(queue.path) if place.rpartition("/")[2].split(".")[0] == id]
    (place,) = [each for each in found if not each.endswith((".new", ".error", ".ack"))]
    return place


def note_of(queue):
    """Return the place of the only note; None if there is none."""
    found = [place for place in files(queue.path) if place.endswith(".error")]
    assert len(found) < 2, found
    return found[0] if found else None


def steal(queue, other):
    """Let somebody else have what is leased; return the new lease."""
    (place,) = [each for each in held_names(queue) if each.count(".") == 3]
    id = place.rpartition("/")[2].partition(".")[0]
    os.rename(os.path.join(queue.path, place), os.path.join(queue.path, id))
    return other.get(timeout=0)


def is_directory(fd):
    return stat.S_ISDIR(os.fstat(fd).st_mode)


def is_plain(fd):
    return stat.S_ISREG(os.fstat(fd).st_mode)


class Bench:
    """A queue, and what writers and consumers of many messages need of it."""

    def __init__(self, path, **settings):
        self.queue = Queue(path, **{"sync": False, "margin": 0, "lease": LONG, **settings})
        self.path = path
        self.directory, self.settings = self.queue.layout.directory, self.queue.settings
        self.staging = staged.begin(self.directory)

    def writer(self):
        staged.begin(self.directory, self.staging)
        return attempt.Writer(self.directory, self.settings, self.staging)

    def staged(self):
        """Return what writers have left in staging directories."""
        return [name for each in leftovers(self.path) for name in os.listdir(each)]

    def write(self, *bodies):
        writer = self.writer()
        writer.add(bodies)
        return writer.finish()

    def commit(self, parts, version=None):
        identity = None if version is None else Identity("app", version)
        return staged.commit(self.directory, self.settings, self.staging, parts, identity)

    def consumer(self, timeout=LONG):
        mine = Pins(self.directory, self.settings, "c")
        mine.register(timeout)
        return mine

    def supply(self):
        return claimable(self.directory, self.settings)

    def pin(self, mine, lot, **limit):
        return mine.pin(lot, self.supply(), Limit(**limit))

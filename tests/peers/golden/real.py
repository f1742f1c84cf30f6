"""The real programs as players of the stories."""

from unittest import mock

from peers.golden.stories import BODIES, DIGIT, PIECES, SCHEMA, FakeTime, Player


class DirqSimple(Player):
    """dirq 1.8, QueueSimple."""

    program = "dirq 1.8 (QueueSimple)"
    things = BODIES

    def __init__(self, path):
        self.clock = FakeTime()
        self.held = []
        self.queue = self.open(str(path))

    def open(self, path):
        from dirq.QueueSimple import QueueSimple

        return QueueSimple(path, rndhex=DIGIT)

    def story(self):
        with mock.patch("dirq.QueueBase.time", self.clock), mock.patch("dirq.QueueSimple.time", self.clock):
            yield from super().story()

    def put(self, thing):
        self.queue.add(thing)

    def hold(self):
        self.held.append(next(name for name in self.queue if self.queue.lock(name)))

    def end(self):
        self.queue.remove(self.held.pop())

    def give_back(self):
        self.queue.unlock(self.held.pop(0))


class DirqNormal(DirqSimple):
    """dirq 1.8, Queue."""

    program = "dirq 1.8 (Queue)"
    things = PIECES

    def open(self, path):
        from dirq.queue import Queue

        return Queue(path, rndhex=DIGIT, schema=SCHEMA)


class Vsqs(Player):
    """vsqs 0.3: the clock stands still within a verb, since nobody promises how often it is read."""

    program = "vsqs 0.3"
    things = BODIES
    gives_back = False

    def __init__(self, path):
        from vsqs.queue import QueueManager

        self.clock = FakeTime()
        self.clock.step = 0
        self.held = []
        self.queue = QueueManager(str(path.parent)).get_queue(path.name)

    def story(self):
        with mock.patch("vsqs.queue.time", self.clock):
            yield from super().story()

    def put(self, thing):
        self.clock.sleep(1)
        self.queue.publish(thing)

    def hold(self):
        self.clock.sleep(1)
        self.held.append(self.queue.receive(visibility_timeout=60)[0])

    def end(self):
        self.queue.delete(self.held.pop())


PLAYERS = {"dirq-simple": DirqSimple, "dirq-normal": DirqNormal, "vsqs": Vsqs}

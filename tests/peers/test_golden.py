"""Golden trees: what dirq 1.8 and vsqs 0.3 leave on disk is kept here; ours leaves the same, and reads it."""

import contextlib
from unittest import mock

import pytest
from peers.golden import real
from peers.golden.stories import BODIES, DIGIT, PIECES, SCHEMA, FakeTime, Player, load, play, rebuild, written

import dirqueue
from dirqueue.compat.dirq.queue import Queue as CompatNormal
from dirqueue.compat.dirq.QueueSimple import QueueSimple as CompatSimple
from dirqueue.layouts.dirq.schema import Schema

FORMATS = ("dirq-simple", "dirq-normal", "vsqs")


class Layout(Player):
    """The queue object of dirqueue on one of the formats."""

    #: Where the names of the format get their time from.
    clocks = ("dirqueue.layouts.dirq.names.time",)
    layout = "dirq-simple"
    things = BODIES
    options: dict[str, object] = {}  # noqa: RUF012

    def __init__(self, path):
        self.clock = FakeTime()
        self.held = []
        self.queue = dirqueue.Queue(path, layout=self.layout, sync=False, **self.options)
        if hasattr(self.queue.layout, "store"):
            self.queue.layout.store.digit = f"{DIGIT:x}"

    def story(self):
        with contextlib.ExitStack() as patches:
            for name in self.clocks:
                patches.enter_context(mock.patch(name, self.clock))
            yield from super().story()

    def pause(self):
        self.queue.close()

    def put(self, thing):
        self.queue.put(thing)

    def hold(self):
        self.held.append(self.queue.get(timeout=0))

    def end(self):
        self.held.pop().ack()

    def give_back(self):
        self.held.pop(0).release()


class NormalLayout(Layout):
    layout = "dirq-normal"
    things = PIECES
    options = {"schema": SCHEMA, "codec": Schema(SCHEMA)}  # noqa: RUF012


class VsqsLayout(Layout):
    layout = "vsqs"
    gives_back = False
    clocks = ("dirqueue.layouts.vsqs.layout.time", "dirqueue.disk.clock.time")

    def __init__(self, path):
        super().__init__(path)
        self.clock.step = 0

    def story(self):
        with mock.patch("dirqueue.layouts.vsqs.layout.LEAST", 0):  # the clock stands still
            self.queue.layout._ahead = 0
            yield from super().story()

    def put(self, thing):
        self.clock.sleep(1)
        super().put(thing)

    def hold(self):
        self.clock.sleep(1)
        self.held.append(self.queue.get(timeout=0, lease=60))


class DropInSimple(real.DirqSimple):
    """The classes that take the place of dirq's."""

    def open(self, path):
        return CompatSimple(path, rndhex=DIGIT, sync=False)

    def story(self):
        with mock.patch("dirqueue.layouts.dirq.names.time", self.clock):
            yield from Player.story(self)


class DropInNormal(DropInSimple):
    things = PIECES

    def open(self, path):
        return CompatNormal(path, rndhex=DIGIT, schema=SCHEMA, sync=False)


PLAYERS = {
    ("dirq-simple", "real"): real.DirqSimple,
    ("dirq-normal", "real"): real.DirqNormal,
    ("dirq-simple", "layout"): Layout,
    ("dirq-normal", "layout"): NormalLayout,
    ("vsqs", "layout"): VsqsLayout,
    ("dirq-simple", "drop-in"): DropInSimple,
    ("dirq-normal", "drop-in"): DropInNormal,
}


@pytest.fixture(autouse=True)
def _own_time(monkeypatch):
    """Names never go back in a process, so those of the story must not count for the tests that follow."""
    monkeypatch.setattr("dirqueue.layouts.dirq.names._last", 0)


@pytest.mark.parametrize(("layout", "who"), PLAYERS, ids=lambda each: each)
def test_same_is_left_on_disk(tmp_path, layout, who):
    """Names, modes, number of names and bytes of everything, after every chapter."""
    golden = load(layout)
    assert len(golden) >= 5
    found = play(PLAYERS[layout, who], tmp_path / "q")
    if layout == "vsqs":
        # The one difference: a message of vsqs 0.3 is a program to the shell, ours is not.
        golden = {name: [line.replace("x", "-", 3) for line in lines] for name, lines in golden.items()}
    assert found == golden


@pytest.mark.parametrize("layout", FORMATS)
def test_what_is_kept_is_read(tmp_path, layout):
    """Every chapter as a directory of its own: recognised, counted, and each free message delivered whole, in order."""
    options = {"schema": SCHEMA, "codec": Schema(SCHEMA)} if layout == "dirq-normal" else {}
    everything = PIECES if layout == "dirq-normal" else BODIES
    free = {
        "four were put": (0, 1, 2, 3),
        "the first is held": (1, 2, 3),
        "the first is done": (1, 2, 3),
        "the second and the third are held": (3,),
        "the second is given back, the third is held": (1, 3),
        "one of them is done, the other is still held": (3,),
    }
    for number, (chapter, lines) in enumerate(load(layout).items()):
        path = tmp_path / str(number)
        rebuild(lines, path)
        assert [line.split(" ", 1)[1] for line in written(path)] == [line.split(" ", 1)[1] for line in lines]
        with dirqueue.Queue(path, sync=False, **options) as queue:
            assert queue.layout.name == layout
            held = sum(".lck" in line or line.endswith("/locked") for line in lines)
            wanted = [everything[index] for index in free[chapter]]
            if layout == "vsqs":  # its leases end in 2023: who was held then is free now
                wanted = sorted(
                    wanted + [each for each in BODIES if _in_flight(lines, each)], key=BODIES.index
                )
            assert len(queue) == len(wanted) + held
            got = []
            for lease in queue.consume(timeout=0):
                got.append(lease.message.body)
                lease.ack()
            assert got == wanted, chapter
            assert len(queue) == held


def _in_flight(lines, body):
    return any("." in line.split(" ")[2] and line.endswith(f" {body!r}") for line in lines)

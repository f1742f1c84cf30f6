"""The explorer itself: it skips no outcome, replays a recorded schedule, and finds planted bugs."""

import os
import random

import pytest
from lab import explore, plans, planted, seam
from lab.explore import Plan
from lab.schedule import DepthFirst, Event, Pruned, Scheduler, kill_of, read, shorten, written
from lab.simfs import SimFS

pytestmark = pytest.mark.timeout(600)

CALLS = {
    "make": lambda files, name, other: files.close(files.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
    "fill": lambda files, name, other: files.write(files.open(name, os.O_WRONLY), b"x"),
    "read": lambda files, name, other: files.read(files.open(name, os.O_RDONLY), 10),
    "rename": lambda files, name, other: files.rename(name, other),
    "link": lambda files, name, other: files.link(name, other),
    "unlink": lambda files, name, other: files.unlink(name),
    "mkdir": lambda files, name, other: files.mkdir(name),
    "rmdir": lambda files, name, other: files.rmdir(name),
    "touch": lambda files, name, other: files.utime(name),
    "stat": lambda files, name, other: files.stat(name).values(),
    "list": lambda files, name, other: files.listdir("/sim/d"),
}
NAMES = ["/sim/d/x", "/sim/d/y", "/sim/d/e", "/sim/d/e/z", "/sim/f"]


class Bare:
    """Clients that make plain calls; `ends` returns all outcomes of their schedules."""

    def __init__(self, programs, *, ticks=0, kills=0, lossy=0):
        self.programs = programs
        self.ticks, self.kills, self.lossy = ticks, kills, lossy

    def _run(self, chooser):
        clock = seam.Clock()
        results = {name: [] for name in self.programs}
        scheduler = Scheduler(chooser, world=lambda: (files.digest, clock.ns, files.lossy))
        files = SimFS(clock.now_ns, scheduler)
        for name in ("/sim/d", "/sim/d/e"):
            files.mkdir(name)
        CALLS["make"](files, "/sim/d/x", "")
        files.lossy = self.lossy
        clock.advance(1)
        events = {"~tick": Event(lambda: clock.tick(1), times=self.ticks)} if self.ticks else {}
        for name in list(self.programs)[: self.kills]:
            events[f"~~kill {name}"] = Event(lambda name=name: scheduler.kill(name), kill_of(name))

        def body(name):
            for call, *arguments in self.programs[name]:
                try:
                    results[name].append(CALLS[call](files, *arguments))
                except OSError as error:
                    results[name].append(error.errno)

        scheduler.run({name: (lambda name=name: body(name)) for name in self.programs}, events)
        assert not scheduler.errors
        outcomes = [tuple(map(repr, results[name])) for name in self.programs]
        return (tuple(sorted(files.tree().items())), files.digest, frozenset(scheduler.killed), *outcomes)

    def ends(self, *, reduced):
        chooser, found, runs = DepthFirst(reduced=reduced), set(), 0
        while True:
            chooser.begin()
            runs += 1
            try:
                found.add(self._run(chooser))
            except Pruned:
                pass
            if not chooser.next():
                return found, runs


@pytest.mark.parametrize("number", range(40))
def test_reduction_keeps_every_outcome(number):
    """Random clients of plain calls: the outcomes, and the results of each client, are the same with the reduction."""
    dice = random.Random(number)
    programs = {
        client: [(dice.choice(list(CALLS)), dice.choice(NAMES), dice.choice(NAMES)) for _ in range(calls)]
        for client, calls in (("a", 2), ("b", 2), ("c", number % 4 == 1))
    }
    bare = Bare(programs, ticks=number % 4 == 2, kills=number % 4 == 0, lossy=number % 4 == 3)
    few, runs = bare.ends(reduced=True)
    all_, every = bare.ends(reduced=False)
    assert few == all_
    assert runs <= every


def test_schedule_is_replayed_from_its_numbers():
    """Replaying the recorded choices gives the same calls in the same order."""
    plan = Plan.of("gtga|ga|p", ticks=1)
    once = explore.replay(plan, [1, 0, 2, 1, 0, 1, 1])
    again = explore.replay(plan, written(once.made))
    assert once.log == again.log
    assert len(once.log) > 10
    assert read(written(once.made)) == once.made


def test_seed_determines_the_schedules():
    """Two walks with the same seed are equal; with different seeds they differ."""

    def walk(seed):
        made = []
        with explore.World(Plan.of("gl|ga|p", ticks=1)) as world:
            for number in range(20):
                chooser = explore.Random(f"{seed}-{number}")
                world.run(chooser)
                made.append(written(chooser.made))
        return made

    assert walk("one") == walk("one")
    assert walk("one") != walk("another")


def test_world_is_unchanged_by_a_thousand_runs():
    """No state is carried from one run to the next: the same schedule gives the same calls."""
    plan = Plan.of("gtga|gl|P", before="p", ticks=1)
    with explore.World(plan) as world:
        chooser = explore.Random("first")
        world.run(chooser)
        before = world.scheduler.log
        for number in range(1000):
            world.run(explore.Random(number))
        world.run(explore.Recorded(chooser.made))
        assert world.scheduler.log == before


def test_shorten_keeps_only_the_choices_that_matter():
    """Choices that do not matter become 0, and those at the end are removed."""
    tried = []

    def fails(choices):
        tried.append(choices)
        return len(choices) > 6 and choices[2] == 1 and choices[6] == 3

    assert shorten([2, 1, 1, 3, 0, 2, 3, 1, 1, 2], fails) == [0, 0, 1, 0, 0, 0, 3]
    assert len(tried) < 60


@pytest.mark.parametrize("bug", planted.BUGS.values(), ids=planted.BUGS)
def test_schedule_of_a_planted_bug_shows_it(bug, monkeypatch):
    """The recorded schedule breaks a promise with the bug, and none without it."""
    assert explore.replay(bug.plan, bug.schedule).wrong == []
    with monkeypatch.context() as patch:
        patch.setattr(bug.owner, bug.name, bug.plant(getattr(bug.owner, bug.name)))
        kinds = [kind for kind, _ in explore.replay(bug.plan, bug.schedule).wrong]
        assert bug.kind in kinds, f"record a new schedule: {planted.find(bug)}"


@pytest.mark.parametrize("name", [name for name, bug in planted.BUGS.items() if len(bug.plan.programs) == 2])
def test_search_finds_a_planted_bug(name, monkeypatch):
    """The search finds the bug, shortens its schedule and reports it."""
    bug = planted.BUGS[name]
    monkeypatch.setattr(bug.owner, bug.name, bug.plant(getattr(bug.owner, bug.name)))
    failure = planted.find(bug)
    assert failure is not None
    assert failure.kind == bug.kind
    assert f"replay with {failure.choices!r}" in str(failure)
    assert "schedule:" in str(failure)


def test_campaign_counts_schedules_and_reports_violations(monkeypatch):
    """The campaign returns the number of schedules, a detail and the violations."""
    monkeypatch.setattr(plans, "pairs", lambda: iter([Plan.of("ga|p"), Plan.of("g|u")]))
    count, detail, wrong = plans.campaign(0.0001)
    assert wrong == []
    assert count > 1000
    assert "2 of 2 pairs of programs complete" in detail
    bug = planted.BUGS["a lease is taken before it ends"]
    monkeypatch.setattr(plans, "threes_and_fours", lambda number: bug.plan)
    monkeypatch.setattr(bug.owner, bug.name, bug.plant(getattr(bug.owner, bug.name)))
    _count, _detail, wrong = plans.campaign(0.0001)
    assert len(wrong) >= 2
    assert all("replay with" in each for each in wrong)

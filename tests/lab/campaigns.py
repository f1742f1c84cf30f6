"""Runs with strace: small ones in the tests, large ones in `make campaign`."""

import os
from dataclasses import dataclass, field

from lab import scenarios, stories
from lab.forge import CALLS, Forge

#: How often a point that was not reached is tried again.
TRIES = 5


@dataclass
class Report:
    """The results of a campaign."""

    points: int = 0
    #: Points that exist but were not reached.
    missed: list = field(default_factory=list)
    wrong: list = field(default_factory=list)
    #: The events of each story for each injected errno.
    events: list = field(default_factory=list)

    def __add__(self, other):
        return Report(
            self.points + other.points,
            self.missed + other.missed,
            self.wrong + other.wrong,
            self.events + other.events,
        )


def _count(forge, story):
    """Run a story without a fault and count the calls of its busiest thread; the story must pass."""
    story.prepare()
    ended = []
    seen = forge.count(lambda: ended.append(forge.run(story.name, path=story.path, settings=story.settings)))
    how, events = ended[0]
    complaints = story.judge(events)
    if how != "done" or complaints or [word for word in events if word[0] in {"error", "raised"}]:
        raise AssertionError(f"{story.name} failed without a fault: {how} {events} {complaints}")
    counts = {}
    for pid, calls in seen.items():
        if pid != forge.pid:
            for call, times in calls.items():
                counts[call] = max(times, counts.get(call, 0))
    return counts


def _points(forge, make, names, fault, deepest=None, calls=CALLS):
    """Yield (story, call, number) with strace armed for it."""
    counts = {name: _count(forge, make(name)) for name in names}
    for call in calls:
        most = max(seen.get(call, 0) for seen in counts.values())
        for number in range(1, min(most, deepest or most) + 1):
            forge.arm(call, number, fault)
            for name, seen in counts.items():
                if seen.get(call, 0) >= number:
                    yield make(name), call, number


def kills(place, *, names=None, progress=None, **settings):
    """Kill each story at each of its calls."""
    report = Report()
    os.environ.setdefault("TMPDIR", str(place))
    names = names or stories.of(settings.get("layout", "native"))

    def make(name):
        return scenarios.Story(name, place / "story", **settings)

    with Forge("lab.stories") as forge:
        for story, call, number in _points(forge, make, names, "signal=SIGKILL"):
            _kill(forge, story, call, number, report)
            if progress:
                progress(report)
    return report


def _kill(forge, story, call, number, report):
    where = f"{story.name} {story.settings}, {call} {number}"
    for _ in range(TRIES):
        story.prepare()
        how, events = forge.run(story.name, path=story.path, settings=story.settings)
        report.wrong += [f"{where}: {each}" for each in story.judge(events)]
        if how == "killed":
            report.points += 1
            return
        if how != "done":
            report.wrong.append(f"{where}: ended {how}")
        # The story may have made fewer calls this time, since its threads interleave. Does this point still exist?
        there = _count(forge, story).get(call, 0) >= number
        forge.arm(call, number, "signal=SIGKILL")
        if not there:
            return
    report.missed.append(where)


def errors(place, codes, *, names=None, deepest=None, calls=CALLS, progress=None, **settings):
    """Run each story with each of its calls failing with each errno."""
    report = Report()
    names = names or stories.of(settings.get("layout", "native"))

    def make(name):
        return scenarios.Story(name, place / "story", **settings)

    with Forge("lab.stories") as forge:
        for code in codes:
            for story, call, number in _points(forge, make, names, f"error={code}", deepest, calls):
                if (story.name, call) == ("worker", "close"):
                    continue  # strace cannot distinguish a worker's sockets from files
                if (call, code) == ("flock", "EACCES"):
                    continue  # POSIX: that is how a lock of another process is reported
                story.prepare()
                # If strace fails a close, the descriptor stays open, which no kernel does.
                leaks = call != "close"
                how, events = forge.run(story.name, path=story.path, settings=story.settings, leaks=leaks)
                report.points += 1
                where = f"{story.name} {story.settings}, {call} {number}"
                report.events.append((story.name, call, number, code, events))
                if how != "done":
                    report.wrong.append(f"{where}: {code}: ended {how}")
                complaints = scenarios.judge_error(events, code, aside=story.aside(code)) + story.judge(
                    events
                )
                report.wrong += [f"{where}: {each}" for each in complaints]
                if progress:
                    progress(report)
    return report

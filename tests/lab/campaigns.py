"""The long runs with strace, as functions: small in the tests, large in `make campaign`."""

import os
from dataclasses import dataclass, field

from lab import scenarios, stories
from lab.forge import CALLS, Forge

#: How often a point that was not reached is tried anew.
TRIES = 5


@dataclass
class Report:
    """What a campaign did and found."""

    points: int = 0
    #: Points that a run is known to have and that were not reached.
    missed: list = field(default_factory=list)
    wrong: list = field(default_factory=list)
    #: What each story said to each errno, for who wants to look.
    said: list = field(default_factory=list)

    def __add__(self, other):
        return Report(
            self.points + other.points,
            self.missed + other.missed,
            self.wrong + other.wrong,
            self.said + other.said,
        )


def _count(forge, story):
    """Live a story undisturbed and count its calls, those of its busiest thread; it must end well."""
    story.prepare()
    ended = []
    seen = forge.count(lambda: ended.append(forge.run(story.name, path=story.path, settings=story.settings)))
    how, said = ended[0]
    complaints = story.judge(said)
    if how != "done" or complaints or [word for word in said if word[0] in {"error", "raised"}]:
        raise AssertionError(f"{story.name} went wrong by itself: {how} {said} {complaints}")
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
        how, said = forge.run(story.name, path=story.path, settings=story.settings)
        report.wrong += [f"{where}: {each}" for each in story.judge(said)]
        if how == "killed":
            report.points += 1
            return
        if how != "done":
            report.wrong.append(f"{where}: ended {how}")
        # A story may have made a call less this time (its threads meet differently). Does it still have this point?
        there = _count(forge, story).get(call, 0) >= number
        forge.arm(call, number, "signal=SIGKILL")
        if not there:
            return
    report.missed.append(where)


def errors(place, codes, *, names=None, deepest=None, calls=CALLS, progress=None, **settings):
    """Let each story fail at each of its calls with each errno."""
    report = Report()
    names = names or stories.of(settings.get("layout", "native"))

    def make(name):
        return scenarios.Story(name, place / "story", **settings)

    with Forge("lab.stories") as forge:
        for code in codes:
            for story, call, number in _points(forge, make, names, f"error={code}", deepest, calls):
                if (story.name, call) == ("worker", "close"):
                    continue  # strace cannot tell a worker's sockets from files
                story.prepare()
                # A close that strace fails is not done at all, which no kernel does.
                leaks = call != "close"
                how, said = forge.run(story.name, path=story.path, settings=story.settings, leaks=leaks)
                report.points += 1
                where = f"{story.name} {story.settings}, {call} {number}"
                report.said.append((story.name, call, number, code, said))
                if how != "done":
                    report.wrong.append(f"{where}: {code}: ended {how}")
                complaints = scenarios.judge_error(said, code, aside=story.aside(code)) + story.judge(said)
                report.wrong += [f"{where}: {each}" for each in complaints]
                if progress:
                    progress(report)
    return report

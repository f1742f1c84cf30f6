"""The long runs, as functions: small in the tests, large in `make campaign`."""

import os
from dataclasses import dataclass, field

from lab import scenarios
from lab.forge import CALLS, Forge


@dataclass
class Report:
    """What a campaign did and found."""

    points: int = 0
    missed: list = field(default_factory=list)
    wrong: list = field(default_factory=list)


def _counts(forge, place, settings):
    """Run every story once and count its calls; a name the server never heard of would count nothing."""
    counts = {}
    for name in scenarios.STORIES:
        story = scenarios.Story(name, place / "story", **settings)
        story.prepare()
        ended = []
        seen = forge.count(
            lambda story=story, ended=ended: ended.append(
                forge.run(story.name, path=story.path, settings=story.settings)
            )
        )
        how, said = ended[0]
        complaints = story.judge(said)
        if how != "done" or complaints:
            raise AssertionError(f"{name} went wrong by itself: {how} {said} {complaints}")
        counts[name] = next((calls for pid, calls in seen.items() if pid != forge.pid), {})
    return counts


def kills(place, **settings):
    """Kill each story at each of its calls."""
    report = Report()
    os.environ.setdefault("TMPDIR", str(place))
    with Forge("lab.scenarios") as forge:
        for name, call, number in _points(forge, place, settings, "signal=SIGKILL"):
            story = scenarios.Story(name, place / "story", **settings)
            story.prepare()
            how, said = forge.run(name, path=story.path, settings=story.settings)
            report.points += 1
            where = f"{name}, {call} {number}"
            if how != "killed":
                report.missed.append(f"{where}: {how}")
            report.wrong += [f"{where}: {each}" for each in story.judge(said)]
    return report


def errors(place, codes, deepest=None, **settings):
    """Let each story fail at each of its calls with each errno."""
    report = Report()
    with Forge("lab.scenarios") as forge:
        for code in codes:
            for name, call, number in _points(forge, place, settings, f"error={code}", deepest):
                story = scenarios.Story(name, place / "story", **settings)
                story.prepare()
                # A close that strace fails is not done at all, which no kernel does.
                leaks = call != "close"
                how, said = forge.run(name, path=story.path, settings=story.settings, leaks=leaks)
                report.points += 1
                where = f"{name}, {call} {number}"
                if how != "done":
                    report.wrong.append(f"{where}: {code}: ended {how}")
                report.wrong += [f"{where}: {each}" for each in story.judge(said)]
                report.wrong += [f"{where}: {each}" for each in scenarios.judge_error(said, code)]
    return report


def _points(forge, place, settings, fault, deepest=None):
    """Yield (story, call, number) with strace armed for it."""
    counts = _counts(forge, place, settings)
    for call in CALLS:
        most = max(calls.get(call, 0) for calls in counts.values())
        for number in range(1, min(most, deepest or most) + 1):
            forge.arm(call, number, fault)
            for name, calls in counts.items():
                if calls.get(call, 0) >= number:
                    yield name, call, number

"""A process is killed at any system call: the directory, read without the library, holds all promised messages."""

import pytest
from lab import campaigns, scenarios, stories

SOME = ("put", "ack", "retry", "purge")
#: layout -> (stories, minimum of kill points); the campaign runs all stories of all layouts.
CASES = {
    "native": (tuple(name for name in stories.of("native") if name not in stories.SLOW), 1_000),
    "vsqs": (SOME, 80),
    "dirq-simple": (SOME, 120),
    "dirq-normal": (SOME, 200),
}


@pytest.mark.needs("strace")
@pytest.mark.parametrize("layout", CASES)
@pytest.mark.timeout(600)
def test_kill_at_any_call_loses_tears_or_doubles_no_message(layout, tmp_path):
    """SIGKILL at each call of each story: no message is lost, no acknowledged one comes back, and purge cleans up."""
    names, least = CASES[layout]
    report = campaigns.kills(tmp_path, names=names, layout=layout)
    assert report.wrong == []
    assert report.missed == []
    assert report.points >= least


def test_kill_points_are_at_least_1200():
    """The documentation gives this number."""
    assert sum(least for _, least in CASES.values()) >= 1_200


@pytest.mark.parametrize("layout", stories.LAYOUTS)
@pytest.mark.timeout(120)
def test_every_story_passes_without_a_fault(layout, tmp_path):
    """The control: without a fault each story keeps its promises and raises nothing."""
    for name in stories.of(layout):
        story = scenarios.Story(name, tmp_path / "story", layout=layout)
        story.prepare()
        events = []
        stories.do(
            name,
            lambda *what, events=events: events.append(what),
            path=story.path,
            settings={"layout": layout},
        )
        assert story.judge(events) == [], name
        assert not [word for word in events if word[0] in {"error", "raised", "leak"}], name

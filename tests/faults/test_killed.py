"""A process killed at any system call: the directory, read without the library, holds what was promised."""

import pytest
from lab import campaigns, scenarios

pytestmark = pytest.mark.needs("strace")


@pytest.mark.parametrize("settings", [{}, {"sync": False}], ids=["sync", "no sync"])
@pytest.mark.timeout(300)
def test_no_kill_loses_or_tears_or_doubles_a_message(settings, tmp_path):
    """SIGKILL at each call of each story: nothing promised is gone, nothing acknowledged is back, purge cleans up."""
    report = campaigns.kills(tmp_path, **settings)
    assert report.wrong == []
    # A story makes a call more or less when the clock ticks in it: then its last point is not reached.
    assert len(report.missed) <= report.points // 50, report.missed
    assert report.points > 500


def test_every_story_ends_well_when_left_alone(tmp_path):
    """The control: without a fault each story keeps its promises and raises nothing."""
    for name in scenarios.STORIES:
        story = scenarios.Story(name, tmp_path / "story")
        story.prepare()
        said = []
        scenarios.do(name, lambda *what, said=said: said.append(what), path=story.path)
        assert story.judge(said) == [], name
        assert not [word for word in said if word[0] in {"error", "raised", "leak"}], name

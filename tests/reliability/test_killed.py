"""A process killed at any system call: the directory, read without the library, holds what was promised."""

import pytest
from lab import campaigns, scenarios, stories

SOME = ("put", "ack", "retry", "purge")
#: layout -> (stories, kill points there are at least); all stories of all layouts are told in the campaign.
CASES = {
    "native": (stories.of("native"), 1_000),
    "vsqs": (SOME, 80),
    "dirq-simple": (SOME, 120),
    "dirq-normal": (SOME, 200),
}


@pytest.mark.needs("strace")
@pytest.mark.parametrize("layout", CASES)
@pytest.mark.timeout(600)
def test_no_kill_loses_or_tears_or_doubles_a_message(layout, tmp_path):
    """SIGKILL at each call of each story: nothing promised is gone, nothing acknowledged is back, purge cleans up."""
    names, least = CASES[layout]
    report = campaigns.kills(tmp_path, names=names, layout=layout)
    assert report.wrong == []
    assert report.missed == []
    assert report.points >= least


def test_that_is_at_least_1200_kill_points():
    """The number that the documentation gives."""
    assert sum(least for _, least in CASES.values()) >= 1_200


@pytest.mark.parametrize("layout", stories.LAYOUTS)
@pytest.mark.timeout(120)
def test_every_story_ends_well_when_left_alone(layout, tmp_path):
    """The control: without a fault each story keeps its promises and raises nothing."""
    for name in stories.of(layout):
        story = scenarios.Story(name, tmp_path / "story", layout=layout)
        story.prepare()
        said = []
        stories.do(
            name, lambda *what, said=said: said.append(what), path=story.path, settings={"layout": layout}
        )
        assert story.judge(said) == [], name
        assert not [word for word in said if word[0] in {"error", "raised", "leak"}], name

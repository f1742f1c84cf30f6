"""Each system call fails in turn: the right error, the queue intact, no hang, no descriptor left open."""

import errno

import pytest
from lab import campaigns, scenarios, stories
from lab.forge import Forge

import dirqueue

BUT_CONVERT = tuple(name for name in stories.STORIES if name != "convert")
#: (layout, errno) -> (stories, how many calls of a kind, failing calls there are at least); the campaign has them all.
CASES = {
    ("native", "ENOSPC"): (BUT_CONVERT, None, 800),
    ("native", "EIO"): (None, 2, 350),
    ("native", "EACCES"): (None, 2, 350),
    ("native", "ESTALE"): (None, 2, 350),
    ("native", "EDQUOT"): (None, 1, 200),
    ("native", "EMFILE"): (None, 1, 200),
    ("native", "EINTR"): (None, 1, 200),
    ("vsqs", "ENOSPC"): (None, 2, 180),
    ("dirq-simple", "ENOSPC"): (None, 2, 200),
    ("dirq-normal", "ENOSPC"): (None, 2, 220),
}


@pytest.mark.needs("strace")
@pytest.mark.parametrize(("layout", "code"), CASES)
@pytest.mark.timeout(600)
def test_a_failing_call_is_reported_and_breaks_nothing(layout, code, tmp_path):
    """Calls of every story fail once each: QueueAccess with this errno, or none because it did not matter."""
    names, deepest, least = CASES[layout, code]
    report = campaigns.errors(tmp_path, [code], names=names, deepest=deepest, layout=layout)
    assert report.wrong == []
    assert report.points >= least


def test_that_is_at_least_1000_failing_calls():
    """The number that the documentation gives."""
    assert sum(least for _, _, least in CASES.values()) >= 1_000


@pytest.mark.needs("strace")
@pytest.mark.parametrize("layout", stories.LAYOUTS)
@pytest.mark.timeout(300)
def test_after_a_failed_fsync_nothing_is_called_durable(layout, tmp_path):
    """Whichever fsync of whichever story fails, the verb raises and what it was to promise is not promised."""
    names = [name for name in stories.of(layout) if name not in ("worker", "convert")]
    calls = ("fsync", "syncfs")
    report = campaigns.errors(tmp_path, ["EIO"], names=names, calls=calls, layout=layout)
    assert report.wrong == []
    assert report.points >= 10
    for name, call, number, _code, said in report.said:
        last = said[-1]
        assert last[0] == "error", (name, call, number, said)
        assert last[2] == errno.EIO, (name, call, number, said)


@pytest.mark.needs("strace")
def test_a_put_whose_fsync_failed_is_gone(tmp_path):
    """Of the file or of the directory: put raises, and no message is left that nobody can be sure of."""
    with Forge("lab.stories") as forge:
        for number in (1, 2):
            story = scenarios.Story("put delay", tmp_path / "story")
            story.prepare()
            forge.arm("fsync", number, "error=EIO")
            how, said = forge.run(story.name, path=story.path)
            assert how == "done"
            assert not [word for word in said if word[0] == "put"]
            assert [word[2] for word in said if word[0] == "error"] == [errno.EIO]
            assert story.judge(said) == []
            assert len(dirqueue.Queue(story.path)) == 0


@pytest.mark.needs("strace")
@pytest.mark.parametrize("limit", [0, 1, 5, 4096, 199_999])
def test_a_short_write_never_becomes_a_short_message(limit, tmp_path):
    """A file that cannot grow beyond a limit is a true short write: put raises and leaves nothing."""
    with Forge("lab.stories") as forge:
        for name in ("put large", "put_many"):
            story = scenarios.Story(name, tmp_path / "story")
            story.prepare()
            how, said = forge.run(name, path=story.path, short=limit)
            assert how == "done"
            failed = [word for word in said if word[0] == "error"]
            assert bool(failed) == (limit < (200_000 if name == "put large" else 5))
            assert story.judge(said) == []

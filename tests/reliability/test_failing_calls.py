"""Each system call fails in turn: the error is right, the queue intact, nothing hangs or leaks a descriptor."""

import errno

import pytest
from lab import campaigns, scenarios, stories
from lab.forge import Forge

import dirqueue

#: Of what carries attributes, the puts.
QUICK = tuple(name for name in stories.STORIES if not stories.carries(name) or name.startswith("put"))
BUT_CONVERT = tuple(name for name in QUICK if name != "convert")
#: (layout, errno) -> (stories, calls of each kind, minimum of failing calls); the campaign runs all of them.
CASES = {
    ("native", "ENOSPC"): (BUT_CONVERT, None, 800),
    ("native", "EIO"): (QUICK, 2, 350),
    ("native", "EACCES"): (QUICK, 2, 350),
    ("native", "ESTALE"): (QUICK, 2, 350),
    ("native", "EDQUOT"): (QUICK, 1, 200),
    ("native", "EMFILE"): (QUICK, 1, 200),
    ("native", "EINTR"): (QUICK, 1, 200),
    ("vsqs", "ENOSPC"): (None, 2, 180),
    ("dirq-simple", "ENOSPC"): (None, 2, 200),
    ("dirq-normal", "ENOSPC"): (None, 2, 220),
}


@pytest.mark.needs("strace")
@pytest.mark.parametrize(("layout", "code"), CASES)
@pytest.mark.timeout(600)
def test_failing_call_is_reported_and_breaks_nothing(layout, code, tmp_path):
    """Each call of every story fails once: the story raises QueueAccess with this errno, or handles the failure."""
    names, deepest, least = CASES[layout, code]
    report = campaigns.errors(tmp_path, [code], names=names, deepest=deepest, layout=layout)
    assert report.wrong == []
    assert report.points >= least


def test_failing_calls_are_at_least_1000():
    """The documentation gives this number."""
    assert sum(least for _, _, least in CASES.values()) >= 1_000


@pytest.mark.needs("strace")
@pytest.mark.parametrize("layout", stories.LAYOUTS)
@pytest.mark.timeout(300)
def test_failed_fsync_makes_the_operation_raise(layout, tmp_path):
    """Any fsync of any story may fail: the operation then raises, so nothing is promised."""
    names = [name for name in stories.of(layout) if name not in ("worker", "convert")]
    calls = ("fsync", "syncfs")
    report = campaigns.errors(tmp_path, ["EIO"], names=names, calls=calls, layout=layout)
    assert report.wrong == []
    assert report.points >= 10
    for name, call, number, _code, events in report.events:
        last = events[-1]
        assert last[0] == "error", (name, call, number, events)
        assert last[2] == errno.EIO, (name, call, number, events)


@pytest.mark.needs("strace")
def test_put_with_a_failed_fsync_leaves_no_message(tmp_path):
    """The fsync of the file or of the directory fails: put raises and leaves no message."""
    with Forge("lab.stories") as forge:
        for number in (1, 2):
            story = scenarios.Story("put delay", tmp_path / "story")
            story.prepare()
            forge.arm("fsync", number, "error=EIO")
            how, events = forge.run(story.name, path=story.path)
            assert how == "done"
            assert not [word for word in events if word[0] == "put"]
            assert [word[2] for word in events if word[0] == "error"] == [errno.EIO]
            assert story.judge(events) == []
            assert len(dirqueue.Queue(story.path)) == 0


@pytest.mark.needs("strace")
@pytest.mark.parametrize("limit", [0, 1, 5, 4096, 199_999])
def test_short_write_never_becomes_a_short_message(limit, tmp_path):
    """A limit on the file size causes a real short write: put raises and leaves nothing."""
    with Forge("lab.stories") as forge:
        for name in ("put large", "put_many"):
            story = scenarios.Story(name, tmp_path / "story")
            story.prepare()
            how, events = forge.run(name, path=story.path, short=limit)
            assert how == "done"
            failed = [word for word in events if word[0] == "error"]
            assert bool(failed) == (limit < (200_000 if name == "put large" else 5))
            assert story.judge(events) == []

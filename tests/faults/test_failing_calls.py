"""Each system call fails in turn: the right error, the queue intact, no hang, no descriptor left open."""

import errno

import pytest
from lab import campaigns, scenarios
from lab.forge import Forge

import dirqueue


@pytest.mark.needs("strace")
@pytest.mark.parametrize("code", ["ENOSPC", "EIO", "EACCES", "ESTALE"])
@pytest.mark.timeout(300)
def test_a_failing_call_is_reported_and_breaks_nothing(code, tmp_path):
    """Every call of every story fails once with this errno."""
    report = campaigns.errors(tmp_path, [code])
    assert report.wrong == []
    assert report.points > 400


@pytest.mark.needs("strace")
@pytest.mark.parametrize("code", ["EDQUOT", "EMFILE", "EINTR"])
@pytest.mark.timeout(300)
def test_the_first_failing_call_of_a_kind_breaks_nothing(code, tmp_path):
    """The same for rarer errors, at the first call of each kind."""
    report = campaigns.errors(tmp_path, [code], deepest=1)
    assert report.wrong == []
    assert report.points > 100


@pytest.mark.needs("strace")
def test_after_a_failed_fsync_nothing_is_called_durable(tmp_path):
    """Whichever fsync of a put fails, of the file or of the directory, put raises and the message is gone."""
    with Forge("lab.scenarios") as forge:
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


@pytest.mark.parametrize("limit", [0, 1, 5, 4096, 199_999])
def test_a_short_write_never_becomes_a_short_message(limit, tmp_path):
    """A file that cannot grow beyond a limit is a true short write: put raises and leaves nothing."""
    with Forge("lab.scenarios") as forge:
        for name in ("put large", "put_many"):
            story = scenarios.Story(name, tmp_path / "story")
            story.prepare()
            how, said = forge.run(name, path=story.path, short=limit)
            assert how == "done"
            failed = [word for word in said if word[0] == "error"]
            assert bool(failed) == (limit < (200_000 if name == "put large" else 5))
            assert story.judge(said) == []

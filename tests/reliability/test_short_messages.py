"""Messages that are symbolic links, broken in every way that files are: kills, errors, lost replies, power cuts."""

import errno
import os

import pytest
from lab import campaigns, network, powerloss, scenarios, soak, stories

from dirqueue import Queue

pytestmark = pytest.mark.timeout(600)

#: What touches a link: written, claimed, given back, ended, moved. test_kill_points has the others too.
STORIES = (
    "put", "put delay", "put_many", "batch commit", "ack keep_done", "retry", "reject", "redrive", "change",
)  # fmt: skip
#: Filesystems say these of a link: none here, not this one, too long, a loop above, too many; and a full disk.
REFUSED = ("EPERM", "EOPNOTSUPP", "EINVAL", "ENAMETOOLONG", "EILSEQ")
FAILED = ("EIO", "EACCES", "EMLINK", "ELOOP", "EROFS", "ENOSPC", "EDQUOT", "ESTALE")
#: kind -> images with sync; and without.
IMAGES = {"ext4": (120, 10), "xfs": (60, 10), "btrfs": (40, 10)}


def test_stories_with_links_pass_without_a_fault_and_make_links(tmp_path):
    """The control: every story of the native layout, with every short body in a link."""
    for name in stories.of("native"):
        story = scenarios.Story(name, tmp_path / "story", links=True)
        story.prepare()
        events = []
        stories.do(name, lambda *what, e=events: e.append(what), path=story.path, settings={"links": True})
        if name in ("put", "put delay", "put_many", "retry", "reject", "change", "ack keep_done"):
            assert _links(story.path) >= 1, name
        assert story.judge(events) == [], name
        assert not [word for word in events if word[0] in {"error", "raised", "leak"}], name


def _links(path):
    return sum(os.path.islink(os.path.join(root, name)) for root, _, names in os.walk(path) for name in names)


@pytest.mark.needs("strace")
def test_kill_at_any_call_loses_tears_or_doubles_no_link(tmp_path):
    """SIGKILL at each call of each story: the directory, read without the library, holds all that was promised."""
    report = campaigns.kills(tmp_path, names=STORIES, links=True)
    assert report.wrong == []
    assert report.missed == []
    assert report.points >= 400


@pytest.mark.needs("strace")
@pytest.mark.parametrize("code", REFUSED)
def test_symlink_that_is_refused_leaves_a_file(tmp_path, code):
    """Nothing is reported: the body is written as a file, and the story goes on."""
    names = ("put", "put delay", "put_many", "batch commit", "first put")
    report = campaigns.errors(tmp_path, [code], names=names, calls=("symlinkat",), links=True)
    assert report.wrong == []
    assert report.points >= 8
    assert not [event for *_, events in report.events for event in events if event[0] == "error"]


@pytest.mark.needs("strace")
def test_call_on_a_link_that_fails_is_reported_and_breaks_nothing(tmp_path):
    """Each symlink and readlink of each story fails with each errno: QueueAccess with that errno, and nothing lost."""
    report = campaigns.errors(tmp_path, FAILED, names=STORIES, calls=("symlinkat", "readlinkat"), links=True)
    # A link that cannot be read because of a loop is not ours to read, and one of a server that forgot it is gone.
    wrong = [each for each in report.wrong if "reported as Empty" not in each or " ELOOP:" not in each]
    assert wrong == []
    assert report.points >= 100


@pytest.mark.needs("fuse")
def test_lost_replies_lose_and_double_no_link(tmp_path):
    """Two hosts, every tenth reply lost: a link that was made and claimed before the repeated call is put once."""
    passed, replies, wrong = network.lose(tmp_path, 400, seed=3, lost=0.1, settings={"links": True})
    assert wrong == []
    assert passed == 400
    assert replies > 40


@pytest.mark.needs("loop")
@pytest.mark.parametrize("kind", IMAGES)
def test_power_loss_loses_or_tears_no_link(kind, tmp_path, require):
    """One flush of the directory makes name and body durable: images after every call that changes the disk."""
    require(kind)
    count, _ = IMAGES[kind]
    taken, wrong = powerloss.photograph(kind, tmp_path, count, links=True)
    assert wrong == []
    assert taken == count


@pytest.mark.needs("loop", "fuse")
def test_reordered_block_writes_lose_no_link(tmp_path, require):
    """A disk may reorder the writes between two flushes: random subsets of the real block writes are tried."""
    require("ext4")
    taken, wrong = powerloss.reorder(tmp_path, 50, seed=2, links=True)
    assert wrong == []
    assert taken == 50


@pytest.mark.needs("loop")
@pytest.mark.parametrize("kind", IMAGES)
def test_sync_false_loses_only_the_newest_links_and_tears_none(kind, tmp_path, require):
    """The documented loss; but a link is there whole or not at all, where a file may be empty or short."""
    require(kind)
    _, count = IMAGES[kind]
    taken, losses, wrong = powerloss.photograph_unsynced(kind, tmp_path, count, times=90, links=True)
    assert wrong == []
    assert taken == count
    assert [each for each in losses if each.startswith("put is gone")]
    assert not [each for each in losses if each.startswith("short")]


def test_soak_of_bodies_around_the_limit_loses_none(tmp_path):
    """Producers, consumers, a purger and kills; links and files in one queue, NULs, bytes that are no text."""
    lengths = (0, 999, 1000, 1001)
    sites = [
        soak.Site([str(tmp_path / f"queue{number}")], settings=settings, lengths=lengths)
        for number, settings in enumerate(
            ({"links": True}, {"links": True, "keep_done": True, "stale": 60.0})
        )
    ]
    account = soak.run(tmp_path, 6.0, sites=sites)
    assert account.wrong == [], str(account)
    assert account.kills >= 3
    assert account.acked > 100


@pytest.mark.parametrize(
    "body", [b"", b"x" * 999, b"x" * 1000, b"x" * 1001, b"\0", b"\xff\xfe", b"\n:", b".", b".."]
)
def test_body_survives_a_whole_life_byte_for_byte(tmp_path, body):
    """Put, retried, released, rejected, redriven, changed, given back by another process, kept in done."""
    queue = Queue(tmp_path / "queue", sync=False, links=True, keep_done=True, backoff=0)
    id = queue.put(body)
    queue.get(timeout=0).retry(0, "why")
    queue.get(timeout=0).release()
    queue.get(timeout=0).reject("never")
    queue.redrive()
    next(iter(queue.peek())).change(delay=0.000001)
    lease = queue.get(timeout=5)
    again = Queue(tmp_path / "queue", sync=False, keep_done=True).lease(lease.handle)
    assert (again.message.body, again.message.size) == (body, len(body))
    again.ack()
    assert [(message.id, message.body) for message in queue.peek("done")] == [(id, body)]
    link = len(body) <= 1000 and b"\0" not in body
    assert _links(queue.path) == link


def test_errors_that_refuse_and_that_fail_are_different():
    """A code cannot be handled both ways."""
    assert not set(REFUSED) & set(FAILED)
    assert all(hasattr(errno, code) for code in (*REFUSED, *FAILED))

"""Two hosts on an imitation of HDFS behind fuse: no message is lost, doubled or seen short."""

import multiprocessing

import pytest
from lab import hdfsfs
from support.kit import PATIENCE

from dirqueue import Empty, Queue, SettingsError, Unsupported
from dirqueue.layouts.native import attempt, staged
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.staged import Identity
from dirqueue.layouts.native.supply import claimable

pytestmark = [pytest.mark.needs("fuse"), pytest.mark.timeout(300)]
SPAWN = multiprocessing.get_context("spawn")
BODY = b"all of it " * 20


@pytest.fixture
def hosts(tmp_path):
    """One directory, mounted twice, with attributes that may be a minute old."""
    source = tmp_path / "source"
    source.mkdir()
    with hdfsfs.mounted(source, tmp_path / "one") as one, hdfsfs.mounted(source, tmp_path / "two") as two:
        yield one, two


def consume(path, wanted, results):
    """Claim, check and acknowledge until so many were seen by all; tell their bodies."""
    queue = Queue(path, lease=600.0)
    while True:
        try:
            lease = queue.get(timeout=3)
        except Empty:
            if wanted.is_set():
                break
            continue
        results.put(bytes(lease.message.data))
        lease.ack()
    results.put(None)


def test_two_hosts_share_a_queue_without_links_locks_or_honest_creation(hosts):
    """A producer here, consumers on both: each message arrives once and whole."""
    done, results = SPAWN.Event(), SPAWN.Queue()
    consumers = [SPAWN.Process(target=consume, args=(host / "q", done, results)) for host in hosts]
    queue = Queue(hosts[0] / "q")
    queue.put(b"0 " + BODY)
    for each in consumers:
        each.start()
    for number in range(1, 30):
        queue.put(b"%d " % number + BODY)
    queue.put_many(b"%d " % number + BODY for number in range(30, 60))
    done.set()
    seen, ended = [], 0
    while ended < 2:
        got = results.get(timeout=4 * PATIENCE)
        ended += got is None
        seen += [] if got is None else [got]
    for each in consumers:
        each.join(PATIENCE)
    assert sorted(seen) == sorted(b"%d " % number + BODY for number in range(60))


def test_batch_and_its_identity_hold_on_two_hosts(hosts):
    """Written here and again there: visible once, never in part, never short."""
    for number, host in enumerate(hosts):
        queue = Queue(host / "q")
        directory, settings = queue.layout.directory, queue.settings
        staging = staged.begin(directory)
        writer = attempt.Writer(directory, settings, staging)
        writer.add([BODY] * 20)
        done = staged.commit(directory, settings, staging, writer.finish(), Identity("app", 1))
        assert done is (number == 0)
    assert [message.data for message in Queue(hosts[1] / "q").peek()] == [BODY] * 20


def test_lots_are_pinned_by_the_outcome_of_the_rename(hosts):
    """Two consumers on two hosts, from the same listing: no message is in two lots, none is lost."""
    Queue(hosts[0] / "q").put_many([b"%d" % number for number in range(40)])
    mine = []
    for number, host in enumerate(hosts):
        queue = Queue(host / "q")
        pins = Pins(queue.layout.directory, queue.settings, f"c{number}")
        pins.register(600.0)
        mine.append((pins, claimable(pins.directory, pins.settings)))
    for lot in range(1, 4):
        for pins, supply in mine:
            pins.pin(lot, supply, Limit(10))
    leased = sorted(int(message.data) for message in Queue(hosts[0] / "q").peek("leased"))
    assert leased == list(range(40))


def test_short_messages_are_files_where_there_are_no_symbolic_links(hosts):
    """HDFS refuses them: the setting does no harm."""
    one, two = hosts
    with Queue(f"{one}/queue", links=True, lease=600.0) as queue:
        for body in (b"first", b"second"):
            queue.put(body)
        assert queue.layout.directory.mount.no_symlinks
    with Queue(f"{two}/queue", lease=600.0) as queue:
        got = [queue.get(timeout=PATIENCE) for _ in range(2)]
        assert [lease.message.body for lease in got] == [b"first", b"second"]
        for lease in got:
            lease.ack()


def test_what_a_message_carries_is_whole_on_the_other_host(hosts):
    """Attributes and the note of a failure are longer than a file that was closed just now shows."""
    one, two = (Queue(host / "q", lease=600.0) for host in hosts)
    attributes = {"text": "all of it " * 20}
    for number in range(5):
        one.put(b"%d" % number, attributes=attributes)
        lease = two.get(timeout=PATIENCE)
        assert lease.message.attributes == attributes
        lease.reject("a long reason " * 20)
        dead = one.message(lease.message.id)
        assert dead.error == "a long reason " * 20


def test_message_that_expired_is_redriven(hosts):
    """The file that says when it ends is written again, over the one that is there."""
    queue = Queue(hosts[0] / "q", lease=600.0)
    id = queue.put(b"late", attributes={"colour": "blue"}, ttl=0.001)
    with pytest.raises(Empty):
        queue.get(timeout=0.05)
    assert queue.message(id).state == "dead"
    assert queue.redrive() == [id]
    message = queue.get(timeout=PATIENCE).message
    assert (message.body, message.attributes, message.expires_at) == (b"late", {"colour": "blue"}, None)


def test_consumer_of_lots_registers_again(hosts):
    """With another timeout: what is known of it is replaced, and it gives signs of life."""
    queue = Queue(hosts[0] / "q")
    pins = Pins(queue.layout.directory, queue.settings, "c")
    for timeout in (600.0, 300.0):
        pins.register(timeout)
        pins.beat()
    assert pins.known()
    assert sorted(pins.names()) == ["owner"]


def test_settings_are_stored_once_and_cannot_be_changed(hosts):
    """Both hosts create the queue; one sentence says why nothing changes, and what to do."""
    for host in hosts:
        assert Queue.create(host / "q", lease=77.0).settings.lease == 77.0
    with pytest.raises(SettingsError, match="was created with"):
        Queue.create(hosts[0] / "q", lease=78.0)
    with pytest.raises(Unsupported, match=r"replaces no file.*make another queue") as caught:
        Queue(hosts[0] / "q").configure(lease=78.0)
    assert caught.value.capability == "configure"
    assert not [path for path in (hosts[0] / "q").iterdir() if path.name.startswith(".create-")]
    assert Queue(hosts[1] / "q").settings.lease == 77.0

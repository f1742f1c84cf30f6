"""How many calls of the filesystem a transaction takes, and that plain consumers pay nothing for it."""

import collections
import gc
import statistics

import pytest

from dirqueue import Put, Queue, Space
from dirqueue.disk import fs
from dirqueue.layouts.native import cursor, extras, links

FOR_EVER = 36_000.0
QUEUES = ("a", "b", "c", "d")


@pytest.fixture(autouse=True)
def no_looks_by_the_clock(monkeypatch):
    """Leave out the looks that are repeated with time, not with messages."""
    for module, name in ((cursor, "FRESH_SECONDS"), (cursor, "GLANCE_SECONDS"), (extras, "TRUST_SECONDS")):
        monkeypatch.setattr(module, name, FOR_EVER)
    monkeypatch.setattr(links, "TRUSTED", int(FOR_EVER * 1_000_000))


@pytest.fixture
def count(monkeypatch):
    """Give a function that says which calls something made."""
    seen = collections.Counter()

    def counted(name, call):
        def run(*arguments, **options):
            seen[name] += 1
            return call(*arguments, **options)

        return run

    for name in fs.CALLS:
        monkeypatch.setattr(fs, name, counted(name, getattr(fs, name)))

    def count(function):
        gc.collect()
        gc.disable()  # what other tests left open is not closed meanwhile
        try:
            seen.clear()
            function()
            return sum(seen.values()), dict(seen)
        finally:
            gc.enable()

    return count


@pytest.fixture(params=[False, True], ids=["files", "links"])
def warm(request, tmp_path):
    """A space in the middle of its life: everything that is made once is made."""
    with Space(tmp_path / "s", sync=False, lease=FOR_EVER, links=request.param) as space:
        for _ in range(300):
            space.put("a", b"work")
        for name in QUEUES:
            space._ground.transacted(name)
            space.put(name, b"warm", id=name)
            space.put(name, b"seen")
        space.now()
        space.get("a", timeout=0, lease=FOR_EVER).ack(then=[Put(name, b"warm") for name in QUEUES])
        yield space


def leases(space, number):
    return [space.get("a", timeout=0, lease=FOR_EVER) for _ in range(number)]


def transaction(space, build):
    def run():
        with space.transaction() as t:
            build(t)

    return run


def test_ack_and_put_elsewhere_takes_six_calls_and_four_with_links(warm, count):
    [lease] = leases(warm, 1)
    calls, which = count(lambda: lease.ack(then=[Put("b", b"new")]))
    linked = warm.queue("b").settings.links
    assert calls == (4 if linked else 6), which


@pytest.mark.parametrize(("acks", "puts"), [(1, 1), (1, 10), (2, 1), (10, 1), (200, 1), (5, 7)])
def test_acks_and_puts_take_four_and_two_calls_each(warm, count, acks, puts):
    held = leases(warm, acks)

    def build(t):
        for lease in held:
            t.ack(lease)
        for _ in range(puts):
            t.put("b", b"new")

    calls, which = count(transaction(warm, build))
    linked = warm.queue("b").settings.links
    # Once a second a producer of links looks whether those who may search the directory may read them.
    again = 4 if linked else 0
    assert calls <= (2 if linked else 4) * puts + 2 * acks + again, which


@pytest.mark.parametrize("verb", ["ack", "move", "renew", "cancel"])
def test_one_change_alone_takes_one_call(warm, count, verb):
    [lease] = leases(warm, 1)
    [seen, *_] = warm.queue("b").peek()
    build = {
        "ack": lambda t: t.ack(lease),
        "move": lambda t: t.move(lease, "b"),
        "renew": lambda t: t.renew(lease),
        "cancel": lambda t: t.cancel(seen),
    }[verb]
    calls, which = count(transaction(warm, build))
    assert calls == 1, which


@pytest.mark.parametrize(("needs", "most"), [(1, 8), (2, 11)])
def test_needs_take_a_look_or_two_each(warm, count, needs, most):
    [lease] = leases(warm, 1)
    seen = list(warm.queue("c").peek())[:needs]

    def build(t):
        t.ack(lease)
        t.put("b", b"new")
        for each in seen:
            t.need(each)

    calls, which = count(transaction(warm, build))
    assert calls <= most, which


def test_move_and_put_take_eleven_calls(warm, count):
    [lease] = leases(warm, 1)
    calls, which = count(transaction(warm, lambda t: (t.move(lease, "b"), t.put("c", b"new"))))
    assert calls <= 11, which


def test_puts_into_two_queues_take_eleven_calls(warm, count):
    calls, which = count(transaction(warm, lambda t: (t.put("b", b"new"), t.put("c", b"new"))))
    assert calls <= 11, which


def test_put_with_an_id_takes_eleven_calls(warm, count):
    """Once the directory for the two digits of its hash is there; making that costs nine more, 256 times."""
    from dirqueue.space import ids

    first = ids.folder_of("b").rpartition("/")[0]
    other = next(f"k{number}" for number in range(10_000) if ids.folder_of(f"k{number}").startswith(first))
    calls, which = count(lambda: warm.put("b", b"new", id=other))
    assert calls <= 11, which


def test_plain_consumer_in_a_space_pays_nothing(tmp_path, count):
    """With no transaction under way, get and ack of a queue in a space take as many calls as of one alone."""

    def cost(path):
        queue = Queue(path, sync=False, lease=FOR_EVER)
        for _ in range(60):
            queue.put(b"work")
        queue.get(timeout=0).ack()
        return statistics.median(count(lambda: queue.get(timeout=0).ack())[0] for _ in range(50))

    with Space(tmp_path / "space", sync=False) as space:
        space.put("q", b"x", id="k")
        space.get("q", timeout=0).ack(then=[Put("other", b"y")])
        inside = cost(tmp_path / "space" / "q")
    assert inside == cost(tmp_path / "alone" / "q") == 5


def test_durable_ack_and_put_takes_three_flushes(tmp_path, monkeypatch):
    """Of the file, of the directory that it is put to, and of the register; the rest is shared by 64 transactions."""
    with Space(tmp_path / "s", sync=True, lease=FOR_EVER) as space:
        for _ in range(4):
            space.put("a", b"work")
        space.get("a", timeout=0).ack(then=[Put("b", b"warm")])
        if not space._ground.directory.mount.ordered:
            pytest.skip("held where disks are not ordered")
        flushed = []
        real = fs.fsync
        monkeypatch.setattr(fs, "fsync", lambda fd: flushed.append(fd) or real(fd))
        lease = space.get("a", timeout=0)
        lease.ack(then=[Put("b", b"new")])
        assert len(flushed) == 3


def test_a_holder_costs_no_call(warm, count):
    """To claim for a holder, renew and acknowledge takes as many calls as without."""

    def cost(holder):
        calls = 0
        for _ in range(3):
            calls = count(lambda: warm.get("a", timeout=0, lease=FOR_EVER, holder=holder).ack())[0]
        return calls

    assert cost("ann") == cost(None)


def test_a_change_of_a_task_takes_one_call_and_a_side_file_three_more(warm, count):
    lease = warm.get("a", timeout=0, lease=FOR_EVER, holder="ann")

    def cost(**changed):
        message = warm.message(lease.message.id, "a")
        return count(transaction(warm, lambda t: t.change(message, **changed)))

    calls, which = count(transaction(warm, lambda t: t.change(lease, delay=0)))
    assert calls == 1, which
    cost(failures=1)  # makes the directory of its side files
    cost(failures=0)  # and nothing is left that needs one
    calls, which = cost(body=b"new")
    assert calls == 4, which
    calls, which = cost(body=b"newer")  # reads the old one, and removes it
    assert calls == 4 + which["read"] + 3, which

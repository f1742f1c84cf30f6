"""Every order in which clients can meet, on the real library; and the schedules that once broke it."""

import pytest
from lab import explore
from lab.explore import Plan

pytestmark = pytest.mark.timeout(600)  # seconds of work, minutes on a machine with many neighbours

#: Two clients, up to four operations each: all schedules.
COMPLETE = {
    "two consumers": Plan.of("ga|ga"),
    "two consumers, two messages": Plan.of("ggaa|ggaa", before="pp"),
    "producer and consumer": Plan.of("pp|gaga"),
    "a batch and a consumer": Plan.of("P|ga", before=""),
    "retry": Plan.of("gt|ga"),
    "release": Plan.of("glga|ga"),
    "reject and redrive": Plan.of("gj|d"),
    "two who redrive": Plan.of("d|dga", before="pgj"),
    "renew": Plan.of("gna|ga"),
    "purge beside a consumer": Plan.of("u|ga"),
    "purge beside a producer": Plan.of("uu|pp"),
    "a lease runs out": Plan.of("ga|ga", ticks=1),
    "a lost reply": Plan.of("ga|p", lossy=1, fstype="nfs4"),
    "a consumer dies": Plan.of("ga|ga", kills=1),
    "a producer dies": Plan.of("p|ga", kills=1),
    "published by link": Plan.of("p|ga", before="", noreplace=False),
    "published by rename": Plan.of("p|ga", before="", noreplace=False, links=False),
}

#: Too many to try all: so many at random, by a seed.
MANY = {
    "three consumers and time": Plan.of("gna|ga|ga", ticks=2),
    "everything": Plan.of("pp|gtga|glga|u", before="p", ticks=1),
    "the dead": Plan.of("gjd|gjd|ga", before="pp", ticks=1),
    "batches": Plan.of("P|gaga|gt|u", before="P", ticks=1),
    "lost replies": Plan.of("pp|gnga|gl|u", lossy=3, fstype="nfs4", ticks=1),
    "lost replies without links": Plan.of("P|gtga|gjd", before="p", lossy=3, fstype="nfs4", noreplace=False),
    "kills": Plan.of("gna|gtga|p|u", before="pp", ticks=1, kills=2),
    "history": Plan.of("ga|gna|gt", before="pp", ticks=1, settings=(("keep_done", True),)),
    "delays": Plan.of("yga|ga|gt", before="y", ticks=1),
}


@pytest.mark.parametrize("plan", COMPLETE.values(), ids=COMPLETE)
def test_no_order_of_calls_breaks_a_promise(plan):
    """All schedules of two clients: nothing lost, doubled, acked twice, held by two, or reported wrongly."""
    _runs, _pruned, _complete, failure = explore.exhaust(plan, limit=4000)
    assert failure is None, str(failure)


@pytest.mark.parametrize("plan", MANY.values(), ids=MANY)
def test_random_orders_of_many_clients_break_no_promise(plan):
    """The same for up to four clients, with time passing, deaths and lost replies."""
    _runs, failure = explore.wander(plan, 1500, seed="ci")
    assert failure is None, str(failure)


@pytest.mark.parametrize(
    "plan",
    [Plan.of("pp|gaga|u", before="p"), Plan.of("p|glga|ga", before="p", ticks=1)],
    ids=["put", "give back"],
)
def test_slices_keep_every_promise(plan, monkeypatch):
    """A queue deep enough to be sliced behaves as a flat one."""
    monkeypatch.setattr("dirqueue.layouts.native.publish.DEEP", -1)
    _runs, failure = explore.wander(plan, 1500, seed="slices")
    assert failure is None, str(failure)


@pytest.mark.parametrize("layout", ["vsqs", "dirq-simple", "dirq-normal"])
@pytest.mark.parametrize("text", ["ga|ga", "p|ga", "gl|ga", "ga|ga|u", "pp|gaga|u"])
def test_the_other_layouts_keep_their_promises(text, layout):
    """The same clients on the formats of other programs: random schedules, time passing."""
    _runs, failure = explore.wander(Plan.of(text, layout=layout, ticks=1), 300, seed="layouts")
    assert failure is None, str(failure)


#: Found by the explorer, shortened by it, and kept: plan, choices, what went wrong.
FOUND = {
    "a link asked for twice published twice": (
        Plan.of("ggaa|pp|u", ticks=2, lossy=2, fstype="nfs4", noreplace=False),
        [3, 3, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 2],
    ),
    "a staging directory that exists already": (
        Plan.of("P|gtga|uu", before="pp", ticks=1, lossy=2, fstype="nfs4"),
        [3, 0, 0, 1],
    ),
    "a release whose message was claimed at once": (
        Plan.of("gna|d|uu|glga", before="P", lossy=2, fstype="nfs4"),
        [
            1,
            3,
            3,
            3,
            0,
            2,
            2,
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            0,
            0,
            1,
            0,
            1,
            0,
            1,
            0,
            1,
            1,
            0,
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            0,
            1,
            0,
            2,
        ],
    ),
    "a tombstone that purge took too soon": (
        Plan.of("gna|d|uu|glga", before="P", lossy=2, fstype="nfs4"),
        [
            2,
            3,
            1,
            0,
            3,
            0,
            1,
            1,
            1,
            1,
            0,
            0,
            0,
            1,
            0,
            1,
            1,
            0,
            0,
            1,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            1,
            0,
            1,
            0,
            1,
            1,
            1,
            2,
        ],
    ),
    "a batch that only purge had emptied": (
        Plan.of("gtga|ga|gl", before="P", ticks=2),
        [2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 1],
    ),
}


@pytest.mark.parametrize(("plan", "choices"), FOUND.values(), ids=FOUND)
def test_schedules_that_once_broke_a_promise(plan, choices):
    """Each replays the shortest schedule that was found, and some around it."""
    outcome = explore.replay(plan, choices)
    assert outcome.wrong == []
    _runs, failure = explore.wander(plan, 300, seed="around")
    assert failure is None, str(failure)


def test_a_schedule_can_be_repeated_by_its_numbers():
    """Replaying the recorded choices gives the same calls in the same order."""
    plan = Plan.of("gtga|ga|p", ticks=1)
    once = explore.replay(plan, [1, 0, 2, 1, 0, 1, 1])
    again = explore.replay(plan, once.made)
    assert once.log == again.log
    assert len(once.log) > 10


def test_the_explorer_finds_a_delete_by_id(monkeypatch):
    """The control: the oldest mistake of such queues is found, shortened and told."""
    from dirqueue import fs
    from dirqueue.layouts.native.layout import Native

    def careless(self, held):
        for entry in list(fs.listing(".", self.home.fd)):
            if entry.name.startswith(held.id):
                fs.discard(entry.name, self.home.fd)

    monkeypatch.setattr(Native, "ack", careless)
    _runs, _pruned, _complete, failure = explore.exhaust(Plan.of("ga|ga", ticks=1), limit=6000)
    assert failure is not None
    assert failure.kind == "acked twice"
    assert "replay with" in str(failure)

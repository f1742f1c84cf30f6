"""Every order in which clients can meet, on the real library, on every layout.

Two clients of up to four operations: all schedules (`plans.COMPLETE`; the campaign does all pairs of programs). Three
and four clients: so many at random, by seed (`plans.MANY`). A search that is complete cuts most of its runs short, so
its runs and those of the random walks are counted apart.
"""

import pytest
from lab import explore, plans, planted

pytestmark = pytest.mark.timeout(600)  # seconds of work, minutes on a machine with many neighbours

#: Random schedules, each run to its end, and runs of the complete searches, most of them cut.
AT_RANDOM = 200_000
SEARCHED = 85_000


@pytest.mark.parametrize(("plan", "least"), plans.COMPLETE.values(), ids=plans.COMPLETE)
def test_no_order_of_calls_breaks_a_promise(plan, least):
    """All schedules of two clients: nothing lost, doubled, acked twice, held by two, or reported wrongly."""
    runs, pruned, complete, failure = explore.exhaust(plan)
    assert failure is None, str(failure)
    assert complete
    assert runs + pruned >= least


@pytest.mark.parametrize(("plan", "count"), plans.MANY.values(), ids=plans.MANY)
def test_random_orders_of_many_clients_break_no_promise(plan, count):
    """The same for three and four clients, with time passing, deaths and lost replies."""
    runs, failure = explore.wander(plan, count, seed="ci")
    assert failure is None, str(failure)
    assert runs == count


@pytest.mark.parametrize("bug", planted.BUGS.values(), ids=planted.BUGS)
def test_schedules_around_a_bug_break_no_promise(bug):
    """Where something was wrong once, more may be: the same plan in many orders, without the bug."""
    runs, failure = explore.wander(bug.plan, 1000, seed="around")
    assert failure is None, str(failure)
    assert runs == 1000


def test_so_many_schedules_are_run():
    """At least 300,000 in each CI: what the tests above count, added up."""
    at_random = sum(count for _, count in plans.MANY.values()) + 1000 * len(planted.BUGS)
    searched = sum(least for _, least in plans.COMPLETE.values())
    assert at_random >= AT_RANDOM
    assert searched >= SEARCHED
    assert at_random + searched >= 300_000


def test_two_clients_of_four_operations_are_among_those_done_completely():
    """The words of the promise: two clients, up to four operations each, every layout."""
    native = [plan for plan, _ in plans.COMPLETE.values() if plan.layout == "native"]
    assert sum(all(len(program) == 4 for program in plan.programs) for plan in native) >= 5
    assert all(len(plan.programs) == 2 for plan, _ in plans.COMPLETE.values())
    assert {plan.layout for plan, _ in plans.COMPLETE.values()} == {"native", *plans.OTHERS}
    assert {plan.layout for plan, _ in plans.MANY.values()} == {"native", *plans.OTHERS}
    assert {len(plan.programs) for plan, _ in plans.MANY.values()} == {3, 4}

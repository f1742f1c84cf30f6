"""Interleavings of clients, with the real library and every layout.

For two clients of up to four operations all schedules are run (`plans.COMPLETE`; the campaign runs all pairs of
programs). For three and four clients random schedules are run, by seed (`plans.MANY`). A complete search cuts most of
its runs short, so they are counted separately from the random ones.
"""

import pytest
from lab import explore, plans, planted

pytestmark = pytest.mark.timeout(600)  # takes seconds, or minutes on a busy machine

#: Random schedules, each run to its end, and runs of the complete searches, most of them cut short.
AT_RANDOM = 100_000
SEARCHED = 100_000


#: Complete searches of a quarter of a minute each, which CI leaves to `make test-all` and to the campaign.
LONG = ("a lease runs out", "both get two", "retry with a reason")


@pytest.mark.parametrize(
    ("plan", "least"),
    [
        pytest.param(*each, id=name, marks=[pytest.mark.slow] if name in LONG else [])
        for name, each in plans.COMPLETE.items()
    ],
)
def test_every_schedule_of_two_clients_keeps_the_promises(plan, least):
    """In all schedules of two clients no message is lost, doubled, acked twice, held twice, or reported wrongly."""
    runs, pruned, complete, failure = explore.exhaust(plan)
    assert failure is None, str(failure)
    assert complete
    assert runs + pruned >= least


@pytest.mark.parametrize(("plan", "count"), plans.MANY.values(), ids=plans.MANY)
def test_random_schedules_of_many_clients_keep_the_promises(plan, count):
    """The same for three and four clients, with time passing, deaths and lost replies."""
    runs, failure = explore.wander(plan, count, seed="ci")
    assert failure is None, str(failure)
    assert runs == count


@pytest.mark.parametrize(("plan", "count"), plans.TEXT.values(), ids=plans.TEXT)
def test_random_schedules_of_a_queue_in_one_file_keep_the_promises(plan, count):
    """Clients that take turns at one file, killed and stopped anywhere in a turn."""
    runs, failure = explore.wander(plan, count, seed="ci")
    assert failure is None, str(failure)
    assert runs == count


@pytest.mark.parametrize("bug", planted.BUGS.values(), ids=planted.BUGS)
def test_random_schedules_of_fixed_bugs_keep_the_promises(bug):
    """The plans of known bugs, without the bug, in many random schedules."""
    runs, failure = explore.wander(bug.plan, 1000, seed="around")
    assert failure is None, str(failure)
    assert runs == 1000


def test_schedules_are_at_least_200000():
    """The documentation gives this number."""
    at_random = sum(count for _, count in plans.MANY.values()) + 1000 * len(planted.BUGS)
    searched = sum(least for name, (_, least) in plans.COMPLETE.items() if name not in LONG)
    assert at_random >= AT_RANDOM
    assert searched >= SEARCHED
    assert at_random + searched >= 200_000


def test_complete_searches_cover_four_operations_and_every_layout():
    """The documentation promises two clients, up to four operations each, on every layout."""
    native = [plan for plan, _ in plans.COMPLETE.values() if plan.layout == "native"]
    assert sum(all(len(program) == 4 for program in plan.programs) for plan in native) >= 5
    assert all(len(plan.programs) == 2 for plan, _ in plans.COMPLETE.values())
    assert {plan.layout for plan, _ in plans.COMPLETE.values()} == {"native", *plans.OTHERS}
    assert {plan.layout for plan, _ in plans.MANY.values()} == {"native", *plans.OTHERS}
    assert {len(plan.programs) for plan, _ in plans.MANY.values()} == {3, 4}

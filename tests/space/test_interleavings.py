"""Interleavings of transactions: the real library, every call a turn, deaths and recoveries included.

`COMPLETE` are all schedules of two clients, none, one or both of which may be killed before each of their calls; each
different end is recovered by purges, some of which are killed at each call, and by consumers that only get. `SAMPLED`
are bounded: too many for a test, so that here they are random schedules by seed. The campaign runs all of them, and
those of `transactions.LARGE`, up to its limit.
"""

import dataclasses

import pytest
from lab import spaces
from lab.planted_transactions import BUGS
from lab.transactions import SCENARIOS

pytestmark = pytest.mark.timeout(600)  # takes seconds, or minutes on a busy machine

#: Scenario -> (deaths, whether recoveries are killed too, the least number of states).
COMPLETE = {
    "1": (1, False, 6_000),
    "2": (1, False, 3_000),
    "3": (2, True, 1_100),
    "4": (2, True, 1_900),
    "5": (1, False, 4_000),
    "6": (1, False, 4_000),
    "7": (1, False, 4_000),
    "9": (1, False, 3_000),
    "10": (2, True, 900),
    "12": (2, False, 2_000),
    "13": (2, True, 1_600),
    "14": (2, False, 4_800),
    "15": (1, False, 4_000),
    "25": (2, True, 1_000),
    "31": (1, False, 1_000),
    "32": (2, True, 450),
    "34": (1, False, 2_000),
    "35": (0, False, 14_000),
    "36": (1, False, 3_500),
    "37": (2, True, 150),
    # beside what operators, Spark and producers of many do to the same queues
    "39": (2, True, 900),
    "40": (1, False, 9_000),
    "41": (2, True, 850),
    "42": (1, False, 3_000),
    "43": (1, False, 5_400),
    "44": (1, False, 8_600),
    "45": (1, False, 3_100),
    "46": (1, False, 9_900),
    "47": (0, False, 7_700),
    "48": (1, False, 1_200),
    "49": (0, False, 18_000),
    "50": (0, False, 7_000),
    "51": (1, False, 350),
    "52": (1, False, 4_700),
}
#: Scenario -> random schedules.
SAMPLED = {number: 400 for number in SCENARIOS if number not in COMPLETE}
#: Lots are pinned there by threads, which a simulation of one thread cannot run.
LOSSY = tuple(number for number in SCENARIOS if number != "50")


@pytest.mark.parametrize("number", COMPLETE)
def test_every_schedule_keeps_the_promises(number):
    """Nothing is lost, doubled, torn, visible too early or half done, and everybody is told what happened."""
    kills, deep, least = COMPLETE[number]
    search = spaces.exhaust(dataclasses.replace(SCENARIOS[number], kills=kills, deep=deep))
    assert not search.failure, str(search)
    assert search.complete
    assert search.states >= least, str(search)


@pytest.mark.parametrize("number", SAMPLED)
def test_random_schedules_keep_the_promises(number):
    search = spaces.wander(dataclasses.replace(SCENARIOS[number], deep=False), SAMPLED[number], seed="ci")
    assert not search.failure, str(search)
    assert search.runs == SAMPLED[number]


@pytest.mark.parametrize("number", LOSSY)
def test_lost_replies_change_nothing(number):
    """Calls of a network filesystem that are executed twice, the second time after anything that others do."""
    scenario = dataclasses.replace(SCENARIOS[number], deep=False, kills=1, lossy=1, fstype="nfs4")
    search = spaces.wander(scenario, 300, seed="lost")
    assert not search.failure, str(search)


@pytest.mark.parametrize("number", ["1", "5", "15", "17"])
def test_transactions_are_tried_again_when_they_are_aborted(number):
    """With time passing, so that patience ends and what is staged becomes stale while its owner goes on."""
    scenario = dataclasses.replace(SCENARIOS[number], impatient=False, ticks=2, tries=3, deep=False)
    search = spaces.wander(scenario, 400, seed="again")
    assert not search.failure, str(search)


@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_found(name):
    bug = BUGS[name]
    with bug.planted():
        search = spaces.exhaust(bug.scenario, limit=20_000)
    assert search.failure, f"not found in {search.runs + search.pruned} runs"

"""The engine that keeps leases alive: anything with renew() is renewed until it is forgotten or lost."""

import threading

import pytest
from support.kit import LONG, in_child, wait_until

from dirqueue import LeaseLost, Unsupported, renewer
from dirqueue.renewer import Renewer

SOON = 0.002


class Thing:
    """Counts its renewals; raises the given errors, once each."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.renewals = 0

    def renew(self):
        self.renewals += 1
        if self.errors:
            raise self.errors.pop(0)


def gone(reason="gone"):
    return LeaseLost("lost", message_id="1", token="t", reason=reason)


@pytest.fixture(name="engine")
def _engine(monkeypatch):
    """Give a renewer whose thread ends soon after it has nothing to do."""
    monkeypatch.setattr(renewer, "IDLE_SECONDS", 0.01)
    return Renewer()


def renewed(thing, times):
    wait_until(lambda: thing.renewals >= times, f"{times} renewals")


def test_watch_renews_until_forget(engine):
    """The renewals come again and again, and none comes after the thread has seen that all is forgotten."""
    thing = Thing()
    engine.watch(thing, SOON)
    renewed(thing, 3)
    assert not engine.forget(thing)
    wait_until(lambda: engine._thread is None, "the thread to end")
    before = thing.renewals
    engine.watch(Thing(), LONG)
    assert thing.renewals == before


def test_watch_of_a_sooner_thing_wakes_the_thread(engine):
    """A thread that sleeps for the first thing renews the second in its time."""
    late, soon = Thing(), Thing()
    engine.watch(late, LONG)
    wait_until(lambda: engine._wakes, "the thread to sleep")
    engine.watch(soon, SOON)
    renewed(soon, 2)
    assert late.renewals == 0
    engine.forget(late)
    engine.forget(soon)


def test_thread_ends_when_idle_and_starts_again(engine):
    """The next watch gets another thread."""
    for _ in range(2):
        thing = Thing()
        engine.watch(thing, SOON)
        assert engine._thread is not None
        renewed(thing, 1)
        engine.forget(thing)
        wait_until(lambda: engine._thread is None, "the thread to end")


def test_loss_is_returned_by_forget_once(engine):
    """Whoever gave no `lost` finds out when forgetting; after that nothing is remembered."""
    thing = Thing(gone())
    engine.watch(thing, SOON)
    wait_until(lambda: thing in engine._unreported, "the loss")
    assert engine.forget(thing)
    assert not engine.forget(thing)
    assert thing.renewals == 1


def test_loss_calls_lost(engine):
    """With a callback nothing is left for forget to return."""
    heard, error = [], gone()
    thing = Thing(error)
    engine.watch(thing, SOON, lost=heard.append)
    wait_until(lambda: heard == [error], "the call")
    assert not engine.forget(thing)


def test_lease_that_its_holder_ended_is_not_reported_as_lost(engine):
    """The holder knows."""
    heard = []
    thing = Thing(gone("ended"))
    engine.watch(thing, SOON, lost=heard.append)
    wait_until(lambda: thing not in engine._watches, "the end of the watch")
    assert not engine.forget(thing)
    assert heard == []


def test_thing_forgotten_while_it_is_renewed_stays_forgotten(engine):
    """Neither success nor loss brings it back."""
    for error in ([], [gone()], [OSError()]):
        thing = Thing(*error)
        thing.renew, real = (lambda: (engine.forget(thing), real())), thing.renew  # noqa: B023
        engine.watch(thing, LONG)
        watch = engine._watches[thing]
        engine._renew(thing, watch)
        assert thing.renewals == 1
        assert not engine._watches
        assert not engine._unreported
        engine._renew(thing, watch)
        assert thing.renewals == 1


def test_failed_renewal_is_reported_and_tried_again_sooner(engine):
    """Any other error is no reason to stop, nor is one of the callback."""
    heard, thing = [], Thing(OSError("no luck"), ValueError("worse"))

    def failed(error):
        heard.append(str(error))
        raise RuntimeError("a broken callback")

    engine.watch(thing, 8 * SOON, failed=failed)
    renewed(thing, 3)
    engine.forget(thing)
    assert heard == ["no luck", "worse"]


def test_thing_that_cannot_be_renewed_is_forgotten(engine):
    """A layout whose claims do not run out is not asked again."""
    thing = Thing(Unsupported("no", path="p"))
    engine.watch(thing, SOON)
    wait_until(lambda: thing not in engine._watches, "the end of the watch")
    assert not engine.forget(thing)
    assert thing.renewals == 1


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_child_has_a_renewer_of_its_own():
    """A thread of the parent holds the lock at the fork: the child can renew, and renews only its own."""
    held, go = threading.Event(), threading.Event()
    parents = Thing()

    def holder():
        with renewer.RENEWER._lock:
            held.set()
            go.wait(60)

    def child():
        thing = Thing()
        renewer.RENEWER.watch(thing, SOON)
        renewed(thing, 2)
        return renewer.RENEWER.forget(parents), parents in renewer.RENEWER._watches

    renewer.RENEWER.watch(parents, LONG)
    thread = threading.Thread(target=holder)
    thread.start()
    try:
        assert held.wait(60)
        assert in_child(child) == (False, False)
    finally:
        go.set()
        thread.join()
        renewer.RENEWER.forget(parents)

"""Errors of listing what can be taken at once: every branch on an errno, each reached by the fault that it is for."""

import errno
import os

import pytest
from support.failing import failing, names, of
from support.native import Bench

from dirqueue.disk.identity import new_id


def taken(supply):
    return [name for _, name in iter(supply.take, None)]


@pytest.mark.parametrize("code", names([errno.ENOENT, errno.ENOTDIR, errno.ESTALE]))
def test_directory_that_goes_before_its_turn_is_passed_over(bench, code):
    """Emptied and removed by another consumer."""
    bench.queue.put_many([b"1", b"2"])
    last = bench.queue.put(b"3")
    supply = bench.supply()
    with failing("open", code, when=of(".batch/")):
        assert taken(supply) == [last]


def test_emptied_directories_go_but_young_slices_stay(bench):
    """Somebody may be about to append; deeper than messages lie nobody looks."""
    old, young = f"1700000000000000{0:09d}", new_id()
    for name in (f"{old}.slice", f"{young}.slice", f"{old}.batch", f"{old}.batch/{old}.part/{old}.part"):
        os.makedirs(bench.path / name)
    assert taken(bench.supply()) == []
    found = sorted(name for name in os.listdir(bench.path) if name.endswith((".batch", ".slice")))
    assert found == [f"{old}.batch", f"{young}.slice"]


def test_random_order_gives_each_once(queue_dir):
    """Where the queue has no order, those who take many have none either."""
    bench = Bench(queue_dir, order="random")
    ids = [bench.queue.put(b"x") for _ in range(20)]
    assert sorted(taken(bench.supply())) == ids

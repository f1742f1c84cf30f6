"""Emptied elements of dirq-normal that become locks: never one that another program renamed onto them."""

import os

import dirqueue


def test_an_element_that_dirq_removes_under_the_same_name_becomes_no_lock(tmp_path):
    """What dirq removes is renamed onto our empty directory without a word: it stays there."""
    path = tmp_path / "queue"
    queue = dirqueue.Queue(path, layout="dirq-normal", sync=False)
    for number in range(5):
        queue.put(b"%d" % number)
    queue.get(timeout=0).ack()
    (spare,) = os.listdir(path / "obsolete")
    last = path / "00000000" / max(os.listdir(path / "00000000"))
    (last / "locked").mkdir()
    os.rename(last, path / "obsolete" / spare)
    lease = queue.get(timeout=0)
    assert os.listdir(path / lease.message.id / "locked") == []
    assert sorted(os.listdir(path / "obsolete" / spare)) == ["body", "locked"]
    lease.release()
    assert len(list(queue.consume(timeout=0))) == 3

"""A worker serves every layout, and a set of queues of several."""

import pytest

from dirqueue import Queue, QueueSet, Worker

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")

LAYOUTS = ("native", "vsqs", "dirq-simple", "dirq-normal", "text")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", [{"threads": 2}, {"processes": 2}], ids=["threads", "processes"])
def test_every_layout_is_served(tmp_path, layout, way):
    """All messages are handled and acknowledged, in threads and in processes."""
    queue = Queue(tmp_path / "queue", layout=layout, sync=False)
    for number in range(10):
        queue.put(f"{number}".encode())
    assert Worker(queue, lambda message: None, **way).run_until_empty().acked == 10
    assert queue.stats().total == 0


def test_a_set_of_several_layouts_is_served(tmp_path):
    """One worker, one handler, whatever the messages lie in."""
    queues = [Queue(tmp_path / layout, layout=layout, sync=False) for layout in LAYOUTS]
    for queue in queues:
        queue.put(queue.layout.name.encode())
    seen = []
    assert Worker(QueueSet(queues), lambda message: seen.append(message.body)).run_until_empty().acked == len(
        LAYOUTS
    )
    assert sorted(map(bytes, seen)) == sorted(layout.encode() for layout in LAYOUTS)
    assert all(queue.stats().total == 0 for queue in queues)

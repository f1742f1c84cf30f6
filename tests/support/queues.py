"""Fixtures of the one suite for all layouts: the promises of every queue, whatever its files look like.

A layout joins by one line in LAYOUTS. Its `lacks` names what its format cannot express; tests that need that are
skipped with the reason. All other tests must pass.
"""

import pytest
from support.kit import LONG

from dirqueue import Queue
from dirqueue.layouts import NAMES, describe

#: Name of the variant -> the arguments of Queue().
LAYOUTS = {
    "native": {"layout": "native"},
    "native-links": {"layout": "native", "links": True},
    "vsqs": {"layout": "vsqs"},
    "vsqs-ms": {"layout": "vsqs", "milliseconds": True},
    "dirq-simple": {"layout": "dirq-simple"},
    "dirq-normal": {"layout": "dirq-normal"},
    "text": {"layout": "text"},
}
KNOWN = {name: given for name, given in LAYOUTS.items() if given["layout"] in NAMES}


@pytest.fixture(params=list(KNOWN))
def layout(request):
    """Give the name of the variant under test."""
    return request.param


@pytest.fixture
def given(layout):
    """Give the arguments of Queue() for the variant under test."""
    return KNOWN[layout]


@pytest.fixture
def is_file(given):
    """Tell whether a queue of the variant is one file, not a directory."""
    return describe(given["layout"]).is_file


@pytest.fixture
def make_queue(given, tmp_path):
    """Give a function that makes queues; those of one name are clients of one directory."""
    made = []

    def make(name="queue", **settings):
        settings = {"sync": False, "margin": 0, "lease": LONG, **given, **settings}
        queue = Queue(tmp_path / name, **settings)
        made.append(queue)
        return queue

    yield make
    for queue in made:
        queue.close()


@pytest.fixture
def needs(given, layout, tmp_path):
    """Give a function that skips the test if the layout lacks a capability, with the layout's own reason."""
    lacks = Queue(tmp_path / "never made", **given).layout.lacks

    def need(*capabilities):
        for capability in capabilities:
            if capability in lacks:
                pytest.skip(f"{layout} lacks {capability}: {lacks[capability]}")

    return need


@pytest.fixture
def queue(make_queue):
    """Give a queue with the defaults of this suite."""
    return make_queue()


@pytest.fixture
def native(tmp_path):
    """Give a function that makes native queues, for promises of that layout only."""
    made = []

    def make(name="queue", **settings):
        queue = Queue(tmp_path / name, **{"sync": False, "margin": 0, "lease": LONG, **settings})
        made.append(queue)
        return queue

    yield make
    for queue in made:
        queue.close()

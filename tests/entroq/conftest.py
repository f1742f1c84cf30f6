"""Services and clients for tests."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra [entroq] is not installed")
pytest.importorskip("grpc", reason="the extra [entroq] is not installed")
sys.path.insert(0, str(Path(__file__).parent))  # for `import clients`, `import model`

from clients import DOORS
from services import in_thread

from dirqueue.entroq.store import DirectoryStore


@pytest.fixture
def store(tmp_path):
    """Tasks in a directory."""
    return DirectoryStore(str(tmp_path / "space"), sync=False)


@pytest.fixture
def running(store):
    """A service in a thread, on a directory."""
    with in_thread(store, store.watch()) as running:
        yield running


@pytest.fixture(params=list(DOORS))
def client(request, running):
    """A client of it, through each door."""
    client = DOORS[request.param](running.addresses)
    yield client
    client.close()

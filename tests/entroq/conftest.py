"""Services and clients for tests."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra [entroq] is not installed")
pytest.importorskip("grpc", reason="the extra [entroq] is not installed")
sys.path.insert(0, str(Path(__file__).parent))  # for `import clients`, `import model`

from clients import DOORS
from model import Model
from services import in_thread


@pytest.fixture(params=["model"])
def running(request, tmp_path):
    """A service in a thread."""
    with in_thread(Model()) as running:
        yield running


@pytest.fixture(params=list(DOORS))
def client(request, running):
    """A client of it, through each door."""
    client = DOORS[request.param](running.addresses)
    yield client
    client.close()

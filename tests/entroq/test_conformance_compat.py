"""What EntroQ's own suites check, asked of the compatible Python interfaces: the tests are those of the service."""

import pytest

pytest.importorskip("dirqueue.entroq.store")

from faces import Classic, Index
from test_conformance import *  # noqa: F403 - the same tests, with the client below


@pytest.fixture(params=[Index, Classic])
def client(request, tmp_path):
    client = request.param(tmp_path / "space")
    yield client
    client.close()

"""Spaces for tests: in a temporary directory, without patience, so that nothing has to be waited for."""

import pytest

from dirqueue import Space
from dirqueue.layouts.native import resolve


@pytest.fixture
def space(tmp_path):
    with Space(tmp_path / "space", sync=False) as space:
        yield space


@pytest.fixture
def impatient(monkeypatch):
    """Let whoever meets a held name of an open transaction abort it at once."""
    monkeypatch.setattr(resolve, "PATIENCE", 0.0)

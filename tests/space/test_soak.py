"""The token game, played on one host: tests/lab/tokens.py."""

import pytest
from lab import tokens

from dirqueue.layouts.native import resolve


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.timeout(180)
def test_tokens_survive_the_death_of_their_movers(tmp_path, monkeypatch, seconds):
    monkeypatch.setattr(resolve, "PATIENCE", resolve.PATIENCE)  # set back at the end: the game changes it
    root, tally, rules = str(tmp_path / "space"), tmp_path / "tally", tokens.Rules()
    tally.mkdir()
    tokens.deal(root)
    kills, ended = tokens.play([root], str(tally), seconds, rules)
    reported, wrong = tokens.judge(root, str(tally), rules)
    assert ended + wrong == []
    assert kills >= 10
    assert reported >= 10

"""The lease protocol as a Promela model, checked completely for two clients."""

import re
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).resolve().parents[2] / "docs/model/lease.pml"
pytestmark = [pytest.mark.needs("spin", "gcc"), pytest.mark.timeout(600)]

#: What pan prints if its search was incomplete.
INCOMPLETE = (
    "max search depth too small",
    "Search not completed",
    "out of memory",
    "truncated",
    "Bit statespace",
)


def check(place, *defines):
    """Return the result of spin: (errors, states, signs of an incomplete search)."""
    place.mkdir()
    subprocess.run(
        ["spin", "-a", *defines, str(MODEL)], cwd=place, check=True, capture_output=True, timeout=120
    )
    command = ["gcc", "-O2", "-DSAFETY", "-o", "pan", "pan.c"]
    subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=120)
    done = subprocess.run(
        ["./pan", "-m100000"], cwd=place, check=False, capture_output=True, text=True, timeout=400
    )
    output = done.stdout + done.stderr
    assert "Full statespace search" in output, output
    errors = int(re.search(r"errors: (\d+)", output)[1])
    states = int(float(re.search(r"(\S+) states, stored", output)[1]))
    return errors, states, [sign for sign in INCOMPLETE if sign in output]


def test_two_clients_with_tokens_are_safe_in_every_state(tmp_path, capsys):
    """With unique lease names no client ends the lease of another one, in the whole state space."""
    errors, states, incomplete = check(tmp_path / "token", "-DTOKEN")
    with capsys.disabled():
        print(f"\nspin: {states:,} states of two clients, {errors} errors")
    assert errors == 0
    assert incomplete == []
    assert states > 10_000


@pytest.mark.parametrize(
    "defines",
    [("-DTOKEN", "-DBYID"), ("-DNC=3",), ("-DTOKEN", "-DBLIND")],
    ids=["delete by id", "no token", "renewal without a check"],
)
def test_model_finds_planted_mistakes(defines, tmp_path):
    """The control: each mistake is found when planted in the model."""
    errors, states, _incomplete = check(tmp_path / "wrong", *defines)
    assert errors > 0
    assert states > 0

"""The lease protocol as a Promela model, checked completely for two clients."""

import re
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).resolve().parents[2] / "docs/model/lease.pml"
pytestmark = [pytest.mark.needs("spin", "gcc"), pytest.mark.timeout(600)]

#: What pan says when it did not look at everything.
INCOMPLETE = (
    "max search depth too small",
    "Search not completed",
    "out of memory",
    "truncated",
    "Bit statespace",
)


def check(place, *defines):
    """Return spin's verdict: (errors, states, signs that the search was not complete)."""
    place.mkdir()
    subprocess.run(
        ["spin", "-a", *defines, str(MODEL)], cwd=place, check=True, capture_output=True, timeout=120
    )
    command = ["gcc", "-O2", "-DSAFETY", "-o", "pan", "pan.c"]
    subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=120)
    done = subprocess.run(
        ["./pan", "-m100000"], cwd=place, check=False, capture_output=True, text=True, timeout=400
    )
    said = done.stdout + done.stderr
    assert "Full statespace search" in said, said
    errors = int(re.search(r"errors: (\d+)", said)[1])
    states = int(float(re.search(r"(\S+) states, stored", said)[1]))
    return errors, states, [sign for sign in INCOMPLETE if sign in said]


def test_two_clients_with_tokens_are_safe_in_every_state(tmp_path, capsys):
    """A lease name that is never used again: no client ever ends another's lease, in the whole state space."""
    errors, states, incomplete = check(tmp_path / "token", "-DTOKEN")
    with capsys.disabled():
        print(f"\nspin: {states:,} states of two clients, {errors} errors")
    assert errors == 0
    assert incomplete == []
    assert states > 10_000


@pytest.mark.parametrize(
    "defines",
    [("-DTOKEN", "-DBYID"), ("-DNC=3",), ("-DTOKEN", "-DBLIND")],
    ids=["delete by id", "no token", "renewal without a look"],
)
def test_the_model_knows_the_old_mistakes(defines, tmp_path):
    """The control: each mistake, planted into the model, is found."""
    errors, states, _incomplete = check(tmp_path / "wrong", *defines)
    assert errors > 0
    assert states > 0

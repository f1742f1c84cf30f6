"""The lease protocol as a Promela model, checked completely for two clients."""

import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).resolve().parents[2] / "docs/model/lease.pml"
pytestmark = [pytest.mark.needs("spin", "gcc"), pytest.mark.timeout(600)]


def check(place, *defines):
    """Return spin's verdict: (errors, states, whether the search was complete)."""
    place.mkdir()
    subprocess.run(
        ["spin", "-a", *defines, str(MODEL)], cwd=place, check=True, capture_output=True, timeout=120
    )
    command = ["gcc", "-O2", "-DSAFETY", "-o", "pan", "pan.c"]
    subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=120)
    done = subprocess.run(
        ["./pan", "-m100000"], cwd=place, check=False, capture_output=True, text=True, timeout=400
    )
    errors = int(done.stdout.partition("errors: ")[2].split()[0])
    states = int(float(done.stdout.partition(" states, stored")[0].split()[-1]))
    return errors, states, "max search depth too small" not in done.stdout


def test_two_clients_with_tokens_are_safe_in_every_state(tmp_path):
    """A lease name that is never used again: no client ever ends another's lease, in the whole state space."""
    errors, states, complete = check(tmp_path / "token", "-DTOKEN")
    assert errors == 0
    assert complete
    assert states > 1000


@pytest.mark.parametrize("defines", [("-DTOKEN", "-DBYID"), ("-DNC=3",)], ids=["delete by id", "no token"])
def test_the_model_knows_the_old_mistakes(defines, tmp_path):
    """The control: deleting by id, and a name made of the expiry alone, are both found wrong."""
    errors, _states, _complete = check(tmp_path / "wrong", *defines)
    assert errors > 0

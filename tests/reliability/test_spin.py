"""The protocol as Promela models, checked completely: leases, buckets that come and go, registers of transactions."""

import re
import subprocess
from pathlib import Path

import pytest

MODELS = Path(__file__).resolve().parents[2] / "docs/model"
pytestmark = [pytest.mark.needs("spin", "gcc"), pytest.mark.timeout(600)]

#: What pan prints if its search was incomplete.
INCOMPLETE = (
    "max search depth too small",
    "Search not completed",
    "out of memory",
    "truncated",
    "Bit statespace",
)


#: model, what is defined, and the least number of states of its complete search.
SOUND = {
    "leases with tokens": ("lease", ("-DTOKEN",), 10_000),
    "buckets": ("rooms", (), 1_000_000),
    "transactions that take the same": ("transaction", (), 300_000),
    "transactions that need what the other takes": ("transaction", ("-DNEED",), 300_000),
    "transactions and a purge": ("transaction", ("-DPURGE",), 100_000),
}
MISTAKES = {
    "delete by id": ("lease", "-DTOKEN", "-DBYID"),
    "no token": ("lease", "-DNC=3"),
    "renewal without a check": ("lease", "-DTOKEN", "-DBLIND"),
    "bucket removed with its messages": ("rooms", "-DTREE"),
    "missing bucket taken for a lost lease": ("rooms", "-DGIVEUP"),
    "empty bucket never entered again": ("rooms", "-DONCE"),
    "commit over an abort": ("transaction", "-DOVERWRITE"),
    "mark of an abort removed": ("transaction", "-DMARKER"),
    "register forgotten too early": ("transaction", "-DEARLY"),
    "purge without a fence": ("transaction", "-DPURGE", "-DUNFENCED"),
    "needs looked at before taking": ("transaction", "-DNEED", "-DLATE"),
}


def check(place, model, *defines, quick="-O1"):
    """Return the result of spin: (errors, states, signs of an incomplete search)."""
    place.mkdir()
    subprocess.run(
        ["spin", "-a", *defines, str(MODELS / f"{model}.pml")],
        cwd=place,
        check=True,
        capture_output=True,
        timeout=120,
    )
    command = ["gcc", quick, "-DSAFETY", "-o", "pan", "pan.c"]
    subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=120)
    done = subprocess.run(
        ["./pan", "-m100000"], cwd=place, check=False, capture_output=True, text=True, timeout=400
    )
    output = done.stdout + done.stderr
    assert "Full statespace search" in output, output
    errors = int(re.search(r"errors: (\d+)", output)[1])
    states = int(float(re.search(r"(\S+) states, stored", output)[1]))
    return errors, states, [sign for sign in INCOMPLETE if sign in output]


@pytest.mark.parametrize(("model", "defines", "least"), SOUND.values(), ids=SOUND)
def test_model_keeps_its_promises_in_every_state(model, defines, least, tmp_path, capsys):
    """No assertion fails and no client is stuck, in the whole state space."""
    errors, states, incomplete = check(tmp_path / "sound", model, *defines)
    with capsys.disabled():
        print(f"\nspin: {states:,} states of {model} {' '.join(defines)}, {errors} errors")
    assert errors == 0
    assert incomplete == []
    assert states > least


@pytest.mark.parametrize("arguments", MISTAKES.values(), ids=MISTAKES)
def test_model_finds_planted_mistakes(arguments, tmp_path):
    """The control: each mistake is found when planted in the model."""
    errors, states, _incomplete = check(tmp_path / "wrong", *arguments, quick="-O0")
    assert errors > 0
    assert states > 0

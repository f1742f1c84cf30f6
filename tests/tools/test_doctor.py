"""`dirqueue doctor`: it passes a good filesystem and finds what a bad one does."""

import errno
import json
import os

import pytest
from support.running import sentence

from dirqueue.disk import fs
from dirqueue.disk.clock import Clock
from dirqueue.tools import doctor
from dirqueue.tools.doctor import probes, stress


@pytest.fixture
def few(monkeypatch):
    """Race for a few names only."""
    monkeypatch.setattr(probes, "ROUNDS", 5)


def results(report):
    return {probe.name: probe.result for probe in report.probes}


def verdicts(report):
    return {verdict.layout: verdict.result for verdict in report.verdicts}


def test_a_good_filesystem_passes_for_every_layout(dq, tmp_path, few):
    """Status 0, a PASS for each layout, and nothing is left behind."""
    done = dq("doctor", tmp_path, "--json")
    rows = [json.loads(line) for line in done.lines]
    assert done.status == 0, done
    assert {row["name"] for row in rows if row["what"] == "layout"} == set(doctor.NEEDS)
    assert all(row["result"] == "PASS" for row in rows if row["what"] == "layout"), rows
    assert os.listdir(tmp_path) == []


def test_two_processes_race_for_every_name(tmp_path):
    """Each name is won exactly once, whoever wins."""
    scratch = probes.Scratch(str(tmp_path), str(tmp_path))
    one, two, odd = scratch.race("rename", scratch.file)
    scratch.close()
    assert (one + two, odd) == (probes.ROUNDS, 0)
    assert len(os.listdir(tmp_path)) == probes.ROUNDS


def test_two_processes_race_into_another_directory(tmp_path):
    """As claims do: each name is there once, and none is left where it was."""
    scratch = probes.Scratch(str(tmp_path), str(tmp_path))
    (tmp_path / "room").mkdir()
    one, two, odd = scratch.race("claim", scratch.file)
    scratch.close()
    assert (one + two, odd) == (probes.ROUNDS, 0)
    assert os.listdir(tmp_path) == ["room"]
    assert len(os.listdir(tmp_path / "room")) == probes.ROUNDS


def test_a_filesystem_that_removes_full_directories_fails(tmp_path, few, monkeypatch):
    """An emptied bucket is removed while others may move a message into it."""
    monkeypatch.setattr(probes.Scratch, "race", lambda *_: (5, 0, 0))
    rmdir = fs.rmdir

    def removes_all(path, **how):
        if path == "bucket":
            fs.unlink("bucket/message", **how)
        rmdir(path, **how)

    monkeypatch.setattr(fs, "rmdir", removes_all)
    report = doctor.examine(str(tmp_path))
    assert results(report)["rooms"] == "fail"
    assert not report.good_for("native")


def refuse(code):
    def call(*_, **__):
        raise OSError(code, os.strerror(code))

    return call


def test_without_hard_links_dirq_simple_fails_and_native_does_not(dq, tmp_path, few, monkeypatch):
    """The verdict gives the reason."""
    monkeypatch.setattr(probes.Scratch, "race", lambda *_: (5, 0, 0))
    monkeypatch.setattr(fs, "link", refuse(errno.EPERM))
    report = doctor.examine(str(tmp_path))
    assert verdicts(report) == {
        "native": "pass",
        "vsqs": "pass",
        "dirq-simple": "fail",
        "dirq-normal": "pass",
        "text": "pass",
    }
    (bad,) = (each for each in report.verdicts if each.result == "fail")
    assert "EPERM" in bad.detail
    assert dq("doctor", tmp_path).status == 0
    assert dq("doctor", tmp_path, "--layout", "dirq-simple").status == 5


def test_a_race_won_twice_fails(tmp_path, few, monkeypatch):
    """A filesystem on which both processes win cannot hold a queue."""
    monkeypatch.setattr(probes.Scratch, "race", lambda *_: (5, 5, 0))
    report = doctor.examine(str(tmp_path))
    assert set(verdicts(report).values()) == {"fail"}
    assert not report.good_for("native")


@pytest.mark.parametrize(
    ("call", "code", "probe", "result"),
    [
        ("fsync", errno.EINVAL, "sync", "fail"),
        ("rename", errno.EXDEV, "directory", "fail"),
        ("rename", errno.EXDEV, "rooms", "fail"),
        ("mkdir", errno.EPERM, "directory", "fail"),
        ("statvfs", errno.ENOSYS, "space", "fail"),
    ],
)
def test_a_call_that_fails_is_reported(tmp_path, few, monkeypatch, call, code, probe, result):
    """Whatever fails, the doctor goes on and says it."""
    made = fs.mkdir
    monkeypatch.setattr(probes.Scratch, "race", lambda *_: (5, 0, 0))
    if call == "mkdir":
        monkeypatch.setattr(
            fs,
            "mkdir",
            lambda name, *a, **k: made(name, *a, **k) if name.startswith(".doctor") else refuse(code)(),
        )
    else:
        monkeypatch.setattr(fs, call, refuse(code))
    assert results(doctor.examine(str(tmp_path)))[probe] == result


def test_drawbacks_are_warnings(tmp_path, few, monkeypatch):
    """A wrong clock, little space, memory instead of disk: usable, with a warning."""
    from types import SimpleNamespace

    monkeypatch.setattr(probes.Scratch, "race", lambda *_: (5, 0, 0))
    monkeypatch.setattr(Clock, "now", lambda self: 0)
    monkeypatch.setattr(
        fs, "statvfs", lambda fd: SimpleNamespace(f_bavail=1, f_frsize=1, f_favail=1, f_files=9)
    )
    report = doctor.examine(str(tmp_path))
    assert (results(report)["clock"], results(report)["space"]) == ("warn", "warn")
    assert report.good_for("native")


@pytest.mark.parametrize("year", [1970, 2000])
def test_a_server_whose_clock_was_never_set_fails(dq, tmp_path, few, monkeypatch, year):
    """Names need a time of 16 digits: no queue can be used there, and the doctor says so instead of ending."""
    monkeypatch.setattr(probes.Scratch, "race", lambda *_: (5, 0, 0))
    monkeypatch.setattr(Clock, "_touch", lambda self: ((year - 1970) * 365.25 + 10) * 86400.0)
    done = dq("doctor", tmp_path)
    rows = [line.split("\t") for line in done.lines]
    assert done.status == 5
    assert [row[2] for row in rows if row[1] in ("clock", "native")] == ["FAIL", "FAIL"]
    assert str(year) in next(row[3] for row in rows if row[1] == "clock")


def test_a_directory_that_cannot_be_examined(dq, tmp_path):
    """Missing is one sentence."""
    done = dq("doctor", tmp_path / "nope")
    assert done.status == 1
    sentence(done)


@pytest.mark.timeout(300)
def test_stress_counts_every_message_and_leaves_nothing(dq, tmp_path, few):
    """Status 0, each promise with its figures, a second path as another host, and a clean directory."""
    done = dq("doctor", "--stress", tmp_path, tmp_path, "--seconds", "1", "--json")
    rows = [row for row in map(json.loads, done.lines) if row["what"] == "stress"]
    assert done.status == 0, done
    assert [row["result"] for row in rows] == ["PASS"] * 5
    assert rows[0]["name"] == "nothing is lost"
    assert rows[0]["detail"].startswith("0 of ")
    assert os.listdir(tmp_path) == []


def test_stress_that_breaks_a_promise_is_status_5(dq, tmp_path, few, monkeypatch):
    """What does not hold is a FAIL, and the status says so, too."""
    said = [
        "trying 1-1",
        "put 1-1",
        "trying 1-2",
        "put 1-2",
        "got 1-2",
        "acking 1-2",
        "acked 1-2",
        "acked 1-2",
    ]
    monkeypatch.setattr(stress, "_run", lambda *_: said)
    monkeypatch.setattr(stress, "LEASE", 0.01)
    done = dq("doctor", "--stress", tmp_path)
    results = {line.split("\t")[1]: line.split("\t")[2] for line in done.lines if line.startswith("stress")}
    assert done.status == 5, done
    assert [name for name, result in results.items() if result == "FAIL"] == [
        "nothing is lost",
        "nothing is acknowledged twice",
    ]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_stress_for_no_time_is_refused(dq, tmp_path, seconds):
    """A duration that cannot be is one sentence, before anything is tried."""
    done = dq("doctor", "--stress", tmp_path, "--seconds", seconds)
    assert done.status == 2
    assert "--seconds must be" in sentence(done)


def test_stress_on_two_directories_that_are_not_one(dq, tmp_path, few):
    """Two paths that share no files are no two hosts; nothing is left in either."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    done = dq("doctor", "--stress", one, two)
    assert done.status != 0
    assert "not the same directory" in sentence(done)
    assert os.listdir(one) == os.listdir(two) == []

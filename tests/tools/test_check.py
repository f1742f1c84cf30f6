"""`dirqueue check`: each code is planted, found, and mended where the table says so."""

import json
import os
import time
from pathlib import Path

import pytest
from support.running import sentence

from dirqueue import Queue
from dirqueue.disk import directory, fs, identity, mount
from dirqueue.disk.mount import Mount
from dirqueue.tools import check
from dirqueue.tools.check import CODES

DAY = 86400
ID = "1500000000000000000000001"
#: A file that measured the clock: its name ends in a token.
PROBE = f".clock-{identity.new_token()}"


def old(path, seconds=10 * DAY):
    """Make a file or directory look long untouched."""
    os.utime(path, (time.time() - seconds,) * 2)


def write(root, name, text="", *, aged=True):
    path = Path(root) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if aged:
        old(path)
    return path


def micros(offset):
    return int((time.time() + offset) * 1_000_000)


def settings(root):
    write(root, "queue.json", "{not json")


def foreign(root):
    write(root, "README.txt")


def wrong_type(root):
    os.mkfifo(root / ID)


def two_names(root):
    write(root, ID, "x")
    os.link(root / ID, root / f"{ID}.new")


def twins(root):
    write(root, ID, "x")
    write(root, f"{ID}.{micros(-5)}.1", "copy")


def unfinished(root):
    write(root, f"{ID}.new")


def unfinished_batch(root):
    write(root, f"{ID}.batch.new/{ID[:-1]}2")
    old(root / f"{ID}.batch.new")


def leftover_error(root):
    write(root, f"dead/{ID}.error", "{}")


def leftover_ack(root):
    write(root, f"{ID}.1500000000000000.1.host-1-a-1.ack")


def empty_directory(root):
    (root / f"{ID}.slice").mkdir()


def too_deep(root):
    write(root, f"{ID}.batch/{ID[:-1]}2.part/{ID[:-1]}3.part/{ID[:-1]}4")


def future_id(root):
    write(root, f"{micros(30 * DAY)}000000001")


def far_end(root):
    write(root, f"{ID}.{micros(1000 * DAY)}.1.host-1-a-1")


def priority(root):
    write(root, f"7{ID}")


def wrong_directory(root):
    write(root, f"{ID}.slice/7{ID[:-1]}2")


def out_of_attempts(root):
    write(root, f"{ID}.{micros(-100)}.5.host-1-a-1", "poison")


def leftover_probe(root):
    write(root, PROBE)


def half_settings(root):
    write(root, "queue.json.new", "{")


def linked(root):
    write(root, ID, "x")
    os.link(root / ID, root.parent / "elsewhere")


PLANTS = {
    "Q01": settings, "Q02": foreign, "Q03": wrong_type, "Q04": two_names, "Q05": twins, "Q06": unfinished,
    "Q07": unfinished_batch, "Q08": leftover_error, "Q09": leftover_ack, "Q10": empty_directory, "Q11": too_deep,
    "Q12": future_id, "Q13": far_end, "Q14": priority, "Q15": wrong_directory, "Q16": out_of_attempts,
    "Q17": leftover_probe, "Q18": half_settings, "Q22": linked,
}  # fmt: skip
#: Planted in tests of their own: they need another kind of disk or another user.
ELSEWHERE = {"Q19", "Q20", "Q21", "Q23"}
#: Found together with another one, by the nature of the thing.
COMPANIONS = {"Q04": {"Q22"}, "Q15": {"Q14"}}


def found(root, **how):
    return {finding.code for finding in check.check(str(root), **how)}


def tree(root):
    """Return every path in a directory but the ones a repair may make."""
    return {str(path.relative_to(root)) for path in Path(root).rglob("*")}


def test_every_code_is_planted_somewhere():
    """A code without a test is not in the table."""
    assert set(PLANTS) | ELSEWHERE == set(CODES)


def test_a_healthy_queue_is_clean(dq, queue):
    """Messages in every state of a normal life raise nothing."""
    queue.put_many([b"a", b"b", b"c"])
    queue.put(b"later", delay=100)
    queue.get(timeout=0).reject("no")
    queue.get(timeout=0).retry(error="again")
    queue.get(timeout=0)
    assert check.check(queue.path, deep=True) == []
    assert dq("check", queue.path).status == 0


@pytest.mark.parametrize("code", PLANTS)
def test_what_is_planted_is_found_explained_and_left_alone(dq, tmp_path, code):
    """Without --repair nothing changes; problems are status 5, notes are 0."""
    root = tmp_path / "q"
    root.mkdir()
    PLANTS[code](root)
    before = tree(root)
    done = dq("check", root, "--deep", "--json")
    rows = [json.loads(line) for line in done.lines]
    assert {row["code"] for row in rows} - COMPANIONS.get(code, set()) == {code}
    row = next(row for row in rows if row["code"] == code)
    assert row["meaning"] == CODES[code].meaning
    assert done.status == (5 if any(row["level"] == "problem" for row in rows) else 0)
    assert tree(root) == before


MENDED = {code for code, told in CODES.items() if told.cure.startswith("repair")} - ELSEWHERE


@pytest.mark.parametrize("code", PLANTS)
def test_repair_mends_what_the_table_says_and_nothing_else(dq, tmp_path, code):
    """Mended codes are gone at the next check; the others stay, with every file."""
    root = tmp_path / "q"
    root.mkdir()
    PLANTS[code](root)
    before = tree(root)
    dq("check", root, "--repair")
    if code in MENDED:
        assert code not in found(root)
    else:
        assert code in found(root, deep=True)
        assert before <= tree(root)


def test_repair_never_removes_a_message(tmp_path):
    """All plants at once, repaired: every message with a body is still there in some state."""
    root = tmp_path / "q"
    root.mkdir()
    two_names(root)
    out_of_attempts(tmp_path / "q2")
    check.check(str(root), repair=True)
    assert [message.data for message in Queue(root).peek()] == [b"x"]
    check.check(str(tmp_path / "q2"), repair=True)
    assert [message.data for message in Queue(tmp_path / "q2").peek("dead")] == [b"poison"]


def test_a_dead_name_of_a_live_message_is_the_one_that_goes(tmp_path):
    """A redrive that died between link and unlink is finished, not undone."""
    live = write(tmp_path / "q", ID, "x")
    (tmp_path / "q" / "dead").mkdir()
    os.link(live, tmp_path / "q" / "dead" / f"{ID}.{micros(-5)}.3")
    (finding,) = check.check(str(tmp_path / "q"), repair=True)
    assert (finding.code, finding.repaired) == ("Q04", True)
    assert live.exists()


def test_fresh_leftovers_are_somebody_at_work(tmp_path):
    """What is being written now is not unfinished."""
    for name in (f"{micros(0)}000000001.new", PROBE, "queue.json.new"):
        write(tmp_path / "q", name, aged=False)
    (tmp_path / "q" / f"{micros(0)}000000002.slice").mkdir()
    (tmp_path / "q" / f"{micros(0)}000000003.batch.new").mkdir()
    assert found(tmp_path / "q", repair=True) == set()


def test_a_missing_reserve_is_made_again(queue, monkeypatch):
    """Q19: where the filesystem needs one, the ballast comes back."""
    queue.put(b"")
    monkeypatch.setattr(mount.Mount, "ballast", 4096, raising=False)
    monkeypatch.setattr(mount, "of", lambda fd, path: _ballasted())
    assert found(queue.path) == {"Q19"}
    check.check(queue.path, repair=True)
    assert (Path(queue.path) / directory.BALLAST).stat().st_size == 4096


def _ballasted():
    mount = Mount("ext4")
    mount.ballast = 4096
    return mount


@pytest.mark.needs("mount")
def test_a_mount_inside_a_queue_is_found(queue):
    """Q20: dead/ on a filesystem of its own."""
    import subprocess
    import sys

    from support.running import environment

    (Path(queue.path) / "dead").mkdir(parents=True)
    script = f"mount -t tmpfs none {queue.path}/dead && exec {sys.executable} -m dirqueue check {queue.path}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5, done
    assert done.stdout.startswith("Q20\t")


@pytest.mark.root
def test_what_cannot_be_read_or_written_is_found(queue):
    """Q21 and Q23: as another user, in a queue that is not theirs."""
    from support.running import as_nobody

    id = queue.put(b"secret")
    os.chmod(os.path.join(queue.path, id), 0o600)
    done = as_nobody(queue.path, "check", queue.path, "--deep")
    assert done.status == 5, done
    assert [line.split("\t")[0] for line in done.lines] == ["Q21", "Q23"]


def test_a_message_that_moves_while_it_is_checked_is_no_twin(queue, monkeypatch):
    """RACE: a listing may show both names of a rename; a second look tells."""
    id = queue.put(b"x")
    listing = fs.listing

    class Ghost:
        name = f"{id}.{micros(100)}.1.host-1-a-1"

        def is_file(self, **_):
            return True

        def is_dir(self, **_):
            return False

    monkeypatch.setattr(fs, "listing", lambda name, fd: [*listing(name, fd), Ghost()])
    assert check.check(queue.path) == []


def test_check_of_what_is_no_queue(dq, tmp_path):
    """A missing directory is one sentence; --codes needs none."""
    assert "there is no queue" in sentence(dq("check", tmp_path / "nope"))
    assert dq("check").status == 2
    assert [line.split("\t")[0] for line in dq("check", "--codes").lines] == list(CODES)


def test_check_tells_people_what_it_means(dq, tmp_path):
    """The table explains each code once."""
    foreign(tmp_path / "q")
    out = dq("check", tmp_path / "q", "--table").out
    assert "Q02 foreign (note)" in out
    assert "README.txt" in out

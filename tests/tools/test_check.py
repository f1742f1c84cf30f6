"""`dirqueue check`: each code is planted, found, and repaired where the table says so."""

import json
import os
import time
from pathlib import Path

import pytest
from support.running import sentence
from support.stopping import killed_before, stopped_before

from dirqueue import Empty, Queue, QueueError
from dirqueue.disk import ballast, fs, identity, mount
from dirqueue.disk.clock import Clock
from dirqueue.disk.mount import Mount
from dirqueue.layouts.native import attempt, staged
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
    write(root, ID, "x")
    write(root, "README.txt")


def wrong_type(root):
    write(root, f"{ID[:-1]}2", "x")
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


def half_converted(root):
    write(root, ID, "x")
    write(root.parent, "q.converting/from", "native")
    write(root.parent, f"q.converting/queue/{ID[:-10]}2", "y")


#: Where somebody put a message by hand, and where it belongs.
EARLY, LATE = 1_500_000_000_000_000, 3_000_000_000_000_000
MISPLACED = [
    ("leased/{}", "{}"),
    (f"later/{LATE}/{{}}", "{}"),
    ("later/{}", "{}"),
    (f"later/{{}}.{EARLY}.1", f"later/{EARLY}/{{}}.{EARLY}.1"),
    (f"later/{LATE}/{{}}.{EARLY}.0", f"later/{EARLY}/{{}}.{EARLY}.0"),
    (f"later/{{}}.{EARLY}.1.host-1-a-1", f"leased/{{}}.{EARLY}.1.host-1-a-1"),
    (f"leased/{ID}.batch/{{}}", f"{ID}.batch/{{}}"),
]


def linked(root):
    write(root, ID, "x")
    os.link(root / ID, root.parent / "elsewhere")


def misplaced(root):
    write(root, ID, "x")
    for number, (place, *_) in enumerate(MISPLACED, 2):
        write(root, place.format(f"{ID[:-1]}{number}"), f"{number}")


PLANTS = {
    "Q01": settings, "Q02": foreign, "Q03": wrong_type, "Q04": two_names, "Q05": twins, "Q06": unfinished,
    "Q07": unfinished_batch, "Q08": leftover_error, "Q09": leftover_ack, "Q10": empty_directory, "Q11": too_deep,
    "Q12": future_id, "Q13": far_end, "Q14": priority, "Q15": wrong_directory, "Q16": out_of_attempts,
    "Q17": leftover_probe, "Q22": linked, "Q24": half_converted, "Q25": misplaced,
}  # fmt: skip
#: Planted in tests of their own: they need another kind of disk or another user.
ELSEWHERE = {"Q19", "Q20", "Q21", "Q23", "Q26", "Q27", "Q28", "Q29", "Q30"}  # the last five: tests/space
#: Found together with another one, by the nature of the thing.
COMPANIONS = {"Q04": {"Q22"}, "Q15": {"Q14"}}


def found(root, **how):
    """Return the codes that were found, but for the reserve: a directory made by hand has none on a disk."""
    return {finding.code for finding in check.check(str(root), **how)} - {"Q19"}


def tree(root):
    """Return every path in a directory but the ones a repair may make."""
    return {str(path.relative_to(root)) for path in Path(root).rglob("*")}


def test_every_code_is_planted_somewhere():
    """A code without a test is not in the table."""
    of_files = {code for code in CODES if code.startswith("T")}  # tests/layouts/text plants those
    assert set(PLANTS) | ELSEWHERE | of_files == set(CODES)


def test_a_healthy_queue_is_clean(dq, queue):
    """Messages in every state of a normal life raise nothing."""
    queue.put_many([b"a", b"b", b"c", b"d"])
    queue.put(b"later", delay=100)
    queue.put_many([b"batch", b"later"], delay=100)
    queue.get(timeout=0).reject("no")
    queue.get(timeout=0).retry(error="again")
    queue.get(timeout=0)
    queue.put(b"kept")
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
    rows = [row for row in map(json.loads, done.lines) if row["code"] != "Q19"]
    assert {row["code"] for row in rows} - COMPANIONS.get(code, set()) == {code}
    row = next(row for row in rows if row["code"] == code)
    assert row["meaning"] == CODES[code].meaning
    assert done.status == (5 if any(row["level"] == "problem" for row in rows) else 0)
    assert tree(root) == before


REPAIRED = {code for code, each in CODES.items() if each.cure.startswith("repair")} - ELSEWHERE


@pytest.mark.parametrize("code", PLANTS)
def test_repair_fixes_what_the_table_says_and_nothing_else(dq, tmp_path, code):
    """Repaired codes are gone at the next check; the others stay, with every file."""
    root = tmp_path / "q"
    root.mkdir()
    PLANTS[code](root)
    before = tree(root)
    dq("check", root, "--repair")
    if code in REPAIRED:
        assert code not in found(root)
    else:
        assert code in found(root, deep=True)
        assert before <= tree(root)


def test_repair_moves_what_is_misplaced_to_where_consumers_look(tmp_path):
    """By one rename each; then every one of them is delivered."""
    root = tmp_path / "q"
    misplaced(root)
    queue = Queue(root, lease=60)
    findings = check.check(str(root), repair=True)
    assert {finding.repaired for finding in findings if finding.code == "Q25"} == {True}
    for number, (_, place) in enumerate(MISPLACED, 2):
        assert (root / place.format(f"{ID[:-1]}{number}")).read_text() == f"{number}"
    bodies = [queue.get(timeout=0).message.data for _ in ("x", *MISPLACED)]
    assert sorted(bodies) == [*(b"%d" % number for number in range(2, 2 + len(MISPLACED))), b"x"]


@pytest.mark.parametrize("place", [place for place, _ in MISPLACED[1:]])
def test_what_is_misplaced_is_not_delivered(tmp_path, place):
    """That is why it is a problem: nobody looks for it there, or not now."""
    write(tmp_path / "q", place.format(ID[:-1] + "2"), "x")
    with pytest.raises(Empty):
        Queue(tmp_path / "q").get(timeout=0)


def test_repair_leaves_what_is_misplaced_where_its_name_is_taken(tmp_path):
    """Two messages of one id: nothing is replaced."""
    write(tmp_path / "q", ID, "x")
    write(tmp_path / "q", f"leased/{ID}", "y")
    assert found(tmp_path / "q", repair=True) == {"Q05", "Q25"}
    assert [path.read_text() for path in (tmp_path / "q" / ID, tmp_path / "q" / "leased" / ID)] == ["x", "y"]


def test_links_of_ours_are_messages_and_others_are_problems(tmp_path):
    """A short body may be the target of a link; nothing that leads elsewhere is one."""
    with Queue(tmp_path / "q", links=True) as queue:
        queue.put(b"short")
        queue.put(b"later", delay=100)
    assert found(tmp_path / "q", deep=True) == set()
    (tmp_path / "q" / ID).symlink_to("/etc/hostname")
    assert found(tmp_path / "q", deep=True) == {"Q03"}
    (tmp_path / "q" / ID).unlink()
    (tmp_path / "q" / f"{ID}.error").symlink_to(":note")
    assert found(tmp_path / "q", deep=True) == {"Q03"}


def test_names_where_the_earlier_format_had_them_are_no_findings(tmp_path):
    """All live states at the top, and what ended without buckets."""
    for number, name in enumerate(("", f".{EARLY}.2", f".{micros(60)}.1.host-1-a-1"), 1):
        write(tmp_path / "q", f"{ID[:-1]}{number}{name}", "x")
    write(tmp_path / "q", f"dead/{ID[:-1]}4.{EARLY}.2", "x")
    assert found(tmp_path / "q") == set()


@pytest.mark.parametrize("name", ["leased", "later", "dead", "done"])
def test_a_file_with_the_name_of_a_room_is_a_problem(tmp_path, name):
    """Whoever needs the room cannot make it."""
    write(tmp_path / "q", ID, "x")
    write(tmp_path / "q", name)
    assert found(tmp_path / "q") == {"Q03"}


@pytest.mark.parametrize("room", ["later", "dead", "done"])
def test_an_empty_bucket_is_a_leftover_when_its_time_is_over(tmp_path, room):
    """Others may be about to move something into a later one."""
    now = micros(0)
    past, present = now - 2 * 3600 * 1_000_000, now - now % 3_600_000_000
    for bucket in (past, present):
        (tmp_path / "q" / room / f"{bucket}").mkdir(parents=True)
    assert [finding.place for finding in check.check(str(tmp_path / "q")) if finding.code == "Q10"] == [
        f"{room}/{past}"
    ]
    check.check(str(tmp_path / "q"), repair=True)
    assert [path.name for path in (tmp_path / "q" / room).iterdir()] == [f"{present}"]


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
    finding = check.check(str(tmp_path / "q"), repair=True)[0]
    assert (finding.code, finding.repaired) == ("Q04", True)
    assert live.exists()


def test_fresh_leftovers_are_somebody_at_work(tmp_path):
    """What is being written now is not unfinished."""
    for name in (f"{micros(0)}000000001.new", PROBE):
        write(tmp_path / "q", name, aged=False)
    (tmp_path / "q" / f"{micros(0)}000000002.slice").mkdir()
    (tmp_path / "q" / f"{micros(0)}000000003.batch.new").mkdir()
    assert found(tmp_path / "q", repair=True) == set()


def test_repair_leaves_a_file_that_a_host_with_a_late_clock_is_writing(tmp_path):
    """Its id is of ten days ago, by the clock of the producer; the server saw it written just now."""
    late = f"{micros(-10 * DAY)}00000000"
    files = [write(tmp_path / "q", f"{late}{number}.new", aged=False) for number in (1, 2)]
    files.append(write(tmp_path / "q", f"{late}3.batch.new/{late}4.part/{late}5", aged=False))
    old(files[0])
    assert found(tmp_path / "q", repair=True) == {"Q06"}
    assert [file.exists() for file in files] == [False, True, True]


def test_repair_leaves_a_batch_whose_parts_are_being_written(tmp_path):
    """The staging directory itself was last changed when its last part was begun."""
    part = write(tmp_path / "q", f"{ID}.batch.new/{ID[:-1]}2.part/{ID[:-1]}3", "x", aged=False)
    old(part.parent.parent)
    assert found(tmp_path / "q", repair=True) == set()
    assert part.exists()
    old(part.parent)
    assert found(tmp_path / "q", repair=True) == {"Q07"}
    assert not part.parent.parent.exists()


def test_repair_never_removes_a_part_of_a_batch_that_is_shown(tmp_path):
    """RACE: a writer that was stopped for longer than `stale` shows its batch in the middle of the removal."""
    root = tmp_path / "q"
    Queue.create(root, stale=0.0, sync=False).close()

    def batch():
        return Queue(root).put_many([b"%d" % number for number in range(20)])

    gone = []

    def removal(path, **_):
        gone.extend([path] * os.path.basename(path).isdigit())
        return len(gone) > 5

    def repair():
        return check.check(str(root), repair=True)

    def shown(src, dst, **_):
        return dst.endswith(".batch")

    with (
        stopped_before("rename", batch, when=shown) as show,
        stopped_before("unlink", repair, when=removal) as remove,
    ):
        result = show()
        remove()
    if isinstance(result, list):
        assert len(Queue(root)) == len(result)
    else:
        assert isinstance(result, QueueError), result
        assert len(Queue(root)) == 0


def test_repair_shows_a_batch_that_is_committed(tmp_path):
    """Its committer died after the record: for the job it is written."""
    root = tmp_path / "q"
    Queue.create(root, stale=0.0, sync=False).close()

    def commit():
        queue = Queue(root)
        directory = queue.layout.directory
        staging = staged.begin(directory)
        writer = attempt.Writer(directory, queue.settings, staging)
        writer.add([b"1", b"2", b"3"])
        staged.commit(directory, queue.settings, staging, writer.finish(), staged.Identity("app", 1))

    killed_before("rename", commit, when=lambda src, dst, **_: dst.endswith(".batch"))
    assert len(Queue(root)) == 0
    check.check(str(root))
    assert len(Queue(root)) == 0, "without --repair nothing changes"
    check.check(str(root), repair=True)
    assert sorted(message.data for message in Queue(root).peek()) == [b"1", b"2", b"3"]


def test_repair_removes_nothing_by_age_where_the_clocks_are_far_apart(tmp_path, monkeypatch):
    """A server that was just set ten days ahead: what is being written looks ten days old."""
    file = write(tmp_path / "q", f"{micros(0)}000000001.new", aged=False)
    monkeypatch.setattr(Clock, "_touch", lambda self: time.time() + 10 * DAY)
    check.check(str(tmp_path / "q"), repair=True)
    assert file.exists()


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"layout": "sideways"}', '{"lease": ' + "9" * 400 + "}", "\0"]
)
def test_settings_that_cannot_be_read_are_a_finding_and_status_1_elsewhere(dq, tmp_path, text):
    """Q01: check goes on to the names; the other verbs fail, and the command line is not to blame."""
    write(tmp_path / "q", "queue.json", text)
    write(tmp_path / "q", f"{ID}.new")
    assert found(tmp_path / "q") == {"Q01", "Q06"}
    for verb in ("stat", "get", "put"):
        done = dq(verb, tmp_path / "q", *(["x"] if verb == "put" else []))
        assert (done.status, "queue.json" in sentence(done)) == (1, True), verb


def test_the_cures_of_a_far_end_work(dq, tmp_path):
    """Q13: a lease is released from the shell, a delay changed from Python; both messages are ready then."""
    root = tmp_path / "q"
    far_end(root)
    other = f"{ID[:-1]}2"
    write(root, f"{other}.{micros(1000 * DAY)}.1", "x")
    assert found(root) == {"Q13"}
    rows = [json.loads(line) for line in dq("ls", root, "--json").lines]
    (handle,) = [row["handle"] for row in rows if row["handle"]]
    assert dq("release", root, handle).status == 0
    Queue(root).message(other).change(delay=0)
    assert found(root) == set()
    assert len(list(Queue(root).peek())) == 2


def test_check_shows_odd_paths_escaped(dq, tmp_path):
    """A directory whose name clears the screen does not."""
    root = tmp_path / "\x1b[2J\x9b2J\u202eq"
    foreign(root)
    for option in ("--table", "--json", "--repair"):
        out = dq("check", root, option).out
        assert "\\x1b" in out or "\\u001b" in out or option == "--repair"
        assert not {"\x1b", "\x9b", "\u202e"} & set(out)


def test_a_missing_reserve_is_made_again(queue, monkeypatch):
    """Q19: where the filesystem needs one, the ballast comes back."""
    queue.put(b"")
    monkeypatch.setattr(mount.Mount, "ballast", 4096, raising=False)
    monkeypatch.setattr(mount, "of", lambda fd, path: _ballasted())
    (Path(queue.path) / ballast.NAME).unlink(missing_ok=True)
    assert [finding.code for finding in check.check(queue.path)] == ["Q19"]
    check.check(queue.path, repair=True)
    assert (Path(queue.path) / ballast.NAME).stat().st_size == 4096


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
    assert "Q20" in [line.split("\t")[0] for line in done.stdout.splitlines()]


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


def test_check_explains_each_code_once_in_its_table(dq, tmp_path):
    """The table explains each code once."""
    foreign(tmp_path / "q")
    out = dq("check", tmp_path / "q", "--table").out
    assert "Q02 foreign (note)" in out
    assert "README.txt" in out

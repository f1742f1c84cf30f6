"""`dirqueue monitor`: one look, a stream, a screen; and what is behind it: bounded looks and rates."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from support.commandline import clean_env, dq, start
from support.patience import until

import dirqueue
from dirqueue.cli.screen import keys_of
from dirqueue.stats import take_sample
from dirqueue.tools import activity
from dirqueue.tools import monitor as monitor_
from dirqueue.tools.holders import holders, name_of
from dirqueue.tools.monitor import Monitor, arranged, sparkline


@pytest.fixture
def spool(tmp_path):
    """Give a root with two queues."""
    thumbs = dirqueue.Queue(tmp_path / "spool" / "thumbs", sync=False)
    thumbs.put_many([b"x"] * 3)
    mail = dirqueue.Queue(tmp_path / "spool" / "mail" / "out", sync=False)
    mail.put(b"x")
    mail.get(timeout=0).reject("no such address")
    mail.put(b"y")
    mail.get(timeout=0, lease=3600)
    return tmp_path / "spool"


def look(root, **kwargs):
    with Monitor(str(root), **kwargs) as monitor:
        return {each.name: each for each in monitor.read()}


@pytest.fixture
def monitor(tmp_path):
    """Give a monitor of the directory of the test."""
    with Monitor(str(tmp_path)) as one:
        yield one


def test_once_as_json_is_one_object_for_each_queue(spool, tmp_path):
    """Counts, ages, who holds what; rates need two looks and are null."""
    done = dq("monitor", "spool", "--once", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    mail, thumbs = map(json.loads, done.stdout.splitlines())
    assert (mail["queue"], thumbs["queue"]) == ("spool/mail/out", "spool/thumbs")
    assert (thumbs["ready"], thumbs["total"], mail["dead"], mail["leased"]) == (3, 3, 1, 1)
    assert mail["oldest_lease_token"]
    assert thumbs["oldest_ready"]
    assert (thumbs["put_rate"], thumbs["sampled"], thumbs["error"]) == (None, False, None)


def test_once_for_people_and_for_pipes(spool, tmp_path):
    """A table when asked for or on a terminal, tab-separated lines otherwise; `top` is the same verb."""
    done = dq("top", "spool", "--once", "--table", cwd=tmp_path)
    lines = done.stdout.decode().splitlines()
    assert lines[0].split()[:3] == ["QUEUE", "READY", "DELAYED"]
    assert lines[1].split()[:6] == ["mail/out", "0", "0", "1", "0", "1"]
    done = dq("monitor", "spool/thumbs", "--once", cwd=tmp_path)
    assert done.stdout.decode().split("\t")[:2] == ["spool/thumbs", "3"]


def test_the_root_comes_from_the_environment(spool, tmp_path):
    """$DIRQUEUE_DIR stands in for ROOT."""
    done = dq("monitor", "--once", cwd=tmp_path, DIRQUEUE_DIR=str(spool))
    assert done.stdout.count(b"\n") == 2


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [(["nowhere", "--once"], 1, "no directory"), (["spool", "--interval", "0"], 2, "at least 0.1")],
)
def test_invalid_arguments_are_one_sentence(spool, tmp_path, words, status, said):
    """A root that is not there, a pause that cannot be."""
    done = dq("monitor", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, b"")
    assert said in done.stderr.decode()


def test_a_root_without_queues_is_status_3(tmp_path):
    """Nothing to show is no error."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "note.txt").touch()
    assert dq("monitor", "files", "--once", cwd=tmp_path).returncode == 3


def test_a_stream_of_json_goes_on_and_sees_new_queues(spool, tmp_path):
    """Without a terminal the looks are written one after the other; a queue that appears is in the next one."""
    process = start("monitor", "spool", "--json", "--interval", "0.1", cwd=tmp_path)
    try:
        until(lambda: (tmp_path / "said").read_bytes().count(b"\n") >= 4, "two looks")
        dirqueue.Queue(spool / "late").put(b"x")
        until(lambda: b'"spool/late"' in (tmp_path / "said").read_bytes(), "the new queue")
        process.send_signal(signal.SIGINT)
        assert process.wait(40) == 0
    finally:
        process.kill()
        process.wait()
    rows = [json.loads(line) for line in (tmp_path / "said").read_bytes().splitlines()]
    assert rows[-1]["put_rate"] is not None


def test_a_reader_that_goes_away_ends_it_quietly(spool, tmp_path):
    """As every filter does: no traceback on a broken pipe."""
    command = f"{shlex.quote(sys.executable)} -m dirqueue monitor spool --json --interval 0.1 | head -n 1"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, capture_output=True, timeout=60, check=False, env=clean_env()
    )
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""


@pytest.mark.needs("tmux")
def test_the_screen_in_a_real_terminal(spool, tmp_path):
    """Queues and counts are on the screen, a put is seen, a narrow window fits whatever LINES says, q ends it."""
    terminal = ["tmux", "-L", f"dirqueue-test-{os.getpid()}", "-f", "/dev/null"]
    command = (
        f"{shlex.quote(sys.executable)} -m dirqueue monitor spool --interval 0.2; echo ended: $?; sleep 600"
    )
    subprocess.run(
        [*terminal, "new-session", "-d", "-s", "m", "-x", "150", "-y", "20", "sh", "-c", command],
        cwd=tmp_path, check=True, timeout=60, env=clean_env(LC_ALL="C.UTF-8", TERM="screen", COLUMNS="200", LINES="60"),
    )  # fmt: skip

    def screen():
        shown = subprocess.run(
            [*terminal, "capture-pane", "-p", "-t", "m"], capture_output=True, timeout=60, check=True
        )
        return shown.stdout.decode()

    def row(name):
        return next((line.split() for line in screen().splitlines() if line.startswith(name)), [])

    def shows(condition):
        """Wait: one look at the terminal may come in the middle of a redraw, so every look is repeated."""
        try:
            until(condition)
        except AssertionError:
            pytest.fail("the screen never came: " + screen())

    try:
        shows(lambda: row("thumbs")[1:4] == ["3", "0", "0"])
        shows(lambda: row("mail/out")[1:4] == ["0", "1", "1"])
        shows(lambda: "HELD BY" in screen())
        dirqueue.Queue(spool / "thumbs").put(b"x")
        shows(lambda: row("thumbs")[1:2] == ["4"])
        subprocess.run(
            [*terminal, "resize-window", "-t", "m", "-x", "80", "-y", "12"], check=True, timeout=60
        )
        shows(lambda: "OLDEST" in (shown := screen()) and "HELD BY" not in shown)
        shows(lambda: row("thumbs")[1:2] == ["4"])
        subprocess.run([*terminal, "send-keys", "-t", "m", "q"], check=True, timeout=60)
        shows(lambda: "ended: 0" in screen())
    finally:
        subprocess.run([*terminal, "kill-server"], check=False, timeout=60)


@pytest.fixture
def terminal(tmp_path):
    """Give functions that start the screen in a terminal of some size, type into it, and wait for what it shows."""
    words = ["tmux", "-L", f"dirqueue-keys-{os.getpid()}", "-f", "/dev/null"]

    class Terminal:
        def start(self, width, height):
            python = shlex.quote(sys.executable)
            command = f"{python} -m dirqueue monitor spool --interval 0.2; echo ended: $?; sleep 600"
            subprocess.run(
                [*words, "new-session", "-d", "-s", "m", "-x", str(width), "-y", str(height), "sh", "-c", command],
                cwd=tmp_path, check=True, timeout=60, env=clean_env(LC_ALL="C.UTF-8", TERM="screen"),
            )  # fmt: skip

        def type(self, *keys):
            subprocess.run([*words, "send-keys", "-t", "m", *keys], check=True, timeout=60)

        def lines(self):
            shown = subprocess.run(
                [*words, "capture-pane", "-p", "-t", "m"], capture_output=True, timeout=60, check=True
            )
            return shown.stdout.decode().splitlines()

        def shows(self, condition):
            try:
                until(lambda: condition(self.lines()))
            except AssertionError:
                pytest.fail("the screen never came:\n" + "\n".join(self.lines()))

    yield Terminal()
    subprocess.run([*words, "kill-server"], check=False, timeout=60)


def first_words(lines):
    """Return the queues on the screen, in order."""
    return [line.split()[0] for line in lines[2:-1] if line.strip()]


@pytest.mark.needs("tmux")
def test_the_screen_scrolls_sorts_finds_and_shows_one_queue_in_full(spool, terminal):
    """At 80 columns and 24 lines, with 30 queues: the sick one is first, and every line fits."""
    for number in range(28):
        dirqueue.Queue(spool / f"q{number:02}", sync=False).put_many([b"x"] * (number + 1))
    terminal.start(80, 24)
    terminal.shows(lambda lines: first_words(lines)[:3] == ["mail/out", "q00", "q01"])
    terminal.shows(
        lambda lines: "1 dead" in lines[2] and "30 queues  1 sick" in lines[0] and "1-21 of 30" in lines[-1]
    )
    assert max(map(len, terminal.lines())) <= 80
    terminal.type("End")
    terminal.shows(lambda lines: first_words(lines)[-1] == "thumbs" and "10-30 of 30" in lines[-1])
    terminal.type("s", "s", "g")  # by name, by the number of ready messages
    terminal.shows(lambda lines: first_words(lines)[:2] == ["q27", "q26"] and "ready first" in lines[-1])
    terminal.type("r", "g")
    terminal.shows(lambda lines: first_words(lines)[0] == "mail/out" and "ready last" in lines[-1])
    terminal.type("/", "m", "a", "i")
    terminal.shows(lambda lines: first_words(lines) == ["mail/out"] and "find: mai" in lines[-1])
    terminal.type("Enter", "Enter")
    terminal.shows(lambda lines: "mail/out" in lines[0] and any("WORKER" in line for line in lines))
    terminal.shows(lambda lines: any(line.split()[:2] == ["1", "no"] for line in lines))
    terminal.type("Escape")
    terminal.shows(lambda lines: first_words(lines) == ["mail/out"])
    terminal.type("Escape")
    terminal.shows(lambda lines: len(first_words(lines)) == 21)
    terminal.type("q")
    terminal.shows(lambda lines: "ended: 0" in lines)


def test_keys_are_told_apart():
    """Arrows, letters that come with them, a lone escape, what no one knows."""
    assert keys_of(b"\x1b[Aq") == ["up", "q"]
    assert keys_of(b"\x1b") == ["back"]
    assert keys_of(b"\x1b[6~\x7f/\xc3\xa9\n") == ["page down", "erase", "/", "é", "\n"]
    assert keys_of(b"\x1b[99;5u") == ["back"]


# --- sick queues ---------------------------------------------------------------------------------------------


def test_complaints_say_what_is_wrong_the_worst_first(tmp_path, monitor):
    """Late leases, dead letters, nobody who takes anything; a healthy queue has none."""
    late = dirqueue.Queue(tmp_path / "late", sync=False)
    late.put_many([b"x"] * 2)
    late.get(timeout=0).reject("no")
    late.get(timeout=0, lease=0.001)
    dirqueue.Queue(tmp_path / "fine", sync=False).put(b"x")
    stuck = dirqueue.Queue(tmp_path / "stuck", sync=False)
    id = stuck.put(b"x")
    os.rename(tmp_path / "stuck" / id, tmp_path / "stuck" / f"{int(id) - 3600 * 10**15}")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "queue.json").write_text("{")
    readings = arranged(monitor.read())
    assert [(each.name, each.complaints) for each in readings] == [
        ("broken", ["cannot be read"]),
        ("late", ["1 late", "1 dead"]),
        ("stuck", ["nobody takes anything"]),
        ("fine", []),
    ]
    assert [each.name for each in arranged(readings, "name", "T", backwards=True)] == ["stuck", "late"]
    with pytest.raises(dirqueue.SettingsError, match="sort must be one of sick, name"):
        arranged(readings, "size")


def test_many_queues_leave_few_directories_open(tmp_path, monkeypatch):
    """A process may often open no more than 1,024 files; what was closed is recognised, and what was replaced too."""
    monkeypatch.setattr(monitor_, "OPEN", 3)
    monkeypatch.setattr(monitor_, "watch", lambda layout: None)
    for number in range(20):
        dirqueue.Queue(tmp_path / f"q{number:02}", sync=False).put(b"x")
    before = len(os.listdir("/proc/self/fd"))
    with Monitor(str(tmp_path)) as monitor:
        monitor.read()
        queue = monitor.queue("q19")
        assert len(os.listdir("/proc/self/fd")) - before <= 4
        dirqueue.Queue(tmp_path / "q19", sync=False).put(b"y")
        assert [each.stats.ready for each in monitor.read()] == [1] * 19 + [2]
        assert monitor.queue("q19") is queue
        assert monitor.read()[19].rates.put == 0
        os.rename(tmp_path / "q19", tmp_path / "elsewhere")
        dirqueue.Queue(tmp_path / "q19", layout="vsqs", sync=False).put(b"z")
        assert monitor.read()[-1].layout == "vsqs"
        assert monitor.queue("q19") is not queue


def test_holders_say_who_holds_what(tmp_path):
    """By host and process; whoever holds a message for the longest time first."""
    queue = dirqueue.Queue(tmp_path / "q", sync=False)
    queue.put_many([b"x"] * 3)
    leases = [queue.get(timeout=0, lease=60), queue.get(timeout=0, lease=0.001)]
    until(lambda: holders(queue)[0].late == 1, "the second lease to end")
    (holder,) = holders(queue)
    assert holder.name == leases[0].token.rsplit("-", 2)[0]
    assert (holder.ids, holder.late) == ([lease.message.id for lease in leases], 1)
    assert holder.since <= holder.until
    assert holder.until == leases[1].until
    assert holders(dirqueue.Queue(tmp_path / "nothing")) == []
    assert [name_of(token) for token in ("", "host-1-ab-2", "odd")] == ["a peer", "host-1", "odd"]


# --- what is behind it -------------------------------------------------------------------------------------


def test_a_small_queue_is_counted_whole(spool):
    """Below the limit a look says what stats() says."""
    for name in ("thumbs", "mail/out"):
        seen = look(spool)[name]
        assert seen.stats == dirqueue.Queue(spool / name).stats()
        assert not seen.sampled


def test_a_deep_queue_is_sampled_at_a_bounded_cost_and_marked(tmp_path, monkeypatch):
    """Forty batches: a look reads a few of them, and the estimate is near the truth."""
    from dirqueue.disk import fs

    queue = dirqueue.Queue(tmp_path / "deep", sync=False)
    for _ in range(40):
        queue.put_many([b"x"] * 250)
    read = []
    real = fs.listing

    def listing(name, dir_fd):
        for entry in real(name, dir_fd):
            read.append(name)
            yield entry

    monkeypatch.setattr(fs, "listing", listing)
    sample = take_sample(queue.layout, 1000)
    assert sample.sampled
    assert sample.stats.ready == 10_000
    assert len(read) < 2000
    assert sample.stats.oldest_ready == queue.stats().oldest_ready


def test_a_flat_queue_beyond_the_limit_is_a_lower_bound_and_marked(tmp_path):
    """What does not fit is not guessed."""
    queue = dirqueue.Queue(tmp_path / "flat", sync=False)
    for _ in range(50):
        queue.put(b"x")
    sample = take_sample(queue.layout, 20)
    assert sample.sampled
    assert sample.stats.ready == 20


def test_what_is_not_a_message_is_foreign(tmp_path):
    """A fifo, a directory or a stranger's file is never counted as a message."""
    queue = dirqueue.Queue(tmp_path / "q", sync=False)
    id = queue.put(b"x")
    os.mkfifo(tmp_path / "q" / f"{int(id) + 1}")
    (tmp_path / "q" / "notes.txt").touch()
    (tmp_path / "q" / f"{int(id) + 2}").mkdir()
    (tmp_path / "q" / f"{int(id) + 3}.batch").touch()
    stats = take_sample(queue.layout).stats
    assert (stats.ready, stats.foreign) == (1, 4)
    assert stats == queue.stats()


@pytest.fixture(params=["reported", "compared"])
def _rates(request, monkeypatch):
    """Learn rates from the kernel, or from readings alone."""
    if request.param == "compared":
        monkeypatch.setattr(monitor_, "watch", lambda layout: None)


@pytest.mark.usefixtures("_rates")
def test_rates_are_what_changed_between_two_readings(tmp_path, monitor):
    """Puts, acks and failures are distinguished; a redrive is no put."""
    queue = dirqueue.Queue(tmp_path / "q", sync=False, max_attempts=1)
    retries = dirqueue.Queue(tmp_path / "r", sync=False)
    queue.put_many([b"x"] * 4)
    retries.put(b"x")
    first = {each.name: each for each in monitor.read()}
    assert first["q"].rates == (None, None, None)
    queue.put_many([b"x"] * 3)
    queue.get(timeout=0).ack()
    queue.get(timeout=0).ack()
    queue.get(timeout=0).retry(error="bad")
    retries.get(timeout=0).retry(3600, error="bad")
    rates = {each.name: each.rates for each in monitor.read()}
    unit = rates["q"].error
    assert unit > 0
    assert rates["q"].put == pytest.approx(3 * unit)
    assert rates["q"].ack == pytest.approx(2 * unit)
    assert (rates["r"].put, rates["r"].ack) == (0, 0)
    assert rates["r"].error > 0
    queue.redrive()
    assert {each.name: each.rates for each in monitor.read()}["q"] == (0, 0, 0)


def test_activity_counts_what_came_and_went_between_two_readings(tmp_path):
    """A thousand messages that live for a moment are all counted: flat, delayed, in batches, kept in done."""
    for name, settings in (("plain", {}), ("kept", {"keep_done": True})):
        queue = dirqueue.Queue.create(tmp_path / name, sync=False, max_attempts=2, **settings)
        queue.put(b"before")
        queue.get(timeout=0).release()
        events = activity.watch(queue.layout)
        for _ in range(300):
            queue.put(b"x")
        queue.put_many([b"x"] * 200)
        queue.put(b"x", delay=3600)
        assert events.read() == (501, 0, 0)
        for _ in range(300):
            queue.put(b"x")
            queue.get(timeout=0).ack()
        for _ in range(501):
            queue.get(timeout=0).ack()
        assert events.read() == (300, 801, 0)
        queue.put_many([b"x"] * 3)
        for _ in range(3):
            queue.get(timeout=0).ack()
        assert events.read() == (3, 3, 0), "a batch that came and went"
        queue.put(b"x")
        queue.get(timeout=0).retry(0, "bad")
        queue.get(timeout=40).retry(0, "bad")
        queue.put(b"x")
        queue.get(timeout=0).release()
        assert events.read() == (2, 0, 2)
        queue.redrive()
        assert events.read() == (0, 0, 0)
        events.close()


def test_activity_counts_the_slices_of_a_deep_queue(tmp_path, monkeypatch):
    """Producers that append to slices, made before or after the watch began, are counted to the message."""
    from dirqueue.layouts.native import publish

    monkeypatch.setattr(publish, "DEEP", 0)
    monkeypatch.setattr(publish, "SLICE_SIZE", 50)
    queue = dirqueue.Queue(tmp_path / "q", sync=False)
    for _ in range(75):
        queue.put(b"x")
    assert any(name.endswith(".slice") for name in os.listdir(tmp_path / "q"))
    events = activity.watch(queue.layout)
    for _ in range(300):
        queue.put(b"x")
    assert events.read().put == 300
    for _ in range(100):
        queue.get(timeout=0).ack()
    assert events.read() == (0, 100, 0)
    events.close()


def test_activity_has_no_count_if_events_were_dropped(tmp_path, monkeypatch):
    """Too many directories, or too many events, and the count is unknown instead of wrong."""
    monkeypatch.setattr(activity, "WATCHES", 3)
    queue = dirqueue.Queue(tmp_path / "q", sync=False)
    for _ in range(5):
        queue.put_many([b"x"] * 2)
    events = activity.watch(queue.layout)
    assert events.read() is None
    events.close()


def test_a_queue_that_cannot_be_read_does_not_hide_the_others(spool):
    """Its error is shown in its place."""
    (spool / "thumbs" / "queue.json").write_text("{")
    seen = look(spool)
    assert "not JSON" in seen["thumbs"].error
    assert seen["mail/out"].error is None


def test_a_queue_that_goes_and_comes_back_is_read_anew(tmp_path, monitor):
    """Nothing of a removed queue is kept."""
    for round in range(2):
        queue = dirqueue.Queue(tmp_path / "q", sync=False)
        for _ in range(round + 1):
            queue.put(b"x")
        (seen,) = monitor.read()
        assert seen.stats.ready == round + 1
        assert list(monitor.series[seen.path].depth) == [round + 1]
        shutil.rmtree(tmp_path / "q")
        assert monitor.read() == []


def test_a_reading_beside_busy_producers_and_consumers_never_fails(tmp_path, monitor):
    """Names change under the look all the time; it counts what it meets."""
    queue = dirqueue.Queue(tmp_path / "q", sync=False)
    stop = threading.Event()

    def busy():
        mine = dirqueue.Queue(tmp_path / "q", sync=False)
        while not stop.is_set():
            mine.put_many([b"x"] * 3)
            for _ in range(3):
                try:
                    mine.get(timeout=0).ack()
                except dirqueue.Empty:
                    break

    queue.put(b"x")
    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            assert all(each.error is None for each in monitor.read())
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_sparklines_scale_to_the_highest_and_leave_gaps():
    """The highest value is a full bar, nothing is the lowest, the unknown is a space."""
    assert sparkline([0.0, 1.0, 2.0, 4.0], 4) == "▁▂▄█"
    assert sparkline([0.0, 0.0], 4) == "  ▁▁"
    assert sparkline([None, 3.0], 2) == " █"
    assert sparkline([], 3) == "   "
    assert sparkline([9.0, 1.0, 1.0], 2) == "██"


def test_a_queue_that_was_replaced_between_two_readings_is_read_anew(tmp_path, monitor):
    """Converted, or deleted and made again: the directory at the path counts, not the one that was open."""
    from dirqueue import Queue
    from dirqueue.tools.convert import convert

    with Queue(tmp_path / "q", layout="vsqs", sync=False) as queue:
        queue.put(b"1")
        queue.put(b"2")
    (before,) = monitor.read()
    convert(tmp_path / "q", layout="native")
    (after,) = monitor.read()
    assert [(each.layout, each.stats.ready) for each in (before, after)] == [("vsqs", 2), ("native", 2)]

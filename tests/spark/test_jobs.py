"""The ready-made jobs: drain, fill, report, purge, replay."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tracemalloc
import xml.dom.minidom

import pytest
from support.kit import drain as take

import dirqueue.spark
from dirqueue import Queue, QueueNotFound, SettingsError


def test_a_queue_is_drained_to_files_once(spark, tmp_path):
    """Two runs, with a put in between; each message is in the output once."""
    queue = Queue(tmp_path / "q")
    queue.put_many([b"%d" % i for i in range(30)])
    progress = []
    done = dirqueue.spark.drain(spark, queue.path, tmp_path / "out", batch=20, progress=progress.append)
    assert (done.messages, done.batches, done.left) == (30, 2, 0)
    assert sum(progress) == 30
    queue.put(b"more")
    assert dirqueue.spark.drain(spark, queue.path, tmp_path / "out", batch=20).messages == 1
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.value for row in rows) == sorted([*map(str, range(30)), "more"])
    assert queue.stats().total == 0


@pytest.mark.parametrize("format", ["parquet", "json", "csv", "orc", "text"])
def test_a_drain_keeps_bodies_that_are_not_text(spark, tmp_path, format):
    """In a column of their own; nothing blocks the queue, nothing is lost, and the next run goes on."""
    queue, odd = Queue(tmp_path / "q"), b"\xff\xfe"
    queue.put_many([b"a", odd, "é".encode()])
    assert dirqueue.spark.drain(spark, queue.path, tmp_path / "out", format=format).messages == 3
    queue.put(b"b")
    assert dirqueue.spark.drain(spark, queue.path, tmp_path / "out", format=format).messages == 1
    assert queue.stats().total == 0
    if format == "text":
        lines = b"".join(path.read_bytes() for path in (tmp_path / "out").glob("part-*")).splitlines()
        assert sorted(lines) == sorted([b"a", b"b", odd, "é".encode()])
        return
    reader = spark.read.option("header", "false")
    if format in ("json", "csv"):
        columns = (
            "id string, value string, enqueued_at string, attempts int, priority int, size long, queue string"
        )
        reader = reader.schema(f"{columns}, raw string")
    rows = reader.format(format).load(str(tmp_path / "out")).collect()
    raw = {row.raw if isinstance(row.raw, str) or row.raw is None else bytes(row.raw) for row in rows}
    assert {row.value for row in rows} == {"a", "b", "é", None}
    assert raw == {None, "//4=" if format in ("json", "csv") else odd}


def test_a_drain_whose_output_was_deleted_is_refused(spark, tmp_path):
    """The checkpoint is kept: one sentence names both, and nothing is taken out of the queue."""
    queue = Queue.create(tmp_path / "q")
    for _ in range(2):
        assert dirqueue.spark.drain(spark, queue.path, tmp_path / "out").messages == 0
    queue.put(b"1")
    dirqueue.spark.drain(spark, queue.path, tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    queue.put(b"2")
    with pytest.raises(SettingsError, match=r"out.checkpoint' has written to .*out', whose log .* is gone"):
        dirqueue.spark.drain(spark, queue.path, tmp_path / "out")
    assert queue.stats().ready == 1
    shutil.rmtree(tmp_path / "out.checkpoint")
    assert dirqueue.spark.drain(spark, queue.path, tmp_path / "out").messages == 1


def test_a_drain_with_invalid_arguments_is_refused(spark, tmp_path):
    """A missing queue, an unknown format."""
    with pytest.raises(QueueNotFound):
        dirqueue.spark.drain(spark, tmp_path / "nowhere", tmp_path / "out")
    Queue.create(tmp_path / "q")
    with pytest.raises(SettingsError, match="format must be"):
        dirqueue.spark.drain(spark, tmp_path / "q", tmp_path / "out", format="xml")


def test_a_queue_is_filled_from_files(spark, tmp_path):
    """Rows become JSON, a condition chooses, an expression makes the body, a version is written once."""
    (tmp_path / "in.json").write_text('{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n')
    queue = Queue(tmp_path / "q")
    assert dirqueue.spark.fill(spark, tmp_path / "in.json", queue.path).messages == 2
    assert [json.loads(body) for body in sorted(take(queue))] == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    for repeated in (False, True):
        done = dirqueue.spark.fill(
            spark, tmp_path / "in.json", queue.path, value="b", where="a > 1", app="f", version=1
        )
        assert (done.messages, done.repeated) == (0 if repeated else 1, repeated)
    assert take(queue) == [b"y"]
    with pytest.raises(SettingsError, match="go together"):
        dirqueue.spark.fill(spark, tmp_path / "in.json", queue.path, app="f")


def test_many_queues_are_counted(spark, tmp_path):
    """Depth, age, throughput and failures by reason; as lines, JSON, a table and an image."""
    for name in ("a", "b"):
        queue = Queue.create(tmp_path / "spool" / name, keep_done=True)
        queue.put_many([b"1", b"2", b"3", b"4"])
        first, second, third = queue.get_many(3)
        first.ack()
        second.reject("bad input")
        third.reject(f"timeout in {name}")
    done = dirqueue.spark.report(spark, tmp_path / "spool")
    assert [(os.path.basename(line.queue), line.ready, line.dead, line.done) for line in done.lines] == [
        ("a", 1, 2, 1),
        ("b", 1, 2, 1),
    ]
    assert done.total.failures == {"bad input": 2, "timeout in a": 1, "timeout in b": 1}
    assert done.total.put_last_hour == 8
    assert done.total.done_last_hour == 2
    assert done.total.oldest_s >= 0
    assert json.loads(done.to_json())["total"]["ready"] == 2
    assert done.to_frame(spark).where("dead = 2").count() == 2
    image = xml.dom.minidom.parseString(done.to_svg())
    assert image.documentElement.tagName == "svg"


def test_many_queues_are_purged(spark, tmp_path):
    """Spread over executors; what is stale goes, in each of them."""
    for number in range(5):
        path = tmp_path / "spool" / f"q{number}"
        Queue.create(path, stale=60.0).put(b"x")
        left = path / f"{(time.time_ns() - 7200 * 10**9) // 1000}123456789.new"
        left.write_bytes(b"")
        os.utime(left, (0, 0))
    done = dirqueue.spark.purge(spark, tmp_path / "spool")
    assert (done.queues, done.purged.new, done.failed) == (5, 5, {})


def test_dead_messages_are_replayed_by_a_condition(spark, queue_dir):
    """A dry run counts; the real one makes those that match ready again."""
    queue = Queue(queue_dir)
    queue.put_many([b"1", b"2", b"3"])
    for lease, reason in zip(queue.get_many(3), ("timeout", "bad", "timeout"), strict=True):
        lease.reject(reason)
    assert dirqueue.spark.replay(spark, queue_dir, "error = 'timeout'", dry_run=True).matched == 2
    assert queue.stats().ready == 0
    done = dirqueue.spark.replay(spark, queue_dir, "error = 'timeout' AND value < '3'")
    assert (done.matched, done.redriven) == (1, 1)
    assert take(queue) == [b"1"]
    assert queue.stats().dead == 2


def test_dead_messages_that_are_not_text_are_replayed(spark, queue_dir):
    """A body is compared by its bytes; the others are not held up."""
    queue = Queue(queue_dir)
    queue.put_many([b"\xff", b"2"])
    for lease in queue.get_many(2):
        lease.reject("bad")
    assert dirqueue.spark.replay(spark, queue_dir, "value = '2'").redriven == 1
    assert dirqueue.spark.replay(spark, queue_dir).redriven == 1
    assert sorted(take(queue)) == [b"2", b"\xff"]


def test_the_command_runs_the_jobs(spark, tmp_path, capsys, monkeypatch):
    """`dirqueue spark JOB` uses the running session here, and its exit status says what came of it."""
    from dirqueue.__main__ import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text("id,name\n1,a\n2,b\n")
    assert main(["spark", "fill", "in.csv", "q", "--option", "header=true", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"messages": 2, "repeated": False}
    assert main(["spark", "report", "q", "--chart", "q.svg"]) == 0
    assert capsys.readouterr().out.split("\t")[1] == "2"
    assert (tmp_path / "q.svg").read_text().startswith("<svg")
    assert main(["spark", "report", "q", "--chart", "q.png"]) == 0
    assert (tmp_path / "q.png").read_bytes().startswith(b"\x89PNG")
    assert main(["spark", "report", "q", "--chart", "q.gif"]) == 2
    assert "the chart is an SVG or PNG image: name it FILE.svg" in capsys.readouterr().err
    assert main(["spark", "replay", "q"]) == 3
    assert main(["spark", "drain", "nowhere", "out"]) == 1
    printed = capsys.readouterr()
    assert "there is no queue at" in printed.err
    assert "tasks" not in printed.err, "nobody is at the terminal"


def test_every_job_reports_progress_and_counts(spark, tmp_path, capsys, monkeypatch):
    """Progress on stderr while it runs, a line of counts on stdout at the end."""
    from dirqueue.__main__ import main

    def run(*words):
        assert main(["spark", words[0], "--progress", *words[1:]]) == 0
        printed = capsys.readouterr()
        return printed.out.splitlines(), printed.err.splitlines()[-1]

    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.json").write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    tasks = r"dirqueue: ([1-9]\d*) of \1 tasks done"
    out, progress = run("fill", "in.json", "spool/q")
    assert out == ["messages=3\trepeated=False"]
    assert re.fullmatch(tasks, progress)
    with Queue("spool/q") as queue:
        queue.get().reject("broken")
    out, progress = run("report", "spool/q", "--chart", "q.svg")
    assert out[0].split("\t")[1:6] == ["2", "0", "0", "1", "0"]
    assert out[1] == "1\tbroken"
    assert re.fullmatch(tasks, progress)
    out, progress = run("purge", "spool")
    assert out == ["queues=1"]
    assert re.fullmatch(tasks, progress)
    out, progress = run("replay", "spool/q", "--where", "error = 'broken'")
    assert out == ["matched=1\tredriven=1"]
    assert re.fullmatch(tasks, progress)
    out, progress = run("drain", "spool/q", "out", "--format", "json", "--batch", "2")
    assert out == ["messages=3\tbatches=2\tleft=0"]
    assert progress == "dirqueue: 1 messages written"


#: Counts queues as a task of the report does, and prints the most memory that took, in KiB.
COUNTER = """
import resource, sys
from dirqueue.spark.jobs.queues import find_queues
from dirqueue.spark.jobs.report import _count
for path in find_queues(sys.argv[1]):
    [row] = _count(path, records=False)
    assert row[1] == int(sys.argv[2]), row
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def memory_of(function):
    """Return what a function returns, and the most bytes that Python held for it."""
    tracemalloc.start()
    try:
        return function(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_report_on_a_million_names_in_a_thousand_queues_takes_no_more_memory(spark, tmp_path):
    """Neither of the driver nor of a task, compared with a tenth of the names."""
    spool, taken = tmp_path / "spool", []
    for more, each in ((100, 100), (900, 1000)):
        for number in range(1000):
            Queue(spool / f"q{number:03}", sync=False, links=True).put_many([b"x"] * more)
        done, driver = memory_of(lambda: dirqueue.spark.report(spark, spool))
        assert [line.ready for line in done.lines] == [each] * 1000
        counter = [sys.executable, "-c", COUNTER, str(spool), str(each)]
        counted = subprocess.run(counter, capture_output=True, text=True, check=True, timeout=600)
        taken.append((driver, int(counted.stdout) << 10))
    print("bytes of the driver and of a task, at 100,000 and at 1,000,000 names:", taken)
    assert done.total.ready == done.total.put_last_hour == 1_000_000
    (driver, task), (driver_more, task_more) = taken
    assert driver_more < driver + (1 << 20), taken
    assert task_more < task + (4 << 20), taken


def test_a_png_chart_needs_matplotlib(monkeypatch):
    """It is drawn where that is installed; else a sentence says what to do."""
    from dirqueue.spark.jobs.report import Line, Report

    done = Report([Line("spool/orders", ready=3, dead=1), Line("a" * 50, done=2)])
    assert done.to_png().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SettingsError, match="pip install matplotlib, or take SVG"):
        done.to_png()


def test_a_report_keeps_no_queue_open(tmp_path):
    """A task may count more queues than it may have files open."""
    from dirqueue.spark.jobs.report import _count

    for number in range(20):
        Queue(tmp_path / f"q{number}").put(b"1")
    before = len(os.listdir("/proc/self/fd"))
    rows = [row for number in range(20) for row in _count(str(tmp_path / f"q{number}"), records=True)]
    assert [(row[1], row[-1]) for row in rows] == [(1, None)] * 20
    assert len(os.listdir("/proc/self/fd")) <= before + 2

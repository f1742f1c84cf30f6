"""`dirqueue metrics`: what Prometheus reads, printed, written and served."""

import os
import signal
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.commandline import dq, start
from support.patience import until

import dirqueue
from dirqueue.tools import metrics


@pytest.fixture
def spool(tmp_path):
    """Give two queues under a root: one with a message in every state, one empty."""
    queue = dirqueue.Queue.create(tmp_path / "spool" / 'a "b"\\c', sync=False, keep_done=True)
    queue.put(b"done")
    queue.get(timeout=0).ack()
    queue.put(b"dead")
    queue.get(timeout=0).reject("bad")
    queue.put(b"leased")
    queue.get(timeout=0)
    queue.put(b"delayed", delay=3600)
    queue.put_many([b"ready"] * 3)
    dirqueue.Queue.create(tmp_path / "spool" / "empty", lease=5)
    return tmp_path / "spool"


def parsed(text):
    """Return {(name, labels): value} as Prometheus' own parser reads the text."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def check(values, a, empty):
    counts = {state: values["dirqueue_messages", a, state] for state in metrics.STATES}
    assert counts == {"ready": 3, "delayed": 1, "leased": 1, "dead": 1, "done": 1, "new": 0}
    assert {values["dirqueue_messages", empty, state] for state in metrics.STATES} == {0}
    assert values["dirqueue_up", a] == values["dirqueue_up", empty] == 1
    assert values["dirqueue_oldest_ready_age_seconds", a] > 0
    assert values["dirqueue_oldest_ready_age_seconds", empty] == 0


def test_metrics_has_the_counts_of_each_queue(spool, tmp_path):
    """Every state of every queue under the root, readable by Prometheus' parser, odd names and all."""
    done = dq("metrics", "spool", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    check(parsed(done.stdout.decode()), 'spool/a "b"\\c', "spool/empty")
    assert done.stdout.count(b"# TYPE dirqueue_messages gauge\n") == 1


def test_a_queue_name_with_control_characters_is_escaped(tmp_path):
    """Whoever reads the text in a terminal is not at the mercy of whoever named a directory."""
    dirqueue.Queue.create(tmp_path / "spool" / "a\x1b[31m\r\n\u202eb\udcff", sync=False)
    done = dq("metrics", "spool", cwd=tmp_path)
    text = done.stdout.decode()
    assert all(c.isprintable() or c == "\n" for c in text)
    assert parsed(text)["dirqueue_up", r"spool/a\x1b[31m\r\n\u202eb\xff"] == 1


def test_a_file_for_the_textfile_collector_is_replaced_whole(spool, tmp_path):
    """The old file stays until the new one is complete, and no other file is left beside it."""
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "dirqueue.prom"
    target.write_text("old")
    done = dq("metrics", "spool", "--output", target, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert os.listdir(tmp_path / "out") == ["dirqueue.prom"]
    assert parsed(target.read_text())["dirqueue_up", "spool/empty"] == 1


def test_a_file_that_cannot_be_written_is_one_sentence(spool, tmp_path):
    """A missing directory is said, not traced."""
    done = dq("metrics", "spool", "--output", tmp_path / "no" / "x.prom", cwd=tmp_path)
    assert done.returncode == 1
    assert b"cannot write" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_queue_that_cannot_be_read_is_down_and_the_others_are_counted(spool, tmp_path):
    """One damaged queue.json does not hide the rest."""
    (spool / "empty" / "queue.json").write_text("{")
    values = parsed(dq("metrics", "spool", cwd=tmp_path).stdout.decode())
    assert values["dirqueue_up", "spool/empty"] == 0
    assert ("dirqueue_messages", "spool/empty", "ready") not in values
    assert values["dirqueue_messages", 'spool/a "b"\\c', "ready"] == 3


def test_the_exporter_counts_anew_for_each_request(spool, tmp_path):
    """/metrics is the same text, always fresh; anything else is not found; Ctrl-C ends it."""
    exporter = start("metrics", "spool", "--listen", "0", cwd=tmp_path)
    try:
        said = until(
            lambda: b"/metrics\n" in (tmp_path / "said").read_bytes() and (tmp_path / "said").read_text()
        )
        url = said.split()[-1]
        with urllib.request.urlopen(url, timeout=40) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            check(parsed(answer.read().decode()), 'spool/a "b"\\c', "spool/empty")
        dirqueue.Queue(spool / "empty").put(b"x")
        with urllib.request.urlopen(url, timeout=40) as answer:
            assert parsed(answer.read().decode())["dirqueue_messages", "spool/empty", "ready"] == 1
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(url + "x", timeout=40)
        assert error.value.code == 404
        error.value.close()
        exporter.send_signal(signal.SIGINT)
        assert exporter.wait(40) == 0
    finally:
        exporter.kill()
        exporter.wait()


def test_a_program_with_its_own_exporter_can_register_a_collector(spool):
    """With prometheus_client the same numbers come through its registry."""
    registry = CollectorRegistry()
    registry.register(metrics.Collector(str(spool)))
    check(parsed(generate_latest(registry).decode()), f'{spool}/a "b"\\c', f"{spool}/empty")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nowhere"], 1, "no directory 'nowhere'"),
        (["spool", "--listen", "http"], 2, "is not an address"),
        (["spool", "--listen", "1:99999"], 2, "is not an address"),
        (["nowhere", "--listen", "0"], 1, "no directory 'nowhere'"),
    ],
)
def test_invalid_arguments_are_one_sentence(spool, tmp_path, words, status, said):
    """A root that is not there and an address that cannot be are refused at once."""
    done = dq("metrics", *words, cwd=tmp_path)
    assert done.returncode == status
    assert said in done.stderr.decode()
    assert done.stdout == b""


def test_a_paused_queue_is_told(tmp_path):
    """1 while it gives nothing."""
    queue = dirqueue.Queue(tmp_path / "q", sync=False)
    queue.put(b"a")
    queue.pause()
    dirqueue.Queue(tmp_path / "other", sync=False).put(b"a")
    found = parsed(metrics.text(metrics.measure([str(tmp_path / "q"), str(tmp_path / "other")])))
    assert [found["dirqueue_paused", str(tmp_path / name)] for name in ("q", "other")] == [1, 0]

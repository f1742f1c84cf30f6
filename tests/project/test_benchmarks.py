"""The benchmark harness works: with tiny numbers, in this process, for the peers that the test environment has."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(name="bench")
def _bench(monkeypatch):
    """The modules of benchmarks/, which are programs and no package: imported for one test, then forgotten."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.delitem(sys.modules, "peers", raising=False)  # tests/peers, if a test of it ran before
    importlib.import_module("run")
    ours = {
        name: module
        for name, module in sys.modules.items()
        if Path(getattr(module, "__file__", None) or "/").parent == HERE
    }
    yield SimpleNamespace(**ours)
    for name in ours:
        del sys.modules[name]


def _groups(bench, *named):
    plan = bench.plan.Planner(
        [*(["c"] if bench.floor.binary() else []), "floor", "dirqueue", "dirq-simple", "maildir", "vsqs"]
    )
    return [plan.group(name, "tmpfs", who, 1, **cell) for name, who, cell in named]


def test_every_kind_of_work_gives_a_page_with_its_figures(bench, tmp_path):
    """Measuring, the tables, the goals, the plots and the losses come out of one run, and nothing is lost in it."""
    place = tmp_path / "place"
    place.mkdir()
    harness = bench.run.Bench({"tmpfs": bench.mounts.Place("tmpfs", place, "a test")}, inside=True)
    everybody = ("c", "floor", "dirqueue", "dirq-simple", "maildir", "vsqs")
    harness.run(
        _groups(
            bench,
            ("store", everybody, {"work": "store", "count": 20}),
            ("store", ("c", "floor", "dirqueue"), {"work": "store", "count": 40, "take": 10}),
            ("million", ("dirqueue",), {"work": "store", "count": 30, "take": 10}),
            ("size", ("c", "floor", "dirqueue"), {"work": "store", "count": 2, "size": 200_000}),
            ("batch", ("dirqueue",), {"work": "batch", "count": 20, "take": 10}),
            ("durable", ("floor", "dirqueue"), {"work": "durable", "count": 3}),
            ("scan", ("dirqueue",), {"work": "scan", "count": 200}),
            ("backlog", ("dirqueue",), {"work": "backlog", "count": 20}),
        )
    )
    assert not [row for row in harness.rows if row.get("lost") or row.get("twice") or "failed" in row]
    known = bench.facts.facts() | {"places": {"tmpfs": "a test"}, "seconds": 1, "load_after": [0, 0, 0]}
    results = tmp_path / "results"
    results.mkdir()
    (results / "results.json").write_text(json.dumps({"facts": known, "rows": harness.rows}))
    bench.report.write(results, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    for title in (
        "## Goals",
        "### 20 messages on tmpfs",
        "## Scan of 200 names",
        "## Where it loses",
        "vsqs",
    ):
        assert title in page
    assert bench.figures.Figures(harness.rows).ratio(
        bench.figures.cpu("get"), work="store", count=20, size=1024, on="tmpfs", peer="dirqueue"
    )


def test_producers_and_consumers_in_processes_of_their_own_are_counted(bench, tmp_path):
    """A mix of processes tells its rate, its lateness and that each message came exactly once."""
    cell = bench.work.Cell(
        work="mix", peer="dirqueue", path=str(tmp_path / "q"), count=20, producers=1, consumers=2
    )
    told = bench.work.run(cell)
    assert (told["count"], told["lost"], told["twice"], told["errors"]) == (20, 0, 0, 0)
    assert sum(told["shares"]) == 20
    assert len(told["us"]) == 4


@pytest.mark.parametrize(("peer", "gone"), [("dirqueue", 0), ("dirq-simple", 0), ("maildir", 3)])
def test_what_a_killed_consumer_held_decides_whom_we_are_compared_with(bench, tmp_path, peer, gone):
    """Who never gives it back is not of our kind, however fast."""
    cell = bench.work.Cell(work="death", peer=peer, path=str(tmp_path / "q"), count=10, take=3)
    told = bench.work.run(cell)
    assert told == {"lost": gone, "twice": 0}
    figures = bench.figures.Figures([{"group": "death", "peer": peer, **told}])
    assert bench.peers.of_our_kind(peer, figures) == (not gone)


def test_an_ext4_without_a_journal_is_refused_with_the_reason(bench, tmp_path, monkeypatch):
    """There every peer would measure the filesystem's trap."""
    monkeypatch.setattr(bench.mounts, "filesystem_of", lambda path: ("ext4", "/dev/does-not-exist"))
    with (
        pytest.raises(bench.mounts.Refused, match=r"without a journal.*up to a millisecond"),
        bench.mounts.place(f"{tmp_path}/"),
    ):
        pass


def test_a_lost_and_a_repeated_message_are_told(bench):
    """The counting that stands beside every speed can fail."""
    assert bench.work.tally([0, 1, 1, 3], 4) == {"lost": 1, "twice": 1}


def test_the_plans_name_only_work_and_peers_that_exist(bench):
    """Every cell of the quick and of the whole plan can be run."""
    known = {*bench.peers.PEERS, *bench.floor.TITLES}
    everybody = list(known)
    for made in (
        bench.plan.quick(everybody, ["tmpfs", "ext4"]),
        bench.plan.whole(everybody, ["tmpfs", "ext4", "xfs"]),
    ):
        cells = [cell for group in made for cell in group.cells]
        assert len(cells) > 50
        assert {cell.work for cell in cells} <= set(bench.work.WORK)
        assert {cell.peer for cell in cells} <= known


def test_a_plot_is_well_formed(bench, tmp_path):
    """Names are escaped, and every series is drawn."""
    from xml.etree import ElementTree as ET

    bench.plot.lines(
        tmp_path / "l.svg", "a < b", "x", "y", {"one & two": [(1, 2), (1000, 5)], "three": [(10, 3)]}
    )
    bench.plot.bars(tmp_path / "b.svg", "bars", "per second", [("dirqueue", 10.0), ("other", 3.0)])
    drawn = ET.parse(tmp_path / "l.svg").getroot()
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) == 2
    assert len(ET.parse(tmp_path / "b.svg").getroot().findall("{http://www.w3.org/2000/svg}rect")) == 3


def test_spark_has_a_table_for_each_size(bench, tmp_path):
    """With rows a second, CPU for a row, and the goals that were measured."""
    run = {
        "messages": 1000,
        "seconds": {"batch write, rows": 0.5},
        "cpu": {"batch write, rows": 0.02},
        "records_over_parquet": 0.4,
    }
    (tmp_path / "spark.json").write_text(
        json.dumps([run, run | {"messages": 2000, "records_over_parquet": 0.6}])
    )
    text = "\n".join(bench.tables.spark_table(tmp_path))
    assert "1,000 rows of 100 B" in text
    assert "2,000 rows of 100 B" in text
    assert "| batch write, rows | 0.50 | 2,000 | 20.0 |" in text
    assert text.count("| at least 0.5 | 0.40 | **no** |") == text.count("| at least 0.5 | 0.60 | yes |") == 1

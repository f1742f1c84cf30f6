"""What a row costs in system calls: the tasks of Spark as it calls them, without a JVM."""

import contextlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from support.kit import PATIENCE, replaced

import dirqueue
from dirqueue import Queue
from dirqueue.disk import fs
from dirqueue.layouts.native import names
from dirqueue.spark.read import Reader
from dirqueue.spark.stream_source import StreamReader
from dirqueue.spark.write import BatchWriter

ROWS = 500
VALUE = StructType().add("value", "binary")
TASK = """
import os, sys
import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from dirqueue import Queue
from dirqueue.spark.read import Reader
from dirqueue.spark.stream_source import StreamReader
from dirqueue.spark.write import BatchWriter

SCHEMA, START = StructType().add("value", "binary"), {"lot": 0}

def write(path, bodies):
    writer = BatchWriter({"path": path}, SCHEMA, overwrite=False)
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"value": bodies})]))])

def read(path, bodies):
    reader = Reader({"path": path, "numPartitions": "2"}, SCHEMA)
    check(reader, reader.partitions(), bodies)

def stream(path, bodies):
    reader = StreamReader({"path": path, "numPartitions": "2"}, SCHEMA)
    check(reader, reader.partitions(START, reader.latestOffset(START, ReadAllAvailable())), bodies)

def check(reader, parts, bodies):
    found = [body for part in parts for batch in reader.read(part) for body in batch.column("value").to_pylist()]
    assert sorted(found) == sorted(bodies), found[:3]

# The first, of few rows, imports what is needed and is not counted.
do, path, rows = globals()[sys.argv[1]], sys.argv[2], int(sys.argv[3])
for path, rows in ((f"{path}-first", 2), (path, rows)):
    bodies = [b"%d" % n for n in range(rows)]
    Queue.create(path, sync=False, links=True)
    if do is not write:
        write(path, bodies)
    os.getppid()
    do(path, bodies)
    os.getppid()
"""


def traced(tmp_path, what):
    """Count the calls between two marks."""
    log = tmp_path / "trace"
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", str(log), sys.executable, "-c", TASK, what, str(tmp_path / "queue"), str(ROWS)],
        env=os.environ | {"PYTHONPATH": str(Path(dirqueue.__file__).parent.parent)},
        capture_output=True, text=True, check=False, timeout=PATIENCE * 2,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    text = log.read_text()
    *_, inside, _ = text.split("getppid()")
    return Counter(re.findall(r"^(?:\d+ +)?(\w+)\(", inside, re.MULTILINE))


@pytest.mark.needs("strace")
@pytest.mark.parametrize(
    ("what", "call"), [("write", "symlinkat"), ("read", "readlinkat"), ("stream", "readlinkat")]
)
def test_a_row_that_is_a_link_is_one_call(tmp_path, what, call):
    """One to write and one to read, in batches and in streams; the rest does not grow with the rows."""
    calls = traced(tmp_path, what)
    assert calls[call] == ROWS, calls
    assert calls.total() < ROWS + 250, calls


#: What a write by two tasks takes, however many rows it has; as it did before messages had attributes.
WRITE = Counter(
    open=7, close=7, stat=5, fstat=8, utime=10, mkdir=4, rename=4, rmdir=1, scandir=1
)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "each"),
    [
        ({}, Counter(open=200, write=200, close=200)),
        ({"links": "true"}, Counter(symlink=200, open=2, fstat=2, read=2, close=2)),
        ({"recordsPerMessage": "10"}, Counter(open=20, write=20, close=20)),
    ],
    ids=["files", "links", "records"],
)
def test_a_write_without_attributes_pays_nothing_for_them(queue_dir, options, each):
    """These calls and no other: three for a file, one for a link, and those of the job."""
    Queue.create(queue_dir, sync=False).close()
    write(queue_dir, 2, options)  # opens the queue
    with counted() as calls:
        write(queue_dir, 200, options)
    assert calls == WRITE + each
    assert not (queue_dir / "attributes").exists()


@contextlib.contextmanager
def counted():
    """Count the filesystem calls of this process by name."""
    calls, real = Counter(), {name: getattr(fs, name) for name in fs.CALLS}

    def wrap(name, call):
        def counting(*args, **kwargs):
            calls[name] += 1
            return call(*args, **kwargs)

        return counting

    with replaced(fs, **{name: wrap(name, call) for name, call in real.items()}):
        yield calls


def write(path, rows, options):
    """Write with two tasks, as Spark calls them."""
    writer = BatchWriter({"path": str(path), **options}, VALUE, overwrite=False)
    bodies = [b"%d" % number for number in range(rows)]
    batches = [pa.RecordBatch.from_pydict({"value": bodies[task::2]}) for task in range(2)]
    writer.commit([writer.write(iter([batch])) for batch in batches])


@pytest.mark.parametrize("priorities", [False, True])
def test_a_link_that_is_no_message_is_no_row(queue_dir, priorities):
    """Nobody looks at it before its body is read; without the bodies each link is looked at."""
    queue = Queue.create(queue_dir, links=True, priorities=priorities)
    first, *_ = queue.put_many([b"1", b"2", b"3"])
    (batch,) = queue_dir.glob("*.batch")
    (batch / first).unlink()
    (batch / first).symlink_to("/etc/passwd")
    for schema, wanted in ((VALUE, [b"2", b"3"]), (StructType().add("id", "string"), 2)):
        reader = Reader({"path": queue.path}, schema)
        found = [
            row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()
        ]
        assert ([row["value"] for row in found] if schema is VALUE else len(found)) == wanted
    stream = StreamReader({"path": queue.path, "numPartitions": "1"}, VALUE)
    end = stream.latestOffset({"lot": 0}, None)
    parts = stream.partitions({"lot": 0}, end)
    assert [
        body for part in parts for batch in stream.read(part) for body in batch.column("value").to_pylist()
    ] == [
        b"2",
        b"3",
    ]
    assert names.is_plain(first) is not priorities


@pytest.mark.parametrize("module", ["source", "stream_sink", "stream_source", "write"])
def test_what_plans_and_commits_needs_no_arrow(module):
    """COST: 80 ms for each Python that Spark starts; rows are made in tasks only."""
    code = f"import sys, dirqueue.spark.{module}; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

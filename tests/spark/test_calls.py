"""What a row costs in system calls: the tasks of Spark as it calls them, without a JVM."""

import collections
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql.types import StructType
from support.kit import PATIENCE

import dirqueue
from dirqueue import Queue
from dirqueue.layouts.native import names
from dirqueue.spark.read import Reader
from dirqueue.spark.stream_source import StreamReader

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
    return collections.Counter(re.findall(r"^(?:\d+ +)?(\w+)\(", inside, re.MULTILINE))


@pytest.mark.needs("strace")
@pytest.mark.parametrize(
    ("what", "call"), [("write", "symlinkat"), ("read", "readlinkat"), ("stream", "readlinkat")]
)
def test_a_row_that_is_a_link_is_one_call(tmp_path, what, call):
    """One to write and one to read, in batches and in streams; the rest does not grow with the rows."""
    calls = traced(tmp_path, what)
    assert calls[call] == ROWS, calls
    assert calls.total() < ROWS + 250, calls


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

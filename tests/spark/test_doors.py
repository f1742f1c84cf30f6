"""Other doors to the same table: SQL, Spark Connect, declarative pipelines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dirqueue import Queue

HERE = Path(__file__).parent


def test_a_queue_is_a_table_in_sql(spark, queue_dir):
    """USING dirqueue, without a registration call."""
    Queue(queue_dir).put_many([b"a", b"bb"])
    spark.sql(f"CREATE TEMPORARY VIEW waiting USING dirqueue OPTIONS (path '{queue_dir}')")
    try:
        rows = spark.sql("SELECT cast(value AS string) AS text FROM waiting WHERE size > 1").collect()
    finally:
        spark.catalog.dropTempView("waiting")
    assert [row.text for row in rows] == ["bb"]


@pytest.mark.parametrize("columns", ["", "(id string)"])
def test_a_table_of_the_catalog_is_refused_with_the_way_out(spark, queue_dir, columns):
    """Spark does not pass its path on: CREATE TABLE fails, or if Spark does not ask for the schema, the first read."""
    Queue(queue_dir).put(b"a")
    try:
        with pytest.raises(Exception, match="CREATE TEMPORARY VIEW name USING dirqueue OPTIONS"):
            spark.sql(f"CREATE TABLE waiting {columns} USING dirqueue OPTIONS (path '{queue_dir}')")
            spark.sql("SELECT * FROM waiting").collect()
    finally:
        spark.sql("DROP TABLE IF EXISTS waiting")


CONNECT = """
import sys, dirqueue.spark.sessions
from pyspark.sql import SparkSession
dirqueue.spark.sessions.prepare()
spark = SparkSession.builder.remote("local[2]").getOrCreate()
path = sys.argv[1]
spark.range(5).selectExpr("cast(id AS string) AS value").write.format("dirqueue").mode("append").save(path)
assert spark.read.format("dirqueue").load(path).count() == 5
with dirqueue.spark.claim(spark, path) as frame:
    assert frame.count() == 5
spark.stop()
"""

PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()

@dp.materialized_view
def waiting():
    return spark.read.format("dirqueue").load({queue!r})

dp.create_sink("out", "dirqueue", {{"path": {out!r}}})

@dp.append_flow(target="out")
def forward():
    return spark.readStream.format("dirqueue").load({queue!r}).select("value")
"""


@pytest.mark.slow
def test_a_queue_works_over_spark_connect(without_java, tmp_path):
    """Read, write and claim through a remote session."""
    pytest.importorskip("grpc")
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, str(tmp_path / "q")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert Queue(tmp_path / "q").stats().total == 0


@pytest.mark.slow
def test_a_queue_works_in_a_declarative_pipeline(without_java, tmp_path):
    """As the source of a table, and as source and sink of a flow."""
    pytest.importorskip("grpc")
    import pyspark

    from dirqueue.spark.sessions import prepare

    queue, out = str(tmp_path / "q"), str(tmp_path / "out")
    Queue(queue).put_many([b"%d" % i for i in range(20)])
    (tmp_path / "flow.py").write_text(PIPELINE.format(queue=queue, out=out))
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: test\nstorage: file://{tmp_path}/storage\nlibraries:\n  - glob:\n      include: flow.py\n"
    )
    prepare()
    program = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    done = subprocess.run(
        [str(program), "run"], cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert Queue(out).stats().ready == 20

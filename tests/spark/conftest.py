"""One Spark session for all tests, on a machine that seems to have no Java at all."""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from dirqueue.spark.home import unzipped


@pytest.fixture(scope="session")
def without_java(tmp_path_factory):
    """Take every `java` off PATH and unset JAVA_HOME, for the whole session."""
    programs = tmp_path_factory.mktemp("programs")
    for directory in os.environ["PATH"].split(os.pathsep):
        if not os.path.isdir(directory):
            continue
        for program in os.scandir(directory):
            link = programs / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program.path)
    saved = dict(os.environ)
    os.environ["PATH"] = str(programs)
    os.environ.pop("JAVA_HOME", None)
    # Every program here runs for seconds: a JVM that compiles less starts sooner.
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    # For the programs that make a session of their own too.
    os.environ.setdefault("SPARK_HOME", unzipped())
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    yield
    os.environ.clear()
    os.environ.update(saved)


@pytest.fixture(scope="session")
def spark(without_java, tmp_path_factory):
    import dirqueue.spark

    scratch = tmp_path_factory.mktemp("spark")
    session = dirqueue.spark.session(
        "local[2]",
        **{
            "spark.sql.shuffle.partitions": 2,
            "spark.local.dir": scratch / "local",
            "spark.sql.warehouse.dir": scratch / "warehouse",
            "spark.driver.memory": "1g",
            "spark.task.maxFailures": 1,
        },
    )
    yield session
    session.stop()


@pytest.fixture
def table(spark):
    """Return a DataFrame of `n` bodies "0", "1" ... in two partitions."""

    def make(n, partitions=2):
        return spark.range(0, n, 1, partitions).selectExpr("cast(id as string) as value")

    return make


def pytest_collection_modifyitems(items):
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.spark)
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(900))

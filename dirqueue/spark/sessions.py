"""A Spark session that works where only Python is installed.

Layer: edges.  Touches: the environment of this process, which Spark reads when it starts: JAVA_HOME, PYSPARK_PYTHON,
SPARK_SUBMIT_OPTS, and SPARK_HOME while it starts.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from dirqueue.spark.home import quick_start
from dirqueue.spark.java import find_java
from dirqueue.spark.versions import BATCHES, check_version

#: As properties of the JVM these yield to everything else: spark-defaults.conf, spark-submit, --conf, session(**conf).
DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
LOG4J = "log4j2.configurationFile"
OPTIONS = "SPARK_SUBMIT_OPTS"


def session(master: str | None = None, *, name: str | None = None, **conf: Any) -> SparkSession:
    """Return a Spark session with the workers' Python set and a Java found, or the one that is running.

    What is not given here stays as spark-submit, spark-defaults.conf and log4j2.properties configure it. Where they do
    not, the web interface and the progress bar are off, only errors are logged, and Spark runs on this machine.

    Args:
        master: Where to run, as Spark takes it, e.g. local[2].
        name: The name of the application.
        conf: Spark settings: `session(**{"spark.sql.shuffle.partitions": "4"})`.
    """
    check_version(BATCHES, "dirqueue")
    prepare()
    given = {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in conf.items()
    }
    if master is not None:
        given["spark.master"] = master
    if name is not None:
        given["spark.app.name"] = name
    builder = SparkSession.builder
    for key, value in given.items():
        builder = builder.config(key, value)
    with quick_start(given.get("spark.master", "")):
        return builder.getOrCreate()


def prepare(*, quiet: bool = False) -> None:
    """Set what Spark reads from the environment: the Python of its workers, a Java that runs it, and the defaults.

    Without PYSPARK_PYTHON the workers run the `python3` on PATH, which in a virtual environment that was not
    activated is another Python, without this package.

    Args:
        quiet: Start Java so that it prints no warnings of its own.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if SparkSession.getActiveSession() is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ["JAVA_HOME"] = find_java(quiet=quiet)
        os.environ[OPTIONS] = _options(os.environ.get(OPTIONS, ""))


def _options(given: str) -> str:
    """Return the options of the JVM with our defaults before those that are given."""
    ours = [f"-D{key}={value}" for key, value in DEFAULTS.items() if f"-D{key}=" not in given]
    if "log4j" not in given and not _has_log_settings():
        here = os.path.dirname(os.path.abspath(__file__))
        ours.append(f'"-D{LOG4J}=file:{here}/log4j2.properties"')
    return " ".join([*ours, given]).strip()


def _has_log_settings() -> bool:
    """Return whether Spark's configuration directory has a log4j2 file."""
    from pyspark.find_spark_home import _find_spark_home

    directory = os.environ.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    kinds = ("properties", "xml", "yaml", "yml", "json", "jsn")
    return any(os.path.isfile(os.path.join(directory, f"log4j2.{kind}")) for kind in kinds)

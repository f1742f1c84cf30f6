"""A Spark session that works where only Python is installed.

Layer: edges.  Touches: the environment of this process (JAVA_HOME, PYSPARK_PYTHON), read by Spark when it starts.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from dirqueue.spark.java import find_java


def session(master: str | None = None, *, name: str = "dirqueue", **conf: Any) -> SparkSession:
    """Return a Spark session with the workers' Python set and a Java found, or the one that is running.

    Args:
        master: Where to run, as Spark takes it; local[*] if neither this nor `spark.master` is given.
        name: What Spark's pages show.
        conf: Spark settings: `session(**{"spark.sql.shuffle.partitions": "4"})`.
    """
    prepare()
    builder = SparkSession.builder.appName(name)
    if master is not None or "spark.master" not in conf:
        builder = builder.master(master or os.environ.get("MASTER", "local[*]"))
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # One line a second about a busy machine helps nobody.
        "spark.log.level": "ERROR",
    }
    for key, value in (defaults | conf).items():
        builder = builder.config(key, str(value).lower() if isinstance(value, bool) else str(value))
    return builder.getOrCreate()


def prepare() -> None:
    """Set what Spark reads from the environment: the Python of its workers, and a Java that runs it.

    Without PYSPARK_PYTHON the workers run the `python3` on PATH, which in a virtual environment that was not
    activated is another Python, without this package.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = find_java()

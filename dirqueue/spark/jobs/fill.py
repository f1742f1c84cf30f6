"""A queue filled from a table or files: all messages become visible at once.

Layer: edges.  Touches: one batch of the queue.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from dirqueue.errors import SettingsError
from dirqueue.spark.jobs.progress import Progress, followed
from dirqueue.spark.options import local, open_native

PUT = ("value", "priority", "delay")


@dataclass(frozen=True)
class Filled:
    """What was put."""

    #: Messages, or records of them.
    messages: int
    #: True if this version had been written before, so that nothing was put.
    repeated: bool = False


def fill(
    spark: SparkSession,
    source: DataFrame | str | os.PathLike[str],
    queue: str | os.PathLike[str],
    *,
    format: str | None = None,
    value: str | None = None,
    where: str | None = None,
    app: str | None = None,
    version: int | None = None,
    options: dict[str, str] | None = None,
    records: int | None = None,
    progress: Progress | None = None,
) -> Filled:
    """Put one message for each row, all of them visible at once.

    Args:
        source: A DataFrame, the name of a table, or the path of files.
        format: The format of the files: parquet, json, csv, text ...; by their suffix if None.
        value: A SQL expression for the body; if None, the column `value`, or the whole row as JSON.
        where: A SQL condition; only rows that match are put.
        app: With `version`, makes a repeated fill do nothing; the versions of an app must grow.
        version: See app.
        options: For the reader of the files, e.g. {"header": "true"}.
        records: Pack so many rows into each message, as records; one message for each row if None.
        progress: Called while it runs with the number of tasks that are done and of all tasks.
    """
    if (app is None) != (version is None):
        raise SettingsError("app and version go together: give both or neither")
    frame = (
        source if isinstance(source, DataFrame) else _load(spark, os.fspath(source), format, options or {})
    )
    if where is not None:
        frame = frame.where(where)
    extra = [name for name in PUT[1:] if name in frame.columns]
    if value is not None:
        frame = frame.select(f.expr(value).alias("value"), *extra)
    elif "value" not in frame.columns:
        body = f.to_json(f.struct(*[name for name in frame.columns if name not in extra]))
        frame = frame.select(body.alias("value"), *extra)
    else:
        frame = frame.select("value", *extra)
    path = local(queue)
    repeated = False
    if app is not None and version is not None:
        from dirqueue.layouts.native import staged

        repeated = staged.newest(open_native(path, create=True).directory, app) >= version
    seen = Observation("dirqueue-fill")
    writer = frame.observe(seen, f.count(f.lit(1)).alias("rows")).write.format("dirqueue").mode("append")
    if app is not None and version is not None:
        writer = writer.option("txnAppId", app).option("txnVersion", version)
    if records is not None:
        writer = writer.option("recordsPerMessage", records)
    with followed(spark, progress):
        writer.save(path)
    return Filled(0 if repeated else int(seen.get["rows"]), repeated)


def _load(spark: SparkSession, source: str, format: str | None, options: dict[str, str]) -> DataFrame:
    if format is None:
        suffix = os.path.splitext(source.rstrip("/"))[1].lstrip(".").lower()
        known = {
            "parquet": "parquet",
            "json": "json",
            "jsonl": "json",
            "csv": "csv",
            "txt": "text",
            "orc": "orc",
        }
        format = known.get(suffix)
    if format is not None:
        # Spark resolves a relative path in its own directory, which need not be ours.
        here = os.path.abspath(source) if ":" not in source else source
        return spark.read.options(**options).format(format).load(here)
    if os.path.exists(source):
        raise SettingsError(
            f"the name of {source!r} does not show its format: give format= (parquet, json, csv, text)"
        )
    return spark.table(source)

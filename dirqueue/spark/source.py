"""The data source that Spark knows as `format("dirqueue")`.

Layer: edges.  Registered by the package pyspark_dirqueue, which Spark finds by its name.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from dirqueue.spark.versions import STREAMS, check_version

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from dirqueue.spark.read import Reader
    from dirqueue.spark.stream_sink import StreamWriter
    from dirqueue.spark.stream_source import StreamReader
    from dirqueue.spark.write import BatchWriter


class DefaultSource(DataSource):
    """A queue as a table. Each half is imported when it is needed: Spark looks at this class in many processes."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "dirqueue"

    def schema(self) -> StructType:
        from dirqueue.spark.columns import read_schema
        from dirqueue.spark.options import READ, SOURCE, Options
        from dirqueue.spark.pieces import columns_of

        records = Options(self._given, READ + SOURCE).flag("records", default=False)
        return read_schema(columns_of(self._given), records=records)

    def reader(self, schema: StructType) -> Reader:
        from dirqueue.spark.read import Reader

        return Reader(self._given, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from dirqueue.spark.write import BatchWriter

        return BatchWriter(self._given, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        check_version(STREAMS, "a stream of dirqueue")
        from dirqueue.spark.stream_source import StreamReader

        return StreamReader(self._given, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        check_version(STREAMS, "a stream of dirqueue")
        from dirqueue.spark.stream_sink import StreamWriter

        return StreamWriter(self._given, schema, overwrite=overwrite)

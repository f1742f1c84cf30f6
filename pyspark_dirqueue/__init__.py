"""Found by Spark by its name: makes `format("dirqueue")` work without a registration call."""

from dirqueue.spark.source import DefaultSource

__all__ = ["DefaultSource"]

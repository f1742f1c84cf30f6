"""The queue as a table whose tasks run as nobody, while the driver runs as root: executors without permission."""

import contextlib
import os

from dirqueue.spark import read, stream_source, write
from dirqueue.spark.source import DefaultSource

NOBODY = 65534


@contextlib.contextmanager
def nobody():
    """Be another user for the length of a task; the worker process goes on."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


class Reader(read.Reader):
    def read(self, partition):
        with nobody():
            yield from super().read(partition)


class Writer(write.BatchWriter):
    def write(self, iterator):
        with nobody():
            return super().write(iterator)


class StreamReader(stream_source.StreamReader):
    def read(self, partition):
        with nobody():
            yield from super().read(partition)


class Restricted(DefaultSource):
    @classmethod
    def name(cls):
        return "restricted"

    def reader(self, schema):
        return Reader(self._given, schema)

    def writer(self, schema, overwrite):
        return Writer(self._given, schema, overwrite=overwrite)

    def streamReader(self, schema):
        return StreamReader(self._given, schema)

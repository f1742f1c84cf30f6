"""A queue as the source of a stream: numbered lots of pinned messages, and the number is Spark's offset.

Layer: edges.  Touches: pins (see layouts/native/pins.py).
Invariant: a lot is sealed before its number is in Spark's log and is removed after Spark has finished it, so a
restart reads exactly the same messages. The first offset only makes the consumer known: what is pinned is always
pinned under a name that a checkpoint knows.
Crash: lots go on where they were; a checkpoint that never comes back loses its lots to purge after claimTimeout.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dirqueue.errors import DirQueueError, LeaseLost, QueueError
from dirqueue.layouts.native import Native
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.supply import Supply, claimable
from dirqueue.spark.columns import Rows, check_read
from dirqueue.spark.options import SOURCE, Options, open_queue
from dirqueue.spark.read import Lot, share

#: A checkpoint that does not come back for so long is given up: longer than any holiday of a cron job.
CLAIM_TIMEOUT = 30 * 86400.0
#: After finding nothing, wait this long, or this many times what looking took, before looking again.
LOOK_SECONDS = 0.1
LOOK_TIMES = 20


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query. Spark makes several of these: nothing is opened before it is needed."""

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        options = Options(given, SOURCE)
        check_read(schema)
        self._schema = schema
        self._queue = options.path()
        self._pieces = options.whole("numPartitions") or os.cpu_count() or 1
        self._messages = options.whole("maxMessagesPerTrigger")
        self._bytes = options.whole("maxBytesPerTrigger")
        self._keep = options.choice("ackMode", "delete", "keep") == "keep"
        self._fail = options.flag("failOnDataLoss", default=True)
        self._timeout = options.seconds("claimTimeout", CLAIM_TIMEOUT)
        #: What there was when an AvailableNow run began; None for other triggers.
        self._supply: Supply | None = None
        self._look_at = 0.0
        self._backlog: tuple[float, dict[str, Any]] = (0.0, {})
        self._beating: str | None = None
        self._lot = 0

    # --- offsets -------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"lot": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable() if self._messages is None else ReadMaxRows(self._messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        native = self._native()
        self._supply = claimable(native.directory, native.settings)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        native = self._native()
        if "consumer" not in start:
            consumer = f"stream-{uuid.uuid4().hex}"
            self._live(self._register(native, consumer))
            return {"lot": start["lot"], "consumer": consumer, "queue": self._queue}
        mine = self._pins(native, start)
        lot = self._lot = int(start["lot"])
        mine.ack_through(lot, keep=self._keep)
        if lot + 1 in mine.lots():
            return start | {"lot": lot + 1}  # CRASH: sealed, but never logged
        if time.monotonic() < self._look_at:
            return start
        began = time.monotonic()
        if mine.give_back(f"{lot + 1}.new") and self._supply is not None:
            # CRASH: it was half filled, so it was not in the queue when this run listed what there is.
            self._supply = claimable(native.directory, native.settings)
        supply = self._supply or claimable(native.directory, native.settings)
        wanted = Limit(limit.max_rows if isinstance(limit, ReadMaxRows) else self._messages, self._bytes)
        if mine.pin(lot + 1, supply, wanted, pieces=self._pieces):
            return start | {"lot": lot + 1}
        took = time.monotonic() - began
        self._look_at = time.monotonic() + max(LOOK_SECONDS, LOOK_TIMES * took)
        return start

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the backlog, shown in `lastProgress`; counted anew when counting has become cheap against time."""
        fresh_until, told = self._backlog
        began = time.monotonic()
        if began >= fresh_until:
            stats = open_queue(self._queue).queue.stats()
            oldest = stats.oldest_ready.timestamp() if stats.oldest_ready else None
            told = {
                "ready": stats.ready,
                "delayed": stats.delayed,
                "leased": stats.leased,
                "oldest_s": round(max(0.0, time.time() - oldest), 3) if oldest else 0,
            }
            took = time.monotonic() - began
            self._backlog = (time.monotonic() + max(LOOK_SECONDS, LOOK_TIMES * took), told)
        return told | {"lot": self._lot}

    def commit(self, end: dict[str, Any]) -> None:
        # Called for a batch when the next one is logged, and never for the last of an AvailableNow run: the same
        # is done in latestOffset.
        if "consumer" in end:
            self._pins(self._native(), end).ack_through(int(end["lot"]), keep=self._keep)

    # --- the consumer --------------------------------------------------------------------------------------

    def _native(self) -> Native:
        return open_queue(self._queue).native

    def _register(self, native: Native, consumer: str) -> Pins:
        about = {"host": os.uname().nodename, "pid": os.getpid(), "kind": "stream"}
        mine = Pins(native.directory, native.settings, consumer)
        mine.register(self._timeout, keep=self._keep, **about)
        return mine

    def _pins(self, native: Native, offset: dict[str, Any]) -> Pins:
        """Return the lots that a checkpoint speaks of, and keep them from being given up."""
        consumer = str(offset["consumer"])
        mine = Pins(native.directory, native.settings, consumer)
        if self._beating == consumer:
            return mine
        if not mine.known():
            self._lost(
                f"the checkpoint is of consumer {consumer} of the queue {offset.get('queue')!r}, which is unknown in "
                f"{self._queue!r}: the checkpoint belongs to another queue, or it was away for longer than "
                f"claimTimeout and its messages went back to the queue. Use the right checkpoint or a new one, or "
                f"failOnDataLoss=false to go on"
            )
            self._register(native, consumer)
        return self._live(mine)

    def _live(self, mine: Pins) -> Pins:
        """Give signs of life from now on; Spark ends the process with the query."""
        self._beating = mine.consumer
        threading.Thread(target=self._beat, args=(mine,), name="dirqueue-pins", daemon=True).start()
        return mine

    def _beat(self, mine: Pins) -> None:
        while True:
            try:
                mine.beat()
            except LeaseLost:
                return  # whoever reads or acknowledges next will be told
            except DirQueueError:
                pass  # a dead server; there is time to try again
            time.sleep(min(self._timeout / 4, 60.0))

    def _lost(self, text: str) -> None:
        if self._fail:
            raise QueueError(text, path=self._queue)
        warnings.warn(text, stacklevel=2)

    # --- data ----------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found: list[InputPartition] = []
        if "consumer" in end and int(end["lot"]) > int(start["lot"]):
            mine = self._pins(self._native(), end)
            for lot in range(int(start["lot"]) + 1, int(end["lot"]) + 1):
                try:
                    parts = mine.parts(lot)
                except LeaseLost as error:
                    self._lost(f"lot {lot} of the checkpoint is gone: {error}. failOnDataLoss=false goes on")
                    continue
                found += (Lot(self._queue, mine.consumer, some) for some in share(parts, self._pieces))
        return found or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, Lot):
            queue, opened, entries = partition.open()
            yield from Rows(self._schema, opened.layout, queue).batches(entries)

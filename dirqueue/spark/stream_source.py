"""A queue as the source of a stream: numbered lots of pinned messages, and the number is Spark's offset.

Layer: edges.  Touches: pins (see layouts/native/pins.py).
Invariant: a lot is sealed before its number is in Spark's log and is removed after Spark has finished it, so a
restart reads exactly the same messages. The offset holds how many they are, so that missing files are noticed.
Crash: a restart goes on with the lots that are there; those of a checkpoint that never comes back return to the queue
after claimTimeout. Until Spark asks for the first partitions the consumer is provisional (see consumer.py).
Limit: nobody can fence a sink. A driver that is stopped for longer than claimTimeout may write a batch whose messages
went back to the queue meanwhile; it fails at its next step, but that batch is delivered twice.
"""

from __future__ import annotations

import os
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

from dirqueue.errors import LeaseLost, QueueError
from dirqueue.layouts.native import Native
from dirqueue.layouts.native.pins import Limit, Pins
from dirqueue.layouts.native.supply import Supply
from dirqueue.spark.columns import check_read
from dirqueue.spark.consumer import TIMEOUT, Consumer, release_abandoned
from dirqueue.spark.living import living
from dirqueue.spark.options import SOURCE, Options, open_native, open_queue
from dirqueue.spark.partitions import Lot, count_pinned, gone, lots
from dirqueue.spark.read import rows
from dirqueue.spark.removal import Removal

#: A checkpoint that is away for this long is given up: longer than any holiday of a cron job.
CLAIM_TIMEOUT = 30 * 86400.0
#: After finding nothing, wait this long, or this many times as long as the listing took, before the next one.
IDLE_SECONDS = 0.1
IDLE_TIMES = 20
#: Seconds between two searches for lots of consumers that are lost, at least.
RELEASE_SECONDS = 30.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query. Spark makes several of these: nothing is opened before it is needed."""

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        options = Options(given, SOURCE)
        self._records = options.flag("records", default=False)
        check_read(schema, records=self._records)
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
        self._idle_until = 0.0
        self._release_at = 0.0
        self._backlog: tuple[float, dict[str, Any]] = (0.0, {})
        self._consumer: Consumer | None = None
        self._provisional = False
        self._lot = 0
        self._removal = Removal()

    # --- offsets -------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"lot": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable() if self._messages is None else ReadMaxRows(self._messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        # CRASH: nothing is released here. The lost consumer may be this checkpoint's own: its driver died after the
        # offset was logged and before the partitions were asked for, which Spark does now, before latestOffset.
        self._supply = living(self._native())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        native = self._native()
        lot = self._lot = int(start["lot"])
        mine = self._resume(native, start).pins if "consumer" in start else self._begin(native).pins
        self._removal.begin(mine, lot, keep=self._keep)
        if lot + 1 in mine.lots():
            # CRASH: sealed, but never logged.
            return self._offset(mine, lot + 1, count_pinned(native.directory, mine.parts(lot + 1)))
        if time.monotonic() < self._idle_until:
            return start
        began = time.monotonic()
        released = self._release(native)
        if (mine.give_back(f"{lot + 1}.new") or released) and self._supply is not None:
            # CRASH: half filled, or pinned by others, so it was not in the queue when this run listed what there is.
            self._supply = living(native)
        supply = self._supply or living(native)
        wanted = Limit(limit.max_rows if isinstance(limit, ReadMaxRows) else self._messages, self._bytes)
        if count := mine.pin(lot + 1, supply, wanted):
            return self._offset(mine, lot + 1, count)
        took = time.monotonic() - began
        self._removal.end()  # there may be no other call: an AvailableNow run is over
        self._idle_until = time.monotonic() + max(IDLE_SECONDS, IDLE_TIMES * took)
        return start

    def _release(self, native: Native) -> int:
        """Give back what lost consumers had pinned, now and then; return how many lots went back."""
        if time.monotonic() < self._release_at:
            return 0
        self._release_at = time.monotonic() + RELEASE_SECONDS
        return release_abandoned(native.directory, native.settings)

    def _offset(self, mine: Pins, lot: int, messages: int) -> dict[str, Any]:
        return {"lot": lot, "consumer": mine.consumer, "queue": self._queue, "messages": messages}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the backlog, shown in `lastProgress`. COST: counting takes at most a twentieth of the time."""
        fresh_until, backlog = self._backlog
        began = time.monotonic()
        if began >= fresh_until:
            stats = open_queue(self._queue).stats()
            oldest = stats.oldest_ready.timestamp() if stats.oldest_ready else None
            backlog = {
                "ready": stats.ready,
                "delayed": stats.delayed,
                "leased": stats.leased,
                "oldest_s": round(max(0.0, time.time() - oldest), 3) if oldest else 0,
            }
            took = time.monotonic() - began
            self._backlog = (time.monotonic() + max(IDLE_SECONDS, IDLE_TIMES * took), backlog)
        return backlog | {"lot": self._lot}

    def commit(self, end: dict[str, Any]) -> None:
        # Called for a batch when the next one is logged, and never for the last of an AvailableNow run: that one is
        # acknowledged in latestOffset.
        if "consumer" in end:
            self._removal.begin(self._resume(self._native(), end).pins, int(end["lot"]), keep=self._keep)

    # --- the consumer --------------------------------------------------------------------------------------

    def _native(self) -> Native:
        return open_native(self._queue)

    def _begin(self, native: Native) -> Consumer:
        """Return a consumer for a checkpoint that has none yet."""
        if self._consumer is not None and self._consumer.check():
            return self._consumer
        return self._register(native, f"stream-{uuid.uuid4().hex}", provisional=True)

    def _resume(self, native: Native, offset: dict[str, Any]) -> Consumer:
        """Return the consumer that a checkpoint names; QueueError if its messages went back to the queue."""
        name = str(offset["consumer"])
        consumer = self._consumer
        if consumer is not None and consumer.name == name:
            if consumer.check():
                return consumer
            self._lost(
                f"this query was stopped for longer than claimTimeout ({self._timeout:g} s), and the messages of lot "
                f"{offset['lot']} of {self._queue!r} went back to the queue: they will be delivered again, also if "
                f"this query has written them. failOnDataLoss=false goes on"
            )
        elif not Pins(native.directory, native.settings, name).known():
            self._lost(
                f"the checkpoint is of consumer {name} of the queue {offset.get('queue')!r}, which is unknown in "
                f"{self._queue!r}: the checkpoint belongs to another queue; or its messages went back to the queue, "
                f"because it was away for longer than claimTimeout, or its driver died before its first batch ran and "
                f"others took them. Use the right checkpoint or a new one, or failOnDataLoss=false to go on"
            )
        return self._register(native, name)

    def _register(self, native: Native, name: str, *, provisional: bool = False) -> Consumer:
        consumer = self._consumer
        if consumer is None or consumer.name != name:
            consumer = self._consumer = Consumer(native, name, "stream")
        timeout = min(self._timeout, TIMEOUT) if provisional else self._timeout
        consumer.register(timeout, keep=self._keep, provisional=provisional)
        self._provisional = provisional
        return consumer

    def _lost(self, text: str) -> None:
        if self._fail:
            raise QueueError(text, path=self._queue)
        warnings.warn(text, stacklevel=2)

    # --- data ----------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if "consumer" not in end or int(end["lot"]) <= int(start["lot"]):
            return [InputPartition(None)]
        native = self._native()
        mine = self._resume(native, end)
        if self._provisional:
            self._register(native, mine.name)  # Spark logs an offset before it asks for partitions
        found: list[InputPartition] = []
        for lot in range(int(start["lot"]) + 1, int(end["lot"]) + 1):
            try:
                parts = mine.pins.parts(lot)
            except LeaseLost as error:
                self._lost(f"lot {lot} of the checkpoint is gone: {error}. failOnDataLoss=false goes on")
                continue
            if lot == int(end["lot"]):
                self._check_count(native, parts, end)
            found += lots(self._queue, mine.name, parts, self._pieces, int(end.get("messages", self._pieces)))
        return found or [InputPartition(None)]

    def _check_count(self, native: Native, parts: Sequence[str], end: dict[str, Any]) -> None:
        """Report files that were removed from a sealed lot."""
        missing = int(end.get("messages", 0)) - count_pinned(native.directory, parts)
        if missing > 0:
            self._lost(str(gone(self._queue, f"{missing} of {end['messages']} messages of lot {end['lot']}")))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, Lot):
            yield from rows(partition, self._schema, records=self._records, strict=self._fail)

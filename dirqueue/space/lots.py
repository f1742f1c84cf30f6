"""A lot of pinned messages in a transaction: Spark's claims end together with what is put.

Layer: objects.  Touches: nothing; the transaction does (layouts/native/held_lots.py says what a crash leaves).
"""

from __future__ import annotations

from dirqueue import states
from dirqueue.layouts.base import Layout
from dirqueue.message import Entry
from dirqueue.space.steps import Target
from dirqueue.space.transaction import Transaction


def ack_lot(transaction: Transaction, layout: Layout, lot: str, acked: str) -> None:
    """Let a transaction acknowledge a lot, by its place in the queue and the one that it has then."""
    step = transaction._step("ack", layout, None, Entry(lot, states.READY, lot, 0), lot)  # noqa: SLF001
    target = Target(f"{step.queue}/{acked}")
    transaction._steps.append(step._replace(target=lambda *_: target))  # noqa: SLF001 - its other half

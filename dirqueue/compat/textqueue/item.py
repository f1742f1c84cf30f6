"""An item of a text queue, as textqueue 1.1 gives it.

Layer: edges.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dirqueue.errors import LeaseLost
from dirqueue.layouts.text import items
from dirqueue.layouts.text.grammar import Item
from dirqueue.lease import Lease

if TYPE_CHECKING:
    from dirqueue.compat.textqueue.queue import Input


class MessageStatus(enum.Enum):
    """What the control character says."""

    cleared = enum.auto()
    queued = enum.auto()
    comment = enum.auto()
    critical = enum.auto()


STATUS = {
    "=": MessageStatus.cleared,
    "-": MessageStatus.queued,
    "#": MessageStatus.comment,
    "!": MessageStatus.critical,
}
CONTROL = {status: control for control, status in STATUS.items()}


@dataclass
class VariableItem:
    """A variable and where its backslash is."""

    value: str
    offset: int


@dataclass
class QueueItem:
    """A message or a comment."""

    source_filename: str
    source_file: Input
    control_offset: int
    value: str
    status: MessageStatus
    _variables: list[VariableItem]
    _item: Item
    _lease: Lease[bytes] | None = None

    def mark_as_cleared(self) -> None:
        """Say in the file that it was processed."""
        self._mark(MessageStatus.cleared)

    def mark_as_critical_error(self) -> None:
        """Say in the file that it can never be processed."""
        self._mark(MessageStatus.critical)

    def _mark(self, status: MessageStatus) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            self.source_file.forget(lease)
            if status is MessageStatus.cleared:
                lease.ack()
            else:
                lease.reject("marked as a critical error")
        else:
            items.mark(self.source_file.layout, self._item, CONTROL[status])
        self._item = self._item._replace(control=CONTROL[status])
        self.status = status

    def set_variable(self, index: int, value: str) -> None:
        """Write a variable over; what is shorter is filled with spaces."""
        variable = self._variables[index]
        room = len(variable.value.encode("utf-8", "surrogateescape"))
        data = value.encode("utf-8", "surrogateescape")
        if len(data) > room:
            raise ValueError("New variable is too long")
        if b"\n" in data or b"\r" in data:
            raise ValueError("New variable has more than one line")
        if self._lease is not None and self._lease.lost:
            raise LeaseLost(
                f"cannot set a variable of {self._lease.message.id}: its lease was lost; nothing was changed",
                message_id=self._lease.message.id,
                token=self._lease.token,
                reason="gone",
            )
        data = data.ljust(room)
        items.set_variable(self.source_file.layout, self._item, index, data)
        variable.value = data.decode("utf-8", "surrogateescape")

    def get_variables(self) -> tuple[str, ...]:
        """Return the variables, with the spaces that fill them."""
        return tuple(each.value for each in self._variables)

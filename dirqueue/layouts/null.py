"""The null layout: what is put is gone, and there is never anything to get.

Layer: layouts.  Touches: nothing, except the file given to put_path, which it removes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, ClassVar

from dirqueue.disk import fs, identity
from dirqueue.layouts.base import Claim, Purged, lost
from dirqueue.layouts.description import Description, IsDirectory
from dirqueue.layouts.native import names
from dirqueue.layouts.peer import Peer, moved_on
from dirqueue.message import Entry

_NOTHING = "nothing is kept"
DESCRIPTIONS = (Description("null", "dirqueue.layouts.null", "Null"),)


def recognise(_name: str, _is_directory: IsDirectory) -> tuple[str, ...]:
    """Return nothing: this layout leaves no names."""
    return ()


class Null(Peer):
    """A black hole."""

    name: ClassVar[str] = "null"
    lacks: ClassVar[dict[str, str]] = dict.fromkeys(
        ("attempts", "dead", "done", "apart", "change", "fencing", "link", "pause", "attributes"), _NOTHING
    )

    def create(self) -> None:
        """Make nothing."""

    def put(self, data: bytes, delay: float = 0, priority: int | None = None) -> str:
        return identity.new_id()

    def put_many(
        self, bodies: Iterable[bytes], *, delay: float = 0, priority: int | None = None
    ) -> list[str]:
        return [identity.new_id() for _ in bodies]

    def put_path(
        self, path: str, *, delay: float = 0, priority: int | None = None, link: bool = False
    ) -> str:
        try:
            fs.unlink(path)
        except OSError as error:
            self._fail(f"put the file {path!r} into", error)
        return identity.new_id()

    def count(self) -> int:
        return 0

    def claim(self, seconds_: float) -> Claim | None:
        return None

    def wakes_in(self) -> float | None:
        return None

    def ack(self, held: Claim) -> None:
        raise lost(held, "ack")

    def renew(self, held: Claim, seconds_: float) -> None:
        raise lost(held, "renew")

    def retry(self, held: Claim, delay: float, error: str | None) -> None:
        raise lost(held, "retry")

    def release(self, held: Claim) -> None:
        raise lost(held, "release")

    def entry(self, held: Claim) -> Entry:
        return Entry(held.id, "leased", held.place, names.micros_of(held.id))

    def hold(self, handle: str) -> Claim:
        raise lost(Claim(str(handle)[:60], "", 0, 0, 1), "take over")

    def check_id(self, id: object) -> str:
        return names.check_id(id)

    def entries(self, states: Iterable[str] = ()) -> Iterator[Entry]:
        return iter(())

    def find(self, id: str) -> Entry | None:
        return None

    def load(self, place: str) -> bytes:
        raise moved_on(place)

    def stream(self, place: str) -> BinaryIO:
        return io.BytesIO(self.load(place))

    def size(self, place: str) -> int:
        return len(self.load(place))

    def cancel(self, entry: Entry) -> None:
        raise moved_on(entry.id)

    def remove(self, entry: Entry) -> bool:
        return False

    def purge(self, progress: Callable[[], None] | None = None) -> Purged:
        return Purged()

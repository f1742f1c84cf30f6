"""Notes of failures that go along with a transaction: beside their messages, and less than them.

Layer: objects.  Touches: ID.error beside messages.
Invariant: as everywhere, a note may be lost, never a message: nothing here fails.
"""

from __future__ import annotations

from dirqueue.disk import fs
from dirqueue.layouts.native import resolve


def write_notes(notes: tuple[tuple[str, bytes], ...], fd: int) -> None:
    """Write why messages failed, beside where they will be; a full disk must not keep them from going there."""
    for note, text in notes:
        try:
            resolve.make_rooms(note.rpartition("/")[0], fd)
            fs.replace_file(note, text, fd, sync=False)
        except OSError:
            fs.discard(f"{note}.new", fd)


def drop_notes(notes: tuple[tuple[str, bytes], ...], fd: int) -> None:
    """Remove notes of messages that did not go."""
    for note, _ in notes:
        fs.discard(note, fd)


def carry_notes(carry: tuple[tuple[str, str], ...], fd: int) -> None:
    """Take notes along with their messages, or remove them."""
    for old, new in carry:
        try:
            if new:
                fs.rename_in(old, new, fd)
            else:
                fs.unlink(old, dir_fd=fd)
        except OSError:
            pass  # the message matters more

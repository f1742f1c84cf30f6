"""A file of the user that is to become a message.

Layer: disk.  Touches: nothing; it makes the file durable.
"""

from __future__ import annotations

from stat import S_ISREG

from dirqueue.disk import fs
from dirqueue.errors import MessageTooLarge, SettingsError
from dirqueue.settings import Settings


def check_plain_file(path: str, settings: Settings, *, linked: bool = False) -> None:
    """Check that a user's file may become a message, and make it durable if the settings ask for that.

    It must be a regular file and, unless `linked`, have no second name through which it could still be written.

    Raises:
        SettingsError: it is not a regular file, or has several names.
        MessageTooLarge: it is longer than the queue's max_size.
        OSError: plain; the caller adds the context.
    """
    fd = fs.open(path, fs.READ)
    try:
        facts = fs.fstat(fd)
        if not S_ISREG(facts.st_mode):
            raise SettingsError(f"{path!r} is not a regular file: put_path moves plain files only")
        if facts.st_nlink != 1 and not linked:
            raise SettingsError(
                f"{path!r} has {facts.st_nlink} names (hard links): copy it, then put the copy"
            )
        if 0 < settings.max_size < facts.st_size:
            text = (
                f"{path!r} has {facts.st_size} bytes; this queue takes at most max_size={settings.max_size}"
            )
            raise MessageTooLarge(text, message_id="", size=facts.st_size, limit=settings.max_size)
        if settings.sync:
            fs.fsync(fd)
    finally:
        fs.close_quietly(fd)

"""A directory of tasks for programs without an event loop: the store, with a claim that waits.

Layer: edges.
"""

from __future__ import annotations

import asyncio

from dirqueue.entroq.desk import Desk
from dirqueue.entroq.store import DirectoryStore
from dirqueue.entroq.tasks import ClaimQuery, Task


class LocalStore(DirectoryStore):
    """The tasks in a directory."""

    def wait(self, query: ClaimQuery) -> Task:
        """Claim a task, waiting until there is one."""
        return self.claim(query) or asyncio.run(_wait(self.space.path, query))


async def _wait(path: str, query: ClaimQuery) -> Task:
    store = DirectoryStore(path)  # of its own: the desk closes it
    desk = Desk(store, store.watch())
    await desk.open()
    try:
        return await desk.claim(query)
    finally:
        await desk.close()

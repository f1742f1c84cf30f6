"""Tasks brought over from a running service into a store, with their ids, so that it can be done again.

Layer: edges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dirqueue.entroq.remote import Remote
from dirqueue.entroq.tasks import DependencyError, Modification, QueuesQuery, Store, TaskData, TasksQuery

#: Tasks that are read and inserted at a time.
PAGE = 100


class Copied(NamedTuple):
    """What a copy did."""

    queues: int
    tasks: int
    #: Tasks that were there already, or gone from the source since they were listed.
    skipped: int


def copy(
    source: Remote,
    target: Store | Remote,
    *,
    prefixes: Sequence[str] = (),
    exact: Sequence[str] = (),
    progress: Callable[[str, int], None] = lambda _queue, _tasks: None,
) -> Copied:
    """Insert the tasks of a service that are not in the store yet: id, queue, value, arrival, attempt and error.

    Versions and claims begin anew. What somebody holds there arrives here when that claim ends.
    """
    queues = source.queues(QueuesQuery(prefixes, exact))
    copied = skipped = 0
    for queue in queues:
        ids = [task.id for task in source.tasks(TasksQuery(queue.name, omit_values=True))]
        done = 0
        for start in range(0, len(ids), PAGE):
            page = ids[start : start + PAGE]
            done += _copy_page(source, target, queue.name, page)
            progress(queue.name, done)
        copied += done
        skipped += len(ids) - done
    return Copied(len(queues), copied, skipped)


def _copy_page(source: Remote, target: Store | Remote, queue: str, ids: Sequence[str]) -> int:
    inserts = {
        task.id: TaskData(task.queue, task.value, task.id, task.attempt, task.err, at=task.at)
        for task in source.tasks(TasksQuery(queue, ids))
    }
    while inserts:
        try:
            return len(target.modify(Modification(inserts=list(inserts.values()))).inserted)
        except DependencyError as error:
            taken = {each.id for each in error.inserts} & inserts.keys()
            if not taken:
                raise
            for id in taken:
                del inserts[id]
    return 0

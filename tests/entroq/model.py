"""EntroQ's semantics in memory, as plainly as they can be written: what every store is compared with.

A dict of tasks and a lock. Time is whatever the test says it is.
"""

import random
import threading
import time
import uuid
from dataclasses import replace

from dirqueue.entroq.tasks import (
    DependencyError,
    Mode,
    Modified,
    QueueStat,
    Task,
    TaskId,
)


def wall():
    return time.time_ns() // 1_000_000


class Model:
    """A store of tasks in memory."""

    def __init__(self, clock=wall, draw=lambda: str(uuid.uuid4())):
        self.clock, self.draw = clock, draw
        self.by_id = {}
        self.lock = threading.RLock()

    def time(self):
        return self.clock()

    def close(self):
        pass

    # --- claims

    def claim(self, query):
        query.check()
        with self.lock:
            now = self.clock()
            for queue in random.sample(query.queues, len(query.queues)):
                due = [task for task in self.by_id.values() if task.queue == queue and task.at <= now]
                if due:
                    return self.claim_this(random.choice(due).id, query, now)
        return None

    def claim_this(self, id, query, now):
        task = self.by_id[id]
        assert task.queue in query.queues, "claimed out of another queue"
        assert task.at <= now, "claimed before its time"
        return self._set(
            task,
            now,
            at=now + query.duration,
            claimant=query.claimant,
            claims=task.claims + 1,
        )

    def give_back(self, task):
        with self.lock:
            found = self.by_id.get(task.id)
            if found is not None and found.version == task.version:
                now = self.clock()
                self._set(found, now, at=now, claimant="", claims=found.claims - 1)

    def _set(self, task, now, **fields):
        new = replace(task, version=task.version + 1, modified=now, **fields)
        self.by_id[task.id] = new
        return new

    # --- modifications

    def modify(self, modification, now=None, draw=None):
        modification.check()
        draw = draw or self.draw
        with self.lock:
            now = self.clock() if now is None else now
            wrong = self._wrong(modification, now)
            if wrong:
                raise wrong
            for old in modification.deletes:
                del self.by_id[old.id]
            changed = [self._change(change, modification.claimant, now) for change in modification.changes]
            inserted = [
                self._insert(data, modification.claimant, now, draw)
                for data in modification.inserts
                if not (data.skip_colliding and data.id in self.by_id)
            ]
            return Modified(inserted, changed)

    def _wrong(self, modification, now):
        claims = []

        def absent(old):
            task = self.by_id.get(old.id)
            return task is None or task.version != old.version or old.queue not in ("", task.queue)

        def unusable(old):
            if absent(old):
                return True
            task = self.by_id[old.id]
            if task.at > now and task.claimant not in ("", modification.claimant):
                claims.append(old)
            return False

        return DependencyError(
            inserts=[
                TaskId(data.id, 0, data.queue)
                for data in modification.inserts
                if data.id in self.by_id and not data.skip_colliding
            ],
            changes=[change.old for change in modification.changes if unusable(change.old)],
            deletes=[old for old in modification.deletes if unusable(old)],
            depends=[old for old in modification.depends if absent(old)],
            claims=claims,
        )

    def _change(self, change, claimant, now):
        task, data = self.by_id[change.old.id], change.data
        at = data.arrival(now)
        fields = {"at": at, "claimant": claimant if at > now else ""}
        if change.mode is not Mode.LEASE:
            fields |= {"queue": data.queue or task.queue, "value": data.value}
            fields |= {"attempt": data.attempt, "err": data.err}
        if change.mode is Mode.RESET_CLAIMS:
            fields["claims"] = 0
        return self._set(task, now, **fields)

    def _insert(self, data, claimant, now, draw):
        task = Task(
            id=data.id or draw(),
            version=0,
            queue=data.queue,
            at=data.arrival(now),
            claimant=claimant,
            value=data.value,
            created=now,
            modified=now,
            attempt=data.attempt,
            err=data.err,
        )
        self.by_id[task.id] = task
        return task

    # --- reads

    def tasks(self, query):
        query.check()
        with self.lock:
            now = self.clock()
            if query.ids:
                found = [self.by_id[id] for id in dict.fromkeys(query.ids) if id in self.by_id]
            else:
                found = list(self.by_id.values())
            found = [
                task
                for task in found
                if query.queue in ("", task.queue)
                and (not query.claimant or task.at <= now or task.claimant == query.claimant)
            ]
            if query.limit:
                found = found[: query.limit]
        # The lock is not held across a yield: the next page may be read by another thread.
        yield from [replace(task, value=b"") if query.omit_values else task for task in found]

    def queues(self, query):
        query.check()
        with self.lock:
            now = self.clock()
            names = sorted({task.queue for task in self.by_id.values() if query.matches(task.queue)})
            return [self._stat(name, now) for name in names[: query.limit or None]]

    def _stat(self, name, now):
        tasks = [task for task in self.by_id.values() if task.queue == name]
        later = [task for task in tasks if task.at > now]
        claimed = sum(task.claims > 0 for task in later)
        return QueueStat(
            name,
            len(tasks),
            claimed,
            len(tasks) - len(later),
            len(later) - claimed,
            max(task.claims for task in tasks),
        )

    def next_arrival(self, queues):
        with self.lock:
            return min((task.at for task in self.by_id.values() if task.queue in queues), default=None)

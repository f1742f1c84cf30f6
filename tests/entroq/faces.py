"""The two compatible Python interfaces with the methods of a store, so that the same tests ask them."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

from dirqueue.compat import entroq as index
from dirqueue.entroq import values
from dirqueue.entroq.tasks import DependencyError, InvalidArgument, Mode, Modified, QueueStat, Task, TaskId

KINDS = ("inserts", "changes", "deletes", "depends", "claims")


class Index:
    """The index's client on a directory; its loop runs in a thread."""

    def __init__(self, path):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.client = index.EntroQJSON(path)

    def close(self):
        self.ask(self.client.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def ask(self, call):
        try:
            return asyncio.run_coroutine_threadsafe(call, self.loop).result()
        except index.DependencyError as error:
            found = {kind: [TaskId(t.id, t.version, t.queue) for t in getattr(error, kind)] for kind in KINDS}
            raise DependencyError(error.message, **found) from error
        except index.InvalidArgumentError as error:
            raise InvalidArgument(error.message) from error

    def time(self):
        return milliseconds(self.ask(self.client.time()))

    def claim(self, query):
        client = self.client.as_claimant(query.claimant)
        found = self.ask(client.try_claim(list(query.queues), query.duration))
        return found and self.task(found)

    def wait(self, query, timeout=30.0):
        client = self.client.as_claimant(query.claimant)
        try:
            return self.task(self.ask(client.claim(list(query.queues), query.duration, timeout_s=timeout)))
        except TimeoutError:
            return None

    def modify(self, modification):
        whole = index.Modification()
        for data in modification.inserts:
            whole.task_inserts.append(index.TaskData(**self.data(data), id=data.id or None, queue=data.queue))
        for old, data, mode in ((each.old, each.data, each.mode) for each in modification.changes):
            if mode is Mode.LEASE:
                arrival = index.TaskArrival(old.id, old.version, old.queue, data.by / 1000)
                whole.task_arrivals.append(arrival)
                continue
            change = index.TaskChange(
                old.id, old.version, data.queue, from_queue=old.queue, **self.data(data)
            )
            change.reset_claims = mode is Mode.RESET_CLAIMS
            whole.task_changes.append(change)
        whole.task_deletes += [index.TaskID(*each) for each in modification.deletes]
        whole.task_depends += [index.TaskID(*each) for each in modification.depends]
        done = self.ask(self.client.modify(whole, unsafe_claimant_id=modification.claimant))
        return Modified(
            [self.task(t) for t in done.tasks_inserted], [self.task(t) for t in done.tasks_changed]
        )

    @staticmethod
    def data(data):
        at = None if not data.by else datetime.now(UTC) + timedelta(milliseconds=data.by + 1)
        return {"value": values.to_json(data.value), "attempt": data.attempt, "err": data.err, "at": at}

    def tasks(self, query):
        if query.ids or query.claimant:
            pytest.skip("the index's client cannot ask for ids or claimants")
        found = self.ask(self.client.tasks(query.queue, query.limit, query.omit_values))
        return [self.task(each) for each in found]

    def queues(self, query):
        if len(query.prefixes) > 1 or (query.prefixes and query.exact):
            pytest.skip("the index's client takes one prefix")
        found = self.ask(self.client.queues("".join(query.prefixes), query.exact, query.limit))
        names = ("name", "num_tasks", "num_claimed", "num_available", "num_future")
        return [SameButClaims(*(each[name] for name in names)) for each in found]

    @staticmethod
    def task(found):
        return Task(
            found.id,
            found.version,
            found.queue,
            milliseconds(found.at),
            found.claimant,
            values.from_json(found.value),
            milliseconds(found.created),
            milliseconds(found.modified),
            found.claims,
            found.attempt,
            found.err,
        )


class SameButClaims(QueueStat):
    """The index's client does not tell the largest count of claims."""

    def __eq__(self, other):
        return self[:5] == other[:5]

    __hash__ = QueueStat.__hash__


def milliseconds(moment):
    return round(moment.timestamp() * 1000)


class Classic:
    """The document's Python module on a directory."""

    def __init__(self, path):
        from dirqueue.compat.entroq import classic

        self.classic, self.pb2 = classic, classic.entroq_pb2
        self.path = path
        self.clients = {}

    def client(self, claimant=""):
        if claimant not in self.clients:
            self.clients[claimant] = self.classic.EntroQ(self.path)
            self.clients[claimant].claimant_id = claimant
        return self.clients[claimant]

    def close(self):
        for client in self.clients.values():
            client.close()

    def time(self):
        return self.client().time()

    def claim(self, query):
        found = self.client(query.claimant).try_claim(list(query.queues), query.duration)
        return found and self.task(found)

    def wait(self, query, timeout=30.0):
        if timeout < 30:
            pytest.skip("a claim of the document's module waits without an end")
        return self.task(self.client(query.claimant).claim(list(query.queues), query.duration))

    def modify(self, modification):
        def id(old):
            return self.pb2.TaskID(id=old.id, version=old.version, queue=old.queue)

        def data(given):
            at = self.time() + given.by if given.by else 0
            return self.pb2.TaskData(
                queue=given.queue,
                at_ms=at,
                value=given.value,
                id=given.id,
                attempt=given.attempt,
                err=given.err,
            )

        try:
            inserted, changed = self.client(modification.claimant).modify(
                [data(each) for each in modification.inserts],
                [
                    self.pb2.TaskChange(old_id=id(each.old), new_data=data(each.data))
                    for each in modification.changes
                ],
                [id(each) for each in modification.deletes],
                [id(each) for each in modification.depends],
            )
        except self.classic.DependencyError as error:
            raise error.__cause__ from None
        return Modified([self.task(each) for each in inserted], [self.task(each) for each in changed])

    def tasks(self, query):
        found = self.client().tasks(query.queue, query.claimant, query.ids, query.limit, query.omit_values)
        return [self.task(each) for each in found]

    def queues(self, query):
        found = self.client().queues(query.prefixes, query.exact, query.limit)
        return [
            QueueStat(q.name, q.num_tasks, q.num_claimed, q.num_available, q.num_future, q.max_claims)
            for q in found
        ]

    @staticmethod
    def task(found):
        return Task(
            found.id,
            found.version,
            found.queue,
            found.at_ms,
            found.claimant_id,
            found.value,
            found.created_ms,
            found.modified_ms,
            found.claims,
            found.attempt,
            found.err,
        )

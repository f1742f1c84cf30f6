"""Clients of a service, one for each door, all with the methods of a store: so one test asks them all.

`wait` is a claim that waits; it returns None when the time is over.
"""

import concurrent.futures

import grpc
import httpx
from google.rpc import status_pb2

from dirqueue.entroq import letters, values
from dirqueue.entroq.tasks import (
    Access,
    DependencyError,
    Exhausted,
    InvalidArgument,
    Mode,
    Modified,
    PermissionDenied,
    QueueStat,
    Task,
    TaskId,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from dirqueue.entroq.wire import ACTIONS, METHODS, wire


def dependency(details):
    """Return the error that (type, id, version, queue) tell of."""
    kinds = {}
    for kind, id, version, queue in details:
        kinds.setdefault(f"{kind.lower()}s", []).append(TaskId(id, version, queue))
    return DependencyError("refused", **kinds)


class Http:
    """JSON over HTTP."""

    def __init__(self, address, token=None, protocol=2, **options):
        headers = {"entroq-protocol": str(protocol)}
        if token:
            headers["authorization"] = f"Bearer {token}"
        self.protocol = protocol
        self.http = httpx.Client(base_url=address + "/api/v0", headers=headers, timeout=30, **options)

    def close(self):
        self.http.close()

    def ask(self, method, path, timeout=30.0, **how):
        answer = self.http.request(method, path, timeout=timeout, **how)
        assert answer.headers["entroq-protocol"] == "1,2"
        body = answer.json()
        if answer.is_success:
            return body
        raise self.error(answer.status_code, body)

    @staticmethod
    def error(status, body):
        if status == 409:
            first, *details = body["details"]
            assert first["type"] == "DETAIL"
            ids = [(each["type"], each["id"]) for each in details]
            return dependency((kind, id["id"], id["version"], id["queue"]) for kind, id in ids)
        if status == 403:
            failed = [Access(each["exact"], tuple(each["actions"])) for each in body["details"]]
            return PermissionDenied(body["message"], failed=failed)
        kinds = {
            400: InvalidArgument,
            401: Unauthenticated,
            429: Exhausted,
            501: Unimplemented,
            503: Unavailable,
        }
        return kinds.get(status, AssertionError)(body["message"])

    def time(self):
        return int(self.ask("GET", "/time")["timeMs"])

    def claim(self, query):
        found = self.ask("POST", "/claim", json=self.query(query))["task"]
        return found and self.task(found)

    def wait(self, query, timeout=30.0):
        try:
            return self.task(self.ask("POST", "/claim/wait", timeout, json=self.query(query))["task"])
        except httpx.ReadTimeout:
            return None

    @staticmethod
    def query(query):
        return {
            "claimantId": query.claimant,
            "queues": list(query.queues),
            "durationMs": str(query.duration),
            "pollMs": "0",
        }

    def data(self, data):
        arrival = {"byMs": str(data.by)} if self.protocol == 2 else {"atMs": str(data.at or 0)}
        return {
            "queue": data.queue,
            "value": values.to_json(data.value),
            "id": data.id,
            "attempt": data.attempt,
            "err": data.err,
            **arrival,
        }

    def modify(self, modification):
        def key(old):
            return {"id": old.id, "version": old.version, "queue": old.queue}

        changes = []
        for change in modification.changes:
            changes.append({"oldId": key(change.old), "newData": self.data(change.data)})
            if change.mode is not Mode.DEFAULT:
                changes[-1]["mode"] = change.mode.value
        body = {
            "claimantId": modification.claimant,
            "inserts": [self.data(each) for each in modification.inserts],
            "changes": changes,
            "deletes": [key(each) for each in modification.deletes],
            "depends": [key(each) for each in modification.depends],
            "docInserts": [],
        }
        found = self.ask("POST", "/modify", json=body)
        return Modified(
            [self.task(each) for each in found["inserted"]], [self.task(each) for each in found["changed"]]
        )

    def tasks(self, query):
        parameters = {"taskId": list(query.ids)}
        if query.queue:
            parameters["queue"] = query.queue
        if query.limit:
            parameters["limit"] = query.limit
        if query.omit_values:
            parameters["omitValues"] = "true"
        if query.claimant:
            parameters["claimantId"] = query.claimant
        yield from (self.task(each) for each in self.ask("GET", "/tasks", params=parameters)["tasks"])

    def queues(self, query):
        parameters = {"matchPrefix": list(query.prefixes), "matchExact": list(query.exact)}
        if query.limit:
            parameters["limit"] = query.limit
        return [
            QueueStat(
                each["name"],
                each["numTasks"],
                each["numClaimed"],
                each["numAvailable"],
                each["numFuture"],
                each["maxClaims"],
            )
            for each in self.ask("GET", "/queues/stats", params=parameters)["queues"]
        ]

    @staticmethod
    def task(found):
        assert all(isinstance(found[name], str) for name in ("atMs", "createdMs", "modifiedMs"))
        assert set(found) == set(letters.task(Task("", 0, "", 0)))
        return Task(
            id=found["id"],
            version=found["version"],
            queue=found["queue"],
            at=int(found["atMs"]),
            claimant=found["claimantId"],
            value=values.from_json(found["value"]),
            created=int(found["createdMs"]),
            modified=int(found["modifiedMs"]),
            claims=found["claims"],
            attempt=found["attempt"],
            err=found["err"],
        )


class Grpc:
    """gRPC, with the messages of one package."""

    def __init__(self, address, package, token=None, credentials=None):
        target = address.partition("://")[2]
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channel = (
            grpc.secure_channel(target, credentials, options=options)
            if credentials
            else grpc.insecure_channel(target, options=options)
        )
        self.wire = wire(package)
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self.calls = {}
        for name, (takes, gives) in METHODS.items():
            make = self.channel.unary_stream if gives.endswith("*") else self.channel.unary_unary
            self.calls[name] = make(
                f"/{package}.EntroQ/{name}",
                getattr(self.wire, takes).SerializeToString,
                getattr(self.wire, gives.rstrip("*")).FromString,
            )

    def close(self):
        self.channel.close()

    def ask(self, name, request, timeout=30.0):
        try:
            return self.calls[name](request, timeout=timeout, metadata=self.metadata)
        except grpc.RpcError as error:
            raise self.error(error) from None

    def error(self, error):
        names = {number: name for name, number in ACTIONS.items()}
        trailing = dict(error.trailing_metadata() or ())
        details = []
        if "grpc-status-details-bin" in trailing:
            status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
            assert status.code == error.code().value[0]
            details = status.details
            assert details[0].type_url.startswith(f"type.googleapis.com/{self.wire.package}.")
        if error.code() is grpc.StatusCode.NOT_FOUND:
            deps = [self.wire.ModifyDep.FromString(each.value) for each in details]
            assert names[deps[0].type] == "DETAIL"
            return dependency((names[dep.type], dep.id.id, dep.id.version, dep.id.queue) for dep in deps[1:])
        if error.code() is grpc.StatusCode.PERMISSION_DENIED:
            deps = [self.wire.AuthzDep.FromString(each.value) for each in details]
            failed = [Access(dep.exact, tuple(names[each] for each in dep.actions)) for dep in deps[1:]]
            return PermissionDenied(error.details(), failed=failed)
        kinds = {
            grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
            grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
            grpc.StatusCode.RESOURCE_EXHAUSTED: Exhausted,
            grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
            grpc.StatusCode.UNAVAILABLE: Unavailable,
            grpc.StatusCode.DEADLINE_EXCEEDED: TimeoutError,
        }
        return kinds.get(error.code(), AssertionError)(f"{error.code()} {error.details()}")

    def time(self):
        return self.ask("Time", self.wire.TimeRequest()).time_ms

    def query(self, query):
        return self.wire.ClaimRequest(
            claimant_id=query.claimant, queues=list(query.queues), duration_ms=query.duration
        )

    def claim(self, query):
        answer = self.ask("TryClaim", self.query(query))
        return self.task(answer.task) if answer.HasField("task") else None

    def wait(self, query, timeout=30.0):
        try:
            return self.task(self.ask("Claim", self.query(query), timeout).task)
        except TimeoutError:
            return None

    def data(self, data):
        arrival = data.at if data.at is not None else self.time() + data.by if data.by else 0
        message = self.wire.TaskData(
            queue=data.queue, at_ms=arrival, id=data.id, attempt=data.attempt, err=data.err
        )
        self.value(message, data.value)
        return message

    def value(self, message, value):
        if self.wire.package == "proto":
            message.value = value
        elif value:
            self.wire._fill(message.value, value)

    def modify(self, modification):
        def key(old):
            return self.wire.TaskID(id=old.id, version=old.version, queue=old.queue)

        request = self.wire.ModifyRequest(
            claimant_id=modification.claimant,
            inserts=[self.data(each) for each in modification.inserts],
            changes=[
                self.wire.TaskChange(old_id=key(each.old), new_data=self.data(each.data))
                for each in modification.changes
            ],
            deletes=[key(each) for each in modification.deletes],
            depends=[key(each) for each in modification.depends],
        )
        answer = self.ask("Modify", request)
        return Modified(
            [self.task(each) for each in answer.inserted], [self.task(each) for each in answer.changed]
        )

    def tasks(self, query):
        request = self.wire.TasksRequest(
            claimant_id=query.claimant,
            queue=query.queue,
            limit=query.limit,
            task_id=list(query.ids),
            omit_values=query.omit_values,
        )
        whole = [self.task(each) for each in self.ask("Tasks", request).tasks]
        try:
            pages = list(self.calls["StreamTasks"](request, timeout=30, metadata=self.metadata))
        except grpc.RpcError as error:
            raise self.error(error) from None
        assert [self.task(task).id for page in pages for task in page.tasks] == [task.id for task in whole]
        yield from whole

    def queues(self, query):
        request = self.wire.QueuesRequest(
            match_prefix=list(query.prefixes), match_exact=list(query.exact), limit=query.limit
        )
        return [
            QueueStat(
                each.name,
                each.num_tasks,
                each.num_claimed,
                each.num_available,
                each.num_future,
                each.max_claims,
            )
            for each in self.ask("QueueStats", request).queues
        ]

    def task(self, found):
        value = found.value if self.wire.package == "proto" else self.wire._bytes(found)
        return Task(
            id=found.id,
            version=found.version,
            queue=found.queue,
            at=found.at_ms,
            claimant=found.claimant_id,
            value=value,
            created=found.created_ms,
            modified=found.modified_ms,
            claims=found.claims,
            attempt=found.attempt,
            err=found.err,
        )


#: By name, what makes a client of a running service.
DOORS = {
    "http": lambda addresses, **how: Http(addresses.http, **how),
    "proto": lambda addresses, **how: Grpc(addresses.grpc, "proto", **how),
    "api": lambda addresses, **how: Grpc(addresses.grpc, "api", **how),
}


def later(call, *arguments, **how):
    """Run a call beside the test; return its future."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    future = pool.submit(call, *arguments, **how)
    pool.shutdown(wait=False)
    return future

"""The messages of EntroQ's gRPC, built at run time from one table of field numbers.

There are two packages with the same numbers: `proto`, whose values are bytes, and `api`, whose values are JSON
(google.protobuf.Value). The classes live in a pool of their own, beside whatever stubs a process may have loaded.

Layer: edges.  Pure values, no I/O.
"""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, struct_pb2

from dirqueue.entroq import values
from dirqueue.entroq.tasks import (
    DURATION,
    Access,
    Change,
    ClaimQuery,
    DependencyError,
    Modification,
    Modified,
    QueuesQuery,
    QueueStat,
    Task,
    TaskData,
    TaskId,
    TasksQuery,
)

#: What is done with a task, as a number.
ACTIONS = {"CLAIM": 0, "DELETE": 1, "CHANGE": 2, "DEPEND": 3, "DETAIL": 4, "INSERT": 5, "READ": 6}

#: Messages: for each field its number, name and type; `*` is a list, `VALUE` what a value is in the package.
MESSAGES = {
    "TaskID": "1 id string, 2 version int32, 3 queue string",
    "TaskData": "1 queue string, 2 at_ms int64, 3 value VALUE, 4 id string, 5 attempt int32, 6 err string",
    "TaskChange": "1 old_id TaskID, 2 new_data TaskData",
    "Task": "1 queue string, 2 id string, 3 version int32, 4 at_ms int64, 5 claimant_id string, 6 value VALUE, "
    "7 created_ms int64, 8 modified_ms int64, 9 claims int32, 10 attempt int32, 11 err string",
    "QueueStats": "1 name string, 2 num_tasks int32, 3 num_claimed int32, 4 num_available int32, 5 max_claims int32, "
    "6 num_future int32",
    "ClaimRequest": "1 claimant_id string, 2 queues string*, 3 duration_ms int64, 4 poll_ms int64",
    "ClaimResponse": "1 task Task",
    "ModifyRequest": "1 claimant_id string, 2 inserts TaskData*, 3 changes TaskChange*, 4 deletes TaskID*, "
    "5 depends TaskID*",
    "ModifyResponse": "1 inserted Task*, 2 changed Task*",
    "ModifyDep": "1 type ActionType, 2 id TaskID, 3 msg string",
    "AuthzDep": "1 actions ActionType*, 2 exact string, 3 prefix string, 4 msg string",
    "TasksRequest": "1 claimant_id string, 2 queue string, 3 limit int32, 4 task_id string*, 5 omit_values bool",
    "TasksResponse": "1 tasks Task*",
    "QueuesRequest": "1 match_prefix string*, 2 match_exact string*, 3 limit int32",
    "QueuesResponse": "1 queues QueueStats*",
    "TimeRequest": "",
    "TimeResponse": "1 time_ms int64",
}
#: Methods: what each takes and gives; `*` is a stream.
METHODS = {
    "TryClaim": ("ClaimRequest", "ClaimResponse"),
    "Claim": ("ClaimRequest", "ClaimResponse"),
    "Modify": ("ModifyRequest", "ModifyResponse"),
    "Tasks": ("TasksRequest", "TasksResponse"),
    "StreamTasks": ("TasksRequest", "TasksResponse*"),
    "Queues": ("QueuesRequest", "QueuesResponse"),
    "QueueStats": ("QueuesRequest", "QueuesResponse"),
    "Time": ("TimeRequest", "TimeResponse"),
}
PACKAGES = ("proto", "api")

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "bool": _Field.TYPE_BOOL,
}


class Wire:
    """The messages of one package, and what they say."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._value = "bytes" if package == "proto" else "google.protobuf.Value"
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
        pool.Add(self._file())
        self._classes: dict[str, Any] = {
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
            for name in MESSAGES
        }

    def __getattr__(self, name: str) -> Any:
        try:
            return self._classes[name]
        except KeyError:
            raise AttributeError(name) from None

    def _file(self) -> descriptor_pb2.FileDescriptorProto:
        file = descriptor_pb2.FileDescriptorProto(
            name=f"dirqueue/{self.package}/entroq.proto", package=self.package, syntax="proto3"
        )
        file.dependency.append(struct_pb2.DESCRIPTOR.name)
        actions = file.enum_type.add(name="ActionType")
        for name, number in ACTIONS.items():
            actions.value.add(name=name, number=number)
        for name, described in MESSAGES.items():
            message = file.message_type.add(name=name)
            for each in described.split(", ") if described else ():
                number_, field, kind = each.split(" ")
                self._add(message, int(number_), field, kind)
        return file

    def _add(self, message: descriptor_pb2.DescriptorProto, number: int, name: str, kind: str) -> None:
        label = _Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
        kind = kind.rstrip("*")
        kind = self._value if kind == "VALUE" else kind
        field = message.field.add(name=name, number=number, label=label)
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
            return
        field.type = _Field.TYPE_ENUM if kind == "ActionType" else _Field.TYPE_MESSAGE
        field.type_name = f".{kind}" if "." in kind else f".{self.package}.{kind}"

    # --- requests ------------------------------------------------------------------------------------------

    def claim_query(self, request: Any) -> ClaimQuery:
        """Read a claim."""
        return ClaimQuery(
            list(dict.fromkeys(request.queues)), request.claimant_id, request.duration_ms or DURATION
        )

    def modification(self, request: Any) -> Modification:
        """Read a modification."""
        return Modification(
            claimant=request.claimant_id,
            inserts=[self._data(each) for each in request.inserts],
            changes=[
                Change(_task_id(each.old_id), self._data(each.new_data, each.old_id.queue))
                for each in request.changes
            ],
            deletes=[_task_id(each) for each in request.deletes],
            depends=[_task_id(each) for each in request.depends],
        )

    def tasks_query(self, request: Any) -> TasksQuery:
        """Read a listing of tasks."""
        return TasksQuery(
            queue=request.queue,
            ids=list(request.task_id),
            limit=request.limit,
            omit_values=request.omit_values,
            claimant=request.claimant_id,
        )

    def queues_query(self, request: Any) -> QueuesQuery:
        """Read a listing of queues."""
        return QueuesQuery(list(request.match_prefix), list(request.match_exact), request.limit)

    def _data(self, data: Any, queue: str = "") -> TaskData:
        return TaskData(
            queue=data.queue or queue,
            value=self._bytes(data),
            id=data.id,
            attempt=data.attempt,
            err=data.err,
            at=data.at_ms if data.at_ms > 0 else None,
        )

    def _bytes(self, data: Any) -> bytes:
        """Return a value as it is stored."""
        if self.package == "proto":
            return bytes(data.value)
        return values.from_json(_plain(data.value)) if data.HasField("value") else b""

    # --- answers -------------------------------------------------------------------------------------------

    def task(self, task: Task) -> Any:
        """Write a task."""
        message = self.Task(
            queue=task.queue,
            id=task.id,
            version=task.version,
            at_ms=task.at,
            claimant_id=task.claimant,
            created_ms=task.created,
            modified_ms=task.modified,
            claims=task.claims,
            attempt=task.attempt,
            err=task.err,
        )
        if self.package == "proto":
            message.value = task.value
        elif task.value:
            self._fill(message.value, task.value)
        return message

    def _fill(self, target: Any, value: bytes) -> None:
        try:
            json_format.ParseDict(values.to_json(value), target)
        except (json_format.ParseError, RecursionError):  # nested deeper than any client reads
            target.Clear()
            json_format.ParseDict(values.as_bytes(value), target)

    def modified(self, modified: Modified, claimant: str) -> Any:
        """Write what came of a modification. COMPAT: clients of `proto` are told that they hold what they released."""
        answer = self.ModifyResponse(inserted=[self.task(each) for each in modified.inserted])
        for each in modified.changed:
            message = self.task(each)
            if self.package == "proto" and not message.claimant_id:
                message.claimant_id = claimant
            answer.changed.append(message)
        return answer

    def stat(self, stat: QueueStat) -> Any:
        """Write how full a queue is."""
        return self.QueueStats(
            name=stat.name,
            num_tasks=stat.size,
            num_claimed=stat.claimed,
            num_available=stat.available,
            num_future=stat.future,
            max_claims=stat.max_claims,
        )

    def dependency(self, error: DependencyError) -> list[Any]:
        """Write what was in the way of a modification: first a sentence, then each task."""
        details = [self.ModifyDep(type=ACTIONS["DETAIL"], msg=error.text)]
        for what, old in error.details():
            task_id = self.TaskID(id=old.id, version=old.version, queue=old.queue)
            details.append(self.ModifyDep(type=ACTIONS[what], id=task_id))
        return details

    def denied(self, failed: list[Access], text: str) -> list[Any]:
        """Write what was not allowed: first a sentence, then each queue."""
        details = [self.AuthzDep(actions=[ACTIONS["DETAIL"]], msg=text)]
        for each in failed:
            actions = [ACTIONS[action] for action in each.actions if action in ACTIONS]
            details.append(self.AuthzDep(exact=each.queue, actions=actions))
        return details


def _plain(value: Any) -> Any:
    """Return what a google.protobuf.Value says; a number without a fraction is a whole one, as others write it."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return {name: _plain(each) for name, each in value.struct_value.fields.items()}
    if kind == "list_value":
        return [_plain(each) for each in value.list_value.values]
    if kind == "number_value":
        number = value.number_value
        return int(number) if number.is_integer() and abs(number) < 2**53 else number
    return getattr(value, kind) if kind in ("string_value", "bool_value") else None


def _task_id(message: Any) -> TaskId:
    return TaskId(message.id, message.version, message.queue)


@functools.cache
def wire(package: str) -> Wire:
    """Return the messages of a package, made once."""
    return Wire(package)

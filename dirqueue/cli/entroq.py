"""The verb `entroq`: tasks as EntroQ's `eqc` shows and changes them, in a directory or at a service.

Layer: edges.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dirqueue.cli import entroq_service, output
from dirqueue.cli.arguments import VARIABLE, at_least_0, path_of, seconds, verb, whole
from dirqueue.cli.exits import Exit
from dirqueue.errors import QueueNotFound, SettingsError

if TYPE_CHECKING:
    from dirqueue.entroq.remote import Remote
    from dirqueue.entroq.tasks import DependencyError, QueueStat, Task

#: Seconds between two tries to remove a task that somebody holds.
PAUSE = 3.0
#: Tasks that `clear --force` lists and removes at a time.
PAGE = 100


def add(subparsers: Any) -> None:
    """Add the verb and its own verbs."""
    parser = verb(
        subparsers,
        "entroq",
        _nothing,
        "work on tasks as EntroQ's eqc does, or serve them: ins, claim, ts, qs, mod, rm, clear, time, copy, serve",
        description="Tasks are printed as JSON, one per line, in the words of eqc.",
        queue=False,
    )
    _add_address(parser)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    _add_ins(verbs)
    _add_claim(verbs)
    _add_lists(verbs)
    _add_changes(verbs)
    parser = _verb(verbs, "time", show_time, "print the time of the store")
    parser.add_argument("-m", "--millis", action="store_true", help="as milliseconds since 1970")
    parser.add_argument("-l", "--local", action="store_true", help="as local time")
    _add_copy(verbs)
    entroq_service.add(verbs)


def _nothing(_args: argparse.Namespace) -> int:
    raise AssertionError  # argparse asks for one of the verbs


def _verb(
    verbs: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    help: str,
    description: str = "",
    *,
    creates: bool = False,
) -> argparse.ArgumentParser:
    parser = verb(verbs, name, run, help, description=description, queue=False, creates=creates)
    _add_address(parser, default=argparse.SUPPRESS)
    return parser


def _add_address(parser: argparse.ArgumentParser, **default: Any) -> None:
    """Add what says where the tasks are: before the verb, as eqc has it, or after it."""
    parser.add_argument(
        "-s",
        "--svcaddr",
        metavar="SPACE",
        help=f"a directory, or http[s]://HOST:PORT or grpc[s]://HOST:PORT (default ${VARIABLE})",
        **default,
    )
    parser.add_argument(
        "-j", "--json", action="store_true", help="values are JSON (default: base64)", **default
    )
    parser.add_argument("-S", "--secure", action="store_true", help="speak TLS with the service", **default)
    parser.add_argument(
        "--authz_token", metavar="TEXT", help="the token that the service asks for", **default
    )


def _add_ins(verbs: Any) -> None:
    parser = _verb(verbs, "ins", insert, "insert tasks and print them", creates=True)
    parser.add_argument("-q", "--queue", required=True, metavar="QUEUE", help="the queue")
    parser.add_argument(
        "-v",
        "--val",
        action="append",
        metavar="TEXT",
        help="a value; once for each task (default: one, empty)",
    )
    parser.add_argument("--id", default="", metavar="ID", help="an id of your own, for one task")
    parser.add_argument(
        "--in",
        dest="delay",
        type=seconds,
        default=0,
        metavar="TIME",
        help="when it can be claimed (default: now)",
    )


def _add_claim(verbs: Any) -> None:
    parser = _verb(verbs, "claim", claim, "claim a task and print it, waiting until there is one")
    parser.add_argument(
        "-q", "--queue", action="append", required=True, metavar="QUEUE", help="a queue; may be repeated"
    )
    parser.add_argument("--try", dest="once", action="store_true", help="do not wait: there may be no task")
    parser.add_argument(
        "-d", "--duration", type=seconds, default=30, metavar="TIME", help="how long it is held (default 30s)"
    )


def _add_lists(verbs: Any) -> None:
    parser = _verb(verbs, "ts", tasks, "print the tasks of a queue, or those of some ids")
    parser.add_argument("-q", "--queue", default="", metavar="QUEUE", help="the queue (default: any, by id)")
    parser.add_argument(
        "-t", "--task", action="append", default=[], metavar="ID", help="an id; may be repeated"
    )
    parser.add_argument(
        "-n", "--limit", type=at_least_0, default=0, metavar="N", help="at most N (default: all)"
    )
    parser.add_argument("-V", "--omit_values", action="store_true", help="without values")
    parser = _verb(verbs, "qs", queues, "print how many tasks each queue has")
    parser.add_argument(
        "-p",
        "--prefix",
        action="append",
        default=[],
        metavar="TEXT",
        help="names that begin so; may be repeated",
    )
    parser.add_argument(
        "-q", "--queue", action="append", default=[], metavar="QUEUE", help="this name; may be repeated"
    )
    parser.add_argument(
        "-n", "--limit", type=at_least_0, default=0, metavar="N", help="at most N (default: all)"
    )


def _add_changes(verbs: Any) -> None:
    at_your_risk = "Whatever version it is at: for people, not for workers."
    parser = _verb(verbs, "mod", modify, "change a task and print it", at_your_risk)
    parser.add_argument("-t", "--task", required=True, metavar="ID", help="the task")
    parser.add_argument("-Q", "--queue_to", default="", metavar="QUEUE", help="the queue to move it to")
    parser.add_argument("-v", "--val", metavar="TEXT", help="its new value")
    parser.add_argument("-r", "--reset", action="store_true", help="forget its attempts and its error")
    parser.add_argument("-f", "--force", action="store_true", help="even if somebody holds it")
    parser = _verb(verbs, "rm", remove, "remove a task and print it", at_your_risk)
    parser.add_argument("-t", "--task", required=True, metavar="ID", help="the task")
    parser.add_argument("-f", "--force", action="store_true", help="even if somebody holds it")
    parser.add_argument(
        "-r", "--retries", type=whole, default=10, metavar="N", help="tries while it is held (default 10)"
    )
    parser = _verb(
        verbs,
        "clear",
        clear,
        "remove all tasks of a queue",
        "Those that somebody holds, or that cannot be claimed yet, stay unless it is forced: exit status 1.",
    )
    parser.add_argument("-q", "--queue", required=True, metavar="QUEUE", help="the queue")
    parser.add_argument("-f", "--force", action="store_true", help="also what somebody holds")


def _add_copy(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "copy",
        copy,
        "bring the tasks of a running EntroQ over",
        "With their ids: what is there already is skipped, so that it can be run again. Versions and claims begin "
        "anew. Stop the workers there first: what they finish meanwhile is here too.",
        creates=True,
    )
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="ADDRESS",
        help="HOST:PORT for gRPC, or http://HOST:PORT",
    )
    parser.add_argument(
        "-p",
        "--prefix",
        action="append",
        default=[],
        metavar="TEXT",
        help="queues that begin so (default: all)",
    )
    parser.add_argument(
        "-q", "--queue", action="append", default=[], metavar="QUEUE", help="this queue; may be repeated"
    )


# --- the store ---------------------------------------------------------------------------------------------


def _open(args: argparse.Namespace, *, create: bool = False) -> Any:
    """Return the store that is meant, with the methods of a Remote; a directory must be there unless `create`."""
    where = args.svcaddr or os.environ.get(VARIABLE)
    if not where:
        raise SettingsError(f"say which directory or service is meant: -s SPACE, or set ${VARIABLE}")
    if "://" in where:
        return _connect(where, args)
    from dirqueue.entroq.local import LocalStore
    from dirqueue.tools import discover

    path = path_of(args.svcaddr) if args.svcaddr else where
    if not create and not os.path.lexists(path):
        raise QueueNotFound(f"there is no directory {path!r}: `dirqueue entroq ins` makes it", path=path)
    discover.need_space(path)
    return LocalStore(path)


def _connect(address: str, args: argparse.Namespace) -> Remote:
    from dirqueue.entroq import remote

    if address.startswith("grpc"):
        entroq_service.need("grpc", "google.protobuf")
    return remote.connect(address, token=args.authz_token, secure=args.secure)


# --- the verbs ---------------------------------------------------------------------------------------------


def insert(args: argparse.Namespace) -> int:
    """Insert tasks."""
    from dirqueue.entroq.tasks import Modification, TaskData

    given = args.val or [""]
    if args.id and len(given) > 1:
        raise SettingsError(f"--id names one task, and there are {len(given)} values")
    inserts = [
        TaskData(args.queue, os.fsencode(value), args.id, by=int(args.delay * 1000)) for value in given
    ]
    store = _open(args, create=True)
    try:
        _print(store.modify(Modification(_me(), inserts=inserts)).inserted, args)
    finally:
        store.close()
    return Exit.OK


def claim(args: argparse.Namespace) -> int:
    """Claim one task."""
    from dirqueue.entroq.tasks import ClaimQuery

    query = ClaimQuery(list(dict.fromkeys(args.queue)), _me(), int(args.duration * 1000))
    store = _open(args, create=True)
    try:
        task = store.claim(query) if args.once else store.wait(query)
    finally:
        store.close()
    if task is None:
        output.complain("no task")  # as eqc: not an error
        return Exit.OK
    _print([task], args)
    return Exit.OK


def tasks(args: argparse.Namespace) -> int:
    """List tasks."""
    from dirqueue.entroq.tasks import TasksQuery

    query = TasksQuery(args.queue, args.task, args.limit, args.omit_values)
    query.check()
    store = _open(args)
    try:
        _print(store.tasks(query), args)
    finally:
        store.close()
    return Exit.OK


def queues(args: argparse.Namespace) -> int:
    """List queues."""
    from dirqueue.entroq.tasks import QueuesQuery

    store = _open(args)
    try:
        found: list[QueueStat] = store.queues(QueuesQuery(args.prefix, args.queue, args.limit))
    finally:
        store.close()
    for each in found:
        fields = each._asdict()
        fields["maxClaims"] = fields.pop("max_claims")
        output.line(json.dumps(fields))
    return Exit.OK


def modify(args: argparse.Namespace) -> int:
    """Change one task, whatever version it is at."""
    from dirqueue.entroq.tasks import Change, Modification, TaskData

    store = _open(args)
    try:
        task = _find(store, args.task)
        data = TaskData(
            args.queue_to or task.queue,
            task.value if args.val is None else os.fsencode(args.val),
            attempt=0 if args.reset else task.attempt,
            err="" if args.reset else task.err,
        )
        who = task.claimant if args.force else _me()
        _print(store.modify(Modification(who, changes=[Change(task.key, data)])).changed, args)
    finally:
        store.close()
    return Exit.OK


def remove(args: argparse.Namespace) -> int:
    """Remove one task, whatever version it is at."""
    from dirqueue.entroq.tasks import DependencyError, Modification

    store = _open(args)
    try:
        for left in reversed(range(args.retries)):
            task = _find(store, args.task)
            try:
                store.modify(Modification(task.claimant if args.force else _me(), deletes=[task.key]))
            except DependencyError as error:
                if not left:
                    raise
                output.complain(f"{_reason(error)}; tried again, {left} times at most")
                time.sleep(PAUSE)
                continue
            _print([task], args)
            break
    finally:
        store.close()
    return Exit.OK


def clear(args: argparse.Namespace) -> int:
    """Remove all tasks of a queue."""
    from dirqueue.entroq.tasks import QueuesQuery

    store = _open(args)
    try:
        removed = _clear_all(store, args.queue) if args.force else _clear_free(store, args.queue)
        left = sum(each.size for each in store.queues(QueuesQuery(exact=[args.queue])))
    finally:
        store.close()
    if left:
        output.complain(
            f"removed {removed}; {left} are held, or cannot be claimed yet: --force removes them too"
        )
        return Exit.FAILED
    return Exit.OK


def _clear_free(store: Any, queue: str) -> int:
    """Claim and delete what can be claimed; at most as many as there were, since others may go on inserting."""
    from dirqueue.entroq.tasks import ClaimQuery, Modification, QueuesQuery

    query = ClaimQuery([queue], _me())
    removed = 0
    for _ in range(sum(each.size for each in store.queues(QueuesQuery(exact=[queue])))):
        task = store.claim(query)
        if task is None:
            break
        store.modify(Modification(query.claimant, deletes=[task.key]))
        removed += 1
    return removed


def _clear_all(store: Any, queue: str) -> int:
    """Delete what there is, as whoever holds it."""
    from dirqueue.entroq.tasks import Modification, TasksQuery

    found = list(store.tasks(TasksQuery(queue, omit_values=True)))
    holders: dict[str, list[Any]] = {}
    for task in found:
        holders.setdefault(task.claimant, []).append(task.key)
    for holder, keys in holders.items():
        for start in range(0, len(keys), PAGE):
            store.modify(Modification(holder, deletes=keys[start : start + PAGE]))
    return len(found)


def show_time(args: argparse.Namespace) -> int:
    """Print the time."""
    store = _open(args)
    try:
        now = store.time()
    finally:
        store.close()
    moment = datetime.fromtimestamp(now / 1000, UTC)
    output.line(str(now) if args.millis else _instant(moment.astimezone() if args.local else moment))
    return Exit.OK


def copy(args: argparse.Namespace) -> int:
    """Bring tasks over."""
    from dirqueue.entroq import remote, transfer

    address = args.source if remote.is_address(args.source) else f"grpc://{args.source}"
    source = _connect(address, args)
    try:
        target = _open(args, create=True)
        try:
            done = transfer.copy(source, target, prefixes=args.prefix, exact=args.queue)
        finally:
            target.close()
    finally:
        source.close()
    output.line(json.dumps(done._asdict()))
    return Exit.OK


# --- helpers -----------------------------------------------------------------------------------------------


def _me() -> str:
    """Return who claims: a UUID, since the clients of the document read it as one."""
    import uuid

    return str(uuid.uuid4())


def _find(store: Any, id: str) -> Task:
    from dirqueue.entroq.tasks import EntroqError, TasksQuery

    for task in store.tasks(TasksQuery(ids=[id])):
        found: Task = task
        return found
    raise EntroqError(f"there is no task {id!r:.80}")


def _reason(error: DependencyError) -> str:
    if error.claims:
        return f"task {error.claims[0].id} is held by another claimant"
    return str(error)


def _print(found: Any, args: argparse.Namespace) -> None:
    """Print tasks in the words of eqc."""
    from dirqueue.entroq import values

    for task in found:
        value = values.to_json(task.value) if args.json else base64.b64encode(task.value).decode()
        fields = {
            "queue": task.queue,
            "id": task.id,
            "version": task.version,
            "at": _moment(task.at),
            "claimant": task.claimant,
            "claims": task.claims,
            "value": value,
            "created": _moment(task.created),
            "modified": _moment(task.modified),
            "attempt": task.attempt,
            "err": task.err,
        }
        output.line(json.dumps(fields))


def _moment(milliseconds: int) -> str:
    return _instant(datetime.fromtimestamp(milliseconds / 1000, UTC))


def _instant(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

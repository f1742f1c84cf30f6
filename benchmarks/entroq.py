"""EntroQ's cycle, claim and modify, through the service and beside EntroQ's own procedures on PostgreSQL.

    python benchmarks/entroq.py                        in the working directory, durable; about two minutes
    python benchmarks/entroq.py --on /dev/shm --loose  without fsync, both

One cycle is two requests: claim a task; delete it and insert the next in one modification. So the queue keeps its
length. 1, 8 and 64 clients, each with a connection of its own, in up to four processes, all on one machine: the clients
take their part of the processors. Where PostgreSQL is installed a server of its own is started beside the space, on a
socket, with EntroQ's stored procedures as `entroq` 0.13.1 brings them. Requests a second are two for each cycle; the
latencies are of a whole cycle. "directory" is the store without a service, in the clients' own processes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dirqueue.entroq.serve import Addresses, Options, run
from dirqueue.entroq.store import DirectoryStore
from dirqueue.entroq.tasks import ClaimQuery, Modification, TaskData

CLIENTS = (1, 8, 64)
PROCESSES = 4
TASKS = 500
VALUE = {"text": "x" * 100}

#: One cycle of one client; returns whether it got a task.
Cycle = Callable[[], bool]


# --- the systems: each makes the cycle of one client -------------------------------------------------------


def over_http(where: str, name: str) -> Cycle:
    host, port = where.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port))
    headers = {"Content-Type": "application/json", "entroq-protocol": "2"}

    def ask(path: str, body: Any) -> Any:
        connection.request("POST", f"/api/v0{path}", json.dumps(body), headers)
        return json.loads(connection.getresponse().read())

    def cycle() -> bool:
        task = ask("/claim", {"claimantId": name, "queues": ["bench"], "durationMs": "60000"})["task"]
        if task is None:
            return False
        key = {"id": task["id"], "version": task["version"], "queue": "bench"}
        new = {"queue": "bench", "value": task["value"]}
        done = ask("/modify", {"claimantId": name, "deletes": [key], "inserts": [new]})
        assert done["inserted"], done
        return True

    return cycle


def over_grpc(where: str, name: str) -> Cycle:
    import grpc

    from dirqueue.entroq.wire import wire

    proto = wire("proto")
    # Else all channels of a process would share one connection.
    channel = grpc.insecure_channel(where.removeprefix("grpc://"), [("grpc.use_local_subchannel_pool", 1)])
    claim = channel.unary_unary(
        "/proto.EntroQ/TryClaim", proto.ClaimRequest.SerializeToString, proto.ClaimResponse.FromString
    )
    modify = channel.unary_unary(
        "/proto.EntroQ/Modify", proto.ModifyRequest.SerializeToString, proto.ModifyResponse.FromString
    )

    def cycle() -> bool:
        answer = claim(proto.ClaimRequest(claimant_id=name, queues=["bench"], duration_ms=60_000))
        if not answer.HasField("task"):
            return False
        task = answer.task
        modify(
            proto.ModifyRequest(
                claimant_id=name,
                deletes=[proto.TaskID(id=task.id, version=task.version, queue="bench")],
                inserts=[proto.TaskData(queue="bench", value=task.value)],
            )
        )
        return True

    return cycle


_stores: dict[str, DirectoryStore] = {}


def in_directory(where: str, name: str) -> Cycle:
    path, sync = where.rsplit("?", 1)
    store = _stores.setdefault(where, DirectoryStore(path, sync=sync == "sync"))

    def cycle() -> bool:
        task = store.claim(ClaimQuery(["bench"], name, 60_000))
        if task is None:
            return False
        store.modify(Modification(name, deletes=[task.key], inserts=[TaskData("bench", task.value)]))
        return True

    return cycle


def in_postgres(where: str, name: str) -> Cycle:
    import psycopg

    connection = psycopg.connect(where, autocommit=True)

    def cycle() -> bool:
        row = connection.execute(
            "SELECT id, version, value FROM entroq.try_claim(%s, %s, interval '60 seconds')",
            (["bench"], name),
        ).fetchone()
        if row is None:
            return False
        id, version, value = row
        connection.execute(
            "SELECT count(*) FROM entroq.modify(%s, '[]', %s, %s, '[]')",
            (
                name,
                json.dumps([{"id": id, "version": version, "queue": "bench"}]),
                json.dumps([{"queue": "bench", "value": value}]),
            ),
        )
        return True

    return cycle


SYSTEMS = {"HTTP": over_http, "gRPC": over_grpc, "directory": in_directory, "PostgreSQL": in_postgres}


# --- measuring ---------------------------------------------------------------------------------------------


def work(system: str, where: str, numbers: list[int], seconds: float, pipe: Any) -> None:
    """Run some clients as threads of one process; send how long each cycle took."""
    cycles = [SYSTEMS[system](where, f"client-{number}") for number in numbers]
    took: list[list[float]] = [[] for _ in numbers]
    pipe.send("ready")
    pipe.recv()
    end = time.perf_counter() + seconds

    def client(place: int) -> None:
        cycle, mine = cycles[place], took[place]
        while (began := time.perf_counter()) < end:
            if cycle():
                mine.append(time.perf_counter() - began)

    threads = [threading.Thread(target=client, args=(place,)) for place in range(len(numbers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send([each for mine in took for each in mine])


def measure(system: str, where: str, clients: int, seconds: float) -> tuple[float, float, float]:
    """Return requests a second, and the median and the 99th percentile of a cycle in milliseconds."""
    count = min(clients, PROCESSES)
    context = multiprocessing.get_context("spawn")
    running = []
    for number in range(count):
        ours, theirs = context.Pipe()
        numbers = list(range(number, clients, count))
        process = context.Process(target=work, args=(system, where, numbers, seconds, theirs))
        process.start()
        running.append((ours, process))
    for ours, _ in running:
        ours.recv()
    for ours, _ in running:
        ours.send("go")
    took = sorted(each for ours, _ in running for each in ours.recv())
    for _, process in running:
        process.join()
    return (
        2 * len(took) / seconds,
        took[len(took) // 2] * 1000,
        took[min(len(took) - 1, len(took) * 99 // 100)] * 1000,
    )


def serve(path: str, pipe: Any, loose: bool) -> None:
    if loose:
        import functools

        from dirqueue.entroq import store

        store.DirectoryStore = functools.partial(store.DirectoryStore, sync=False)  # type: ignore[misc, assignment]
    run(path, Options(http="127.0.0.1:0", grpc="127.0.0.1:0"), pipe.send)


class Postgres:
    """A server of its own, in a directory."""

    def __init__(self, root: Path, *, loose: bool) -> None:
        self._bin = max(Path("/usr/lib/postgresql").glob("*/bin"))
        self._data, self._socket = root / "pg", Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        self._data.mkdir()
        for folder in (root, self._data, self._socket):
            if os.geteuid() == 0:
                shutil.chown(folder, "postgres")
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "postgres")
        fsync = "off" if loose else "on"
        options = f"-k {self._socket} -c listen_addresses='' -c fsync={fsync} -c max_connections=100"
        self._run(
            "pg_ctl", "-D", str(self._data), "-w", "-l", str(self._data / "log"), "-o", options, "start"
        )
        self.url = f"host={self._socket} user=postgres dbname=postgres"

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), *arguments]
        if os.geteuid() == 0:
            command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd="/")

    def prepare(self) -> None:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(schema().encode())
            tasks = json.dumps([{"queue": "bench", "value": VALUE}] * TASKS)
            connection.execute("SELECT count(*) FROM entroq.modify('me', '[]', '[]', %s, '[]')", (tasks,))

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-m", "fast", "stop")
        shutil.rmtree(self._socket)


def schema() -> str:
    """Return EntroQ's procedures, from its package."""
    where = Path(sys.prefix) / "entroq-clients" / "0.13.1"
    if not where.exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", where, "entroq==0.13.1"],
            check=True,
        )
    return (where / "entroq" / "experimental" / "pg" / "schema.sql").read_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", default=".", help="directory on the disk to measure")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each cell")
    parser.add_argument("--loose", action="store_true", help="without fsync")
    parser.add_argument("--no-postgres", action="store_true")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="entroq-bench-", dir=options.on)).resolve()
    root.chmod(0o755)
    space = str(root / "space")
    store = DirectoryStore(space, sync=not options.loose)
    store.modify(Modification("me", inserts=[TaskData("bench", json.dumps(VALUE).encode())] * TASKS))
    store.close()
    ours, theirs = multiprocessing.Pipe()
    service = multiprocessing.get_context("spawn").Process(target=serve, args=(space, theirs, options.loose))
    service.start()
    postgres = None
    try:
        addresses: Addresses = ours.recv()
        places = {"HTTP": addresses.http, "gRPC": addresses.grpc}
        places["directory"] = f"{space}?{'loose' if options.loose else 'sync'}"
        if not options.no_postgres and Path("/usr/lib/postgresql").is_dir():
            postgres = Postgres(root, loose=options.loose)
            postgres.prepare()
            places["PostgreSQL"] = postgres.url
        print("| clients | " + " | ".join(f"{name}: requests/s | p50 | p99" for name in places) + " |")
        print("|---|" + "---|" * 3 * len(places))
        for clients in CLIENTS:
            row = [str(clients)]
            for name, where in places.items():
                rate, median, late = measure(name, str(where), clients, options.seconds)
                row += [f"{rate:,.0f}", f"{median:.1f} ms", f"{late:.1f} ms"]
            print("| " + " | ".join(row) + " |", flush=True)
    finally:
        service.terminate()
        service.join()
        if postgres is not None:
            postgres.stop()
        shutil.rmtree(root)


if __name__ == "__main__":
    main()

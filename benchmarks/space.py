"""What it costs to change two queues together: ack + put elsewhere as one transaction, against a plain put and ack.

    python benchmarks/space.py                            tmpfs and, as root, ext4 and xfs; about three minutes
    python benchmarks/space.py --on tmpfs --messages 2000 --rounds 3

First table: CPU of one step of a pipeline, with one process: get, put elsewhere, ack; get, ack(then=[Put]). Beside each the
same calls with no queue around them: what they cost is the floor, and only what is above it is ours. Then the same two
with fsync, which is the default of the product, in CPU and in time on the wall.
Last table: transactions a second of 1, 4 and 8 processes, each taking from the same queue ("shared") or from one of its
own ("apart"), beside the same in SQLite (WAL, BEGIN IMMEDIATE, one table) and, where `--postgres URL` names a server and
psycopg is installed, in PostgreSQL (SELECT ... FOR UPDATE SKIP LOCKED). All in one run, on one place, without fsync, and
with it where `--durable` asks for that.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mounts

from dirqueue import Empty, Put, Queue, Space

BODY = b"x" * 100
LEASE = 3600.0


# --- one process: what a step costs ------------------------------------------------------------------------


class Cost(NamedTuple):
    """What one step took, in seconds."""

    cpu: float
    wall: float


def now() -> Cost:
    return Cost(time.process_time(), time.monotonic())


def since(began: Cost, count: int) -> Cost:
    cpu, wall = now()
    return Cost((cpu - began.cpu) / count, (wall - began.wall) / count)


def plain(root: str, count: int, **settings: Any) -> Cost:
    """Put the result, then ack: two changes."""
    source, target = (Queue(f"{root}/{name}", lease=LEASE, **settings) for name in ("source", "target"))
    for _ in range(count):
        source.put(BODY)
    began = now()
    for _ in range(count):
        lease = source.get(timeout=0)
        target.put(lease.message.body)
        lease.ack()
    return since(began, count)


def together(root: str, count: int, **settings: Any) -> Cost:
    """The same as one change."""
    with Space(root, lease=LEASE, **settings) as space:
        for _ in range(count):
            space.put("source", BODY)
        space._ground.transacted("target")
        began = now()
        for _ in range(count):
            lease = space.get("source", timeout=0)
            lease.ack(then=[Put("target", lease.message.body)])
        used = since(began, count)
        assert len(space.queue("target")) == count
    return used


def bare_plain(root: str, count: int, *, links: bool = False) -> Cost:
    """The calls of `plain` with no queue around them."""
    return _bare(root, count, links=links, together=False)


def bare_together(root: str, count: int, *, links: bool = False) -> Cost:
    """The calls of `together`: the message becomes the register, which is forgotten."""
    return _bare(root, count, links=links, together=True)


def _bare(root: str, count: int, *, links: bool, together: bool) -> Cost:
    for name in ("source/leased", "target", ".space/txn/P"):
        os.makedirs(f"{root}/{name}")
    fd = os.open(root, os.O_RDONLY)
    names = [f"{1_700_000_000_000_000 + number}{number:09d}" for number in range(count)]
    for name in names:
        _write(f"source/{name}", fd, links=links)
    began = now()
    for number, name in enumerate(names):
        source, held, target = f"source/{name}", f"source/leased/{name}.1.token", f"target/{name}"
        if links:
            os.readlink(source, dir_fd=fd)
        os.rename(source, held, src_dir_fd=fd, dst_dir_fd=fd)
        if not links:
            file = os.open(held, os.O_RDONLY, dir_fd=fd)
            os.read(file, 1000)
            os.close(file)
        # Links are put in place by one call, files under another name first, unless a condition hides them.
        new = f"{target}.if.P-{number}" if together else target if links else f"{target}.new"
        _write(new, fd, links=links)
        if together:
            os.rename(held, f".space/txn/P/{number}", src_dir_fd=fd, dst_dir_fd=fd)
        if new != target:
            os.rename(new, target, src_dir_fd=fd, dst_dir_fd=fd)
        os.unlink(f".space/txn/P/{number}" if together else held, dir_fd=fd)
    used = since(began, count)
    os.close(fd)
    return used


def _write(name: str, fd: int, *, links: bool) -> None:
    if links:
        os.symlink(b":" + BODY, name.encode(), dir_fd=fd)
        return
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=fd)
    os.write(file, BODY)
    os.close(file)


FORMS: tuple[tuple[str, dict[str, Any]], ...] = (("files", {}), ("links", {"links": True}))
WORKS = {"plain": plain, "together": together, "bare plain": bare_plain, "bare together": bare_together}


def steps(place: mounts.Place, count: int, rounds: int) -> None:
    print(f"\n{place.name}: CPU of one step, µs (least of {rounds} rounds of {count})\n")
    print(
        "| bodies | put + ack | its calls | transaction | its calls | ratio | of the calls | ours: of its calls |"
    )
    print(
        "|--------|-----------|-----------|-------------|-----------|-------|--------------|--------------------|"
    )
    for form, settings in FORMS:
        costs = _least(place, count, rounds, settings, tuple(WORKS), sync=False)
        one, both, floor_one, floor_both = (costs[name].cpu * 1e6 for name in WORKS)
        print(
            f"| {form:6} | {one:9.1f} | {floor_one:9.1f} | {both:11.1f} | {floor_both:9.1f} | {both / one:5.2f} "
            f"| {floor_both / floor_one:12.2f} | {both / floor_both:6.2f}, plain {one / floor_one:.2f} |"
        )


def durable_steps(place: mounts.Place, count: int, rounds: int) -> None:
    print(f"\n{place.name}, with fsync: one step, µs (least of {rounds} rounds of {count})\n")
    print(
        "| bodies | put + ack, CPU | transaction, CPU | ratio | put + ack, wall | transaction, wall | ratio |"
    )
    print(
        "|--------|----------------|------------------|-------|-----------------|-------------------|-------|"
    )
    for form, settings in FORMS:
        costs = _least(place, count, rounds, settings, ("plain", "together"), sync=True)
        (cpu, wall), (cpu_both, wall_both) = ((each.cpu * 1e6, each.wall * 1e6) for each in costs.values())
        print(
            f"| {form:6} | {cpu:14.1f} | {cpu_both:16.1f} | {cpu_both / cpu:5.2f} "
            f"| {wall:15.1f} | {wall_both:17.1f} | {wall_both / wall:5.2f} |"
        )


def _least(
    place: mounts.Place,
    count: int,
    rounds: int,
    settings: dict[str, Any],
    names: tuple[str, ...],
    *,
    sync: bool,
) -> dict[str, Cost]:
    """Return the least CPU and the least time of each of these works, done in turns."""
    found: dict[str, list[Cost]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            root = str(place.path / f"{name}-{number}".replace(" ", "-"))
            given = settings if name.startswith("bare") else {"sync": sync, **settings}
            found[name].append(WORKS[name](root, count, **given))
            shutil.rmtree(root)
    return {
        name: Cost(min(each.cpu for each in costs), min(each.wall for each in costs))
        for name, costs in found.items()
    }


# --- many processes: transactions a second -----------------------------------------------------------------


def space_worker(root: str, name: str, durable: bool) -> int:
    done = 0
    with Space(root, lease=LEASE, sync=durable) as space:
        while True:
            try:
                lease = space.get(name, timeout=0)
            except Empty:
                return done
            lease.ack(then=[Put("target", lease.message.body)])
            done += 1


def fill_space(root: str, names: list[str], count: int, durable: bool) -> None:
    with Space(root, sync=False) as space:
        for number in range(count):
            space.put(names[number % len(names)], BODY)
        space._ground.transacted("target")


def sqlite_open(root: str, durable: bool) -> sqlite3.Connection:
    db = sqlite3.connect(f"{root}/queue.db", timeout=60, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
    return db


def sqlite_worker(root: str, name: str, durable: bool) -> int:
    db, done = sqlite_open(root, durable), 0
    while True:
        db.execute("BEGIN IMMEDIATE")
        row = db.execute(
            "SELECT id, body FROM message WHERE queue = ? ORDER BY id LIMIT 1", (name,)
        ).fetchone()
        if row is None:
            db.execute("COMMIT")
            return done
        db.execute("DELETE FROM message WHERE id = ?", row[:1])
        db.execute("INSERT INTO message (queue, body) VALUES ('target', ?)", row[1:])
        db.execute("COMMIT")
        done += 1


def fill_sqlite(root: str, names: list[str], count: int, durable: bool) -> None:
    os.makedirs(root)
    db = sqlite_open(root, durable)
    db.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, queue TEXT, body BLOB)")
    db.execute("CREATE INDEX by_queue ON message (queue, id)")
    db.execute("BEGIN")
    rows = [(names[number % len(names)], BODY) for number in range(count)]
    db.executemany("INSERT INTO message (queue, body) VALUES (?, ?)", rows)
    db.execute("COMMIT")
    db.close()


def postgres_worker(url: str, name: str, durable: bool) -> int:
    import psycopg

    done = 0
    with psycopg.connect(url) as db:
        db.execute(f"SET synchronous_commit = {'on' if durable else 'off'}")
        db.commit()
        while True:
            row = db.execute(
                "DELETE FROM message WHERE id = (SELECT id FROM message WHERE queue = %s ORDER BY id "
                "FOR UPDATE SKIP LOCKED LIMIT 1) RETURNING body",
                (name,),
            ).fetchone()
            if row is None:
                db.commit()
                return done
            db.execute("INSERT INTO message (queue, body) VALUES ('target', %s)", row)
            db.commit()
            done += 1


def fill_postgres(url: str, names: list[str], count: int, durable: bool) -> None:
    import psycopg

    with psycopg.connect(url) as db:
        db.execute("DROP TABLE IF EXISTS message")
        db.execute("CREATE TABLE message (id BIGSERIAL PRIMARY KEY, queue TEXT, body BYTEA)")
        db.execute("CREATE INDEX by_queue ON message (queue, id)")
        with db.cursor() as cursor:
            rows = [(names[number % len(names)], BODY) for number in range(count)]
            cursor.executemany("INSERT INTO message (queue, body) VALUES (%s, %s)", rows)


def rate(
    fill: Callable[..., None],
    work: Callable[..., int],
    where: str,
    processes: int,
    count: int,
    *,
    apart: bool,
    durable: bool,
) -> float:
    """Return transactions a second, of all processes together, from the start of the first to the end of the last."""
    names = [f"source{number}" for number in range(processes)] if apart else ["source"]
    fill(where, names, count, durable)
    context = multiprocessing.get_context("fork")
    ready, done = context.Barrier(processes + 1), context.SimpleQueue()

    def run(name: str) -> None:
        ready.wait()
        done.put(work(where, name, durable))

    workers = [context.Process(target=run, args=(names[number % len(names)],)) for number in range(processes)]
    for worker in workers:
        worker.start()
    ready.wait()
    began = time.monotonic()
    for worker in workers:
        worker.join()
    took = time.monotonic() - began
    total = sum(done.get() for _ in workers)
    assert total == count, f"{total} of {count} were done"
    return total / took


def rates(place: mounts.Place, count: int, rounds: int, postgres: str | None, *, durable: bool) -> None:
    stores: dict[str, tuple[Callable[..., None], Callable[..., int]]] = {
        "dirqueue": (fill_space, space_worker),
        "SQLite": (fill_sqlite, sqlite_worker),
    }
    if postgres:
        stores["PostgreSQL"] = (fill_postgres, postgres_worker)
    print(
        f"\n{place.name}: ack + put a second, {'durable' if durable else 'without fsync'}, medians of {rounds}\n"
    )
    cases = [
        (processes, apart)
        for apart in (False, True)
        for processes in (1, 4, 8)
        if not (apart and processes == 1)
    ]
    print(
        "| store      | " + " | ".join(f"{'apart' if apart else 'shared'} {p}" for p, apart in cases) + " |"
    )
    print(
        "|------------|"
        + "|".join("-" * (len(f"{'apart' if apart else 'shared'} {p}") + 2) for p, apart in cases)
        + "|"
    )
    for name, (fill, work) in stores.items():
        cells = []
        for processes, apart in cases:
            found = []
            for number in range(rounds):
                where = (
                    postgres
                    if name == "PostgreSQL"
                    else str(place.path / f"{name}-{processes}-{apart}-{number}")
                )
                found.append(rate(fill, work, str(where), processes, count, apart=apart, durable=durable))
                if name != "PostgreSQL":
                    shutil.rmtree(str(where))
            cells.append(statistics.median(found))
        print(f"| {name:10} | " + " | ".join(f"{cell:8,.0f}" for cell in cells) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    root = os.geteuid() == 0
    parser.add_argument(
        "--on", nargs="+", default=["tmpfs", "ext4", "xfs"] if root else ["tmpfs"], metavar="PLACE"
    )
    parser.add_argument("--messages", type=int, default=4000, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--durable", action="store_true", help="measure rates with fsync too")
    parser.add_argument("--postgres", metavar="URL", help="a PostgreSQL server to compare with")
    parser.add_argument("--disk", type=Path, metavar="DIR", help="where images lie (default: memory)")
    args = parser.parse_args()
    for wanted in args.on:
        try:
            with mounts.place(wanted, disk=args.disk, own=True) as place:
                steps(place, args.messages, args.rounds)
                durable_steps(place, args.messages // 10, args.rounds)
                rates(place, args.messages, args.rounds, args.postgres, durable=False)
                if args.durable:
                    rates(place, args.messages // 10, args.rounds, args.postgres, durable=True)
        except mounts.Refused as error:
            print(f"{wanted}: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

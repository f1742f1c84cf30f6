"""Two hosts on a network filesystem that loses replies: the messages between them, and the violations."""

import json
import os
import threading
from pathlib import Path

import dirqueue
from lab import faultfs

SETTINGS = {"sync": False, "lease": 600.0}


def flow(one, other, count, **settings):
    """Put on one host, get and ack on the other, half each way; return (bodies acked, false losses)."""
    acked, lost = [], []

    def consume(queue):
        for lease in queue.consume(timeout=0 if done.is_set() else 1.0):
            body = lease.message.body
            try:
                if len(acked) % 10 == 3:
                    lease.renew()
                lease.ack()
            except dirqueue.LeaseLost:
                lost.append(body)
            acked.append(body)

    def produce(queue, name):
        for number in range(count // 2):
            queue.put(b"%s%d" % (name, number))

    done = threading.Event()
    producers = [
        threading.Thread(target=produce, args=(dirqueue.Queue(path, **SETTINGS, **settings), name))
        for path, name in ((one, b"a"), (other, b"b"))
    ]
    for thread in producers:
        thread.start()
    consumers = [
        threading.Thread(target=consume, args=(dirqueue.Queue(path, **SETTINGS, **settings),))
        for path in (one, other)
    ]
    for thread in consumers:
        thread.start()
    for thread in producers:
        thread.join()
    done.set()
    for thread in consumers:
        thread.join()
    consume(dirqueue.Queue(one, **SETTINGS, **settings))
    return acked, lost


def judge(server, count, acked, lost):
    """Return the violations: a message not delivered once, a live lease reported lost, a file left on the server."""
    wrong = [f"a live lease was reported lost: {body!r}" for body in lost]
    wrong += [f"{acked.count(body)} times: {body!r}" for body in set(acked) if acked.count(body) > 1]
    if len(set(acked)) != count // 2 * 2:
        wrong.append(f"{count // 2 * 2 - len(set(acked))} lost of {count}")
    for folder, _, files in os.walk(server):
        left = [name for name in files if not name.endswith(".new") and not name.startswith(".clock-")]
        wrong += [f"left: {os.path.relpath(os.path.join(folder, name), server)}" for name in left]
    return wrong


def text_file(mount):
    """Use a file as a queue on a mount; return the violations: it is read, refused with the way out, and untouched."""
    path, text = Path(mount, "jobs.tq"), b"-one\n=two\n"
    path.write_bytes(text)
    wrong = []
    with dirqueue.Queue(path, layout="text") as queue:
        if [message.body for message in queue.peek()] != [b"one"] or queue.stats().done != 1:
            wrong.append("a text file is not read")
        uses = (
            lambda: queue.put(b"three"), lambda: queue.get(timeout=0), queue.purge, queue.clear, queue.layout.create
        )  # fmt: skip
        for use in uses:
            try:
                use()
            except dirqueue.LayoutError as error:
                wrong += [] if "local disk, or use a directory" in str(error) else [f"no way out: {error}"]
            else:
                wrong.append("a text file was changed where locks may be local")
    if path.read_bytes() != text or Path(mount, ".jobs.tq.dirqueue").exists():
        wrong.append("a text file was touched")
    path.unlink()
    return wrong


def lose(place, count, *, seed=0, settings=None, **faults):
    """Pass `count` messages between two mounts with these faults; return (messages, replies lost, violations)."""
    place = Path(place)
    tallies = [place / f"replies{host}" for host in (1, 2)]
    with (
        faultfs.mounted(place / "server", place / "one", seed=2 * seed, counts=tallies[0], **faults) as one,
        faultfs.mounted(
            place / "server", place / "two", seed=2 * seed + 1, counts=tallies[1], **faults
        ) as two,
    ):
        acked, lost = flow(f"{one}/queue", f"{two}/queue", count, **(settings or {}))
    replies = sum(sum(json.loads(tally.read_text()).values()) for tally in tallies if tally.exists())
    return len(acked), replies, judge(place / "server/queue", count, acked, lost)

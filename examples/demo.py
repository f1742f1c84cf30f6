"""`make demo`: 1,000 messages, four workers, one killed with SIGKILL, and proof that nothing was lost.

Runs in a temporary directory, with real processes. By hand: `.venv/bin/python examples/demo.py --messages 200`.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dirqueue import Queue, Stats

MESSAGES = 1000
WORKERS = 4
LEASE = 1.5
WORK_SECONDS = 0.005
#: The demo gives up after this long; it takes about five seconds.
GIVE_UP = 120.0


def work(path: str, log: str) -> None:
    """Run one worker: get a message, do the work, log its id, acknowledge."""
    queue = Queue(path, lease=LEASE, margin=0.1)
    with open(log, "a", buffering=1, encoding="ascii") as done:
        for lease in queue.consume(timeout=LEASE * 2):
            with lease as message:
                time.sleep(WORK_SECONDS)
                done.write(f"{message.id}\n")


def main() -> int:
    """Parse the command line, then run the demo or one of its workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--messages", type=int, default=MESSAGES, help="number of messages (default %(default)s)"
    )
    parser.add_argument("--worker", nargs=2, metavar=("QUEUE", "LOG"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return 0
    with tempfile.TemporaryDirectory(prefix="dirqueue-demo-") as directory:
        return demonstrate(Path(directory), options.messages)


def demonstrate(directory: Path, messages: int) -> int:
    """Put messages, start workers, kill one, wait for the rest; return the exit status."""
    queue = Queue(directory / "queue", margin=0.1)
    print(f"put {messages} messages into {queue.path}")
    put = {queue.put(f"job {number}") for number in range(messages)}
    workers = [start(queue, directory / f"worker-{number}.log") for number in range(WORKERS)]
    print(f"started {WORKERS} workers: {', '.join(str(worker.pid) for worker in workers)}")
    try:
        kill_one(queue, workers[0], messages)
        watch(queue, messages)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return verify(directory, queue, put)


def start(queue: Queue[bytes], log: Path) -> subprocess.Popen[bytes]:
    """Start one worker process."""
    command = [sys.executable, __file__, "--worker", queue.path, str(log)]
    return subprocess.Popen(command)


def kill_one(queue: Queue[bytes], worker: subprocess.Popen[bytes], messages: int) -> None:
    """Kill a worker while it holds a message."""
    deadline = time.monotonic() + GIVE_UP
    while time.monotonic() < deadline:
        held = [message for message in queue.peek("leased") if f"-{worker.pid}-" in message.token]
        if held and len(queue) < messages * 0.7:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            show_progress(queue, messages, end="\n")
            print(f"killed worker {worker.pid} with SIGKILL; it held, or had just held, message {held[0].id}")
            return
        show_progress(queue, messages)
        time.sleep(0.05)


def watch(queue: Queue[bytes], messages: int) -> None:
    """Show the progress until the queue is empty."""
    deadline = time.monotonic() + GIVE_UP
    while show_progress(queue, messages).total and time.monotonic() < deadline:
        time.sleep(0.1)
    show_progress(queue, messages, end="\n")


def show_progress(queue: Queue[bytes], messages: int, end: str = "") -> Stats:
    """Print the progress in one line: updated in place on a terminal, elsewhere only once at the end."""
    stats = queue.stats()
    done = messages - stats.total
    if end or sys.stdout.isatty():
        bar = "#" * (30 * done // messages)
        text = f"[{bar:30}] {done:5} done {stats.ready:5} ready {stats.leased:3} leased {stats.dead:3} dead"
        print(f"\r{text}" if sys.stdout.isatty() else text, end=end, flush=True)
    return stats


def verify(directory: Path, queue: Queue[bytes], put: set[str]) -> int:
    """Compare the messages that were put with those that the workers logged; return the exit status."""
    done = [
        line for log in directory.glob("worker-*.log") for line in log.read_text(encoding="ascii").split()
    ]
    lost, unknown, left = put - set(done), set(done) - put, queue.stats()
    twice = len(done) - len(set(done))
    print(
        f"put {len(put)}, done {len(set(done))}, lost {len(lost)}, unknown {len(unknown)}, left {left.total}"
    )
    print(
        f"processed twice: {twice} (the message of a killed worker is delivered again, and acknowledged once)"
    )
    good = not lost and not unknown and not left.total and not left.dead
    print("nothing was lost" if good else "SOMETHING IS WRONG")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

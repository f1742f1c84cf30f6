"""Services for tests: in a thread of this process, on any store; or as a process, on a directory."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

from dirqueue.entroq.serve import Addresses, Options, Running

LOCAL = {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}


@contextlib.contextmanager
def in_thread(store, watch=None, **options):
    """Serve a store in a thread; yield the running service."""
    started, found = threading.Event(), {}

    async def main():
        found["loop"], found["stop"] = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with Running(store, watch, Options(**{**LOCAL, **options})) as running:
                found["running"] = running
                started.set()
                await found["stop"].wait()
        finally:
            started.set()

    def run():
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - raised again in the test
            found["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        if "running" not in found:
            thread.join()
            raise found["error"]
        yield found["running"]
    finally:
        if "stop" in found and thread.is_alive():
            found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join(30)
        assert not thread.is_alive()


PROGRAM = """
import json, sys
from dirqueue.entroq.serve import Options, run
def ready(addresses):
    print(json.dumps([addresses.http, addresses.grpc]), flush=True)
run(sys.argv[1], Options(**json.loads(sys.argv[2])), ready)
"""


class Process:
    """A service as a process of its own."""

    def __init__(self, space, **options):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, os.fspath(space), json.dumps({**LOCAL, **options})],
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line, f"the service ended with {self.process.wait()}"
        self.addresses = Addresses(*json.loads(line))

    def stop(self, number=signal.SIGTERM, seconds=20):
        """End it; return how it ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

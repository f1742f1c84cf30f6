"""Kill a real process, or fail its call, at its n-th call of a kind, cheaply: strace on a forking server.

The server has imported everything and only forks a child for each job, so the calls of a child are those of the job
itself. strace is attached to the server for one point ("the 3rd rename") and follows the children; it counts the calls
of each child separately. A point costs milliseconds instead of the start of an interpreter.

Traps: `--seccomp-bpf` silently drops the signal, so it is not used and every kill is verified by the wait status.
`retval=` cannot cause real short writes, so those are made with RLIMIT_FSIZE instead (see `short`).
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

#: Calls by which a process changes or reads a directory tree; the n-th of each is a point.
CALLS = tuple(
    "openat write fsync close renameat renameat2 rename linkat unlinkat mkdirat newfstatat fstat getdents64 read "
    "utimensat fallocate syncfs ftruncate lseek flock symlinkat readlinkat".split()
)
ERRORS = ("ENOSPC", "EIO", "EDQUOT", "EMFILE", "EACCES", "ESTALE", "EINTR", "ENOMEM", "EROFS", "EPERM")
#: Seconds after which a child counts as hung.
HANG = 60.0
#: Seconds for strace to attach and detach; the machine may be busy.
PATIENCE = 120.0


class Forge:
    """A forking server and the strace on it. Use as a context manager."""

    def __init__(self, module):
        self._module = module
        self._tracer = None

    def __enter__(self):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tests = str(Path(__file__).resolve().parent.parent)
        env = os.environ | {"PYTHONPATH": os.pathsep.join([tests, *filter(None, sys.path)])}
        command = [sys.executable, "-m", "lab.forge", self._module, str(there.fileno())]
        self._server = subprocess.Popen(
            command, env=env, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        there.close()
        # The tracer and the traced process alternate; on one processor that is twice as fast.
        self._processor = _processor()
        os.sched_setaffinity(self._server.pid, self._processor)
        self._socket = here
        self._receive(60.0)  # it has imported everything
        return self

    def __exit__(self, *_):
        self.calm()
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait(10)

    @property
    def pid(self):
        return self._server.pid

    def _receive(self, patience):
        if not select.select([self._socket], [], [], patience)[0]:
            raise TimeoutError
        data = self._socket.recv(1 << 16)
        if not data:
            raise OSError("the server of the forge ended")
        return json.loads(data)

    # --- strace ------------------------------------------------------------------------------------------

    def arm(self, call, number, fault):
        """Inject `fault` ("signal=SIGKILL", "error=EIO") at the `number`-th such call of each later child."""
        self.calm()
        self._trace(f"trace={call}", f"inject={call}:{fault}:when={number}")

    def count(self, run):
        """Return {pid: {call: number of calls}} of the children that `run()` starts."""
        self.calm()
        log = Path(os.environ.get("TMPDIR", "/tmp")) / f"forge-{os.getpid()}.trace"
        self._trace(f"trace={','.join(CALLS)}", output=str(log))
        try:
            run()
        finally:
            self.calm()
        counts = {}
        for line in log.read_text(errors="replace").splitlines():
            pid, _, rest = line.partition(" ")
            name = rest.strip().partition("(")[0]
            if name in CALLS:
                counts.setdefault(int(pid), {}).setdefault(name, 0)
                counts[int(pid)][name] += 1
        log.unlink()
        return counts

    def _trace(self, *expressions, output="/dev/null"):
        command = ["strace", "-f", "-p", str(self._server.pid), "-o", output]
        for each in expressions:
            command += ["-e", each]
        self._tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0)
        os.sched_setaffinity(self._tracer.pid, self._processor)
        self._until("attached")

    def _until(self, word):
        deadline, output = time.monotonic() + PATIENCE, b""
        while time.monotonic() < deadline:
            if select.select([self._tracer.stderr], [], [], 1.0)[0]:
                new = os.read(self._tracer.stderr.fileno(), 1 << 16)
                output += new
                if word.encode() in output:
                    return
                if not new:
                    break
        raise OSError(f"strace did not attach (status {self._tracer.poll()}): {output!r}")

    def calm(self):
        """Detach strace."""
        if self._tracer is not None:
            self._tracer.send_signal(signal.SIGINT)
            try:
                self._tracer.communicate(timeout=PATIENCE / 4)
            except subprocess.TimeoutExpired:
                self._tracer.kill()  # those that it traces go on
                self._tracer.communicate(timeout=PATIENCE)
            self._tracer = None

    # --- jobs --------------------------------------------------------------------------------------------

    def run(self, job, **arguments):
        """Fork a child that runs `job`; return (ending, events). An ending is "killed", "done", "hung" or a number."""
        self._socket.send(json.dumps({"job": job, **arguments}).encode())
        events, pid, hung = [], 0, False
        while True:
            try:
                word = self._receive(HANG)
            except TimeoutError:
                if hung or not pid:
                    raise
                hung = True
                os.kill(pid, signal.SIGKILL)
                continue
            if "pid" in word:
                pid = word["pid"]
            elif "status" in word:
                status = word["status"]
                if hung:
                    return "hung", events
                if os.WIFSIGNALED(status):
                    return "killed" if os.WTERMSIG(
                        status
                    ) == signal.SIGKILL else f"signal {os.WTERMSIG(status)}", events
                code = os.waitstatus_to_exitcode(status)
                return "done" if code == 0 else code, events
            else:
                events.append(word["say"])


def _processor():
    """Return the processor to use, a different one for each xdist worker."""
    all_ = sorted(os.sched_getaffinity(0))
    number = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    return {all_[(int(number) if number.isdigit() else os.getpid()) % len(all_)]}


def serve(module, fd):
    """Run the server; it must not make any of the counted calls itself."""
    import importlib

    jobs = importlib.import_module(module)
    with contextlib.suppress(AttributeError):
        jobs.prepare_server()
    line = socket.socket(fileno=fd)
    line.send(b"{}")
    while data := line.recv(1 << 16):
        order = json.loads(data)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                limit = order.pop("short", None)
                if limit is not None:
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                jobs.do(
                    order.pop("job"), lambda *what: line.send(json.dumps({"say": what}).encode()), **order
                )
                code = 0
            finally:
                os._exit(code)
        line.send(json.dumps({"pid": pid}).encode())
        line.send(json.dumps({"status": os.waitpid(pid, 0)[1]}).encode())


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))

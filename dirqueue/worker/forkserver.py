"""Starting, ending and counting child processes from a process that has threads.

Layer: conveniences.
A process with threads must not fork: a lock held by another thread is never released in the child. So the worker
forks once, before it has threads, and that single-threaded process, the fork server, forks all children: each
inherits the handler, closures and all. They talk over a socket; a child's own socket is handed to the worker through
it.
Crash: when the worker dies, the fork server sees its socket close, kills the children and ends. When the fork server
dies, the worker finishes what runs and stops with an error. When a child dies, the worker learns how.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from dirqueue.errors import DirQueueError

#: What crosses the socket: a letter, a pid, a number. S(tart), K(ill); S(tarted), F(ailed), X (exited).
_WORD = struct.Struct("!cIi")
#: How long the fork server may take to fork or to report: far more than it ever needs.
PATIENCE = 60.0
#: Signals that are the worker's business; a terminal or a service manager sends them to everybody.
_NOT_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)

Main = Callable[[socket.socket], None]


class ForkServer:
    """The worker's end: starts children and knows how they ended."""

    def __init__(self, main: Main) -> None:
        """Fork the server; must be called before the worker starts threads."""
        self._control, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._control.close()
            leave(lambda: _Server(theirs, main).loop())
        theirs.close()
        self._changed = threading.Condition()
        self._asking = threading.Lock()
        self._answers: list[tuple[bytes, int, int, int]] = []
        self._exits: dict[int, int] = {}
        self._gone = False
        self._reader = threading.Thread(target=self._read, name="dirqueue-forkserver", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether children can still be started."""
        return not self._gone

    def start(self) -> tuple[int, socket.socket]:
        """Start a child; return its pid and the socket to talk to it."""
        with self._asking:
            self._send(b"S", 0)
            with self._changed:
                self._changed.wait_for(lambda: self._answers or self._gone, PATIENCE)
                if not self._answers:
                    raise self.lost()
                word, pid, code, fd = self._answers.pop(0)
        if word == b"F":
            raise OSError(code, f"cannot start a child process: {os.strerror(code)}")
        return pid, socket.socket(fileno=fd)

    def kill(self, pid: int) -> None:
        """End a child and whatever it started; the fork server knows whether the pid is still that child's."""
        try:
            self._send(b"K", pid)
        except DirQueueError:
            pass  # the fork server took its children with it, or their sockets tell

    def ended(self, pid: int) -> int | None:
        """Wait for the end of a child whose socket closed; return its wait status, None if nobody knows."""
        with self._changed:
            self._changed.wait_for(lambda: pid in self._exits or self._gone, PATIENCE)
            return self._exits.pop(pid, None)

    def close(self) -> None:
        """End all children and the fork server."""
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is gone already
        self._reader.join(PATIENCE)
        self._control.close()
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass  # the program around us reaps all its children

    def _send(self, letter: bytes, pid: int) -> None:
        try:
            self._control.sendall(_WORD.pack(letter, pid, 0))
        except OSError:
            raise self.lost() from None

    def lost(self) -> DirQueueError:
        """Return the error for a fork server that was killed."""
        return DirQueueError(
            f"process {self.pid}, which starts the worker processes, was killed: run the worker again"
        )

    def _read(self) -> None:
        buffer = b""
        fds: list[int] = []
        while True:
            try:
                data, more, _, _ = socket.recv_fds(self._control, 4096, 64)
            except OSError:
                data, more = b"", []
            with self._changed:
                fds += more
                buffer += data
                while len(buffer) >= _WORD.size:
                    word, pid, number = _WORD.unpack(buffer[: _WORD.size])
                    buffer = buffer[_WORD.size :]
                    if word == b"X":
                        self._exits[pid] = number
                    else:
                        self._answers.append((word, pid, number, fds.pop(0) if word == b"S" else -1))
                self._gone = not data
                self._changed.notify_all()
                if self._gone:
                    return


class _Server:
    """The server's end: one thread, no queue, no handler of its own."""

    def __init__(self, control: socket.socket, main: Main) -> None:
        self._control = control
        self._main = main
        self._children: set[int] = set()
        self._woken, self._wake = socket.socketpair()

    def loop(self) -> None:
        for number in _NOT_OURS:
            # A handler, not SIG_IGN: that one would be inherited by the programs that handlers start.
            signal.signal(number, _nothing)
        signal.signal(signal.SIGCHLD, _nothing)
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        try:
            while self._serve():
                pass
        finally:
            for pid in list(self._children):
                _kill(pid)

    def _serve(self) -> bool:
        ready, _, _ = select.select([self._control, self._woken], [], [])
        if self._woken in ready:
            try:
                self._woken.recv(4096)
            except BlockingIOError:
                pass
            self._reap()
        if self._control not in ready:
            return True
        order = b""
        while len(order) < _WORD.size:
            more = self._control.recv(_WORD.size - len(order))
            if not more:
                return False
            order += more
        letter, pid, _ = _WORD.unpack(order)
        if letter == b"S":
            self._start()
        elif pid in self._children:
            _kill(pid)
        return True

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._children.discard(pid)
            self._control.sendall(_WORD.pack(b"X", pid, status))

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            pid = os.fork()
        except OSError as error:
            self._control.sendall(_WORD.pack(b"F", 0, error.errno or 0))
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (self._control, self._woken, self._wake, ours):
                each.close()
            os.setpgid(0, 0)
            leave(lambda: self._main(theirs))
        theirs.close()
        _lead_group(pid)
        self._children.add(pid)
        socket.send_fds(self._control, [_WORD.pack(b"S", pid, 0)], [ours.fileno()])
        ours.close()


def _nothing(_number: int, _frame: object) -> None:
    """Take a signal and do nothing."""


def _lead_group(pid: int) -> None:
    """Make a child the head of its own group. RACE: it does the same; whoever comes second does no harm."""
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass


def _kill(pid: int) -> None:
    """Kill a child that was not waited for yet, and the programs it started."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass


def leave(work: Callable[[], None]) -> NoReturn:
    """Do the work of a forked process and end it: what the parent had planned for its own end is not ours."""
    status = 1
    try:
        work()
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - the last thing that can be done here is to print it
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass
        os._exit(status)

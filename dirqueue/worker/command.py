"""Any program as a handler: the body goes in, the exit status says what became of it.

Layer: conveniences.  Touches: a temporary file of its own, where `{path}` asks for one.
Exit status 0 acknowledges, 65 (EX_DATAERR) rejects, anything else is a failure that is tried again by policy;
75 (EX_TEMPFAIL) is the polite one. What a failed program wrote last is kept as the error of the message.
Crash: on Linux the program is killed with us, however we die, so that it does not run beside the next delivery. What
the program itself started is not, nor is a set-user-id program.
"""

from __future__ import annotations

import errno
import functools
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, Any

from dirqueue.disk import fs, identity
from dirqueue.errors import Reject, Retry, SettingsError
from dirqueue.failure import Reason
from dirqueue.interrupts import INTERRUPTS, check_interrupt
from dirqueue.message import Message
from dirqueue.worker.outcome import signal_name

TEMPORARY_FAILURE, BAD_DATA = 75, 65
#: Characters of a failed program's output that are kept.
TAIL = 2000
#: How often the handler checks whether it was cancelled, and how long a program has to end after SIGTERM.
LOOK_SECONDS = 0.1
END_SECONDS = 1.0
#: prctl(2): the signal to get when the parent dies.
PR_SET_PDEATHSIG = 1
BODY, PATH, ID = "{}", "{path}", "{id}"


class Command:
    """A handler that runs a program for each message.

    In its arguments `{}` stands for the body, `{path}` for a temporary file that holds it, `{id}` for the id. Without
    `{}` and `{path}` the body is the program's standard input. The environment has DIRQUEUE_QUEUE, _ID and _ATTEMPTS.
    """

    #: The output went to ours while the program ran, so the log does not repeat it.
    shows_output = True

    def __init__(self, arguments: Sequence[str]) -> None:
        if not arguments:
            raise SettingsError("there is no command to run: give it after --")
        program = arguments[0]
        if BODY in program or PATH in program:
            raise SettingsError(
                f"{program!r} is not allowed as the program: a message must not choose what is run"
            )
        if shutil.which(program) is None:
            raise SettingsError(f"there is no program {program!r} that could be run: check the name and PATH")
        self._arguments = list(arguments)
        self._wants_path = any(PATH in word for word in arguments)
        self._prctl = _prctl()
        self._wants_stdin = not self._wants_path and not any(BODY in word for word in arguments)

    def __call__(self, message: Message[Any]) -> None:
        """Run the program. Return if it succeeded, else raise Reject or Retry."""
        path = ""
        try:
            if self._wants_path:
                where = f"dirqueue-{identity.new_token()}"
                path = os.path.join(tempfile.gettempdir(), where)
                with message.open() as body:
                    fs.copy_out(body, path)
            status, output = self._run(message, self._filled(message, path))
        finally:
            if path:
                fs.remove_path(path)
        _judge(status, output)

    def _filled(self, message: Message[Any], path: str) -> list[str]:
        words = []
        for word in self._arguments:
            # One pass, so that nothing in a body is taken for a placeholder.
            pieces = word.split(PATH)
            filled = [piece.replace(ID, message.id).split(BODY) for piece in pieces]
            words.append(
                path.join(_text(message).join(each) if len(each) > 1 else each[0] for each in filled)
            )
        return words

    def _run(self, message: Message[Any], words: list[str]) -> tuple[int, str]:
        env = os.environ | {
            "DIRQUEUE_QUEUE": message.path,
            "DIRQUEUE_ID": message.id,
            "DIRQUEUE_ATTEMPTS": str(message.attempts),
        }
        # COST: 2.4 ms for each program (fork instead of vfork); without it a program outlives a killed worker.
        end_with_us = self._prctl and functools.partial(_end_with, os.getpid(), self._prctl)
        stdin: IO[bytes] | int = _input(message) if self._wants_stdin else subprocess.DEVNULL
        try:
            # A group of its own: Ctrl-C is for the worker, which lets the program finish.
            process = subprocess.Popen(
                words,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                process_group=0,
                preexec_fn=end_with_us,  # noqa: PLW1509 - two system calls, nothing that takes a lock
            )
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise Reject(
                    "the body is too long for an argument: use {path} or the standard input"
                ) from None
            raise Retry(error=f"cannot run {words[0]!r}: {os.strerror(error.errno or 0)}") from None
        finally:
            if not isinstance(stdin, int):
                stdin.close()
        try:
            output = _listen(process)
            return process.wait(), output
        finally:
            _end(process)


def _prctl() -> Callable[..., int] | None:
    """Return prctl(2), loaded before there is a child that needs it; None where there is none."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl: Callable[..., int] = ctypes.PyDLL(None).prctl
    return prctl


def _end_with(parent: int, prctl: Callable[..., int]) -> None:
    """Have this process, which is about to become the program, killed when its parent dies.

    The kernel sends the signal when the *thread* that forked ends: that is the slot's, which waits for the program.
    """
    prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # RACE: it died before that call, and no signal will come
        os._exit(TEMPORARY_FAILURE)


def _input(message: Message[Any]) -> IO[bytes]:
    """Open the body as what a program can have as its standard input."""
    body = message.open()
    try:
        body.fileno()
    except OSError:
        # The target of a link, at most 4,095 bytes: any pipe holds that, before anybody reads.
        reader, writer = os.pipe()
        try:
            fs.write(writer, body.read())
        finally:
            fs.close(writer)
            body.close()
        return os.fdopen(reader, "rb")
    return body


def _text(message: Message[Any]) -> str:
    if b"\0" in message.data:
        raise Reject("the body holds a NUL and cannot be an argument: use {path} or the standard input")
    return os.fsdecode(message.data)


def _listen(process: subprocess.Popen[bytes]) -> str:
    """Pass on the output of the program until it ends. Return the last of it."""
    kept = b""
    with selectors.DefaultSelector() as selector:
        for stream, ours in ((process.stdout, 1), (process.stderr, 2)):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, ours)
        ended = False
        while selector.get_map():
            _check_cancelled()
            # A daemon that the program left behind may keep the pipes open: what is there now is all.
            ready = selector.select(0 if ended else LOOK_SECONDS)
            if ended and not ready:
                break
            for key, _ in ready:
                data = fs.read(key.fd, fs.CHUNK)
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                kept = (kept + data)[-4 * TAIL :]
                _pass_on(key.data, data)
            ended = process.poll() is not None
        while process.poll() is None:
            _check_cancelled()
            try:
                process.wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    return kept.decode(errors="replace").strip()[-TAIL:]


def _check_cancelled() -> None:
    if INTERRUPTS:
        check_interrupt()


def _pass_on(fd: int, data: bytes) -> None:
    try:
        while data:
            data = data[fs.write(fd, data) :]
    except OSError:
        pass  # our own output is closed; the work matters more


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program that still runs, and what it started: by SIGTERM, then by SIGKILL."""
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def _reason(how: str, output: str) -> Reason:
    """Return how it ended and its last line, with all that is known of its output if there is more."""
    last = output.rpartition("\n")[2]
    return Reason(f"{how}: {last}" if last else how, output if last != output else None)


def _judge(status: int, output: str) -> None:
    if status == 0:
        return
    how = f"killed by {signal_name(-status)}" if status < 0 else f"exit status {status}"
    error = _reason(how, output)
    if status == BAD_DATA:
        raise Reject(error)
    raise Retry(error=error)

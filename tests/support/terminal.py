"""Run the command at a terminal."""

import os
import pty
import subprocess

from support.running import command, environment


def on_a_terminal(*words, answer=b"", **extra):
    """Run the command with a terminal as its stdin, stdout and stderr; return its status and what was shown."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command(*words),
        env=environment(TERM="xterm", COLUMNS="120", **extra),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    if answer:
        os.write(master, answer)
    shown = b""
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # the other end is closed: it is over
            break
        if not data:
            break
        shown += data
    os.close(master)
    return process.wait(timeout=50), shown.decode()

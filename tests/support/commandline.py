"""The `dirqueue` command as people run it: a process of its own."""

import os
import subprocess

from support.running import command, environment


def clean_env(**more):
    """Return an environment without the variables that change what the command does."""
    dropped = ("DIRQUEUE_DIR", "NO_COLOR", "NOTIFY_SOCKET", "DIRQUEUE_WEB_TOKEN")
    return {name: value for name, value in environment().items() if name not in dropped} | more


def dq(*words, cwd, input=b"", timeout=60, **env):
    """Run one command to its end."""
    return subprocess.run(
        command(*words),
        cwd=cwd,
        input=input,
        capture_output=True,
        timeout=timeout,
        check=False,
        env=clean_env(**env),
    )


def start(*words, cwd, **env):
    """Start one command; what it prints goes to the file `said` in `cwd`."""
    with open(os.path.join(cwd, "said"), "wb") as said:
        return subprocess.Popen(
            # A shell that runs the tests in the background has Ctrl-C ignored, and that is inherited.
            ["env", "--default-signal=INT", *command(*words)],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=clean_env(**env),
        )

"""Run the `dirqueue` command as users do: in a separate process."""

import os
import subprocess
import sys

COMMAND = [sys.executable, "-m", "dirqueue"]


def clean_env(**more):
    """Return an environment without the variables that change how the command behaves."""
    dropped = ("DIRQUEUE_DIR", "NO_COLOR", "NOTIFY_SOCKET", "DIRQUEUE_WEB_TOKEN")
    return {name: value for name, value in os.environ.items() if name not in dropped} | more


def dq(*words, cwd, input=b"", timeout=60, **env):
    """Run one command and wait for it."""
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        cwd=cwd,
        input=input,
        capture_output=True,
        timeout=timeout,
        check=False,
        env=clean_env(**env),
    )


def start(*words, cwd, **env):
    """Start one command; its output goes to the file `said` in `cwd`."""
    with open(os.path.join(cwd, "said"), "wb") as said:
        return subprocess.Popen(
            # If a shell runs the tests in the background, SIGINT is ignored, and children inherit that.
            ["env", "--default-signal=INT", *COMMAND, *map(str, words)],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=clean_env(**env),
        )

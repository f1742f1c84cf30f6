"""A PostgreSQL server of a test's own: in a temporary directory, reached by a socket in it, gone afterwards."""

import contextlib
import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time

#: Where Debian has the server's programs, which are not on PATH.
DEBIAN = "/usr/lib/postgresql/*/bin"
#: The server refuses to run as root.
USER = "postgres"


def programs():
    """Return the directory of initdb and postgres; None if they are not installed."""
    found = shutil.which("initdb")
    if found:
        return os.path.dirname(os.path.realpath(found))
    return max(glob.glob(f"{DEBIAN}"), default=None)


def is_installed():
    """Return whether a server can be started here: the programs, and a user for them if this is root."""
    if programs() is None:
        return False
    with contextlib.suppress(KeyError):
        return os.geteuid() != 0 or bool(pwd.getpwnam(USER))
    return False


@contextlib.contextmanager
def server(*, durable=False):
    """Run a server; yield what psycopg.connect takes. Without `durable` it does not wait for the disk."""
    # Not under $TMPDIR: the server's user has to get there, and a socket's path is short.
    home = tempfile.mkdtemp(prefix="dq-pg-", dir="/tmp")
    who = {"user": USER, "group": USER, "extra_groups": []} if os.geteuid() == 0 else {}
    try:
        if who:
            shutil.chown(home, USER, USER)
        run = {
            "cwd": home,
            "stdin": subprocess.DEVNULL,
            "env": {"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            **who,
        }
        data = os.path.join(home, "data")
        subprocess.run(
            [f"{programs()}/initdb", "-D", data, "-U", "tester", "-A", "trust", "-N", "-E", "UTF8"],
            check=True,
            capture_output=True,
            **run,
        )
        sync = "on" if durable else "off"
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": home,
            "fsync": sync,
            "synchronous_commit": sync,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with open(os.path.join(home, "log"), "wb") as log:
            process = subprocess.Popen(
                [f"{programs()}/postgres", "-D", data, *options], stdout=log, stderr=log, **run
            )
        try:
            address = f"host={home} user=tester dbname=postgres"
            _wait(process, address, home)
            yield address
        finally:
            process.send_signal(signal.SIGINT)  # a fast stop: it waits for no client
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _wait(process, address, home):
    import psycopg

    until = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(address).close()
            return
        time.sleep(0.05)
    with open(os.path.join(home, "log"), encoding="utf-8") as log:
        raise RuntimeError(f"the server did not start: {log.read()[-2000:]}")

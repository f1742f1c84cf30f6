"""Shared by all tests: a temporary directory on tmpfs, Hypothesis profiles, and skips with reasons."""

import gc
import os
import re
import shutil
import signal
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import capabilities

for _name, _examples in {"dev": 50, "ci": 200, "soak": 20_000}.items():
    settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],  # a busy disk is not a bad strategy
    )
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")

_SHM = "/dev/shm"
_SHM_ROOM = 256 << 20
_scratch = pytest.StashKey[str]()


def _shm_is_usable() -> bool:
    """Return whether there is a writable tmpfs with enough room and without noexec."""
    try:
        stat = os.statvfs(_SHM)
    except OSError:
        return False
    roomy = stat.f_bavail * stat.f_frsize >= _SHM_ROOM
    return roomy and not stat.f_flag & os.ST_NOEXEC and os.access(_SHM, os.W_OK | os.X_OK)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Put temporary files on tmpfs unless the caller chose a directory; xdist workers inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs with SIGINT ignored, and every program started by a test would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = config.option.basetemp or "TMPDIR" in os.environ or hasattr(config, "workerinput")
    if chosen or not _shm_is_usable():
        return
    scratch = tempfile.mkdtemp(prefix="dirqueue-tests-", dir=_SHM)
    config.stash[_scratch] = scratch
    config.option.basetemp = os.path.join(scratch, "pytest")
    os.environ["TMPDIR"] = scratch
    tempfile.tempdir = None


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    if scratch := config.stash.get(_scratch, None):
        os.environ.pop("TMPDIR", None)
        tempfile.tempdir = None
        shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def _frozen():
    """Keep what pytest has collected and reported out of the collector's way.

    COST: a look at all of it takes 0.3 s, and some tests look a hundred times.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _umask():
    """Restore the umask: the real dirq changes it, and later tests would create files with wrong modes."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def _signals_come():
    """Let signals come again after each test: a program started by a later one would inherit that they do not."""
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item):
    """Skip a test whose marks name a capability this machine lacks."""
    wanted = [name for mark in item.iter_markers("needs") for name in mark.args]
    wanted += [name for name in ("root", "spark") if item.get_closest_marker(name)]
    require(*wanted)


def require(*names):
    """Skip the running test unless the machine has all of these."""
    if absent := capabilities.missing(list(names)):
        pytest.skip("needs " + ", ".join(absent))


@pytest.fixture(name="require")
def _require():
    """Give `require` to tests that know only at run time what they need."""
    return require


def pytest_terminal_summary(terminalreporter):
    """Report the missing capabilities and the number of tests skipped for each."""
    lost = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if found := re.fullmatch(r"Skipped: needs (.+)", reason):
            lost.update(found[1].split(", "))
    if lost:
        counts = (f"{name} ({n} test{'s' * (n > 1)})" for name, n in lost.most_common())
        terminalreporter.write_line("capabilities missing: " + ", ".join(counts), yellow=True, bold=True)


@pytest.fixture
def queue_dir(tmp_path: Path) -> Path:
    """Return a path where no queue exists yet."""
    return tmp_path / "queue"

"""The driver killed with SIGKILL at every point of a queue-to-queue stream: every message arrives once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lab.stream_faults import dead
from support.kit import drain
from support.patience import until

from dirqueue import Queue

HERE = Path(__file__).parent
#: The same list as killing.POINTS, which is not imported here: it changes the package.
POINTS = [
    "a directory taken whole",
    "a lot half filled",
    "a lot full and not sealed",
    "a lot sealed and not logged",
    "parts half written",
    "parts written and not committed",
    "parts moved and not recorded",
    "recorded and not visible",
    "visible and not returned",
    "committed and not logged",
    "logged and not acknowledged",
    "acknowledged and half removed",
]
#: The one that the short set tries: the window that the record is for.
SHORT = "recorded and not visible"


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point == SHORT else pytest.mark.slow) for point in POINTS]
)
def test_a_killed_driver_loses_and_doubles_nothing(spark, tmp_path, point):
    """Killed there, started again from its checkpoint: the output holds each message exactly once."""
    source, out, memory = Queue(tmp_path / "in"), Queue(tmp_path / "out"), tmp_path / "memory"
    wanted = [b"%d" % i for i in range(50)]
    source.put_many(wanted[:5])  # fits into a lot: taken whole
    source.put_many(wanted[5:])
    mark = tmp_path / "mark"
    env = os.environ | {"KILL_AT": point, "KILL_MARK": str(mark)}
    env["PYTHONPATH"] = os.pathsep.join([str(HERE), env.get("PYTHONPATH", "")])
    with (tmp_path / "log").open("w") as log:
        driver = subprocess.run(
            [sys.executable, str(HERE / "killing.py"), source.path, out.path, str(memory)],
            env=env, cwd=tmp_path, stdout=log, stderr=log, check=False,
        )  # fmt: skip
    assert mark.exists(), (tmp_path / "log").read_text()[-3000:]
    assert driver.returncode == -signal.SIGKILL
    # Until the process that pins is dead, its messages are its own, and a restart may find less.
    until(lambda: all(map(dead, mark.read_text().split())), "the death of the last process")
    frame = spark.readStream.format("dirqueue").option("maxMessagesPerTrigger", 20).load(source.path)
    writer = frame.select("value").writeStream.format("dirqueue").option("checkpointLocation", str(memory))
    query = writer.trigger(availableNow=True).start(out.path)
    try:
        query.awaitTermination()
    finally:
        query.stop()
    assert sorted(drain(out)) == sorted(wanted)
    assert source.stats().total == 0

"""A real standalone cluster on loopback, and the jobs that are hurt on it. Run as a program by test_cluster.py.

Arguments: WHAT QUEUE SCRATCH; WHAT is kill, attributes: a kill while these are written, speculate, or worker: a stream
from QUEUE to QUEUE.out that loses a worker.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyspark

import dirqueue.spark
from dirqueue.disk import fs
from dirqueue.layouts.native.names import ATTRIBUTES
from dirqueue.spark.sessions import prepare
from dirqueue.spark.source import DefaultSource
from dirqueue.spark.write import BatchWriter

#: Spark puts no copy of a task on the host it runs on, so there must be two.
HOSTS = ("127.0.0.1", "127.0.0.2")
CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, what, patience=120):
    deadline = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.1)
    return value


@contextlib.contextmanager
def cluster(scratch):
    """Start a master and two workers; yield the URL."""
    prepare()
    port = free_port()
    env = os.environ | {"SPARK_WORKER_DIR": str(scratch / "work"), "SPARK_NO_DAEMONIZE": "1"}
    running = []

    def start(name, *words):
        log = (scratch / f"{name}.log").open("w")
        running.append(
            subprocess.Popen([CLASS, *words], env=env, stdout=log, stderr=log, start_new_session=True)
        )
        return scratch / f"{name}.log"

    try:
        master = "org.apache.spark.deploy.master.Master"
        log = start("master", master, "--host", HOSTS[0], "--port", str(port), "--webui-port", "0")
        wait_for(lambda: "Starting Spark master" in log.read_text(), "the master")
        for host in HOSTS:
            worker = "org.apache.spark.deploy.worker.Worker"
            start(
                f"worker-{host}", worker, "--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g",
                f"spark://{HOSTS[0]}:{port}",
            )  # fmt: skip
        for host in HOSTS:
            wait_for(
                lambda h=host: "Successfully registered" in (scratch / f"worker-{h}.log").read_text(), host
            )
        yield f"spark://{HOSTS[0]}:{port}"
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_executor(id, scratch):
    """Kill the JVM of this executor, once, in the middle of a write."""
    mark = Path(scratch) / "killed"
    if id == 300 and not mark.exists():
        mark.touch()
        kill_this_executor()
    return str(id)


def kill_this_executor():
    """Kill the JVM of the executor that this is a worker of, and this."""
    pid = os.getpid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = parent_of(pid)
    os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(DefaultSource):
    """The queue, with an executor that dies while it writes attributes."""

    @classmethod
    def name(cls):
        return "mortal"

    def writer(self, schema, overwrite):
        return MortalWriter(self._given, schema, overwrite=overwrite)


class MortalWriter(BatchWriter):
    def write(self, iterator):
        real, written = fs.write, []

        def create(name, *args, **kwargs):
            if str(name).startswith(ATTRIBUTES):
                written.append(name)
                with contextlib.suppress(FileExistsError):
                    if len(written) == 20:
                        (Path(os.environ["MORTAL_SCRATCH"]) / "killed").touch(exist_ok=False)
                        fs.write = lambda fd, data: (real(fd, data[:5]), kill_this_executor())
            real_create(name, *args, **kwargs)

        real_create, fs.create = fs.create, create
        try:
            return super().write(iterator)
        finally:
            fs.create = real_create


def kill_worker(body, scratch):
    """Kill the worker that this task runs on, with its executor, once, in the middle of a batch."""
    mark = Path(scratch) / "killed"
    if int(body) == 300 and not mark.exists():
        mark.touch()
        line = [os.getpid()]
        while b"deploy.worker.Worker" not in Path(f"/proc/{line[-1]}/cmdline").read_bytes():
            line.append(parent_of(line[-1]))
        for pid in reversed(line):
            os.kill(pid, signal.SIGKILL)
    return body


def linger(id, scratch):
    """Be slow at one row, in the first attempt only: the copy of the task overtakes it."""
    if id == 300:
        mine = Path(scratch) / f"attempt-{os.getpid()}"
        mine.touch()
        if len(list(Path(scratch).glob("attempt-*"))) == 1:
            deadline = time.monotonic() + 120
            while len(list(Path(scratch).glob("attempt-*"))) == 1 and time.monotonic() < deadline:
                time.sleep(0.1)
            time.sleep(20)
    return str(id)


def lose_worker(spark, hurt, queue, scratch):
    """Stream from queue to queue in batches of 200."""
    from pyspark.sql import functions as f

    frame = spark.readStream.format("dirqueue").option("maxMessagesPerTrigger", 200).load(queue)
    frame = frame.select(hurt(f.col("value").cast("string"), f.lit(str(scratch))).alias("value"))
    writer = frame.writeStream.format("dirqueue").option("checkpointLocation", str(scratch / "memory"))
    writer.trigger(availableNow=True).start(f"{queue}.out").awaitTermination()
    spark.stop()


def main():
    what, queue, scratch = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    os.environ["MORTAL_SCRATCH"] = str(scratch)  # the workers of the cluster, and all below them, have it too
    import cluster as here
    from pyspark.sql import functions as f

    with cluster(scratch) as url:
        spark = dirqueue.spark.session(
            url,
            **{
                "spark.driver.host": HOSTS[0],
                "spark.executor.memory": "512m",
                "spark.executor.cores": 1,
                "spark.cores.max": 2,
                "spark.speculation": what == "speculate",
                "spark.speculation.multiplier": 1.1,
                "spark.speculation.quantile": 0.1,
                "spark.speculation.interval": "100ms",
                "spark.speculation.minTaskRuntime": "100ms",
                "spark.sql.execution.arrow.maxRecordsPerBatch": 50,
                "spark.sql.execution.pythonUDF.arrow.enabled": False,
            },
        )
        wait_for(lambda: spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() == 3, "two executors")
        if what == "worker":
            lose_worker(spark, f.udf(here.kill_worker), queue, scratch)
            return
        if what == "attributes":
            spark.dataSource.register(here.Mortal)
            frame = spark.range(0, 1000, 1, 4).selectExpr(
                "cast(id AS string) AS value", "map('number', cast(id AS string)) AS attributes"
            )
            frame.write.format("mortal").mode("append").save(queue)
            spark.stop()
            return
        hurt = f.udf(here.kill_executor if what == "kill" else here.linger)
        frame = spark.range(0, 1000, 1, 4).select(hurt("id", f.lit(str(scratch))).alias("value"))
        frame.write.format("dirqueue").mode("append").save(queue)
        spark.stop()


if __name__ == "__main__":
    main()

"""A real cluster: master, two workers and the driver are processes of their own, on loopback.

The executors get streamlog as a zip by `--py-files`, as a cluster does that has its dependencies installed
and not the package itself.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

import streamlog

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(300)]

SPARK_HOME = Path(pyspark.__file__).parent
PACKAGE = Path(streamlog.__file__).parent

DRIVER = '''
import os, signal, sys
import streamlog
from pyspark.sql import SparkSession
from streamlog.spark import register, register_tables

root, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)


def where(batches):
    import pyarrow as pa, streamlog
    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"pid": [os.getppid()], "file": [streamlog.__file__]})


places = spark.range(0, 100, 1, 8).mapInArrow(where, "pid LONG, file STRING").collect()
print("> package:", sorted({os.path.basename(p.file.split("/streamlog/")[0]) for p in places}))
print("> executors:", len({p.pid for p in places}))

stream = (spark.readStream.format("streamlog").option("root", root).option("subscribe", "orders")
          .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 600).load())


def fatal(batches):
    """Once, and after rows went on to the sink, the executor of this task is killed."""
    for batch in batches:
        yield batch
        try:
            os.close(os.open(checkpoint + ".killed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        with open(f"/proc/{os.getppid()}/stat") as stat:
            executor = int(stat.read().rsplit(")", 1)[1].split()[1])
        os.kill(executor, signal.SIGKILL)


query = (stream.selectExpr("key", "upper(CAST(value AS STRING)) AS value")
         .mapInArrow(fatal, "key BINARY, value STRING")
         .writeStream.format("streamlog").option("root", root).option("topic", "loud")
         .option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
query.awaitTermination()
print("> an executor was killed:", os.path.exists(checkpoint + ".killed"))
print("> batches:", sum(p.numInputRows > 0 for p in query.recentProgress))

loud = spark.read.format("streamlog").option("root", root).option("subscribe", "loud").load()
loud.createOrReplaceTempView("loud")
row = spark.sql("SELECT count(*) AS n, count(DISTINCT value) AS d, min(CAST(value AS STRING)) AS least"
                " FROM loud").collect()[0]
print("> read:", row.n, row.d, row.least)
register_tables(spark, root)
print("> tables:", spark.sql("SELECT count(*) AS n FROM streamlog_orders").collect()[0].n)
spark.stop()
'''


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(log: Path, *command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process, ended by its id when the block is left."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            [str(SPARK_HOME / "bin/spark-class"), *command],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"SPARK_HOME": str(SPARK_HOME), **environment},
        )
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait(20)


def wait_for(log: Path, text: str, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while text not in log.read_text():
        alive = process.poll() is None and time.monotonic() < until
        assert alive, f"no {text!r} in time:\n{log.read_text()[-3000:]}"
        time.sleep(0.1)


def package_zip(folder: Path) -> Path:
    """The package as `--py-files` takes it."""
    archive = folder / "streamlog.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for path in sorted(PACKAGE.rglob("*.py")):
            target.write(path, path.relative_to(PACKAGE.parent))
    return archive


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A master with two workers of one core each; its address."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    common = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(tmp_path / "work")}
    common |= {"SPARK_LOCAL_DIRS": str(tmp_path / "local")}
    log = tmp_path / "master.log"
    ui = ["--webui-port", str(free_port())]
    begin = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
    # SPARK_LOCAL_IP also keeps the workers' and executors' ports on loopback.
    with process(log, *begin, *ui, **common) as running:
        wait_for(log, "I have been elected leader", running)
        size = ["--cores", "1", "--memory", "1g", "--host", "127.0.0.1"]
        worker = ["org.apache.spark.deploy.worker.Worker", *size]
        with (
            process(tmp_path / "one.log", *worker, "--webui-port", "0", address, **common) as one,
            process(tmp_path / "two.log", *worker, "--webui-port", "0", address, **common) as two,
        ):
            wait_for(tmp_path / "one.log", "Successfully registered with master", one)
            wait_for(tmp_path / "two.log", "Successfully registered with master", two)
            yield address


def test_source_sink_and_sql_run_on_executors_of_a_cluster_though_one_is_killed(
    master: str, log: streamlog.Log, tmp_path: Path
) -> None:
    log.create_topic("orders", partitions=4)
    log.create_topic("loud", partitions=2)
    with log.producer() as producer:
        for number in range(1000):
            producer.send("orders", f"tea {number:04d}", key=f"user-{number % 50}")

    program = tmp_path / "driver.py"
    program.write_text(DRIVER)
    archive = package_zip(tmp_path)
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.pyspark.python": sys.executable,
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    command = [str(SPARK_HOME / "bin/spark-submit"), "--master", master]
    command += ["--py-files", str(archive), "--packages", delta_package()]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    # The executors find no streamlog but the shipped one: neither here nor in site-packages.
    environment = os.environ | {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [*command, str(program), log.root, str(tmp_path / "checkpoint")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    # Spark prints some warnings to stdout.
    said = [line[2:] for line in done.stdout.splitlines() if line.startswith("> ")]
    assert said == [
        "package: ['streamlog.zip']",
        "executors: 2",
        "an executor was killed: True",
        "batches: 2",
        "read: 1000 1000 TEA 0000",
        "tables: 1000",
    ]
    assert log.describe("loud").records == 1000


def delta_package() -> str:
    """Delta's coordinates for this Spark, as delta-spark itself would add them."""
    from importlib.metadata import version

    spark = ".".join(pyspark.__version__.split(".")[:2])
    return f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"

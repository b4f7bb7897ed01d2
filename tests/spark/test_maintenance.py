"""Maintenance on Spark: the same result as in one process, beside a running stream, and as a program."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import streamlog
from streamlog.spark.maintenance import SparkEngine
from tests.spark.queries import Batches, fill, start, stream, values, write

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

JOBS = Path(__file__).parents[2] / "jobs"
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0,
    "delete.retention.ms": 0,
    "segment.bytes": 20_000,
}


def contents(log: streamlog.Log, topic: str) -> list[tuple[int, int, bytes | None, bytes | None]]:
    found = []
    with log.consumer(topic, auto_offset_reset="earliest") as consumer:
        while records := consumer.poll(timeout_ms=300, max_records=100_000):
            found += [(r.partition, r.offset, r.key, r.value) for r in records]
    return sorted(found)


def send_keys(log: streamlog.Log, topic: str, rounds: int) -> None:
    """In each round every tenth key gets a tombstone, the others a value; a file a round."""
    with log.producer(linger_ms=0) as producer:
        for number in range(rounds):
            for key in range(60):
                value = None if (key + number) % 10 == 0 else b"%d of %d" % (number, key)
                producer.send(topic, value, key=b"key %d" % key)
            producer.flush()


def test_keys_are_compacted_as_in_one_process(spark: SparkSession, log: streamlog.Log) -> None:
    for topic in ("here", "there"):
        log.create_topic(topic, partitions=2, config=COMPACTED)
        send_keys(log, topic, 12)
    engine = SparkEngine(spark, log)
    for _ in range(3):  # the last records a key; then expired tombstones; then nothing
        log.maintainer().run(["here"])
        log.maintainer(engine).run(["there"])
        assert contents(log, "here") == contents(log, "there")
        send_keys(log, "here", 2)
        send_keys(log, "there", 2)
    log.maintainer(engine).run(["there"])
    left = contents(log, "there")
    # One record a key, and the newest file of a partition, which is never touched.
    assert max(Counter((p, key) for p, _, key, _ in left).values()) <= 2
    assert len({key for _, _, key, _ in left}) == 60


def test_small_files_become_segments(spark: SparkSession, log: streamlog.Log) -> None:
    log.create_topic("t", partitions=3)
    with log.producer(linger_ms=0) as producer:
        for n in range(150):
            producer.send("t", b"v%d" % n, partition=n % 3).result()
    before = contents(log, "t")
    done = log.maintainer(SparkEngine(spark, log)).run()
    assert [(item.partition, item.status, item.files_after) for item in done] == [
        (0, "done", 1),
        (1, "done", 1),
        (2, "done", 1),
    ]
    assert contents(log, "t") == before
    assert log.describe("t").files == 3


def test_a_stream_over_a_topic_that_is_merged_and_retained_under_it(
    spark: SparkSession, log: streamlog.Log, tmp_path: Path
) -> None:
    """AvailableNow again and again, while files are merged and what was read is removed."""
    log.create_topic("t", partitions=2, config={"retention.bytes": 0})
    seen = Batches()
    stop = threading.Event()

    def maintain() -> None:
        while not stop.is_set():
            log.maintainer().run(actions=("merge",))

    worker = threading.Thread(target=maintain)
    worker.start()
    try:
        for number in range(4):
            fill(log, "t", range(number * 50, number * 50 + 50))
            frame = stream(spark, log, subscribe="t", maxOffsetsPerTrigger=20)
            start(frame, tmp_path / "c", seen, {"availableNow": True}).awaitTermination()
            # All that was read may go: nothing is missed, nothing comes twice.
            log.maintainer().run(actions=("retain",))
    finally:
        stop.set()
        worker.join()
    assert Counter(seen.values) == Counter(values(range(200)))
    assert sum(part.start for part in log.describe("t").partitions) > 0


def test_a_native_delta_stream_goes_on_over_merges_and_retention(
    spark: SparkSession, log: streamlog.Log, tmp_path: Path
) -> None:
    """Merging is no change of data; what retention takes needs `ignoreDeletes`, as with any Delta table."""
    log.create_topic("t", config={"retention.bytes": 0})
    table = Path(log.root, log.topic("t").path, "0")
    place = str(tmp_path / "copy")
    for number in range(3):
        with log.producer(linger_ms=0) as producer:
            for n in range(number * 40, number * 40 + 40):
                producer.send("t", b"v%d" % n).result()
        query = (
            spark.readStream.format("delta")
            .option("ignoreDeletes", "true")
            .load(str(table))
            .writeStream.format("delta")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start(place)
        )
        query.awaitTermination()
        log.maintainer().run(actions=("merge",))
        log.maintainer().run(actions=("retain",))
    copied = [bytes(row.value) for row in spark.read.format("delta").load(place).collect()]
    assert Counter(copied) == Counter(values(range(120)))


def test_delta_sparks_own_optimize_and_vacuum_leave_the_log_as_it_was(
    spark: SparkSession, log: streamlog.Log
) -> None:
    """With producers stopped: beside them delta-spark's commit is not safe on a local disk."""
    log.create_topic("t")
    with log.producer(linger_ms=0) as producer:
        for n in range(40):
            producer.send("t", b"v%d" % n, key=b"k").result()
    before = contents(log, "t")
    table = Path(log.root, log.topic("t").path, "0")
    metrics = spark.sql(f"OPTIMIZE delta.`{table}`").collect()[0].metrics
    assert metrics.numFilesRemoved == 40
    spark.sql(f"VACUUM delta.`{table}` RETAIN 168 HOURS")
    with streamlog.connect(log.root) as fresh:
        assert contents(fresh, "t") == before
        assert fresh.describe("t").files == 1
        with fresh.producer() as producer:
            assert producer.send("t", b"on top").result().offset == 40
        assert [value for *_, value in contents(fresh, "t")][-1] == b"on top"
        (plan,) = fresh.doctor().repair() or [None]
        assert plan is None


def test_the_sink_writes_once_beside_maintenance(
    spark: SparkSession, log: streamlog.Log, tmp_path: Path
) -> None:
    log.create_topic("in", partitions=2)
    log.create_topic("out", partitions=2)
    for number in range(3):
        fill(log, "in", range(number * 40, number * 40 + 40))
        frame = stream(spark, log, subscribe="in", maxOffsetsPerTrigger=7)
        write(frame.select("key", "value"), log, tmp_path / "c", topic="out")
        log.maintainer().run()
    assert Counter(value for *_, value in contents(log, "out")) == Counter(values(range(120)))


def test_the_job_runs_as_a_program(log: streamlog.Log) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=0) as producer:
        for n in range(40):
            producer.send("t", b"v%d" % n).result()

    def job(name: str, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(JOBS / f"{name}.py"), "--root", log.root, *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    plan = job("compact", "--dry-run", "--json")
    assert json.loads(plan.stdout)[0]["status"] == "planned", plan.stderr
    done = job("maintain", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files_written"] == 1
    wrong = job("retention", "--topic", "nope", "--dry-run")
    assert (wrong.returncode, wrong.stderr.strip()) == (
        1,
        "error: there is no topic 'nope'; list the topics to see which there are",
    )

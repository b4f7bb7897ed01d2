"""Writing topics from Spark: columns, partitions, order, and each record once whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import streamlog
from streamlog.hashing import partition_for
from tests.spark.queries import (
    T0,
    contents,
    fill,
    found,
    in_order,
    stream,
    values,
    wait_for,
    write,
)
from tests.spark.queries import batch as read

pytestmark = pytest.mark.spark


@pytest.fixture
def pair(log: streamlog.Log) -> streamlog.Log:
    """Topics `in` (2 partitions, v0 to v59) and `out` (3)."""
    log.create_topic("in", partitions=2)
    log.create_topic("out", partitions=3)
    fill(log, "in", range(60))
    return log


def save(frame: DataFrame, log: streamlog.Log, **options: object) -> None:
    texts = {name: str(value) for name, value in options.items()}
    writer = frame.write.format("streamlog").option("root", log.root).options(**texts)
    writer.mode("append").save()


def out_values(log: streamlog.Log, topic: str = "out") -> list[bytes]:
    return in_order(record.value for record in contents(log, topic))


def staged(log: streamlog.Log) -> list[Path]:
    return list(Path(log.root, "__spark").rglob("*.arrow"))


# columns


def test_all_columns_of_a_batch(spark: SparkSession, log: streamlog.Log) -> None:
    log.create_topic("a", partitions=4)
    log.create_topic("b", partitions=1)
    frame = spark.sql(
        f"""
        SELECT 'a' AS topic, 3 AS partition, 'k' AS key, CAST('v1' AS BINARY) AS value,
               timestamp_millis({T0}) AS timestamp,
               array(named_struct('key', 'h', 'value', CAST('x' AS BINARY)),
                     named_struct('key', 'n', 'value', CAST(NULL AS BINARY))) AS headers
        UNION ALL SELECT 'b', NULL, NULL, NULL, NULL, NULL
        """
    )
    save(frame, log)
    (one,) = contents(log, "a")
    assert (one.partition, one.key, one.value) == (3, b"k", b"v1")
    assert one.timestamp == T0 or int(one.timestamp.timestamp() * 1000) == T0
    assert list(one.headers) == [("h", b"x"), ("n", None)]
    (two,) = contents(log, "b")
    assert (two.key, two.value, list(two.headers or [])) == (None, None, [])
    assert not list(Path(log.root).glob("__spark/*"))


def test_the_option_goes_before_the_column(spark: SparkSession, pair: streamlog.Log) -> None:
    frame = spark.createDataFrame([("in", "v100")], "topic STRING, value STRING")
    save(frame, pair, topic="out")
    assert out_values(pair) == [b"v100"]
    assert len(contents(pair, "in")) == 60


def test_keys_go_where_every_client_puts_them_and_keep_their_order(
    spark: SparkSession, log: streamlog.Log
) -> None:
    log.create_topic("t", partitions=5)
    frame = spark.range(0, 400, 1, 1).selectExpr("'k' || (id % 37) AS key", "'v' || id AS value")
    save(frame, log, topic="t", compression="zstd")
    records = contents(log, "t")
    assert all(r.partition == partition_for(r.key, 5) for r in records)
    by_key: dict[bytes, list[int]] = {}
    for record in sorted(records, key=lambda r: (r.partition, r.offset)):
        by_key.setdefault(record.key, []).append(int(record.value[1:]))
    assert len(by_key) == 37
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sum(map(len, by_key.values())) == 400


def test_round_robin_and_no_file_a_record(spark: SparkSession, pair: streamlog.Log) -> None:
    frame = spark.range(0, 90, 1, 4).selectExpr("'same' AS key", "'v' || id AS value")
    save(frame, pair, topic="out", partitioner="roundrobin", acks="1")
    parts = pair.describe("out").partitions
    assert [part.records for part in parts] == [30, 30, 30]
    assert [part.files for part in parts] == [1, 1, 1]
    assert out_values(pair) == values(range(90))


def test_a_topic_is_copied_as_it_was_read(
    spark: SparkSession, pair: streamlog.Log, tmp_path: Path
) -> None:
    """The source's own columns pass: partition and timestamp stay, offset and timestampType are ours."""
    frame = stream(spark, pair, subscribe="in", includeHeaders="true")
    write(frame, pair, tmp_path / "c", topic="out")
    copied = {(r.partition, r.key, r.value, r.timestamp) for r in contents(pair, "out")}
    assert copied == {(r.partition, r.key, r.value, r.timestamp) for r in contents(pair, "in")}
    assert found(read(spark, pair, subscribe="out")) == values(range(60))


def test_complete_mode_appends_what_changed_as_kafkas_sink_does(
    spark: SparkSession, pair: streamlog.Log, tmp_path: Path
) -> None:
    counts = stream(spark, pair, subscribe="in").groupBy("key").count()
    frame = counts.selectExpr("key", "'v' || count AS value")
    writer = frame.writeStream.format("streamlog").option("root", pair.root).option("topic", "out")
    writer = writer.outputMode("complete").option("checkpointLocation", str(tmp_path / "c"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert out_values(pair) == [b"v6"] * 10


def test_at_least_once_writes_without_staging(
    spark: SparkSession, pair: streamlog.Log, tmp_path: Path
) -> None:
    frame = stream(spark, pair, subscribe="in", maxOffsetsPerTrigger=20).select("key", "value")
    write(frame, pair, tmp_path / "c", topic="out", delivery="at-least-once")
    assert out_values(pair) == values(range(60))
    save(
        read(spark, pair, subscribe="in").select("key", "value"),
        pair,
        topic="out",
        delivery="at-least-once",
    )
    assert len(out_values(pair)) == 120
    assert not Path(pair.root, "__spark").exists()


# bad input


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("SELECT 'v' AS value", {}, "no topic: give a column 'topic'"),
        ("SELECT 'v' AS value", {"topic": "nope"}, "there is no topic 'nope'"),
        (
            "SELECT 1 AS value",
            {"topic": "out"},
            "column 'value' is int; it must be string or binary",
        ),
        ("SELECT 'v' AS value, 1 AS extra", {"topic": "out"}, "the sink has no column 'extra'"),
        (
            "SELECT 'v' AS value, array(named_struct('key', 'h', 'value', 'text')) AS headers",
            {"topic": "out"},
            "it must be array<struct<key: string, value: binary>>",
        ),
        ("SELECT 'v' AS value, CAST(NULL AS STRING) AS topic", {}, "a row has a null topic"),
        (
            "SELECT 'v' AS value, 3 AS partition",
            {"topic": "out"},
            "a row names partition 3 of topic 'out'",
        ),
        ("SELECT repeat('x', 2000000) AS value", {"topic": "out"}, "max.message.bytes is 1048588"),
        ("SELECT 'v' AS value", {"topic": "out", "acks": "0"}, "acks='0' is not allowed"),
    ],
)
def test_bad_input_is_said_and_nothing_written(
    spark: SparkSession, pair: streamlog.Log, query: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        save(spark.sql(query), pair, **options)
    assert message in str(caught.value)
    assert contents(pair, "out") == []
    assert staged(pair) == []


def test_overwriting_is_refused(spark: SparkSession, pair: streamlog.Log) -> None:
    writer = spark.sql("SELECT 'v' AS value").write.format("streamlog").option("topic", "in")
    with pytest.raises(PySparkException, match="a topic cannot be overwritten"):
        writer.option("root", pair.root).mode("overwrite").save()
    assert len(contents(pair, "in")) == 60


def test_a_bad_row_stops_a_stream_with_our_words(
    spark: SparkSession, pair: streamlog.Log, tmp_path: Path
) -> None:
    frame = stream(spark, pair, subscribe="in").selectExpr("value", "99 AS partition")
    with pytest.raises(StreamingQueryException, match="a row names partition 99 of topic 'out'"):
        write(frame, pair, tmp_path / "c", topic="out")
    assert contents(pair, "out") == []
    # Repaired, the query goes on from its checkpoint.
    good = stream(spark, pair, subscribe="in").select("value")
    write(good, pair, tmp_path / "c", topic="out")
    assert out_values(pair) == values(range(60))
    assert staged(pair) == []


# each record once


def last(folder: Path) -> Path:
    return max((p for p in folder.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died after the sink's commit, before Spark noted it."""
    path = last(checkpoint / "commits")
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("change", ["nothing", "parallelism", "growth"])
def test_a_replayed_batch_is_written_once(
    spark: SparkSession, pair: streamlog.Log, tmp_path: Path, change: str
) -> None:
    def frame(tasks: int, cut: int) -> DataFrame:
        source = stream(
            spark, pair, subscribe="in", maxOffsetsPerTrigger=25, maxRecordsPerPartition=cut
        )
        return source.repartition(tasks).select("key", "value")

    write(frame(2, 1000), pair, tmp_path / "c", topic="out")
    assert out_values(pair) == values(range(60))
    forget_last_commit(tmp_path / "c")
    if change == "growth":
        pair.add_partitions("out", 7)
    tasks, cut = (2, 1000) if change == "nothing" else (5, 3)
    query = write(frame(tasks, cut), pair, tmp_path / "c", topic="out")
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows]  # it was replayed
    assert out_values(pair) == values(range(60))
    fill(pair, "in", range(60, 80))
    write(frame(tasks, cut), pair, tmp_path / "c", topic="out")
    assert out_values(pair) == values(range(80))
    assert staged(pair) == []


@pytest.mark.parametrize("grown", [False, True])
def test_a_commit_that_failed_half_way_is_finished_by_the_replay(
    spark: SparkSession, pair: streamlog.Log, tmp_path: Path, grown: bool
) -> None:
    """One partition's folder cannot be written: others have their records, and Spark aborts the batch."""
    checkpoint = tmp_path / "c"
    frame = stream(spark, pair, subscribe="in").select("key", "value")
    blocked = Path(pair.root, pair.topic("out").path, "2")
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("in the way")
    with pytest.raises(StreamingQueryException):
        write(frame, pair, checkpoint, topic="out")
    assert staged(pair)
    blocked.unlink()
    half = out_values(pair)
    assert 0 < len(half) < 60
    if grown:
        pair.add_partitions("out", 6)
    again = stream(spark, pair, subscribe="in", minPartitions=7).select("key", "value")
    write(again, pair, checkpoint, topic="out")
    assert out_values(pair) == values(range(60))
    assert staged(pair) == []


def test_a_failed_and_retried_task_and_a_dead_batch_leave_no_doubles(
    spark: SparkSession, pair: streamlog.Log, tmp_path: Path
) -> None:
    """The first attempt stages its rows and then dies in the last task; the restart writes them once."""
    flag = tmp_path / "broken"
    flag.touch()

    def fragile(batches: Iterator[Any]) -> Iterator[Any]:
        for item in batches:
            yield item
            if b"v59" in item.column("value").to_pylist() and flag.exists():
                raise RuntimeError("a task dies after its rows were written")

    def frame() -> DataFrame:
        source = stream(spark, pair, subscribe="in", maxRecordsPerPartition=10)
        return source.select("key", "value").mapInArrow(fragile, "key BINARY, value BINARY")

    with pytest.raises(StreamingQueryException, match="a task dies after its rows were written"):
        write(frame(), pair, tmp_path / "c", topic="out")
    assert contents(pair, "out") == []
    flag.unlink()
    write(frame(), pair, tmp_path / "c", topic="out")
    assert out_values(pair) == values(range(60))
    assert staged(pair) == []


DRIVER = """
import sys
from pathlib import Path
from streamlog.spark import session

root, checkpoint = sys.argv[1:]
spark = session("killed", "local[2]", {"spark.driver.memory": "1g"}, delta=False)
spark.sparkContext.setLogLevel("OFF")
frame = (
    spark.readStream.format("streamlog").option("root", root).option("subscribe", "in")
    .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 40).load()
)
query = (
    frame.select("key", "value").writeStream.format("streamlog").option("root", root)
    .option("topic", "out").option("checkpointLocation", checkpoint)
    .trigger(availableNow=True).start()
)
query.awaitTermination()
print("finished", flush=True)
"""


@pytest.mark.slow
@pytest.mark.processes
def test_a_driver_killed_again_and_again_writes_each_record_once(
    log: streamlog.Log, tmp_path: Path
) -> None:
    log.create_topic("in", partitions=2)
    log.create_topic("out", partitions=3)
    fill(log, "in", range(1000))
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    command = [sys.executable, str(script), log.root, str(tmp_path / "c")]
    kills = 0
    for goal in (40, 240, 480, None):
        # A session of its own: the JVM and the Python workers die with the driver.
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        until = time.monotonic() + 60
        while goal is not None and process.poll() is None and time.monotonic() < until:
            if log.describe("out").records >= goal:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.01)
        output, _ = process.communicate(timeout=90)
        if goal is None:
            assert "finished" in output
    assert kills >= 2
    assert Counter(r.value for r in contents(log, "out")) == Counter(values(range(1000)))
    assert staged(log) == []


def test_a_running_query_from_topic_to_topic(
    spark: SparkSession, pair: streamlog.Log, tmp_path: Path
) -> None:
    frame = stream(spark, pair, subscribe="in", groupId="copy").selectExpr(
        "key", "CAST(value AS STRING) AS value"
    )
    writer = frame.writeStream.format("streamlog").option("root", pair.root).option("topic", "out")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        wait_for(lambda: pair.describe("out").records >= 60, query)
        fill(pair, "in", range(60, 70))
        wait_for(lambda: pair.describe("out").records >= 70, query)
    finally:
        query.stop()
    assert out_values(pair) == values(range(70))
    # A stopped query goes on; what it had under way counts once.
    fill(pair, "in", range(70, 75))
    write(frame, pair, tmp_path / "c", topic="out")
    assert out_values(pair) == values(range(75))
    assert {row["lag"] for row in pair.group("copy").lag().to_pylist()} == {0}

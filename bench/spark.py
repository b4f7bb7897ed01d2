"""Spark beside itself: streamlog's source and sink against those of Kafka, topics against Delta tables.

The Kafka is a real broker on this machine. Without Java nothing of this can be measured, without Maven
or a network the comparison with Kafka cannot; what is left out is said on stderr.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import streamlog
from bench.broker import broker
from bench.jars import MissingError, spark_jars
from bench.measure import Result, fresh_folder, in_turns, seconds
from bench.produce import make_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

RECORDS = 1_000_000
PARTITIONS = 4
ROUNDS = 5
SQL_RECORDS = 8 * RECORDS
SQL_ROUNDS = 7
BATCHES = 40
BATCH_RECORDS = 10
WARM_UP = 10
_QUERY_SECONDS = 300.0


def run() -> list[Result]:
    """The figures of Spark on this machine's cores."""
    try:
        import delta  # noqa: F401 - whether it is there
        import pyspark  # noqa: F401
    except ImportError as error:
        return _skip(f"{error}: pip install 'streamlog[spark]'")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        return _skip("Spark needs Java 17 or later, and there is none")
    jars: list[Path] = []
    try:
        jars = spark_jars()
    except MissingError as error:
        _skip(f"no comparison with Kafka: {error}")
    with fresh_folder() as folder:
        spark = _session(folder, jars)
        try:
            log = _topic(folder)
            found: list[Result] = []
            if jars:
                try:
                    with broker(PARTITIONS) as address:
                        found += _source(spark, log, folder, address)
                        found += _sink(spark, log, address)
                except MissingError as error:
                    _skip(f"no comparison with Kafka: {error}")
            return [*found, *_sql(spark, log, folder), _micro_batch(spark, log, folder)]
        finally:
            spark.stop()


def _skip(why: str) -> list[Result]:
    print(f"bench spark: {why}", file=sys.stderr)
    return []


def _session(folder: Path, jars: list[Path]) -> SparkSession:
    from streamlog.spark import session

    config = {
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if jars:
        config["spark.jars"] = ",".join(map(str, jars))
    spark = session("streamlog-bench", "local[2]", config)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _topic(folder: Path) -> streamlog.Log:
    """The records of all comparisons, in a topic `t`; an empty `out` beside it."""
    log = streamlog.connect(folder / "root")
    log.create_topic("t", partitions=PARTITIONS)
    log.create_topic("out", partitions=PARTITIONS)
    _fill(log, "t")
    return log


def _fill(log: streamlog.Log, topic: str) -> None:
    keys, values = make_records(RECORDS)
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    with log.producer(acks=1) as producer:
        producer.send_batch(topic, table).result()


# ------------------------------------------------------------------------------ beside Kafka's


def _source(spark: SparkSession, log: streamlog.Log, folder: Path, address: str) -> list[Result]:
    """The same records in the same partitions, all at once, to a sink that does nothing.

    Measured is the whole query, from `load` to its end; beside it the batch alone, as Spark reports it.
    """
    ours = {"root": log.root, "subscribe": "t"}
    theirs = {"kafka.bootstrap.servers": address, "subscribe": "t"}
    same = spark.read.format("streamlog").options(**ours).load()
    same.select("key", "value", "partition").write.format("kafka").options(
        **theirs | {"topic": "t"}
    ).save()
    there = spark.read.format("kafka").options(**theirs).load().count()
    if there != RECORDS:
        raise MissingError(f"the broker has {there} records of {RECORDS}")

    def stream(name: str, options: dict[str, str]) -> tuple[float, float]:
        started = time.perf_counter()
        reader = spark.readStream.format(name).options(**options)
        frame = reader.option("startingOffsets", "earliest").load()
        batch = _finish(frame.writeStream.format("noop"), folder)
        return time.perf_counter() - started, batch

    times: dict[str, list[tuple[float, float]]] = {"kafka": [], "streamlog": []}
    for _ in range(ROUNDS + 1):
        times["kafka"].append(stream("kafka", theirs))
        times["streamlog"].append(stream("streamlog", ours))
    found = []
    for index, what in enumerate(("the whole query", "the batch alone, as Spark reports it")):
        kafka, mine = (
            statistics.median(each[index] for each in taken[1:]) for taken in times.values()
        )
        found.append(
            Result(
                f"Spark source, of Spark's own Kafka source: {what}",
                kafka / mine,
                2,
                detail=f"{_rate(mine)}, Kafka's {_rate(kafka)}",
            )
        )
    return found


def _sink(spark: SparkSession, log: streamlog.Log, address: str) -> list[Result]:
    """A million rows that Spark holds in memory: exactly once here, at least once there.

    Kafka's sink asks for acks=all as well, but its broker acknowledges before it syncs its disk; acks=1
    here promises the same.
    """
    rows = spark.read.format("streamlog").options(root=log.root, subscribe="t").load()
    rows = rows.select("key", "value").cache()
    rows.count()

    def write(name: str, **options: str) -> float:
        writer = rows.write.format(name).options(**options).option("topic", "out")
        return seconds(lambda: writer.mode("append").save())

    times: dict[str, list[float]] = {"kafka": [], "all": [], "1": []}
    for _ in range(ROUNDS + 1):
        times["kafka"].append(write("kafka", **{"kafka.bootstrap.servers": address}))
        for acks in ("all", "1"):
            times[acks].append(write("streamlog", root=log.root, acks=acks))
    rows.unpersist()
    written = sum(part.end for part in log.describe("out").partitions)
    if written != 2 * (ROUNDS + 1) * RECORDS:
        raise AssertionError(f"{written} records were written, not {2 * (ROUNDS + 1) * RECORDS}")
    kafka = statistics.median(times.pop("kafka")[1:])
    found = []
    for acks, each in times.items():
        mine = statistics.median(each[1:])
        promise = "synced to disk" if acks == "all" else "as durable as Kafka's"
        found.append(
            Result(
                f"Spark sink, of Spark's own Kafka sink: acks={acks}, {promise}",
                kafka / mine,
                1,
                detail=f"{_rate(mine)}, Kafka's {_rate(kafka)}",
            )
        )
    return found


# ----------------------------------------------------------------------------- beside Spark's


def _sql(spark: SparkSession, log: streamlog.Log, folder: Path) -> list[Result]:
    """A query over a topic's view, and over one Delta table that Spark wrote with the same rows.

    Planning costs Delta a fixed time a table, and a topic has one a partition; so a large topic, after
    maintenance, is measured beside the million records as they were written.
    """
    log.create_topic("large", partitions=PARTITIONS)
    for _ in range(SQL_RECORDS // RECORDS):
        _fill(log, "large")
    log.maintain(["large"])
    return [
        _view(spark, log, "t", folder, f"{RECORDS // 1_000_000}M records"),
        _view(spark, log, "large", folder, f"{SQL_RECORDS // 1_000_000}M records, maintained"),
    ]


def _view(spark: SparkSession, log: streamlog.Log, topic: str, folder: Path, what: str) -> Result:
    from streamlog.spark import register_tables

    (view,) = register_tables(spark, log, "bench", topics=[topic])
    path, plain_view = str(folder / f"plain-{topic}"), f"plain_{topic}"
    rows = spark.table(view).repartitionByRange(PARTITIONS, "partition")
    rows.sortWithinPartitions("offset").write.format("delta").save(path)
    spark.read.format("delta").load(path).createOrReplaceTempView(plain_view)

    def query(name: str) -> list[Any]:
        return spark.sql(
            "SELECT partition, count(*), max(offset), max(timestamp), max(key), sum(length(value)) "
            f"FROM {name} GROUP BY partition ORDER BY partition"
        ).collect()

    for _ in range(2):
        if query(view) != query(plain_view):
            raise AssertionError("the view and the table differ")
    plain, mine = in_turns(lambda: query(plain_view), lambda: query(view), SQL_ROUNDS)
    return Result(
        f"SQL over a topic, of a plain Delta table: {what}",
        plain / mine,
        0.9,
        detail=f"{mine:.2f} s, Delta {plain:.2f} s",
    )


def _micro_batch(spark: SparkSession, log: streamlog.Log, folder: Path) -> Result:
    """Ten records from a topic to another, beside ten rows of Spark's own to nowhere."""
    log.create_topic("few", partitions=PARTITIONS)
    log.create_topic("copy", partitions=PARTITIONS)
    keys, values = make_records((BATCHES + WARM_UP + 10) * BATCH_RECORDS)
    with log.producer(acks=1, linger_ms=0) as producer:
        for first in range(0, len(keys), BATCH_RECORDS):
            # As they come in a live topic: an append a batch.
            for number in range(first, first + BATCH_RECORDS):
                producer.send("few", values[number], key=keys[number])
            producer.flush()

    def rate() -> list[float]:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", BATCH_RECORDS)
        return _batches(source, "noop", {}, folder)

    def copy() -> list[float]:
        source = spark.readStream.format("streamlog").options(root=log.root, subscribe="few")
        source = source.option("startingOffsets", "earliest")
        source = source.option("maxOffsetsPerTrigger", BATCH_RECORDS)
        return _batches(source, "streamlog", {"root": log.root, "topic": "copy"}, folder)

    empty: list[float] = []
    full: list[float] = []
    for number in range(2):
        for action, times in ((rate, empty), (copy, full))[:: 1 if number else -1]:
            times.extend(action())
    least, mine = statistics.median(empty), statistics.median(full)
    return Result(
        f"a micro-batch of {BATCH_RECORDS} records: beyond Spark's own",
        mine - least,
        0.3,
        at_least=False,
        unit="s",
        detail=f"{mine * 1000:.0f} ms, rate to noop {least * 1000:.0f} ms",
    )


def _batches(
    source: DataStreamReader, sink: str, options: dict[str, str], folder: Path
) -> list[float]:
    """Seconds of each of many batches, one after the other; the first few are left out."""
    writer = source.load().writeStream.format(sink).options(**options)
    place = tempfile.mkdtemp(dir=folder)
    query = writer.option("checkpointLocation", place).trigger(processingTime="0 seconds").start()
    try:
        _until(query, lambda: len(query.recentProgress) > BATCHES + WARM_UP)
        seen = [progress for progress in query.recentProgress if progress.numInputRows]
    finally:
        query.stop()
    return [item.durationMs["triggerExecution"] / 1000 for item in seen[WARM_UP:][:BATCHES]]


def _until(query: StreamingQuery, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _QUERY_SECONDS
    while not done():
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > deadline:
            raise TimeoutError(f"a query was not done within {_QUERY_SECONDS:g} s")
        time.sleep(0.1)


def _finish(writer: DataStreamWriter, folder: Path) -> float:
    """Seconds of a query's batches."""
    place = tempfile.mkdtemp(dir=folder)
    query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
    query.awaitTermination()
    done = [progress for progress in query.recentProgress if progress.numInputRows]
    if sum(progress.numInputRows for progress in done) != RECORDS:
        raise AssertionError(f"a query did not read {RECORDS} records")
    return sum(progress.durationMs["triggerExecution"] for progress in done) / 1000


def _rate(seconds: float) -> str:
    return f"{RECORDS / seconds / 1000:.0f}k rows/s"

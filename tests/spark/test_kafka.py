"""Spark's own Kafka source and sink against a broker of ours: one topic, by either door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import streamlog
from bench.jars import MissingError, spark_jars
from tests.broker.harness import RunningBroker, running_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000


@pytest.fixture
def broker(log: streamlog.Log) -> Iterator[RunningBroker]:
    try:
        spark_jars()
    except MissingError as error:
        pytest.skip(f"Spark's Kafka source cannot be had: {error}")
    log.create_topic("in", partitions=3)
    log.create_topic("out", partitions=3)
    with running_broker(log.root) as broker:
        yield broker


def test_spark_writes_by_kafkas_sink_what_streamlogs_source_reads(
    spark: SparkSession, log: streamlog.Log, broker: RunningBroker
) -> None:
    frame = spark.range(ROWS).selectExpr(
        "cast(id as string) as key",
        "cast(if(id % 10 = 0, null, id) as string) as value",
        "array(named_struct('key', 'n', 'value', cast(cast(id as string) as binary))) as headers",
    )
    kafka = {"kafka.bootstrap.servers": broker.address, "topic": "in"}
    frame.write.format("kafka").options(**kafka).option("includeHeaders", "true").save()

    found = spark.read.format("streamlog").options(root=log.root, subscribe="in").load()
    rows = found.selectExpr("cast(key as string) k", "cast(value as string) v").collect()
    assert {row.k: row.v for row in rows} == {
        str(n): None if n % 10 == 0 else str(n) for n in range(ROWS)
    }
    assert len(rows) == ROWS
    from streamlog.spark import register_tables

    (view,) = register_tables(spark, log, "by_kafka", topics=["in"])
    (count,) = spark.sql(f"select count(value), count(*) from {view}").collect()
    assert tuple(count) == (ROWS - ROWS // 10, ROWS)


def test_spark_reads_by_kafkas_source_what_the_embedded_client_wrote(
    spark: SparkSession, log: streamlog.Log, broker: RunningBroker
) -> None:
    with log.producer() as producer:
        for n in range(ROWS):
            producer.send("in", b"%d" % n, key=b"k%d" % (n % 7), timestamp=1_700_000_000_000 + n)
    options = {"kafka.bootstrap.servers": broker.address, "subscribe": "in"}
    theirs = spark.read.format("kafka").options(**options).load()
    ours = spark.read.format("streamlog").options(root=log.root, subscribe="in").load()
    columns = ("topic", "partition", "offset", "timestamp", "key", "value")
    found = sorted(tuple(row) for row in theirs.select(*columns).collect())
    assert len(found) == ROWS
    assert found == sorted(tuple(row) for row in ours.select(*columns).collect())


def test_a_stream_goes_through_kafkas_source_and_sink_and_goes_on(
    spark: SparkSession, log: streamlog.Log, broker: RunningBroker, tmp_path: Path
) -> None:
    options = {"kafka.bootstrap.servers": broker.address}

    def run() -> None:
        source = spark.readStream.format("kafka").options(**options, subscribe="in")
        frame = source.option("startingOffsets", "earliest").load().select("key", "value")
        sink = frame.writeStream.format("kafka").options(**options, topic="out")
        query = (
            sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)
        assert query.exception() is None

    for half in range(2):
        with log.producer() as producer:
            for n in range(half * 100, half * 100 + 100):
                producer.send("in", b"%d" % n, key=b"%d" % n)
        run()
    with log.consumer("out", auto_offset_reset="earliest") as consumer:
        values = [int(record.value or b"") for record in consumer.poll(5000, max_records=1000)]
    assert sorted(values) == list(range(200))

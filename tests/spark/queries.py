"""Short words for what the Spark tests do all the time: fill topics, read them, run queries to their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import streamlog

T0 = 1_700_000_000_000


def fill(
    log: streamlog.Log, topic: str, numbers: Iterable[int], partition: int | None = None
) -> None:
    """Records with value `v<n>`, key `k<n % 10>`, a second apart; by key unless a partition is given."""
    with log.producer() as producer:
        for n in numbers:
            producer.send(
                topic,
                b"v%d" % n,
                key=b"k%d" % (n % 10),
                partition=partition,
                timestamp=T0 + n * 1000,
            )


def values(numbers: Iterable[int]) -> list[bytes]:
    return [b"v%d" % n for n in numbers]


def batch(spark: SparkSession, log: streamlog.Log, **options: object) -> DataFrame:
    texts = {name: str(value) for name, value in options.items()}
    return spark.read.format("streamlog").option("root", log.root).options(**texts).load()


def stream(spark: SparkSession, log: streamlog.Log, **options: object) -> DataFrame:
    texts = {"startingOffsets": "earliest"} | {name: str(v) for name, v in options.items()}
    reader = spark.readStream.format("streamlog").option("root", log.root)
    return reader.options(**texts).load()


def found(frame: DataFrame) -> list[bytes]:
    """The values of a batch, sorted as their numbers are."""
    return in_order(bytes(row.value) for row in frame.select("value").collect())


def in_order(items: Iterable[bytes]) -> list[bytes]:
    return sorted(items, key=lambda value: int(value[1:]))


@dataclass
class Batches:
    """What a query handed over, batch by batch."""

    rows: dict[int, list[Row]] = field(default_factory=dict)
    tasks: dict[int, int] = field(default_factory=dict)

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.tasks[number] = frame.rdd.getNumPartitions()
        self.rows[number] = frame.collect()

    @property
    def sizes(self) -> list[int]:
        return [len(self.rows[number]) for number in sorted(self.rows) if self.rows[number]]

    @property
    def values(self) -> list[bytes]:
        return in_order(bytes(row.value) for rows in self.rows.values() for row in rows)


def start(
    frame: DataFrame, checkpoint: Path, into: Batches, trigger: dict[str, Any] | None = None
) -> StreamingQuery:
    """A query that collects its batches; by default as often as it can."""
    writer = frame.writeStream.foreachBatch(into).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"processingTime": "50 milliseconds"})).start()


def drain(frame: DataFrame, checkpoint: Path) -> Batches:
    """All there is now, then the end."""
    batches = Batches()
    start(frame, checkpoint, batches, {"availableNow": True}).awaitTermination()
    return batches


def wait_for(done: Callable[[], bool], query: StreamingQuery, seconds: float = 45) -> None:
    """Until `done`; a query that failed raises here."""
    until = time.monotonic() + seconds
    while not done():
        if not query.isActive:
            query.awaitTermination()
            assert done(), "the query ended too early"
            return
        assert time.monotonic() < until, f"not in time; last progress: {query.lastProgress}"
        time.sleep(0.05)


def write(
    frame: DataFrame, log: streamlog.Log, checkpoint: Path, **options: object
) -> StreamingQuery:
    """A query into a topic, run to the end of what there is."""
    texts = {name: str(value) for name, value in options.items()}
    writer = frame.writeStream.format("streamlog").option("root", log.root).options(**texts)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def contents(log: streamlog.Log, topic: str) -> list[Any]:
    """All records of a topic, by a plain consumer."""
    total = log.describe(topic).records
    records: list[Any] = []
    with log.consumer(topic, auto_offset_reset="earliest") as consumer:
        while len(records) < total:
            records += consumer.poll(timeout_ms=1000)
    return records

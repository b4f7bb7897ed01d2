"""The example jobs, each beside a producer that writes while it runs."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import streamlog
from jobs.streams import join_topics, window_counts

pytestmark = pytest.mark.spark

# Event time of the first record: 2026-11-18T05:00:00Z.
BEGIN_MS = 1_794_978_000_000
SHORT = ["--trigger", "200 milliseconds"]


def records_of(log: streamlog.Log, topic: str) -> list[Any]:
    total = log.describe(topic).records
    with log.consumer(topic, auto_offset_reset="earliest") as consumer:
        found: list[Any] = []
        while len(found) < total:
            found += consumer.poll(timeout_ms=1000)
    return found


def wait(query: Any, done: Callable[[], bool], seconds: float = 45) -> None:
    """Until `done`, while the query is well."""
    until = time.monotonic() + seconds
    while not done():
        if not query.isActive:
            query.awaitTermination()
        assert time.monotonic() < until, "the job did not get so far in time"
        time.sleep(0.1)


class Live(threading.Thread):
    """A producer that works beside the test; `join` raises what went wrong in it."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__()
        self._work = work
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        if self._error is not None:
            raise self._error


def stopped(query: Any) -> None:
    query.stop()
    with suppress(Exception):
        query.awaitTermination()


def test_counts_per_key_and_window_follow_a_live_producer(
    spark: SparkSession, log: streamlog.Log, tmp_path: Path
) -> None:
    log.create_topic("clicks", partitions=2)
    log.create_topic("counts", partitions=2)
    expected: Counter[tuple[bytes, int]] = Counter()

    def produce() -> None:
        """A round is 10 seconds of event time: the windows of a minute close one after the other."""
        with log.producer() as producer:
            for number in range(36):
                moment = BEGIN_MS + number * 10_000
                for user in (b"ann", b"bob", b"cleo")[: 1 + number % 3]:
                    producer.send("clicks", b"click", key=user, timestamp=moment)
                    expected[user, moment // 60_000 * 60_000] += 1
                producer.flush()
                time.sleep(0.1)
            # Far ahead, and in both partitions: closes every window before it.
            for partition in (0, 1):
                late = BEGIN_MS + 3_600_000
                producer.send("clicks", b"end", key=b"end", partition=partition, timestamp=late)

    args = window_counts.arguments(
        f"--root {log.root} --from clicks --to counts --checkpoint {tmp_path}/checkpoint".split()
        + SHORT
        + ["--late", "30 seconds"]
    )
    producing = Live(produce)
    query = window_counts.run(spark, args)
    try:
        producing.start()
        wait(query, lambda: log.describe("counts").records > 0)
        # Stopped in the middle and started again: each window is still written once.
        stopped(query)
        query = window_counts.run(spark, args)
        producing.join()
        wait(query, lambda: log.describe("counts").records >= len(expected))
    finally:
        stopped(query)
        producing.join()

    found = records_of(log, "counts")
    counted = {}
    for record in found:
        value = json.loads(record.value)
        end_ms = record.timestamp
        counted[record.key, end_ms - 60_000] = value["count"]
        assert set(value) == {"start", "end", "count"}
    assert counted == dict(expected)
    assert len(found) == len(expected)


def test_two_topics_are_joined_by_key_within_a_time(
    spark: SparkSession, log: streamlog.Log, tmp_path: Path
) -> None:
    for topic in ("orders", "payments", "paid"):
        log.create_topic(topic, partitions=2)

    def produce() -> None:
        """Order n is paid n minutes later, but never if n is odd: five come within 10 minutes."""
        with log.producer() as producer:
            for number in range(2, 20):
                key = f"order-{number}".encode()
                moment = BEGIN_MS + number * 1000
                producer.send("orders", b"tea", key=key, timestamp=moment)
                if number % 2 == 0:
                    paid = moment + number * 60_000
                    producer.send("payments", b"%d EUR" % number, key=key, timestamp=paid)
                producer.flush()
                time.sleep(0.1)

    args = join_topics.arguments(
        f"--root {log.root} --from orders --with payments --to paid".split()
        + f"--checkpoint {tmp_path}/checkpoint".split()
        + SHORT
        + ["--late", "1 hour"]
    )
    producing = Live(produce)
    query = join_topics.run(spark, args)
    try:
        producing.start()
        wait(query, lambda: log.describe("paid").records > 0)
        producing.join()
        stopped(query)
        # The rest in one go: the checkpoint is the same, so what was joined is not joined again.
        args.trigger = "available-now"
        query = join_topics.run(spark, args)
        assert query.awaitTermination(60)
    finally:
        stopped(query)
        producing.join()

    found = {record.key: json.loads(record.value) for record in records_of(log, "paid")}
    assert log.describe("paid").records == 5
    assert found == {
        f"order-{n}".encode(): {"left": "tea", "right": f"{n} EUR", "seconds": n * 60.0}
        for n in (2, 4, 6, 8, 10)
    }

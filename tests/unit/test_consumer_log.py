"""The consumer over a real log, in memory and on disk: every call once, as a user would make it."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import streamlog
from streamlog import Log, Record, TopicPartition
from streamlog.errors import InvalidRequestError, OutOfRangeError, TopicDeletedError
from tests.fakes import any_root

T0 = 1_700_000_000_000
ORDERS = [TopicPartition("orders", number) for number in range(3)]


@pytest.fixture(params=["memory", "disk"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    log = streamlog.connect(any_root(request, tmp_path))
    log.create_topic("orders", partitions=3)
    with log.producer() as producer:
        for number in range(30):
            producer.send(
                "orders",
                b"%d" % number,
                key=b"k%d" % number,
                partition=number % 3,
                timestamp=T0 + 1000 * number,
            )
            if number % 10 == 9:
                producer.flush()
    return log


def drain(consumer: streamlog.Consumer, count: int) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + 20
    while len(records) < count and time.monotonic() < deadline:
        records += consumer.poll(timeout_ms=200)
    return records


def test_all_records_each_once_in_order_within_a_partition(log: Log) -> None:
    with log.consumer("orders", auto_offset_reset="earliest") as consumer:
        records = drain(consumer, 30)
        assert consumer.poll(timeout_ms=50) == []
    for partition in range(3):
        own = [r for r in records if r.partition == partition]
        assert [r.offset for r in own] == list(range(10))
        assert [r.value for r in own] == [b"%d" % (3 * n + partition) for n in range(10)]
        assert [r.timestamp for r in own] == [T0 + 1000 * (3 * n + partition) for n in range(10)]
    assert records[0].time.tzinfo is UTC


def test_seeks(log: Log) -> None:
    with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign(ORDERS[:1])
        consumer.seek(ORDERS[0], 7)
        assert [r.offset for r in drain(consumer, 3)] == [7, 8, 9]
        consumer.seek_to_beginning()
        assert consumer.position(ORDERS[0]) == 0
        consumer.seek_to_end(ORDERS[0])
        assert consumer.position(ORDERS[0]) == 10
        consumer.seek_to_time(datetime.fromtimestamp(T0 / 1000, UTC) + timedelta(seconds=12))
        assert next(r.value for r in drain(consumer, 6)) == b"12"
        consumer.seek_to_time(T0 + 10**9)
        assert consumer.position(ORDERS[0]) == 10


def test_questions_about_offsets(log: Log) -> None:
    log.truncate("orders", 1, 4)
    with log.consumer() as consumer:
        assert consumer.beginning_offsets(ORDERS) == {ORDERS[0]: 0, ORDERS[1]: 4, ORDERS[2]: 0}
        assert consumer.end_offsets(ORDERS) == dict.fromkeys(ORDERS, 10)
        found = consumer.offsets_for_times(
            {ORDERS[0]: T0 + 5000, ORDERS[1]: T0, ORDERS[2]: T0 + 10**9}
        )
        assert found[ORDERS[0]] == (2, T0 + 6000)
        assert found[ORDERS[1]] == (4, T0 + 13_000)
        assert found[ORDERS[2]] is None


def test_lag_pause_and_resume(log: Log) -> None:
    with log.consumer("orders", auto_offset_reset="earliest") as consumer:
        assert consumer.lag() == dict.fromkeys(ORDERS, 10)
        consumer.pause(ORDERS[0], ORDERS[1])
        assert {r.partition for r in drain(consumer, 10)} == {2}
        assert consumer.lag() == {ORDERS[0]: 10, ORDERS[1]: 10, ORDERS[2]: 0}
        assert consumer.paused() == {ORDERS[0], ORDERS[1]}
        consumer.resume()
        assert {r.partition for r in drain(consumer, 20)} == {0, 1}


def test_latest_reads_what_comes_after(log: Log) -> None:
    with log.consumer("orders") as consumer, log.producer() as producer:
        assert consumer.poll(timeout_ms=0) == []
        producer.send("orders", b"new", partition=1).result()
        assert [r.value for r in drain(consumer, 1)] == [b"new"]


def test_a_waiting_poll_returns_when_something_is_written(log: Log) -> None:
    with log.consumer("orders") as consumer, log.producer(linger_ms=0) as producer:
        writer = threading.Timer(0.2, lambda: producer.send("orders", b"late").result())
        writer.start()
        started = time.monotonic()
        records = consumer.poll(timeout_ms=20_000)
        assert [r.value for r in records] == [b"late"]
        assert time.monotonic() - started < 10
        writer.join()


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
def test_out_of_range_follows_the_policy(log: Log, policy: str) -> None:
    log.truncate("orders", 0, 5)
    with log.consumer(auto_offset_reset=policy) as consumer:
        consumer.assign(ORDERS[:1])
        consumer.seek(ORDERS[0], 2)
        if policy == "none":
            with pytest.raises(OutOfRangeError, match="seek into it"):
                consumer.poll(timeout_ms=100)
        elif policy == "earliest":
            assert [r.offset for r in drain(consumer, 5)] == [5, 6, 7, 8, 9]
        else:
            assert consumer.poll(timeout_ms=50) == []
            assert consumer.position(ORDERS[0]) == 10


def test_arrow(log: Log) -> None:
    with log.consumer("orders", auto_offset_reset="earliest") as consumer:
        tables = []
        while sum(table.num_rows for table in tables) < 30:
            tables.append(consumer.poll_arrow(timeout_ms=500))
        table = pa.concat_tables(tables)
    assert table.column_names == [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
    ]
    assert sorted(table["value"].to_pylist()) == sorted(b"%d" % n for n in range(30))


def test_iteration_and_its_end(log: Log) -> None:
    with log.consumer("orders", auto_offset_reset="earliest", consumer_timeout_ms=100) as consumer:
        assert len(list(consumer)) == 30
        consumer.seek(ORDERS[0], 8)
        record = next(consumer)
        assert (record.partition, record.offset) == (0, 8)
        assert consumer.position(ORDERS[0]) == 9, "one record was taken, not the whole batch"


def test_a_pattern_takes_up_new_topics_and_partitions(log: Log) -> None:
    settings = {"auto_offset_reset": "latest", "metadata_max_age_ms": 0}
    with log.consumer(**settings) as consumer, log.producer() as producer:
        consumer.subscribe(pattern="ord.*")
        log.create_topic("ordinals")
        log.create_topic("other")
        log.add_partitions("orders", 4)
        producer.send("ordinals", b"topic").result()
        producer.send("other", b"no").result()
        producer.send("orders", b"partition", partition=3).result()
        deadline = time.monotonic() + 20
        found: set[bytes | None] = set()
        while len(found) < 2 and time.monotonic() < deadline:
            found |= {r.value for r in consumer.poll(timeout_ms=200)}
        assert found == {b"topic", b"partition"}


def test_a_deleted_topic_is_said_so(log: Log) -> None:
    with log.consumer("orders", auto_offset_reset="earliest", metadata_max_age_ms=0) as consumer:
        drain(consumer, 30)
        log.delete_topic("orders")
        with pytest.raises(TopicDeletedError, match="deleted"):
            drain(consumer, 1)


def test_bounds_of_a_fetch(log: Log) -> None:
    with log.consumer(
        "orders", auto_offset_reset="earliest", max_poll_records=4, max_partition_fetch_bytes=1
    ) as consumer:
        assert 1 <= len(consumer.poll(timeout_ms=500)) <= 4
    with log.consumer(
        "orders", auto_offset_reset="earliest", fetch_min_bytes=10**6, fetch_max_wait_ms=150
    ) as consumer:
        started = time.monotonic()
        assert consumer.poll(timeout_ms=10_000), "too little to wait for, but not for ever"
        assert time.monotonic() - started >= 0.1


@pytest.mark.parametrize("offset", [-1, 1.5, "3", True, 2**63])
def test_a_seek_to_nowhere(log: Log, offset: object) -> None:
    with log.consumer("orders") as consumer, pytest.raises(InvalidRequestError, match="not valid"):
        consumer.seek(ORDERS[0], offset)  # type: ignore[arg-type]


@pytest.mark.parametrize("moment", [-1, 2**60, datetime(2026, 1, 1), "yesterday"])  # noqa: DTZ001
def test_a_time_that_is_none(log: Log, moment: object) -> None:
    with log.consumer("orders") as consumer, pytest.raises(InvalidRequestError, match="time"):
        consumer.seek_to_time(moment)  # type: ignore[arg-type]


def test_many_partitions_without_a_thread_each(log: Log) -> None:
    log.create_topic("wide", partitions=64)
    with log.producer() as producer:
        for number in range(64):
            producer.send("wide", b"x", partition=number)
    before = threading.active_count()
    with log.consumer("wide", auto_offset_reset="earliest") as consumer:
        assert len(drain(consumer, 64)) == 64
        assert threading.active_count() - before <= 8

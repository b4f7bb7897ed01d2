"""The producer over the real log: batching, partitions, acks, order, handles, and what is refused."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamlog
from streamlog import Log
from streamlog.clock import Runtime
from streamlog.errors import (
    BufferFullError,
    ClosedError,
    DeliveryTimeoutError,
    InvalidRequestError,
    PartitionNotFoundError,
    RecordTooLargeError,
    StreamlogError,
    TopicDeletedError,
    TopicNotFoundError,
    UnavailableError,
    UnknownOutcomeError,
)
from streamlog.hashing import partition_for
from streamlog.model import Record, RecordMetadata
from streamlog.producer import Producer, ProducerSettings
from streamlog.producer.pipeline import live
from streamlog.producer.room import Room
from streamlog.storage.open import open_objects
from tests.fault.faulty import AFTER, BEFORE, FaultyObjects, Rule, Script, commits

_names = itertools.count()
LONG = 60_000
DATA = "put_new"
COMMIT = "put_if_absent"


@pytest.fixture
def log() -> Iterator[Log]:
    with streamlog.connect(f"memory://producer-{next(_names)}") as opened:
        yield opened


def faulty(script: Script, topics: dict[str, int] | None = None) -> tuple[Log, FaultyObjects]:
    """A log on a store that fails by a script, which begins once the topics are there."""
    runtime = Runtime()
    objects = open_objects(f"memory://producer-{next(_names)}", None, runtime)
    plain = Log(objects, runtime, "test")
    for name, partitions in (topics or {"t": 1}).items():
        plain.create_topic(name, partitions=partitions)
    broken = FaultyObjects(objects, script)
    return Log(broken, runtime, "test"), broken


def data_files(path: str) -> bool:
    return path.endswith(".parquet")


def read(log: Log, topic: str = "t") -> list[Record]:
    """All records of a topic, partition by partition."""
    with log.consumer(topic, auto_offset_reset="earliest") as consumer:
        ends = sum(consumer.end_offsets(list(consumer.assignment())).values())
        found: list[Record] = []
        while len(found) < ends:
            found += consumer.poll(timeout_ms=1000)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def values(log: Log, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in read(log, topic)]


class Gate:
    """Stops the appends of a log until it is opened; counts those that came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from streamlog.producer.lane import Lane

        self._open = threading.Event()
        self.came = threading.Semaphore(0)
        self.at_once = 0
        self.most = 0
        lock = threading.Lock()
        append = Lane.append

        def gated(lane: Lane, group: Any) -> Any:
            with lock:
                self.at_once += 1
                self.most = max(self.most, self.at_once)
            self.came.release()
            self._open.wait(10)
            try:
                return append(lane, group)
            finally:
                with lock:
                    self.at_once -= 1

        monkeypatch.setattr(Lane, "append", gated)

    def open(self) -> None:
        self._open.set()

    def wait(self, appends: int = 1) -> None:
        for _ in range(appends):
            assert self.came.acquire(timeout=30)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.open()


# Batching


def test_records_sent_together_are_one_append(log: Log) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=LONG) as producer:
        acks = [producer.send("t", b"%d" % i) for i in range(100)]
        producer.flush()
        assert [ack.result().offset for ack in acks] == list(range(100))
        assert producer.metrics()["appends"] == 1
    assert values(log) == [b"%d" % i for i in range(100)]


def test_a_batch_is_sent_when_its_linger_is_over(log: Log) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=1) as producer:
        done = threading.Event()
        producer.send("t", b"v").add_callback(lambda metadata, error: done.set())
        assert done.wait(30)


def test_a_batch_lingers(log: Log) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=LONG) as producer:
        ack = producer.send("t", b"v")
        assert not ack.done()
        assert log.describe("t").records == 0


def test_waiting_for_an_ack_ends_the_linger(log: Log) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=LONG) as producer:
        assert producer.send("t", b"v").result(timeout=30).offset == 0


@pytest.mark.parametrize("count", [1, 2, 10, 16, 17, 33])
def test_batch_records_bounds_a_batch(log: Log, count: int) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=LONG, batch_records=count) as producer:
        acks = [producer.send("t", b"") for _ in range(3 * count - 1)]
        wait_until(acks[2 * count - 1].done)
        assert not any(ack.done() for ack in acks[2 * count :])
        assert producer.metrics()["records"] == 2 * count
        acks.append(producer.send("t", b""))
        wait_until(acks[-1].done)


def test_batch_bytes_bounds_a_batch(log: Log) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=LONG, batch_bytes=100_000) as producer:
        acks = [producer.send("t", b"x" * 30_000) for _ in range(3)]
        assert not acks[0].done()
        acks.append(producer.send("t", b"x" * 30_000))
        wait_until(acks[2].done)
        assert not acks[3].done()


def test_a_record_larger_than_a_batch_goes_alone(log: Log) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=LONG, batch_bytes=10, buffer_bytes=10) as producer:
        producer.send("t", b"x" * 1000)
        producer.send("t", b"y" * 1000)
    assert [len(value or b"") for value in values(log)] == [1000, 1000]


def test_several_partitions_are_appended_to_at_once(log: Log, gate: Gate) -> None:
    log.create_topic("t", partitions=4)
    with log.producer(max_in_flight=4) as producer:
        acks = [producer.send("t", b"v", partition=number) for number in range(4)]
        gate.wait(4)
        assert gate.most == 4
        gate.open()
        assert [ack.result(30).partition for ack in acks] == [0, 1, 2, 3]


def test_max_in_flight_bounds_the_appends_at_once(log: Log, gate: Gate) -> None:
    log.create_topic("t", partitions=8)
    with log.producer(max_in_flight=2) as producer:
        for number in range(8):
            producer.send("t", b"v", partition=number)
        gate.wait(2)
        gate.open()
        producer.flush()
        assert gate.most == 2


def test_a_slow_partition_does_not_hold_up_another(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamlog.producer.lane import Lane

    log.create_topic("t", partitions=2)
    hold = threading.Event()
    append = Lane.append

    def slow(lane: Lane, group: Any) -> Any:
        if lane.partition == 0:
            assert hold.wait(30)
        return append(lane, group)

    monkeypatch.setattr(Lane, "append", slow)
    with log.producer() as producer:
        first = producer.send("t", b"slow", partition=0)
        assert producer.send("t", b"quick", partition=1).result(30).partition == 1
        assert not first.done()
        hold.set()


# The buffer


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_full_buffer_refuses_after_max_block_ms(log: Log, gate: Gate) -> None:
    log.create_topic("t")
    with log.producer(buffer_bytes=1000, max_block_ms=20, linger_ms=0) as producer:
        acks: list[Any] = []

        def fill() -> None:
            while True:
                acks.append(producer.send("t", b"x" * 300))

        with pytest.raises(BufferFullError, match=r"buffer_bytes=1000.*0\.0\d+ s.*max_block_ms"):
            fill()
        assert 1 <= len(acks) <= 6
        gate.open()
        assert [ack.result(30).offset for ack in acks] == list(range(len(acks)))
        assert producer.send("t", b"x").result(30).offset == len(acks)
        producer.flush()
        assert producer.metrics()["buffered_bytes"] == 0


def test_a_full_buffer_makes_send_wait_until_there_is_room(log: Log, gate: Gate) -> None:
    log.create_topic("t")
    with log.producer(buffer_bytes=1000, max_block_ms=LONG, linger_ms=0) as producer:
        sent = []

        def send() -> None:
            for i in range(50):
                producer.send("t", b"%300d" % i)
                sent.append(i)

        thread = threading.Thread(target=send)
        thread.start()
        gate.wait()
        assert len(sent) < 10
        assert producer.metrics()["buffered_bytes"] <= 1300
        gate.open()
        thread.join(30)
        assert len(sent) == 50
    assert [int(value or b"") for value in values(log)] == list(range(50))


def test_waiting_for_room_ends_the_linger_of_other_topics(log: Log) -> None:
    for name in "abc":
        log.create_topic(name)
    with log.producer(buffer_bytes=1000, max_block_ms=LONG, linger_ms=LONG) as producer:
        for name in "abc":
            producer.send(name, b"x" * 500)  # each batch takes the whole buffer


def test_open_batches_count_against_the_buffer(log: Log) -> None:
    for i in range(8):
        log.create_topic(f"t{i}")
    with log.producer(buffer_bytes=100_000, linger_ms=LONG) as producer:
        for i in range(8):
            producer.send(f"t{i}", b"x" * 20_000)
            assert producer.metrics()["buffered_bytes"] <= 100_000


def test_a_large_table_is_not_starved_by_small_batches(log: Log) -> None:
    log.create_topic("t")
    log.create_topic("big")
    done = threading.Event()
    with log.producer(buffer_bytes=20_000, max_block_ms=LONG, linger_ms=0) as producer:

        def send() -> None:
            while not done.is_set():
                producer.send("t", b"x" * 2000)

        threads = [threading.Thread(target=send) for _ in range(2)]
        for thread in threads:
            thread.start()
        table = pa.table({"value": [b"y" * 1000] * 100})
        try:
            parts = producer.send_batch("big", table).result(60)
        finally:
            done.set()
            for thread in threads:
                thread.join(30)
        assert sum(part.records for part in parts) == 100


def test_who_waits_for_room_is_served_in_turn() -> None:
    room = Room(threading.Lock(), 100, lambda: None)
    room.reserve(60, 0)
    large = threading.Thread(target=room.reserve, args=(80, 30))
    large.start()
    wait_until(lambda: room.wanted)
    with pytest.raises(BufferFullError, match=r"60 of buffer_bytes=100 are taken"):
        room.reserve(10, 0.01)  # would fit, but the other came first
    room.release(60)
    large.join(30)
    assert (room.used, room.wanted) == (80, False)
    room.reserve(10, 0)
    assert room.used == 90


def test_nothing_is_left_in_the_buffer_after_errors(log: Log) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=LONG) as producer:
        producer.send("t", b"v").result(30)
        log.delete_topic("t")
        ack = producer.send("t", b"v")
        assert isinstance(ack.exception(30), TopicDeletedError)
        producer.flush()
        metrics = producer.metrics()
        assert (metrics["buffered_bytes"], metrics["errors"]) == (0, 1)


# Timeouts and retries


def test_failures_are_retried(log: Log) -> None:
    script = Script(
        Rule(DATA, BEFORE, data_files, times=3),
        Rule(COMMIT, BEFORE, commits, times=3),
    )
    log, _ = faulty(script)
    with log.producer() as producer:
        acks = [producer.send("t", b"%d" % i) for i in range(10)]
        assert [ack.result(30).offset for ack in acks] == list(range(10))
    assert script.exhausted
    assert values(log) == [b"%d" % i for i in range(10)]


def test_a_store_that_fails_on_opening_is_asked_again() -> None:
    script = Script(Rule("names", BEFORE, lambda path: "topics/t/0" in path, times=6))
    log, _ = faulty(script)
    with log.producer() as producer:
        assert producer.send("t", b"v").result(30).offset == 0
    assert script.exhausted


def test_a_record_not_written_in_time_fails_alone() -> None:
    script = Script(Rule(DATA, BEFORE, lambda path: "/t/0/" in path, times=1_000_000))
    log, store = faulty(script, {"t": 2})
    with log.producer(delivery_timeout_ms=50) as producer:
        bad = producer.send("t", b"bad", partition=0)
        good = producer.send("t", b"good", partition=1)
        with pytest.raises(DeliveryTimeoutError, match=r"not confirmed in time.*not written"):
            bad.result(30)
        assert good.result(30).offset == 0
        store.plan = Script()
        assert producer.send("t", b"again", partition=0).result(30).offset == 0
    assert values(log) == [b"again", b"good"]


def test_an_unclear_commit_is_reported_as_unknown() -> None:
    script = Script(
        Rule(COMMIT, BEFORE, commits, skip=1, times=1_000_000),
    )
    log, _ = faulty(script)
    with log.producer(delivery_timeout_ms=50) as producer:
        error = producer.send("t", b"v").exception(30)
        assert isinstance(error, UnknownOutcomeError)
        assert "may or may not have been written" in str(error)


def test_later_chunks_outlive_the_timeout_of_the_first(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks appended together share a deadline; those with time left are tried again."""
    from streamlog.producer.lane import Lane

    log.create_topic("t")
    append = Lane.append
    groups: list[int] = []

    def once(lane: Lane, group: Any) -> Any:
        groups.append(len(group))
        if len(groups) == 1:
            assert hold.wait(30)
        elif len(groups) == 2:
            raise DeliveryTimeoutError("injected")
        return append(lane, group)

    hold = threading.Event()
    monkeypatch.setattr(Lane, "append", once)
    with log.producer(linger_ms=LONG, batch_records=1) as producer:
        acks = [producer.send("t", b"0")]
        wait_until(lambda: bool(groups))
        acks += [producer.send("t", b"%d" % i) for i in range(1, 4)]
        wait_until(lambda: producer.metrics()["records"] == 4)
        hold.set()
        producer.flush()
        assert groups[:2] == [1, 3]
        failed = [isinstance(ack.exception(30), DeliveryTimeoutError) for ack in acks]
        assert failed == [False, True, False, False]
    assert values(log) == [b"0", b"2", b"3"]


@pytest.mark.parametrize("operation", [DATA, COMMIT])
@pytest.mark.parametrize("seed", range(5))
def test_lost_replies_neither_double_nor_lose(operation: str, seed: int) -> None:
    where = data_files if operation == DATA else commits
    rules = [Rule(operation, AFTER, where, times=1, skip=(seed + i) % 4) for i in range(6)]
    script = Script(*rules)
    log, store = faulty(script, {"t": 2})
    with log.producer(linger_ms=0, acks=1) as producer:
        acks = []
        for i in range(30):
            acks.append(producer.send("t", b"%d" % i, partition=i % 2))
            if i % 5 == 0:
                producer.flush()
        places = {(ack.result(30).partition, ack.result(30).offset) for ack in acks}
    assert len(store.fired) == 6
    assert places == {(number, offset) for number in range(2) for offset in range(15)}
    assert values(log) == [b"%d" % i for i in (*range(0, 30, 2), *range(1, 30, 2))]


def test_the_first_look_at_a_topic_is_retried() -> None:
    log, store = faulty(Script())
    failing = FaultyObjects(store.inner, Script(Rule("names", BEFORE, times=2)))
    log = Log(failing, Runtime(), "test")
    with log.producer() as producer:
        assert producer.send("t", b"v").result(30).offset == 0
    assert len(failing.fired) == 2


def test_the_first_look_at_a_topic_ends_with_max_block_ms() -> None:
    _, store = faulty(Script())
    failing = FaultyObjects(store.inner, Script(Rule("names", BEFORE, times=1_000_000)))
    log = Log(failing, Runtime(), "test")
    with log.producer(max_block_ms=30) as producer, pytest.raises(UnavailableError):
        producer.send("t", b"v")


# Partitions


def test_a_key_goes_to_kafkas_partition(log: Log) -> None:
    log.create_topic("t", partitions=7)
    keys = [b"21", b"foobar", b"a-little-bit-long-string", b"", *(b"k%d" % i for i in range(200))]
    with log.producer(linger_ms=LONG) as producer:
        acks = [producer.send("t", b"v", key=key) for key in keys]
        producer.flush()
        assert [ack.result().partition for ack in acks] == [partition_for(key, 7) for key in keys]
    # murmur2(b"foobar") is -790332482 in Kafka's own tests
    assert acks[1].result().partition == (-790332482 & 0x7FFFFFFF) % 7


def test_records_without_a_key_spread_in_turns(log: Log) -> None:
    log.create_topic("t", partitions=4)
    with log.producer(linger_ms=LONG) as producer:
        found = []
        for _ in range(8):
            acks = [producer.send("t", b"v") for _ in range(5)]
            producer.flush()
            partitions = {ack.result().partition for ack in acks}
            assert len(partitions) == 1  # sticky within a batch
            found.append(partitions.pop())
        assert set(Counter(found).values()) == {2}


def test_keys_and_no_keys_in_one_batch(log: Log) -> None:
    log.create_topic("t", partitions=4)
    with log.producer(linger_ms=LONG) as producer:
        acks = [producer.send("t", b"v", key=b"k%d" % i if i % 2 else None) for i in range(40)]
        producer.flush()
        placed = [ack.result() for ack in acks]
    assert len({metadata.partition for metadata in placed[::2]}) == 1
    assert [metadata.partition for metadata in placed[1::2]] == [
        partition_for(b"k%d" % i, 4) for i in range(1, 40, 2)
    ]
    assert len({(metadata.partition, metadata.offset) for metadata in placed}) == 40


def test_an_explicit_partition_wins(log: Log) -> None:
    log.create_topic("t", partitions=4)
    with log.producer() as producer:
        assert producer.send("t", b"v", key=b"foobar", partition=3).result(30).partition == 3


@pytest.mark.parametrize("partition", [-1, 4])
def test_a_partition_out_of_range_is_refused(log: Log, partition: int) -> None:
    log.create_topic("t", partitions=4)
    with (
        log.producer() as producer,
        pytest.raises(PartitionNotFoundError, match=f"no partition {partition}.*0 to 3"),
    ):
        producer.send("t", b"v", partition=partition)


@pytest.mark.parametrize("partition", ["1", 1.0, True])
def test_a_partition_that_is_no_int_is_refused(log: Log, partition: Any) -> None:
    log.create_topic("t", partitions=4)
    with log.producer() as producer, pytest.raises(InvalidRequestError, match="give an int"):
        producer.send("t", b"v", partition=partition)


def test_a_function_chooses_the_partition(log: Log) -> None:
    log.create_topic("t", partitions=4)
    seen = []

    def by_length(key: bytes | None, value: bytes | None, partitions: int) -> int:
        seen.append((key, value, partitions))
        return len(value or b"") % partitions

    with log.producer(partitioner=by_length) as producer:
        acks = [producer.send("t", b"x" * i, key=b"k") for i in range(8)]
        assert [ack.result(30).partition for ack in acks] == [0, 1, 2, 3, 0, 1, 2, 3]
        assert producer.send("t", b"", partition=2).result(30).partition == 2
    assert seen == [(b"k", b"x" * i, 4) for i in range(8)]


@pytest.mark.parametrize("answer", [4, -1, None, "0", 1.5, True])
def test_nonsense_of_a_partitioner_is_an_error_of_its_record(log: Log, answer: Any) -> None:
    log.create_topic("t", partitions=4)
    answers = iter([0, answer, 1])
    with log.producer(partitioner=lambda k, v, n: next(answers)) as producer:
        first = producer.send("t", b"a")
        with pytest.raises(PartitionNotFoundError, match=r"partitioner returned .*0 to 3"):
            producer.send("t", b"b")
        producer.send("t", b"c")
        assert first.result(30).partition == 0
    assert values(log) == [b"a", b"c"]


def test_a_partitioner_that_raises_is_an_error_of_its_record(log: Log) -> None:
    log.create_topic("t")

    def choose(key: bytes | None, value: bytes | None, partitions: int) -> int:
        return {b"good": 0}[value or b""]

    with log.producer(partitioner=choose) as producer:
        producer.send("t", b"good")
        with pytest.raises(InvalidRequestError, match=r"partitioner raised KeyError.*not sent"):
            producer.send("t", b"bad")
    assert values(log) == [b"good"]


# Compression


@pytest.mark.parametrize(
    ("topic", "producer", "expected"),
    [
        (None, None, "SNAPPY"),
        ("zstd", None, "ZSTD"),
        ("none", None, "UNCOMPRESSED"),
        ("zstd", "lz4", "LZ4"),
        ("zstd", "none", "UNCOMPRESSED"),
        ("snappy", "zstd", "ZSTD"),
    ],
)
def test_compression_a_topic_or_a_producer(
    tmp_path: Path, topic: str | None, producer: str | None, expected: str
) -> None:
    with streamlog.connect(tmp_path) as log:
        log.create_topic("t", config={"compression.type": topic} if topic else None)
        with log.producer(compression=producer) as sender:
            sender.send("t", b"x" * 1000).result(30)
    (file,) = tmp_path.glob("topics/t/0/*.parquet")
    metadata = pq.ParquetFile(file).metadata
    assert metadata.row_group(0).column(3).compression == expected


# acks


def test_acks_0_answers_when_the_record_is_queued(log: Log, gate: Gate) -> None:
    log.create_topic("t")
    with log.producer(acks=0) as producer:
        metadata = producer.send("t", b"v", timestamp=5).result(30)
        assert metadata == RecordMetadata("t", 0, None, 5)
        gate.open()
    assert values(log) == [b"v"]


def test_acks_0_logs_and_counts_errors(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.create_topic("t")
    with log.producer(acks=0) as producer:
        producer.send("t", b"v")
        producer.flush()
        log.delete_topic("t")
        acks = [producer.send("t", b"v") for _ in range(3)]
        with caplog.at_level(logging.WARNING):
            producer.flush()
        assert [ack.exception(30) for ack in acks] == [None] * 3
        assert producer.metrics()["errors"] == 3
    assert "t-0: 3 records were not written" in caplog.text
    assert "deleted" in caplog.text


def test_acks_0_counts_what_closing_cut_off(
    log: Log, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    log.create_topic("t")
    producer = log.producer(acks=0, batch_records=1, linger_ms=0)
    producer.send("t", b"1")
    gate.wait()
    producer.send("t", b"2")
    with pytest.raises(UnavailableError, match="2 records were not written within 0"):
        producer.close(timeout=0)
    assert producer.metrics()["errors"] == 1
    assert "1 queued records were not written: the producer was closed" in caplog.text


def test_a_callback_of_acks_0_may_flush(log: Log) -> None:
    log.create_topic("t")
    with log.producer(acks=0, linger_ms=LONG) as producer:
        ran = threading.Event()

        def flush(metadata: RecordMetadata | None, error: StreamlogError | None) -> None:
            producer.flush()
            ran.set()

        producer.send("t", b"v").add_callback(flush)
        thread = threading.Thread(target=producer.flush)
        thread.start()
        assert ran.wait(30)
        thread.join(30)


def test_acks_1_is_visible_at_once(log: Log) -> None:
    log.create_topic("t")
    with log.producer(acks=1) as producer:
        for i in range(5):
            producer.send("t", b"%d" % i).result(30)
            assert log.describe("t").records == i + 1


@pytest.mark.parametrize(("acks", "syncs"), [(1, False), ("all", True), (-1, True)])
def test_acks_all_syncs_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int | str, syncs: bool
) -> None:
    log = streamlog.connect(tmp_path)
    log.create_topic("t")
    with log.producer(acks=acks) as producer:
        producer.send("t", b"first").result(30)
        synced: list[str] = []
        fsync = os.fsync

        def spy(fd: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{fd}"))
            fsync(fd)

        monkeypatch.setattr(os, "fsync", spy)
        producer.send("t", b"second").result(30)
    kinds = [Path(path).suffix or Path(path).name.split("-")[0] for path in synced]
    # the data file and its folder, the commit and its folder
    expected = [".parquet", "0", ".tmp", "_delta_log"] if syncs else []
    assert kinds == expected


# Order


def test_order_within_a_partition_is_that_of_send_and_send_batch_mixed(log: Log) -> None:
    log.create_topic("t", partitions=3)
    numbers = itertools.count()
    with log.producer(linger_ms=1, batch_records=7) as producer:
        for round_ in range(60):
            if round_ % 3 == 2:
                rows = [b"%d" % next(numbers) for _ in range(5)]
                keys = [b"%d" % (int(row) % 6) for row in rows]
                producer.send_batch("t", pa.table({"key": keys, "value": rows}))
            else:
                for _ in range(5):
                    number = next(numbers)
                    producer.send("t", b"%d" % number, key=b"%d" % (number % 6))
    for partition in range(3):
        found = [int(r.value or b"") for r in read(log) if r.partition == partition]
        assert found == sorted(found)
    assert sorted(int(value or b"") for value in values(log)) == list(range(300))


def test_each_of_several_threads_keeps_its_order(log: Log) -> None:
    log.create_topic("t", partitions=2)
    threads, count = 4, 3000
    acks: dict[tuple[int, int], Any] = {}
    sys_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # as many switches in the middle of `send` as can be had
    try:
        with log.producer(linger_ms=1, batch_records=500) as producer:

            def send(thread: int) -> None:
                for i in range(count):
                    # Every tenth goes the long way.
                    headers = [("h", b"1")] if i % 10 == 0 else None
                    acks[thread, i] = producer.send(
                        "t", b"%d %d" % (thread, i), key=b"%d" % (i % 5), headers=headers
                    )

            workers = [threading.Thread(target=send, args=(n,)) for n in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(60)
    finally:
        sys.setswitchinterval(sys_interval)
    records = read(log)
    assert len(records) == threads * count
    places = {(r.partition, r.offset): r for r in records}
    for (thread, i), ack in acks.items():
        metadata = ack.result(30)
        record = places.pop((metadata.partition, metadata.offset))
        assert record.value == b"%d %d" % (thread, i)
        assert record.key == b"%d" % (i % 5)
        assert record.headers == ((("h", b"1"),) if i % 10 == 0 else ())
        assert record.timestamp == metadata.timestamp
    assert not places
    for partition in range(2):
        for thread in range(threads):
            found = [
                int((r.value or b"").split()[1])
                for r in records
                if r.partition == partition and (r.value or b"").startswith(b"%d " % thread)
            ]
            assert found == sorted(found)


@pytest.mark.parametrize("before", [True, False])
def test_a_record_whose_batch_is_closed_in_its_midst_is_sent_once(log: Log, before: bool) -> None:
    """The short way of `send` takes no lock: the batch may go before or after it has its number."""
    log.create_topic("t")
    with log.producer(linger_ms=LONG) as producer:
        producer.send("t", b"0")
        batch = producer._pipeline.fast["t"]
        numbers = batch.numbers

        def interrupted() -> Iterator[int]:
            batch.numbers = numbers
            number = None if before else next(numbers)
            producer.flush()  # another thread's, between two statements of this one
            yield next(numbers) if number is None else number

        batch.numbers = interrupted()
        ack = producer.send("t", b"1")
        producer.send("t", b"2")
        assert ack.result(30).offset == 1
    assert values(log) == [b"0", b"1", b"2"]


def test_an_interrupt_in_the_midst_of_send_harms_no_other_record(log: Log) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=LONG) as producer:
        acks = [producer.send("t", b"0", key=b"k0")]
        batch = producer._pipeline.fast["t"]
        numbers = batch.numbers

        def interrupted() -> Iterator[int]:
            next(numbers)
            batch.numbers = numbers
            raise KeyboardInterrupt
            yield

        batch.numbers = interrupted()
        with pytest.raises(KeyboardInterrupt):
            producer.send("t", b"lost", key=b"lost")
        acks += [producer.send("t", b"%d" % i, key=b"k%d" % i, timestamp=i) for i in range(1, 4)]
        producer.flush()
        assert [ack.result(30).offset for ack in acks] == [0, 1, 2, 3]
        assert [ack.result(30).timestamp for ack in acks[1:]] == [1, 2, 3]
    assert [(r.key, r.value) for r in read(log)] == [(b"k%d" % i, b"%d" % i) for i in range(4)]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, MemoryError])
def test_whatever_stops_the_caller_from_cutting_a_full_batch_loses_nothing(
    log: Log, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
) -> None:
    """Who fills a batch cuts it; where that fails, the sender does it, and queues it once."""
    from streamlog.producer import pipeline

    log.create_topic("t", partitions=2)
    caller = threading.current_thread()
    stopped: list[int] = []
    cut = pipeline.cut

    def interrupted(filled: Any, deadline: float) -> Any:
        if threading.current_thread() is caller and not stopped:
            stopped.append(1)
            raise raised
        return cut(filled, deadline)

    monkeypatch.setattr(pipeline, "cut", interrupted)
    with log.producer(linger_ms=LONG, batch_records=50) as producer:
        try:
            for i in range(50):
                producer.send("t", b"%d" % i, key=b"%d" % i)
        except KeyboardInterrupt:
            assert i == 49
        wait_until(lambda: producer.metrics()["acknowledged"] == 50)
        assert producer.send("t", b"50").result(30) is not None
    assert stopped
    assert sorted(int(value or b"") for value in values(log)) == list(range(51))


# Timestamps


def test_a_timestamp_given_is_that_of_its_record_alone(log: Log) -> None:
    log.create_topic("t")
    before = time.time_ns() // 1_000_000
    with log.producer(linger_ms=5) as producer:
        acks = [producer.send("t", b"old", timestamp=1000)]
        acks += [producer.send("t", b"new") for _ in range(40)]
        acks += [producer.send("t", b"older", timestamp=datetime(1970, 1, 2, tzinfo=UTC))]  # type: ignore[arg-type]
        producer.flush()
        stamps = [ack.result(30).timestamp for ack in acks]
    after = time.time_ns() // 1_000_000
    assert stamps[0] == 1000
    assert stamps[-1] == 86_400_000
    assert all(before <= stamp <= after for stamp in stamps[1:-1])
    assert [record.timestamp for record in read(log)] == stamps


def test_log_append_time_replaces_the_producers(log: Log) -> None:
    log.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
    before = time.time_ns() // 1_000_000
    with log.producer() as producer:
        metadata = producer.send("t", b"v", timestamp=1000).result(30)
    assert metadata.timestamp >= before
    assert read(log)[0].timestamp == metadata.timestamp


@pytest.mark.parametrize(
    ("timestamp", "message"),
    [
        (-1, "out of range"),
        (253_402_300_800_000, "out of range"),
        ("now", "is a str"),
        (1.5, "is a float"),
        (datetime(2024, 1, 1), "has no time zone"),  # noqa: DTZ001
    ],
)
def test_a_bad_timestamp_is_refused(log: Log, timestamp: Any, message: str) -> None:
    log.create_topic("t")
    with log.producer() as producer, pytest.raises(InvalidRequestError, match=message):
        producer.send("t", b"v", timestamp=timestamp)


# Handles


def test_result_waits_no_longer_than_asked(log: Log, gate: Gate) -> None:
    log.create_topic("t")
    with log.producer() as producer:
        ack = producer.send("t", b"v")
        with pytest.raises(UnavailableError, match=r"not acknowledged within 0\.01 s.*ask again"):
            ack.result(timeout=0.01)
        assert "pending" in repr(ack)
        gate.open()
        assert ack.result(30) == ack.result() == RecordMetadata("t", 0, 0, ack.result().timestamp)
        assert ack.exception() is None
        assert "offset=0" in repr(ack)


def test_callbacks_run_once_before_or_after_the_answer(log: Log) -> None:
    log.create_topic("t")
    seen: list[tuple[str, int | None]] = []
    with log.producer(linger_ms=LONG) as producer:
        acks = [producer.send("t", b"v") for _ in range(3)]
        acks[1].add_callback(lambda m, e: seen.append(("before", m.offset if m else None)))
        assert seen == []
        producer.flush()
        assert seen == [("before", 1)]
        acks[2].add_callback(lambda m, e: seen.append(("after", m.offset if m else None)))
        assert seen == [("before", 1), ("after", 2)]


def test_a_callback_gets_the_error(log: Log) -> None:
    log.create_topic("t")
    seen: list[tuple[RecordMetadata | None, StreamlogError | None]] = []
    with log.producer(linger_ms=LONG) as producer:
        producer.send("t", b"v").result(30)
        log.delete_topic("t")
        producer.send("t", b"v").add_callback(lambda m, e: seen.append((m, e)))
        producer.flush()
    ((metadata, error),) = seen
    assert metadata is None
    assert isinstance(error, TopicDeletedError)


@pytest.mark.parametrize("raised", [ValueError("mine"), SystemExit(3)])
def test_a_callback_that_raises_harms_nobody(
    log: Log, caplog: pytest.LogCaptureFixture, raised: BaseException
) -> None:
    log.create_topic("t")

    def callback(metadata: RecordMetadata | None, error: StreamlogError | None) -> None:
        raise raised

    ran = threading.Event()
    with log.producer(linger_ms=LONG, max_in_flight=1) as producer:
        first, second = producer.send("t", b"1"), producer.send("t", b"2")
        first.add_callback(callback)
        second.add_callback(lambda m, e: ran.set())
        producer.flush()
        assert ran.is_set()
        assert producer.send("t", b"3").result(30).offset == 2
    assert "a delivery callback raised" in caplog.text


def test_a_callback_may_send(log: Log) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=0, max_in_flight=1) as producer:
        more: list[Any] = []
        done = threading.Event()

        def again(metadata: RecordMetadata | None, error: StreamlogError | None) -> None:
            more.append(producer.send("t", b"2"))
            done.set()

        producer.send("t", b"1").add_callback(again)
        assert done.wait(30)
        assert more[0].result(30).offset == 1


def test_flush_in_a_callback_is_refused_instead_of_waiting_for_itself(log: Log) -> None:
    log.create_topic("t")
    caught: list[Exception] = []
    ran = threading.Event()

    def callback(metadata: RecordMetadata | None, error: StreamlogError | None) -> None:
        try:
            producer.flush()
        except StreamlogError as refused:
            caught.append(refused)
        ran.set()

    with log.producer(linger_ms=0, max_in_flight=1) as producer:
        producer.send("t", b"1").add_callback(callback)
        assert ran.wait(30)
    assert isinstance(caught[0], InvalidRequestError)
    assert "callback" in str(caught[0])


def test_close_in_a_callback_does_not_wait_for_its_own_thread(log: Log) -> None:
    log.create_topic("t")
    producer = log.producer(linger_ms=0, max_in_flight=1)
    ran = threading.Event()

    def callback(metadata: RecordMetadata | None, error: StreamlogError | None) -> None:
        producer.close()
        ran.set()

    ack = producer.send("t", b"1")
    ack.add_callback(callback)
    assert ran.wait(30)
    with pytest.raises(ClosedError):
        producer.send("t", b"2")
    producer.close()
    assert ack.result(30).offset == 0


# Flush and close


def test_flush_gives_up_in_time(log: Log, gate: Gate) -> None:
    log.create_topic("t")
    with log.producer() as producer:
        ack = producer.send("t", b"v")
        with pytest.raises(UnavailableError, match=r"1 records were not written within 0\.0\d* s"):
            producer.flush(timeout=0.01)
        gate.open()
        producer.flush()
        assert ack.done()


def test_close_flushes(log: Log) -> None:
    log.create_topic("t")
    producer = log.producer(linger_ms=LONG)
    acks = [producer.send("t", b"%d" % i) for i in range(10)]
    producer.close()
    assert all(ack.done() for ack in acks)
    assert values(log) == [b"%d" % i for i in range(10)]
    producer.close()
    producer.flush()


@pytest.mark.parametrize("send", ["send", "send_batch", "sequence"])
def test_a_closed_producer_refuses(log: Log, send: str) -> None:
    log.create_topic("t")
    producer = log.producer()
    producer.send("t", b"v")
    producer.close()
    with pytest.raises(ClosedError, match="the producer is closed"):
        getattr(producer, send)("t", b"v")
    assert "closed" in repr(producer)


def test_closing_in_time_fails_what_is_queued(log: Log, gate: Gate) -> None:
    log.create_topic("t")
    producer = log.producer(batch_records=1, linger_ms=LONG)
    in_flight = producer.send("t", b"1")
    gate.wait()
    queued = producer.send("t", b"2")
    with pytest.raises(UnavailableError, match="not written within"):
        producer.close(timeout=0.01)
    with pytest.raises(ClosedError, match="closed before this record was written"):
        queued.result(30)
    gate.open()
    assert in_flight.result(30).offset == 0
    assert values(log) == [b"1"]


def test_two_threads_may_close_at_once(log: Log, gate: Gate) -> None:
    log.create_topic("t")
    producer = log.producer(batch_records=1, linger_ms=LONG)
    acks = [producer.send("t", b"%d" % i) for i in range(5)]
    gate.wait()
    threads = [threading.Thread(target=producer.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    threads[0].join(0.05)
    gate.open()
    for thread in threads:
        thread.join(30)
    assert [ack.result(30).offset for ack in acks] == list(range(5))


def test_chunks_to_be_tried_again_end_when_the_producer_closes(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamlog.producer.lane import Lane

    log.create_topic("t")
    groups: list[int] = []
    holds = [threading.Event(), threading.Event()]
    append = Lane.append

    def failing(lane: Lane, group: Any) -> Any:
        groups.append(len(group))
        holds[len(groups) - 1].wait(10)
        if len(groups) == 2:
            raise DeliveryTimeoutError("injected")
        return append(lane, group)

    monkeypatch.setattr(Lane, "append", failing)
    producer = log.producer(batch_records=1, linger_ms=LONG)
    producer.send("t", b"0")
    wait_until(lambda: groups == [1])
    acks = [producer.send("t", b"%d" % i) for i in range(1, 4)]
    wait_until(lambda: producer.metrics()["records"] == 4)
    holds[0].set()
    wait_until(lambda: groups == [1, 3])
    with pytest.raises(UnavailableError):
        producer.close(timeout=0.01)
    holds[1].set()
    errors = [type(ack.exception(30)) for ack in acks]
    assert errors == [DeliveryTimeoutError, ClosedError, ClosedError]


def test_a_with_block_does_not_hide_its_exception(
    log: Log, gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log.create_topic("t")

    def broken(timeout: float | None = None) -> None:
        raise UnavailableError("closing failed")

    def use() -> None:
        with log.producer() as producer:
            monkeypatch.setattr(producer, "close", broken)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        use()
    assert "closing the producer failed" in caplog.text
    with pytest.raises(UnavailableError, match="closing failed"), log.producer() as other:
        monkeypatch.setattr(other, "close", broken)


def test_records_sent_before_an_exception_are_written(log: Log) -> None:
    log.create_topic("t")

    def use() -> None:
        with log.producer(linger_ms=LONG) as producer:
            producer.send("t", b"v")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        use()
    assert values(log) == [b"v"]


# What is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"value": 5}, "the value is a int; allowed are bytes, str .* and None"),
        ({"value": b"v", "key": ["k"]}, "the key is a list"),
        ({"value": "\ud800"}, "the value is no valid text"),
        ({"value": b"v", "headers": "ab"}, "headers='ab' are not pairs"),
        ({"value": b"v", "headers": 5}, "headers=5 are not pairs"),
        ({"value": b"v", "headers": [(1, b"v")]}, "a header's name is a int"),
        ({"value": b"v", "headers": [("h", 1)]}, "the header 'h' is a int"),
        ({"value": b"v", "headers": [("\ud800", b"v")]}, "name of a header is no valid text"),
    ],
)
def test_a_wrong_type_is_refused_and_the_others_go_on(
    log: Log, arguments: dict[str, Any], message: str
) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=LONG) as producer:
        first = producer.send("t", b"1")
        with pytest.raises(InvalidRequestError, match=message):
            producer.send("t", **arguments)
        second = producer.send("t", b"2")
        producer.flush()
        assert (first.result().offset, second.result().offset) == (0, 1)
    assert values(log) == [b"1", b"2"]


def test_bytes_likes_strings_and_headers_are_taken(log: Log) -> None:
    log.create_topic("t")
    with log.producer() as producer:
        producer.send("t", "grün", key="k", headers={"a": "ü", "b": None})
        producer.send("t", bytearray(b"v"), key=memoryview(b"k"), headers=[("a", b"1")] * 2)  # type: ignore[arg-type]
        producer.send("t", None, key=b"k", headers=[])
    first, second, third = read(log)
    assert (first.value, first.key) == ("grün".encode(), b"k")
    assert first.headers == (("a", "ü".encode()), ("b", None))
    assert (second.value, second.key, second.headers) == (b"v", b"k", (("a", b"1"),) * 2)
    assert (third.value, third.key, third.headers) == (None, b"k", ())


@pytest.mark.parametrize("way", ["short", "long"])
def test_a_record_too_large_is_refused_and_the_others_go_on(log: Log, way: str) -> None:
    log.create_topic("t", config={"max.message.bytes": 1000})
    headers = None if way == "short" else [("é", b"12345")]
    with log.producer(linger_ms=LONG) as producer:
        producer.send("t", b"1")
        size = 1000 - 1 - (7 if headers else 0)
        producer.send("t", b"x" * size, key=b"k", headers=headers)
        with pytest.raises(RecordTooLargeError, match=r"1001 bytes; max\.message\.bytes is 1000"):
            producer.send("t", b"x" * (size + 1), key=b"k", headers=headers)
        producer.send("t", b"3")
    assert [len(value or b"") for value in values(log)] == [1, size, 1]


def test_a_raised_limit_is_noticed_at_once(log: Log) -> None:
    log.create_topic("t", config={"max.message.bytes": 10})
    with log.producer() as producer:
        with pytest.raises(RecordTooLargeError):
            producer.send("t", b"x" * 11)
        log.alter_topic("t", {"max.message.bytes": 100})
        assert producer.send("t", b"x" * 11).result(30).offset == 0


def test_a_compacted_topic_needs_keys(log: Log) -> None:
    log.create_topic("t", config={"cleanup.policy": "compact"})
    with log.producer() as producer:
        producer.send("t", b"v", key=b"k")
        with pytest.raises(InvalidRequestError, match="every record needs a key"):
            producer.send("t", b"v")
        producer.send("t", None, key=b"k")
        log.alter_topic("t", {"cleanup.policy": "delete"})
        producer.send("t", b"keyless")
    assert values(log) == [b"v", None, b"keyless"]


def test_an_unknown_topic_is_refused_with_the_nearest_name(log: Log) -> None:
    log.create_topic("orders")
    with log.producer() as producer:
        with pytest.raises(TopicNotFoundError, match=r"no topic 'order'.*'orders'"):
            producer.send("order", b"v")
        with pytest.raises(InvalidRequestError, match="topic=5 is a int"):
            producer.send(5, b"v")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="is a list; give its name"):
            producer.send(["orders"], b"v")  # type: ignore[arg-type]
        assert producer.send("orders", b"v").result(30).offset == 0


# Topics that change


def test_a_deleted_topic_fails_its_records_and_no_others(log: Log) -> None:
    log.create_topic("gone")
    log.create_topic("t")
    with log.producer(linger_ms=LONG) as producer:
        producer.send("gone", b"1").result(30)
        log.delete_topic("gone")
        lost, kept = producer.send("gone", b"2"), producer.send("t", b"v")
        producer.flush()
        with pytest.raises(TopicDeletedError, match="deleted; nothing was written"):
            lost.result()
        assert kept.result().offset == 0
        with pytest.raises(TopicNotFoundError, match="no topic 'gone'"):
            producer.send("gone", b"3")


def test_a_topic_made_again_gets_no_record_of_its_former_self(log: Log) -> None:
    log.create_topic("t", partitions=2)
    with log.producer(linger_ms=LONG) as producer:
        producer.send("t", b"first", partition=1).result(30)
        old = producer.send("t", b"old", partition=1)
        log.delete_topic("t")
        log.create_topic("t")
        producer.flush()
        assert isinstance(old.exception(), TopicDeletedError)
        assert producer.send("t", b"new").result(30).offset == 0
        with pytest.raises(PartitionNotFoundError, match="no partition 1"):
            producer.send("t", b"new", partition=1)
    assert values(log) == [b"new"]


def test_a_topic_that_grows_is_followed(log: Log) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=LONG) as producer:
        producer.send("t", b"v", key=b"foobar").result(30)
        log.add_partitions("t", 5)
        assert producer.send("t", b"v", partition=4).result(30).partition == 4
        ack = producer.send("t", b"v", key=b"foobar")
        assert ack.result(30).partition == partition_for(b"foobar", 5)


def test_flush_waits_for_a_topic_being_dropped(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between being forgotten and being queued, a batch still counts as sent before."""
    log.create_topic("t")
    producer = log.producer(linger_ms=LONG)
    pipeline = producer._pipeline
    ack = producer.send("t", b"v")
    hold, came = threading.Event(), threading.Event()
    cut = pipeline._cut

    def slow(buffer: Any) -> None:
        if threading.current_thread() is dropper:
            came.set()
            assert hold.wait(30)
        cut(buffer)

    monkeypatch.setattr(pipeline, "_cut", slow)
    dropper = threading.Thread(target=pipeline._drop, args=(pipeline.buffers["t"],))
    dropper.start()
    assert came.wait(30)
    producer.flush()
    assert ack.done()
    hold.set()
    dropper.join(30)
    producer.close()


# Settings


def test_an_unknown_setting_is_refused_with_the_nearest_name(log: Log) -> None:
    with pytest.raises(InvalidRequestError, match=r"no setting 'linger'.*did you mean 'linger_ms'"):
        log.producer(linger=5)
    with pytest.raises(InvalidRequestError, match="did you mean 'batch_bytes'"):
        log.producer(**{"batch.bytes": 5})
    with pytest.raises(InvalidRequestError, match="there are: acks"):
        log.producer(xyz=5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"acks": 2}, "acks=2 is not known"),
        ({"acks": True}, "acks=True is not known"),
        ({"linger_ms": -1}, "linger_ms=-1 is not allowed; give a number from 0"),
        ({"batch_records": 0}, "batch_records=0 is not allowed; give a whole number from 1"),
        ({"batch_bytes": 1.5}, r"batch_bytes=1\.5 is not allowed"),
        ({"buffer_bytes": "1"}, "buffer_bytes='1' is not allowed"),
        ({"delivery_timeout_ms": 0}, "delivery_timeout_ms=0 is not allowed"),
        ({"compression": "gzip"}, "compression='gzip' is not known"),
        ({"partitioner": 5}, "partitioner=5 cannot be called"),
        ({"producer_id": "a/b"}, "producer_id='a/b' is not a name"),
        ({"producer_id": ".."}, r"producer_id='\.\.' is not a name"),
    ],
)
def test_a_bad_setting_is_refused(log: Log, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        log.producer(**settings)


def test_acks_as_kafka_spells_them() -> None:
    spelled: list[int | str] = [0, "0", 1, "1", -1, "-1", "all"]
    found = [ProducerSettings(acks=acks).acks for acks in spelled]
    assert found == [0, 0, 1, 1, "all", "all", "all"]


# Threads and processes


def sender_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("streamlog-sender")]


def test_close_leaves_no_thread_behind(log: Log) -> None:
    log.create_topic("t", partitions=8)
    before = set(sender_threads())
    for _ in range(3):
        with log.producer() as producer:
            for number in range(8):
                producer.send("t", b"v", partition=number)
    assert set(sender_threads()) <= before


def test_a_producer_nobody_closed_leaves_no_thread_behind(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlog.producer.sender._IDLE_SECONDS", 0.01)
    log.create_topic("t")
    before = set(sender_threads())
    producer = log.producer(linger_ms=0)
    ack = producer.send("t", b"v")
    assert ack.result(30).offset == 0
    wait_until(lambda: set(sender_threads()) <= before)
    assert producer.send("t", b"v").result(30).offset == 1  # and starts another when needed
    pipeline = producer._pipeline
    assert pipeline in live()
    producer.close()
    assert pipeline not in live()


SCRIPT = """
import sys
import streamlog
log = streamlog.connect(sys.argv[1])
log.create_topic("t", if_not_exists=True)
"""


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    "send",
    [
        "p = log.producer(linger_ms=60000); p.send('t', b'v')",
        "log.producer(linger_ms=60000).send('t', b'v')",
    ],
)
def test_the_interpreters_end_sends_what_lingers(tmp_path: Path, send: str) -> None:
    done = python(send, str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert values(streamlog.connect(tmp_path)) == [b"v"]


@pytest.mark.processes
def test_a_forked_child_neither_sends_the_parents_records_nor_hangs(tmp_path: Path) -> None:
    script = """
import os
p = log.producer(linger_ms=60000)
p.send("t", b"sent").result()
lingering = p.send("t", b"parent")
child = os.fork()
if child == 0:
    try:
        lingering.result(30)
    except streamlog.errors.ClosedError as error:
        print("waiting:", error)
    try:
        p.send("t", b"child")
    except streamlog.errors.ClosedError as error:
        print("sending:", error)
    p.flush()
    p.close()
    with log.producer() as own:
        own.send("t", b"own").result(30)
    sys.exit(0)
os.waitpid(child, 0)
p.close()
"""
    done = python("import streamlog.errors\n" + script, str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("made before a fork") == 2
    assert values(streamlog.connect(tmp_path)) == [b"sent", b"own", b"parent"]


def test_metrics_count_records_and_appends(log: Log) -> None:
    log.create_topic("t", partitions=2)
    with log.producer(linger_ms=LONG) as producer:
        producer.send("t", b"v", partition=0)
        producer.send("t", b"v", partition=1)
        producer.flush()
        assert producer.metrics() == {
            "records": 2,
            "acknowledged": 2,
            "errors": 0,
            "appends": 2,
            "buffered_bytes": 0,
        }
    assert isinstance(producer, Producer)


def test_a_fault_of_a_batch_fails_that_batch_alone(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("t")

    def broken(*arguments: object) -> Any:
        raise MemoryError("injected")

    with log.producer(linger_ms=LONG) as producer:
        with monkeypatch.context() as patch:
            patch.setattr("streamlog.producer.pipeline.cut", broken)
            ack = producer.send("t", b"lost")
            producer.flush()
        with pytest.raises(InvalidRequestError, match="could not be built, nothing of it was sent"):
            ack.result(30)
        assert producer.send("t", b"v").result(30).offset == 0
        producer.flush()
        assert producer.metrics()["buffered_bytes"] == 0


def test_a_fault_of_the_append_is_an_unknown_outcome(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("t")

    def broken(*arguments: object, **more: object) -> Any:
        raise ZeroDivisionError("injected")

    with log.producer() as producer:
        with monkeypatch.context() as patch:
            patch.setattr("streamlog.log.partition.PartitionLog.append", broken)
            error = producer.send("t", b"v").exception(30)
        assert isinstance(error, UnknownOutcomeError)
        assert "ZeroDivisionError: injected" in str(error)
        assert producer.send("t", b"v").result(30).offset == 0

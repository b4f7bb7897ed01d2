"""Records through a broker with real clients, and through the storage around it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker.harness import RunningBroker, running_broker
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from deltalake import DeltaTable

import streamlog

SECONDS = 30.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with streamlog.connect(tmp_path / "root") as log:
        log.create_topic("orders", partitions=3)
    return tmp_path / "root"


@pytest.fixture
def broker(root: Path) -> Iterator[RunningBroker]:
    with running_broker(root, auto_create_topics=False) as running:
        yield running


def sent(broker: RunningBroker, values: list[Any], **config: Any) -> list[tuple[int, int]]:
    """Produces values (or mappings of `Producer.produce`'s arguments); their places, in order."""
    places: list[tuple[int, int]] = [(-1, -1)] * len(values)

    def deliver(index: int) -> Any:
        def done(error: Any, message: Any) -> None:
            assert error is None, error
            places[index] = (message.partition(), message.offset())

        return done

    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 1, **config})
    for index, value in enumerate(values):
        given = value if isinstance(value, dict) else {"value": value}
        producer.produce("orders", on_delivery=deliver(index), **given)
    assert producer.flush(SECONDS) == 0
    return places


def consumed(broker: RunningBroker, count: int, topic: str = "orders", start: int = 0) -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    partitions = consumer.list_topics(topic, timeout=SECONDS).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, start) for number in partitions])
    found: list[Any] = []
    until = time.monotonic() + SECONDS
    try:
        while len(found) < count and time.monotonic() < until:
            came = consumer.consume(count - len(found), 0.2)
            # A coordinator that cannot be found concerns nobody here.
            found += [message for message in came if message.error() is None]
    finally:
        consumer.close()
    assert len(found) == count
    return found


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_all_codecs_and_shapes_of_records(
    broker: RunningBroker, root: Path, codec: str, idempotent: bool
) -> None:
    values: list[Any] = [
        {"key": "ann", "value": "tea", "headers": [("a", b"1"), ("b", None), ("a", b"")]},
        {"key": None, "value": b"\x00\xff" * 50, "partition": 1},
        {"key": b"", "value": b"", "partition": 1},
        {"key": "gone", "value": None, "partition": 1, "timestamp": 1_600_000_000_123},
        *[{"key": f"k{i}", "value": f"v{i}" * (i % 50)} for i in range(300)],
    ]
    config = {"compression.type": codec, "enable.idempotence": idempotent}
    places = sent(broker, values, **config)
    assert len(set(places)) == len(values)

    by_place = dict(zip(places, values, strict=True))
    for message in consumed(broker, len(values)):
        given = by_place[message.partition(), message.offset()]
        wanted = [given.get("key"), given["value"]]
        wanted = [text.encode() if isinstance(text, str) else text for text in wanted]
        assert [message.key(), message.value()] == wanted
        assert message.headers() == (given.get("headers") or None)
        if "timestamp" in given:
            assert message.timestamp()[1] == given["timestamp"]

    with (
        streamlog.connect(root) as log,
        log.consumer("orders", auto_offset_reset="earliest") as own,
    ):
        mine: dict[tuple[int, int], streamlog.Record] = {}
        while len(mine) < len(values):
            for record in own.poll(timeout_ms=5000, max_records=1000):
                mine[record.partition, record.offset] = record
    assert set(mine) == set(by_place)
    first = mine[places[0]]
    assert first.headers == (("a", b"1"), ("b", None), ("a", b""))
    table = DeltaTable(str(root / "topics" / "orders" / "1")).to_pyarrow_table()
    assert sorted(table["offset"].to_pylist()) == sorted(o for p, o in places if p == 1)


def test_keys_land_where_the_embedded_producer_puts_them(broker: RunningBroker, root: Path) -> None:
    keys = [f"user-{i}" for i in range(100)]
    # librdkafka's own default is CRC32; Java's, and ours, is murmur2.
    config = {"partitioner": "murmur2_random"}
    theirs = sent(broker, [{"key": key, "value": "x"} for key in keys], **config)
    with streamlog.connect(root) as log, log.producer() as producer:
        ours = [producer.send("orders", "y", key=key).result().partition for key in keys]
    assert [partition for partition, _ in theirs] == ours


def test_what_the_embedded_client_writes_reaches_a_waiting_consumer(
    broker: RunningBroker, root: Path
) -> None:
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(consumed(broker, 5)))
    waiting.start()
    time.sleep(0.5)
    with streamlog.connect(root) as log, log.producer() as producer:
        for number in range(5):
            producer.send("orders", f"{number}", key="k", headers=[("h", b"1")]).result()
            time.sleep(0.02)
    waiting.join(SECONDS)
    assert [message.value() for message in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert found[0].headers() == [("h", b"1")]


def test_a_tail_is_read_from_memory_and_from_storage_alike(root: Path) -> None:
    values = [f"{i}-" + "x" * 1000 for i in range(3000)]
    with running_broker(root) as first:
        places = sent(first, [{"value": value, "partition": 0} for value in values])
        assert [offset for _, offset in places] == list(range(3000))
        warm = [message.value() for message in consumed(first, 3000)]
        (host,) = [h for h in first.broker.partitions.hosts if h.end]
        assert host.stored.reads == 0
    with running_broker(root, tail_memory=1 << 16) as second:
        cold = [message.value() for message in consumed(second, 3000)]
    assert warm == cold == [value.encode() for value in values]


def test_sixteen_consumers_of_one_tail_read_the_storage_once(root: Path) -> None:
    with streamlog.connect(root) as log, running_broker(root) as broker:
        results: list[list[Any]] = []
        threads = [
            threading.Thread(target=lambda: results.append(consumed(broker, 200)))
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        with log.producer(linger_ms=0) as producer:
            for number in range(200):
                producer.send("orders", f"{number}", partition=0).result()
        for thread in threads:
            thread.join(SECONDS)
        assert len(results) == 16
        assert {tuple(m.value() for m in found) for found in results} == {
            tuple(b"%d" % n for n in range(200))
        }
        (host,) = [h for h in broker.broker.partitions.hosts if h.end]
        # Each record at most once for all, and one read more for whoever came at another moment.
        assert host.stored.reads <= 250


def test_a_truncated_and_a_compacted_log_are_served_with_their_gaps(root: Path) -> None:
    with streamlog.connect(root) as log:
        log.create_topic(
            "state", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
        )
        with log.producer(linger_ms=0) as producer:
            for number in range(60):
                producer.send("state", f"{number}", key=f"k{number % 3}").result()
        log.maintain()
        kept = log.describe("state").records
        assert kept < 60
        with running_broker(root) as broker:
            found = consumed(broker, kept, "state")
            assert [m.offset() for m in found] == sorted({m.offset() for m in found})
            assert found[-1].offset() == 59
            log.truncate("state", 0, 58)
            late = consumed(broker, 2, "state", start=58)
            assert [m.offset() for m in late] == [58, 59]


def _refusal(broker: RunningBroker, topic: str, **given: Any) -> KafkaError:
    caught: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "message.timeout.ms": 5000,
            "message.max.bytes": 20_000_000,
        }
    )
    producer.produce(topic, on_delivery=lambda error, _: caught.append(error), **given)
    producer.flush(SECONDS)
    return caught[0]


def test_refusals_carry_kafkas_codes(broker: RunningBroker, root: Path) -> None:
    with streamlog.connect(root) as log:
        log.create_topic("small", config={"max.message.bytes": 1000})
        log.create_topic("keyed", config={"cleanup.policy": "compact"})
    assert _refusal(broker, "small", value=b"x" * 5000).code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert _refusal(broker, "keyed", value=b"no key").code() == KafkaError.INVALID_RECORD
    assert _refusal(broker, "nowhere", value=b"x").code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._MSG_TIMED_OUT,
    )
    # The connection is as good as before.
    assert sent(broker, ["fine"])[0][1] == 0


def test_a_record_of_five_megabytes(root: Path) -> None:
    with streamlog.connect(root) as log:
        log.alter_topic("orders", {"max.message.bytes": 6_000_000})
        big = bytes(range(256)) * 20_000
        with running_broker(root) as broker:
            sent(broker, [{"value": big, "partition": 2}], **{"message.max.bytes": 6_000_000})
            (message,) = consumed(broker, 1)
    assert message.value() == big


def test_a_topic_deleted_under_clients_is_unknown_and_its_namesake_is_another(
    root: Path,
) -> None:
    with streamlog.connect(root) as log, running_broker(root, auto_create_topics=False) as broker:
        sent(broker, ["old"] * 5)
        log.delete_topic("orders")
        error = _refusal(broker, "orders", value=b"late")
        assert error is not None
        log.create_topic("orders", partitions=1)
        deadline = time.monotonic() + SECONDS
        while _refusal(broker, "orders", value=b"new") is not None:
            assert time.monotonic() < deadline
        assert {m.value() for m in consumed(broker, 1)} == {b"new"}


def test_offsets_by_time_and_by_word(broker: RunningBroker) -> None:
    stamps = [1_600_000_000_000 + 1000 * i for i in range(10)]
    sent(broker, [{"value": "x", "partition": 0, "timestamp": stamp} for stamp in stamps])
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "none"})
    try:
        tp = TopicPartition("orders", 0)
        assert consumer.get_watermark_offsets(tp, timeout=SECONDS) == (0, 10)
        asked = [TopicPartition("orders", 0, stamps[4] - 1)]
        assert consumer.offsets_for_times(asked, timeout=SECONDS)[0].offset == 4
        asked = [TopicPartition("orders", 0, stamps[9] + 1)]
        assert consumer.offsets_for_times(asked, timeout=SECONDS)[0].offset == -1
        with pytest.raises(KafkaException):
            consumer.get_watermark_offsets(TopicPartition("orders", 9), timeout=SECONDS)
    finally:
        consumer.close()


def test_log_append_time_is_the_brokers(root: Path) -> None:
    with streamlog.connect(root) as log:
        log.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000) - 1
    with running_broker(root) as broker:
        told: list[Any] = []
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce(
            "stamped", b"x", timestamp=5, on_delivery=lambda _, m: told.append(m.timestamp())
        )
        producer.flush(SECONDS)
        (message,) = consumed(broker, 1, "stamped")
    assert message.timestamp()[0] == 2
    assert message.timestamp()[1] >= before
    assert told[0][1] == message.timestamp()[1]

"""One way to read for all clients: the first so many messages of a topic, from its beginning."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka

import streamlog
from tests.clients import programs

SECONDS = 60.0


class Seen(NamedTuple):
    """A message as a client saw it."""

    partition: int
    offset: int
    timestamp: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str], ...]


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def _headers(given: Any) -> tuple[tuple[str, str], ...]:
    return tuple((name, value.decode()) for name, value in given or ())


def confluent(address: str, topic: str, count: int) -> list[Seen]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False}
    )
    try:
        partitions = consumer.list_topics(topic, timeout=SECONDS).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in partitions])
        found: list[Seen] = []
        until = time.monotonic() + SECONDS
        while len(found) < count and time.monotonic() < until:
            for message in consumer.consume(count, 0.5):
                assert message.error() is None, message.error()
                found.append(
                    Seen(
                        message.partition(),
                        message.offset(),
                        message.timestamp()[1],
                        _text(message.key()),
                        _text(message.value()),
                        _headers(message.headers()),
                    )
                )
        return found
    finally:
        consumer.close()


def kafka_python(address: str, topic: str, count: int) -> list[Seen]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
    try:
        partitions = consumer.partitions_for_topic(topic)
        places = [kafka.TopicPartition(topic, p) for p in partitions]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        found: list[Seen] = []
        until = time.monotonic() + SECONDS
        while len(found) < count and time.monotonic() < until:
            for records in consumer.poll(timeout_ms=500).values():
                found += [
                    Seen(
                        record.partition,
                        record.offset,
                        record.timestamp,
                        _text(record.key),
                        _text(record.value),
                        _headers(record.headers),
                    )
                    for record in records
                ]
        return found
    finally:
        consumer.close()


def aio(address: str, topic: str, count: int) -> list[Seen]:
    async def work() -> list[Seen]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=address, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            found: list[Seen] = []
            async with asyncio.timeout(SECONDS):
                while len(found) < count:
                    record = await consumer.getone()
                    found.append(
                        Seen(
                            record.partition,
                            record.offset,
                            record.timestamp,
                            _text(record.key),
                            _text(record.value),
                            _headers(record.headers),
                        )
                    )
            return found
        finally:
            await consumer.stop()

    return asyncio.run(work())


def kcat(address: str, topic: str, count: int) -> list[Seen]:
    out = programs.kcat(address, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J")
    found = []
    for line in out.splitlines():
        entry = json.loads(line)
        flat = entry.get("headers") or []
        headers = tuple(zip(flat[::2], flat[1::2], strict=True))
        found.append(
            Seen(
                entry["partition"],
                entry["offset"],
                entry["ts"],
                entry["key"],
                entry["payload"],
                headers,
            )
        )
    assert len(found) >= count, f"{len(found)} of {count}"
    return found


_LINE = re.compile(
    r"(?:CreateTime|LogAppendTime):(\d+)\|Partition:(\d+)\|Offset:(\d+)\|([^|]*)\|([^|]*)\|(.*)"
)


def java(address: str, topic: str, count: int, *more: str) -> list[Seen]:
    """Kafka's console consumer, which is a group of its own."""
    wanted = ("timestamp", "partition", "offset", "headers", "key", "value")
    properties = [f"print.{name}=true" for name in wanted]
    properties += ["key.separator=|", "headers.separator=,", "null.literal=NULL"]
    arguments = ["--topic", topic, "--from-beginning", "--max-messages", str(count)]
    arguments += ["--timeout-ms", "30000", *more]
    for each in properties:
        arguments += ["--formatter-property", each]
    found = []
    for line in programs.tool(programs.CONSUMER, address, *arguments).splitlines():
        match = _LINE.fullmatch(line)
        assert match is not None, line
        time_ms, partition, offset, headers, key, value = match.groups()
        pairs = [] if headers == "NO_HEADERS" else headers.split(",")
        found.append(
            Seen(
                int(partition),
                int(offset),
                int(time_ms),
                None if key == "NULL" else key,
                None if value == "NULL" else value,
                tuple((name, text) for name, _, text in (pair.partition(":") for pair in pairs)),
            )
        )
    return found


def embedded(log: streamlog.Log, topic: str, count: int) -> list[Seen]:
    """streamlog's own consumer, without a broker."""
    found: list[Seen] = []
    until = time.monotonic() + SECONDS
    with log.consumer(topic, auto_offset_reset="earliest") as consumer:
        while len(found) < count and time.monotonic() < until:
            found += [
                Seen(
                    record.partition,
                    record.offset,
                    record.timestamp,
                    _text(record.key),
                    _text(record.value),
                    _headers(record.headers),
                )
                for record in consumer.poll(timeout_ms=500, max_records=10_000)
            ]
    return found


Reader = Callable[..., list[Seen]]
READERS: dict[str, Reader] = {
    "kcat": kcat,
    "confluent": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aio,
    "java": java,
}


def confluent_group(address: str, topic: str, count: int, group: str) -> list[Seen]:
    """As a member of a group that begins at the first record; what it read is committed."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    found: list[Seen] = []
    until = time.monotonic() + SECONDS
    try:
        while len(found) < count and time.monotonic() < until:
            for message in consumer.consume(count - len(found), 0.5):
                assert message.error() is None, message.error()
                found.append(
                    Seen(
                        message.partition(),
                        message.offset(),
                        message.timestamp()[1],
                        _text(message.key()),
                        _text(message.value()),
                        _headers(message.headers()),
                    )
                )
        if found:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found

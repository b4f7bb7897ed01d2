"""One way to write for all clients: messages into a topic, acknowledged when the call returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
import kafka

import streamlog
from tests.clients import programs

SECONDS = 60.0
MAX_BYTES = 8_000_000


class Message(NamedTuple):
    """What is written; text, because two of the clients are command lines."""

    value: str | None
    key: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    timestamp: int | None = None
    partition: int | None = None


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def confluent(address: str, topic: str, messages: Sequence[Message], codec: str = "none") -> None:
    failures: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "compression.type": codec,
            "message.max.bytes": MAX_BYTES,
            "enable.idempotence": True,
            # librdkafka's own default is another hash than Kafka's.
            "partitioner": "murmur2_random",
        }
    )
    for message in messages:
        options: dict[str, Any] = {}
        if message.timestamp is not None:
            options["timestamp"] = message.timestamp
        if message.partition is not None:
            options["partition"] = message.partition
        producer.produce(
            topic,
            message.value,
            message.key,
            headers=[(name, value.encode()) for name, value in message.headers],
            on_delivery=lambda error, _: failures.append(error) if error else None,
            **options,
        )
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert not failures


def kafka_python(
    address: str, topic: str, messages: Sequence[Message], codec: str = "none"
) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=address,
        compression_type=None if codec == "none" else codec,
        max_request_size=MAX_BYTES,
        acks="all",
    )
    try:
        futures = [
            producer.send(
                topic,
                _bytes(message.value),
                _bytes(message.key),
                headers=[(name, value.encode()) for name, value in message.headers],
                timestamp_ms=message.timestamp,
                partition=message.partition,
            )
            for message in messages
        ]
        producer.flush(SECONDS)
        for future in futures:
            future.get(SECONDS)
    finally:
        producer.close()


def aio(address: str, topic: str, messages: Sequence[Message], codec: str = "none") -> None:
    async def work() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address,
            compression_type=None if codec == "none" else codec,
            max_request_size=MAX_BYTES,
            enable_idempotence=True,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    _bytes(message.value),
                    _bytes(message.key),
                    headers=[(name, value.encode()) for name, value in message.headers],
                    timestamp_ms=message.timestamp,
                    partition=message.partition,
                )
                for message in messages
            ]
            for future in futures:
                await future
        finally:
            await producer.stop()

    asyncio.run(work())


def kcat(address: str, topic: str, messages: Sequence[Message], codec: str = "none") -> None:
    """kcat has headers, partition and nulls for a whole run only: one run for each run of such messages."""

    def alike(message: Message) -> tuple[Any, ...]:
        null = message.value is None or message.key is None
        return message.headers, message.partition, message.key is None, null

    for (headers, partition, keyless, null), group in groupby(messages, alike):
        arguments = ["-P", "-t", topic, "-X", "topic.partitioner=murmur2_random"]
        arguments += ["-X", f"message.max.bytes={MAX_BYTES}", "-z", codec]
        for name, value in headers:
            arguments += ["-H", f"{name}={value}"]
        arguments += [] if keyless else ["-K", "|"]
        arguments += ["-Z"] if null else []
        arguments += [] if partition is None else ["-p", str(partition)]
        lines = [(m.value or "") if keyless else f"{m.key or ''}|{m.value or ''}" for m in group]
        programs.kcat(address, *arguments, text="".join(f"{line}\n" for line in lines))


def java(address: str, topic: str, messages: Sequence[Message], codec: str = "none") -> None:
    """Kafka's console producer."""
    lines = []
    for message in messages:
        headers = ",".join(f"{name}:{value}" for name, value in message.headers) or "NULL"
        fields = [headers, message.key, message.value]
        lines.append("|".join("NULL" if field is None else field for field in fields))
    properties = ["parse.key=true", "parse.headers=true", "null.marker=NULL"]
    properties += ["key.separator=|", "headers.delimiter=|"]
    arguments = ["--topic", topic, "--compression-codec", codec]
    arguments += ["--command-property", f"max.request.size={MAX_BYTES}"]
    for each in properties:
        arguments += ["--reader-property", each]
    programs.tool(
        programs.PRODUCER, address, *arguments, text="".join(f"{line}\n" for line in lines)
    )


def embedded(log: streamlog.Log, topic: str, messages: Sequence[Message]) -> None:
    """streamlog's own producer, without a broker."""
    with log.producer() as producer:
        for message in messages:
            producer.send(
                topic,
                _bytes(message.value),
                key=_bytes(message.key),
                headers=[(name, value.encode()) for name, value in message.headers] or None,
                timestamp=message.timestamp,
                partition=message.partition,
            )


Writer = Callable[..., None]
WRITERS: dict[str, Writer] = {
    "kcat": kcat,
    "confluent": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aio,
    "java": java,
}

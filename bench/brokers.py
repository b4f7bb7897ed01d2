"""Brokers beside a real Kafka: the same client (confluent-kafka), the same records, in turns.

1M records of 100 bytes with keys over 4 partitions, acks=all, by both brokers on loopback. Kafka runs with
its defaults: its acks=all does not sync to disk, ours does.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import streamlog
from bench import broker as kafka
from bench.measure import Result, fresh_folder

RECORDS = int(os.environ.get("STREAMLOG_BENCH_RECORDS", "1000000"))
ROUNDS = int(os.environ.get("STREAMLOG_BENCH_ROUNDS", "5"))
PARTITIONS = 4
ACKS = 300
_VALUE = b"x" * 100
_IDLE_CONNECTIONS, _IDLE_PARTITIONS, _IDLE_SECONDS = 1000, 2000, 10.0


def run() -> list[Result]:
    """The figures of issue and README; without Java or Maven only ours can run, and that compares nothing."""
    with kafka.broker(PARTITIONS) as theirs, fresh_folder() as root, _broker(root / "data") as ours:
        results = []
        for codec in ("none", "zstd"):
            produced, consumed = _throughput(ours.address, theirs, codec)
            results += [
                _ratio(f"produce by confluent-kafka, {codec}, of Kafka's", produced, 0.8),
                _ratio(f"consume by confluent-kafka, {codec}, of Kafka's", consumed, 1.0),
            ]
        results.append(_acks(ours.address, theirs))
    return [*results, _slow(), *_idle()]


class Running:
    """A broker of ours in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.pid = process.pid
        self.address = address


@contextmanager
def _broker(root: Path, *options: str, module: str = "streamlog.cli") -> Iterator[Running]:
    streamlog.connect(root).close()
    command = [sys.executable, "-m", module, "--root", str(root), "broker"]
    command += ["--listen", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        yield Running(process, line.split()[2])
    finally:
        process.terminate()
        process.wait(60)


def _ratio(name: str, pairs: list[tuple[float, float]], required: float) -> Result:
    """Ours of theirs, in records a second."""
    ours = statistics.median(a for a, _ in pairs)
    theirs = statistics.median(b for _, b in pairs)
    detail = f"{ours / 1000:.0f}k/s beside {theirs / 1000:.0f}k/s, {len(pairs)} rounds"
    return Result(name, ours / theirs, required, detail=detail)


def _throughput(
    ours: str, theirs: str, codec: str
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    produced: list[tuple[float, float]] = []
    consumed: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        rates: dict[str, tuple[float, float]] = {}
        for address in (ours, theirs) if number % 2 == 0 else (theirs, ours):
            topic = _topic(address)
            rates[address] = _produce(address, topic, codec), _consume(address, topic)
        produced.append((rates[ours][0], rates[theirs][0]))
        consumed.append((rates[ours][1], rates[theirs][1]))
    return produced, consumed


def _topic(address: str, partitions: int = PARTITIONS) -> str:
    name = f"t{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
    return name


def _produce(address: str, topic: str, codec: str, records: int = RECORDS) -> float:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "acks": "all",
            "compression.type": codec,
            "linger.ms": 20,
            "batch.num.messages": 50_000,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    keys = [b"user-%d" % number for number in range(1000)]
    failed: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    started = time.perf_counter()
    for number in range(records):
        producer.produce(topic, _VALUE, keys[number % 1000], on_delivery=delivered)
        if number % 5000 == 0:
            producer.poll(0)
    left = producer.flush(300)
    rate = records / (time.perf_counter() - started)
    if left or failed:
        raise RuntimeError(f"{left} records were not delivered, {len(failed)} failed: {failed[:1]}")
    return rate


def _consume(address: str, topic: str) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    count = 0
    started = time.perf_counter()
    while count < RECORDS:
        count += sum(message.error() is None for message in consumer.consume(10_000, 0.5))
    rate = count / (time.perf_counter() - started)
    consumer.close()
    return rate


def _acks(ours: str, theirs: str) -> Result:
    """One record at a time, linger 0; in turns of a hundred."""
    times: dict[str, list[float]] = {ours: [], theirs: []}
    senders = {
        address: (Producer({"bootstrap.servers": address, "linger.ms": 0}), _topic(address, 1))
        for address in times
    }
    for _ in range(ACKS // 50):
        for address, (producer, topic) in senders.items():
            for _ in range(50):
                started = time.perf_counter()
                producer.produce(topic, _VALUE)
                producer.flush(60)
                times[address].append(time.perf_counter() - started)
    mine, other = (statistics.median(times[address]) * 1000 for address in (ours, theirs))
    return Result(
        "ack p50 at linger 0, of Kafka's",
        mine / other,
        1.0,
        at_least=False,
        detail=f"{mine:.2f} ms beside {other:.2f} ms",
    )


def _slow() -> Result:
    """Every commit takes 100 ms: group commit must keep the throughput."""
    rates: dict[str, list[float]] = {"streamlog.cli": [], "bench.slow": []}
    for _ in range(3):
        for module, found in rates.items():
            with fresh_folder() as root, _broker(root / "data", module=module) as broker:
                found.append(_produce(broker.address, _topic(broker.address), "none"))
    fast, slow = (statistics.median(found) for found in rates.values())
    detail = f"{slow / 1000:.0f}k/s beside {fast / 1000:.0f}k/s"
    name = "produce with commits of 100 ms, of the same without"
    return Result(name, slow / fast, 0.7, detail=detail)


def _idle() -> list[Result]:
    """A thousand consumers that wait at the ends of two thousand partitions."""
    with fresh_folder() as root, _broker(root / "data") as broker:
        with streamlog.connect(root / "data") as log:
            log.create_topic("wide", partitions=_IDLE_PARTITIONS)
        cpu, memory = asyncio.run(_wait_idle(broker))
    what = f"{_IDLE_CONNECTIONS} waiting connections, {_IDLE_PARTITIONS} partitions"
    return [
        Result(f"idle broker, {what}: CPU", cpu, 25, False, "% of a core"),
        Result(f"idle broker, {what}: memory", memory, 1024, False, "MiB"),
    ]


async def _wait_idle(broker: Running) -> tuple[float, float]:
    host, _, port = broker.address.rpartition(":")
    per = _IDLE_PARTITIONS // _IDLE_CONNECTIONS
    connections = []
    for number in range(_IDLE_CONNECTIONS):
        reader, writer = await asyncio.open_connection(host, int(port))
        partitions = range(number * per, (number + 1) * per)
        writer.write(_fetch("wide", partitions, wait_ms=120_000))
        connections.append((reader, writer))
    await asyncio.sleep(5)
    before = _cpu(broker.pid)
    await asyncio.sleep(_IDLE_SECONDS)
    used = _cpu(broker.pid) - before
    memory = _memory(broker.pid)
    for _, writer in connections:
        writer.close()
    return used / _IDLE_SECONDS * 100, memory


def _fetch(topic: str, partitions: range, wait_ms: int) -> bytes:
    """A Fetch request, version 4, from offset 0 of each partition."""
    name = topic.encode()
    body = struct.pack(">hhih4s", 1, 4, 1, 4, b"idle")
    body += struct.pack(">iiiibi", -1, wait_ms, 1, 1 << 24, 0, 1)
    body += struct.pack(f">h{len(name)}si", len(name), name, len(partitions))
    for number in partitions:
        body += struct.pack(">iqi", number, 0, 1 << 20)
    return struct.pack(">i", len(body)) + body


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0

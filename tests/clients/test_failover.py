"""Three brokers on one root, real processes: any of them is killed under load and clients go on.

Nothing that was acknowledged is lost, and nothing is there twice: producers are idempotent and ask for
acks=all. A group with a member on each side reads all of it meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import streamlog
from tests.broker.processes import BrokerProcess, broker_process
from tests.clients import programs, readers

PARTITIONS = 6
SECONDS = 90.0
FAST = ("-X", "heartbeat_seconds=0.3", "-X", "missed_heartbeats=5")


class Load(threading.Thread):
    """A producer that writes numbers until it is told to stop; what was acknowledged is in `acked`."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(daemon=True)
        self.acked: list[str] = []
        self.failed: list[Any] = []
        self._name = name
        self._over = threading.Event()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "delivery.timeout.ms": int(SECONDS * 1000),
                "socket.timeout.ms": 5000,
            }
        )

    def run(self) -> None:
        number = 0
        while not self._over.is_set():
            value = f"{self._name}-{number}"
            self._producer.produce(
                "orders",
                value,
                partition=number % PARTITIONS,
                on_delivery=lambda error, _, value=value: (
                    self.failed.append(error) if error else self.acked.append(value)
                ),
            )
            number += 1
            self._producer.poll(0)
            time.sleep(0.001)
        self._producer.flush(SECONDS)

    def finish(self) -> None:
        self._over.set()
        self.join(SECONDS)
        assert not self.is_alive()

    def wait_for(self, more: int) -> None:
        """Until so many more were acknowledged."""
        goal = len(self.acked) + more
        until = time.monotonic() + SECONDS
        while len(self.acked) < goal:
            assert time.monotonic() < until, f"{len(self.acked)} of {goal}; {self.failed[:3]}"
            time.sleep(0.02)


class Group(threading.Thread):
    """A member of a group that reads until it has seen `wanted`, or for too long."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.seen: set[str] = set()
        self._address = address
        self._over = threading.Event()

    def run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
                "auto.commit.interval.ms": 500,
            }
        )
        consumer.subscribe(["orders"])
        try:
            while not self._over.is_set():
                for message in consumer.consume(500, 0.2):
                    if message.error() is None:
                        self.seen.add(message.value().decode())
        finally:
            consumer.close()

    def finish(self) -> None:
        self._over.set()
        self.join(SECONDS)


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_any_broker_may_be_killed_and_nothing_acknowledged_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    with streamlog.connect(root) as log:
        log.create_topic("orders", partitions=PARTITIONS)
    with ExitStack() as stack:
        brokers: list[BrokerProcess] = [
            stack.enter_context(broker_process(root, *FAST)) for _ in range(3)
        ]
        every = ",".join(broker.address for broker in brokers)
        loads = [Load(every, name) for name in ("a", "b")]
        groups = [Group(every) for _ in range(2)]
        for thread in (*loads, *groups):
            thread.start()
        for victim in range(3):
            for load in loads:
                load.wait_for(300)
            killed = brokers[victim]
            killed.kill()
            for load in loads:
                load.wait_for(300)
            # Another one takes its place, on another port: clients learn of it from those they know.
            brokers[victim] = stack.enter_context(broker_process(root, *FAST))
        for load in loads:
            load.wait_for(300)
            load.finish()
        acked = [value for load in loads for value in load.acked]
        assert [load.failed for load in loads] == [[], []]

        until = time.monotonic() + SECONDS
        while set(acked) - set().union(*(group.seen for group in groups)):
            assert time.monotonic() < until, "the group did not read all of it"
            time.sleep(0.1)
        for group in groups:
            group.finish()

        with streamlog.connect(root) as log:
            stored = readers.embedded(log, "orders", len(acked))
        counts = Counter(seen.value for seen in stored)
        assert not set(acked) - set(counts)
        assert [value for value, count in counts.items() if count > 1] == []
        # What each producer wrote into a partition is there in its order.
        for name in ("a", "b"):
            for partition in range(PARTITIONS):
                numbers = [
                    int(str(seen.value).partition("-")[2])
                    for seen in stored
                    if seen.partition == partition and str(seen.value).startswith(f"{name}-")
                ]
                assert numbers == sorted(numbers)


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_javas_producer_and_consumer_go_on_when_a_broker_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with streamlog.connect(root) as log:
        log.create_topic("orders", partitions=PARTITIONS)
    with ExitStack() as stack:
        brokers = [stack.enter_context(broker_process(root, *FAST)) for _ in range(3)]
        every = ",".join(broker.address for broker in brokers)
        # 200 a second for ten seconds; by default it is idempotent and asks for acks=all.
        command = programs.tool_command(
            programs.PRODUCER_PERFORMANCE,
            every,
            *("--topic", "orders", "--num-records", "2000", "--record-size", "50"),
            *("--throughput", "200"),
        )
        with programs.started(command) as producing:
            with streamlog.connect(root) as log:
                until = time.monotonic() + SECONDS
                while log.describe("orders").records < 200:
                    assert time.monotonic() < until
                    time.sleep(0.1)
            brokers[0].kill()
            out, _ = producing.communicate(timeout=SECONDS)
        assert "2000 records sent" in out
        with streamlog.connect(root) as log:
            assert log.describe("orders").records == 2000
        living = ",".join(broker.address for broker in brokers[1:])
        found = readers.java(living, "orders", 2000)
        assert len({(seen.partition, seen.offset) for seen in found}) == 2000

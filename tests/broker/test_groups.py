"""Consumer groups with the clients people use: confluent-kafka, kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka as ck
import kafka
import pytest
from confluent_kafka.admin import AdminClient

import streamlog
from streamlog import TopicPartition
from tests.broker.harness import RunningBroker, running_broker
from tests.broker.processes import broker_process
from tests.groups import fill

SECONDS = 60.0
RECORDS = 400
FAST: dict[str, Any] = {
    "group_initial_rebalance_seconds": 0.2,
    "group_min_session_seconds": 0.5,
    "group_beat_seconds": 0.3,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with streamlog.connect(tmp_path / "root") as log:
        log.create_topic("t", partitions=4)
        fill(log, "t", RECORDS, 4)
    return tmp_path / "root"


@pytest.fixture
def broker(root: Path) -> Iterator[RunningBroker]:
    with running_broker(root, **FAST) as found:
        yield found


@contextmanager
def member(address: str, **more: Any) -> Iterator[ck.Consumer]:
    settings = {
        "bootstrap.servers": address,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 200,
        "enable.auto.commit": False,
    }
    given = {key.replace("_", "."): value for key, value in more.items()}
    consumer = ck.Consumer(settings | given)
    consumer.subscribe(["t"])
    try:
        yield consumer
    finally:
        consumer.close()


def until(
    condition: Callable[[], object], consumers: Iterable[ck.Consumer] = (), seconds: float = SECONDS
) -> list[bytes]:
    """Polls until the condition holds; the values that came."""
    consumers = list(consumers)
    found = []
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited for too long"
        for consumer in consumers:
            message = consumer.poll(0.02)
            if message is not None and message.error() is None:
                found.append(message.value())
        if not consumers:
            time.sleep(0.05)
    return found


def parts(consumer: ck.Consumer) -> set[int]:
    return {tp.partition for tp in consumer.assignment()}


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_two_members_share_and_a_killed_one_is_replaced(
    broker: RunningBroker, strategy: str
) -> None:
    with member(broker.address, partition_assignment_strategy=strategy) as one:
        until(lambda: len(parts(one)) == 4, [one])
        program = (
            "import sys, confluent_kafka as ck\n"
            "c = ck.Consumer({'bootstrap.servers': sys.argv[1], 'group.id': 'g',"
            " 'session.timeout.ms': 1500, 'heartbeat.interval.ms': 200,"
            " 'partition.assignment.strategy': sys.argv[2]})\n"
            "c.subscribe(['t'])\n"
            "while True: c.poll(0.1)\n"
        )
        with subprocess.Popen([sys.executable, "-c", program, broker.address, strategy]) as other:
            try:
                until(lambda: len(parts(one)) == 2, [one])
            finally:
                other.kill()
        until(lambda: len(parts(one)) == 4, [one])


def test_a_static_member_comes_back_to_its_partitions(root: Path, broker: RunningBroker) -> None:
    with member(broker.address, group_instance_id="a") as one:
        with member(broker.address, group_instance_id="b") as two:
            until(lambda: len(parts(one)) == len(parts(two)) == 2, [one, two])
            before = parts(two)
        with streamlog.connect(root) as log:
            generation = log.group("g").describe().generation
            with member(broker.address, group_instance_id="b") as again:
                until(lambda: parts(again) == before, [one, again])
            assert log.group("g").describe().generation == generation


def test_offsets_are_the_same_for_every_client_and_the_command_line(
    root: Path, broker: RunningBroker
) -> None:
    with member(broker.address) as one:
        seen: list[bytes] = []
        while len(seen) < RECORDS:
            seen += [m.value() for m in one.consume(100, 1.0) if m.error() is None]
        assert sorted(map(int, seen)) == list(range(RECORDS))
        places = [ck.TopicPartition("t", n, 10 * n, metadata=f"m{n}") for n in range(4)]
        one.commit(offsets=places, asynchronous=False)
    with streamlog.connect(root) as log:
        rows = log.group("g").describe().partitions
        # confluent-kafka sends the end of its C string too; it is kept as it came.
        assert [(row.committed, row.lag, row.metadata.rstrip("\0")) for row in rows] == [
            (10 * n, 100 - 10 * n, f"m{n}") for n in range(4)
        ]
        with log.consumer("t", group_id="g") as embedded:
            deadline = time.monotonic() + SECONDS
            while len(embedded.assignment()) < 4 and time.monotonic() < deadline:
                embedded.poll(50)
    python = kafka.KafkaConsumer(bootstrap_servers=broker.address, group_id="g")
    try:
        tp = kafka.TopicPartition("t", 3)
        # The embedded consumer read on, and committed that.
        committed = python.committed(tp)
        assert committed is not None
        assert committed >= 30
    finally:
        python.close()


def test_kafka_python_and_aiokafka_are_members_too(root: Path, broker: RunningBroker) -> None:
    first = kafka.KafkaConsumer(
        "t",
        bootstrap_servers=broker.address,
        group_id="k",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        seen = 0
        deadline = time.monotonic() + SECONDS
        while seen < RECORDS and time.monotonic() < deadline:
            seen += sum(len(batch) for batch in first.poll(500).values())
        assert seen == RECORDS
        first.commit()
    finally:
        first.close()

    async def read() -> int:
        consumer = aiokafka.AIOKafkaConsumer(
            "t",
            bootstrap_servers=broker.address,
            group_id="a",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            count = 0
            async with asyncio.timeout(SECONDS):
                while count < RECORDS:
                    found = await consumer.getmany(timeout_ms=500)
                    count += sum(len(batch) for batch in found.values())
            await consumer.commit()
        finally:
            await consumer.stop()
        return count

    assert asyncio.run(read()) == RECORDS
    with streamlog.connect(root) as log:
        for group in ("k", "a"):
            assert log.group(group).describe().lag == 0
            assert log.group(group).state() == "empty"


def test_administrators_list_describe_reset_and_delete(broker: RunningBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    with member(broker.address, client_id="web") as one:
        until(lambda: len(parts(one)) == 4, [one])
        (listed,) = admin.list_consumer_groups().result(SECONDS).valid
        assert (listed.group_id, listed.state.name) == ("g", "STABLE")
        described = admin.describe_consumer_groups(["g"])["g"].result(SECONDS)
        (found,) = described.members
        assert found.client_id == "web"
        assert len(found.assignment.topic_partitions) == 4
        with pytest.raises(ck.KafkaException):
            admin.delete_consumer_groups(["g"])["g"].result(SECONDS)
    where = [ck.TopicPartition("t", 0, 42)]
    moved = admin.alter_consumer_group_offsets([ck.ConsumerGroupTopicPartitions("g", where)])
    moved["g"].result(SECONDS)
    asked = admin.list_consumer_group_offsets(
        [ck.ConsumerGroupTopicPartitions("g", [ck.TopicPartition("t", 0)])]
    )
    assert asked["g"].result(SECONDS).topic_partitions[0].offset == 42
    admin.delete_consumer_groups(["g"])["g"].result(SECONDS)
    assert admin.list_consumer_groups().result(SECONDS).valid == []


def test_a_group_goes_on_when_its_broker_is_killed(root: Path) -> None:
    with (
        broker_process(root) as one,
        broker_process(root) as two,
        member(f"{one.address},{two.address}", session_timeout_ms=30000) as consumer,
    ):
        until(lambda: len(parts(consumer)) == 4, [consumer])
        places = [ck.TopicPartition("t", n, 7) for n in range(4)]
        consumer.commit(offsets=places, asynchronous=False)
        with streamlog.connect(root) as log:
            state, _ = log.group("g").read()
            assert state.kafka is not None
            generation = state.generation
            coordinator = one if state.kafka.node == one.node else two
            coordinator.kill()

            def taken_over() -> bool:
                now, _ = log.group("g").read()
                return now.kafka is not None and now.kafka.node != coordinator.node

            until(taken_over, [consumer])
            committed = consumer.committed(places, timeout=SECONDS)
            assert [tp.offset for tp in committed] == [7] * 4

            def commits() -> bool:
                try:
                    consumer.commit(offsets=[ck.TopicPartition("t", 1, 9)], asynchronous=False)
                except ck.KafkaException:
                    return False
                return True

            until(commits, [consumer])
            offsets = log.group("g").offsets().to_pylist()
            assert {row["partition"]: row["offset"] for row in offsets}[1] == 9
            assert log.group("g").describe().generation >= generation
            assert TopicPartition("t", 1) in log.group("g").describe().members[0].partitions

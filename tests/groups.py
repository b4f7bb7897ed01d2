"""Consumer groups for tests: short timeouts, and waiting for conditions instead of for time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import streamlog
from streamlog import Consumer, Record, TopicPartition
from streamlog.consumer.group.membership import Membership

PATIENCE_S = 30.0
FAST: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "session_timeout_ms": 600,
    "heartbeat_interval_ms": 100,
}


def open_consumer(log: streamlog.Log, *topics: str, group: str = "g", **settings: Any) -> Consumer:
    """A member with short timeouts."""
    return log.consumer(*topics, **(FAST | {"group_id": group} | settings))


def fill(log: streamlog.Log, topic: str, count: int, partitions: int, first: int = 0) -> None:
    """Numbered records, in turn over the partitions."""
    with log.producer() as producer:
        for number in range(first, first + count):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def parts(topic: str, *numbers: int) -> set[TopicPartition]:
    return {TopicPartition(topic, number) for number in numbers}


def until(
    condition: Callable[[], object], consumers: Iterable[Consumer] = (), *, poll_ms: float = 5
) -> list[Record]:
    """Polls the consumers until the condition holds; returns what they got."""
    consumers = list(consumers)
    found: list[Record] = []
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited for too long"
        for consumer in consumers:
            found += consumer.poll(poll_ms)
        if not consumers:
            time.sleep(0.01)
    return found


def share(*consumers: Consumer, of: int) -> list[Record]:
    """Polls until the consumers share all partitions, each of them with its part."""
    least = of // len(consumers)

    def shared() -> bool:
        sizes = [len(consumer.assignment()) for consumer in consumers]
        return sum(sizes) == of and min(sizes) >= least

    return until(shared, consumers)


def membership(consumer: Consumer) -> Membership:
    """The inside of a member."""
    assert consumer._group is not None
    assert consumer._group._membership is not None
    return consumer._group._membership


def kill(consumer: Consumer) -> None:
    """As if its process had died: no heartbeat, no word."""
    membership(consumer).stop()


def values(records: Iterable[Record]) -> list[int]:
    return sorted(int(record.value or b"-1") for record in records)


class Listener:
    """Writes down what a rebalance tells."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, set[TopicPartition]]] = []
        self.during: Callable[[set[TopicPartition]], object] = lambda _: None

    def on_assigned(self, partitions: set[TopicPartition]) -> None:
        self.calls.append(("assigned", partitions))

    def on_revoked(self, partitions: set[TopicPartition]) -> None:
        self.calls.append(("revoked", partitions))
        self.during(partitions)

    def on_lost(self, partitions: set[TopicPartition]) -> None:
        self.calls.append(("lost", partitions))

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

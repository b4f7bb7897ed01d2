"""What consumers tell each other through the coordinator: subscriptions and assignments, read and written.

To the coordinator they are bytes. They are read only so that people and embedded clients see a group's
topics and partitions; bytes that are no consumer's (Kafka Connect has others) are left alone. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from streamlog.broker import wire
from streamlog.model import TopicPartition

CONSUMER = "consumer"
_VERSION = struct.Struct(">h")
# Fields are only ever added at the end, so a newer version is read as the newest one known.
_NEWEST = 3


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The topics that a consumer subscribes to; None if these bytes are no subscription."""
    found = _parse("consumer_protocol_subscription", metadata)
    return None if found is None else frozenset(found.topics)


def partitions_of(assignment: bytes) -> frozenset[TopicPartition] | None:
    """What the leader gave a consumer; None if these bytes are no assignment."""
    found = _parse("consumer_protocol_assignment", assignment)
    if found is None:
        return None
    return frozenset(
        TopicPartition(str(topic.topic), int(number))
        for topic in found.assigned_partitions
        for number in topic.partitions
    )


def subscription(topics: Iterable[str]) -> bytes:
    """A subscription, for members that sent none."""
    body = wire.write_data("consumer_protocol_subscription", 0, {"topics": sorted(topics)})
    return _VERSION.pack(0) + body


def assignment(tps: Iterable[TopicPartition]) -> bytes:
    """An assignment, for members that were given none by a leader."""
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(tps):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    parts = [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic.items()]
    body = wire.write_data("consumer_protocol_assignment", 0, {"assigned_partitions": parts})
    return _VERSION.pack(0) + body


def _parse(name: str, data: bytes) -> Any | None:
    if len(data) < _VERSION.size:
        return None
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        return None
    try:
        return wire.parse_data(name, min(version, _NEWEST), data[_VERSION.size :])
    except wire.MalformedRequestError:
        return None

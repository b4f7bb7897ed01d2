"""ListOffsets and OffsetForLeaderEpoch: where partitions begin and end, and where a time is in them."""

from __future__ import annotations

from typing import Any

from streamlog.broker import apis
from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.handlers.fetch import check_epoch
from streamlog.broker.kafka_errors import Code, KafkaError, code_of
from streamlog.broker.partitions import PartitionHost
from streamlog.errors import StreamlogError

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5


async def list_offsets(call: Call) -> Response:
    """The offset of a time, or of the words -1 latest, -2 earliest, -3 largest timestamp."""
    topics = []
    for topic in call.body.topics:
        parts = []
        for part in topic.partitions:
            entry: dict[str, Any] = {"partition_index": part.partition_index}
            try:
                check_epoch(call, getattr(part, "current_leader_epoch", -1))
                host = await _host(call, topic.name, part.partition_index, "describe")
                offset, stamp = await _find(call, host, int(part.timestamp))
                entry |= {"offset": offset, "timestamp": stamp}
                entry["leader_epoch"] = call.broker.cluster.epoch if offset >= 0 else -1
            except StreamlogError as error:
                entry |= {"error_code": code_of(error), "offset": -1, "timestamp": -1}
                entry["leader_epoch"] = -1
            parts.append(entry)
        topics.append({"name": topic.name, "partitions": parts})
    return {"topics": topics}


async def _host(call: Call, name: str, partition: int, operation: str) -> PartitionHost:
    broker = call.broker
    if not broker.security.allows(call, operation, "topic", name):
        raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
    info = await broker.topic_cache.named(name)
    host = broker.partitions.host(info, partition)
    # A fresh look: other writers' records count, too.
    await host.look()
    return host


async def _find(call: Call, host: PartitionHost, timestamp: int) -> tuple[int, int]:
    if timestamp == _LATEST:
        return host.end, -1
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return host.start, -1
    if timestamp == _LATEST_TIERED:
        return -1, -1
    if timestamp == _MAX_TIMESTAMP:
        return await call.broker.run(_largest, call, host)
    if timestamp < 0:
        raise KafkaError(Code.INVALID_REQUEST, f"timestamp {timestamp} means nothing here")
    return await call.broker.run(_at_time, call, host, timestamp)


def _at_time(call: Call, host: PartitionHost, timestamp: int) -> tuple[int, int]:
    reader = call.broker.topics.partition_reader(host.info, host.partition)
    reader.refresh()
    return reader.offset_for_time(timestamp) or (-1, -1)


def _largest(call: Call, host: PartitionHost) -> tuple[int, int]:
    reader = call.broker.topics.partition_reader(host.info, host.partition)
    reader.refresh()
    newest = max((segment.max_timestamp_us for segment in reader.segments), default=None)
    if newest is None:
        return -1, -1
    return reader.offset_for_time(newest // 1000) or (-1, -1)


async def offset_for_leader_epoch(call: Call) -> Response:
    """Where an epoch ends. No log is ever cut here, so every epoch up to now ends at the log's end."""
    topics = []
    for topic in call.body.topics:
        parts = []
        for part in topic.partitions:
            entry: dict[str, Any] = {
                "partition": part.partition,
                "leader_epoch": -1,
                "end_offset": -1,
            }
            try:
                check_epoch(call, getattr(part, "current_leader_epoch", -1))
                host = await _host(call, topic.topic, part.partition, "describe")
                if part.leader_epoch <= call.broker.cluster.epoch:
                    entry |= {"leader_epoch": part.leader_epoch, "end_offset": host.end}
            except StreamlogError as error:
                entry["error_code"] = code_of(error)
            parts.append(entry)
        topics.append({"topic": topic.topic, "partitions": parts})
    return {"topics": topics}


HANDLERS: dict[int, Handler] = {
    apis.LIST_OFFSETS: list_offsets,
    apis.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
}

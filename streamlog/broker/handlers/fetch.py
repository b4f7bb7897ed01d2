"""Fetch: records out of partitions, by long poll.

F1  The answer comes as soon as `min_bytes` are there, at an error, or after `max_wait`; whichever is first.
F2  The first partition that has records gets at least one batch, whatever the limits say, so that a record
    larger than them does not stop its consumer. The partitions take turns by their order in the request,
    which clients rotate.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from streamlog.broker import apis
from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.kafka_errors import Code, KafkaError, code_of
from streamlog.broker.partitions import PartitionHost
from streamlog.errors import StreamlogError

_LONGEST_WAIT = 600.0


@dataclass(slots=True)
class _Part:
    """One partition of a request."""

    topic: str | None
    topic_id: UUID | None
    index: int
    offset: int
    max_bytes: int
    epoch: int
    host: PartitionHost | None = None
    error: StreamlogError | None = None
    data: bytes = b""
    # A broker nearer to the client that it should ask instead.
    preferred: int = -1
    # The log's end when `data` was read: nothing new to be had while it stays.
    read_at: int = -1


async def fetch(call: Call) -> Response:
    """Records from the offsets asked for, waiting for some if there are none."""
    broker = call.broker
    body = call.body
    parts = [
        _Part(
            topic=getattr(topic, "topic", None),
            topic_id=getattr(topic, "topic_id", None),
            index=part.partition,
            offset=part.fetch_offset,
            max_bytes=max(part.partition_max_bytes, 0),
            epoch=getattr(part, "current_leader_epoch", -1),
        )
        for topic in body.topics
        for part in topic.partitions
    ]
    for part in parts:
        await _attach(call, part)
    loop = asyncio.get_running_loop()
    wait = min(body.max_wait.total_seconds(), _LONGEST_WAIT)
    until = loop.time() + wait
    limit = max(getattr(body, "max_bytes", 1 << 30), 1)
    changed = asyncio.Event()
    hosts = {part.host for part in parts if part.host is not None}
    for host in hosts:
        broker.partitions.watch(host, changed)
    try:
        while True:
            changed.clear()
            size = await _read(parts, limit)
            left = until - loop.time()
            told = any(part.error is not None or part.preferred >= 0 for part in parts)
            if size >= body.min_bytes or told or left <= 0 or broker.stopping:
                return _answer(parts)
            try:
                async with asyncio.timeout(left):
                    await changed.wait()
            except TimeoutError:
                return _answer(parts)
    finally:
        for host in hosts:
            host.waiters.discard(changed)


async def _attach(call: Call, part: _Part) -> None:
    broker = call.broker
    try:
        if part.topic is None:
            info = await broker.topic_cache.with_id(part.topic_id.hex if part.topic_id else "")
        else:
            info = await broker.topic_cache.named(part.topic)
        if not broker.security.allows(call, "read", "topic", info.name):
            raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
        check_epoch(call, part.epoch)
        host = broker.partitions.host(info, part.index)
        await host.open()
        part.host = host
        part.preferred = _preferred(call, info.id, part.index)
    except StreamlogError as error:
        part.error = error


def _preferred(call: Call, topic_id: str, partition: int) -> int:
    """KIP-392: the leader sends a client that names its rack to a broker there, if one lives."""
    cluster = call.broker.cluster
    rack = getattr(call.body, "rack_id", "")
    if not rack or not cluster.leads(topic_id, partition):
        return -1
    nearest = cluster.near(rack, topic_id, partition)
    return -1 if nearest.node_id == cluster.me.node_id else nearest.node_id


def check_epoch(call: Call, epoch: int) -> None:
    """A client that knows other leaders than we do must look them up again, or we must."""
    current = call.broker.cluster.epoch
    if epoch < 0 or epoch == current:
        return
    code = Code.FENCED_LEADER_EPOCH if epoch < current else Code.UNKNOWN_LEADER_EPOCH
    raise KafkaError(code, f"leader epoch {epoch}, here it is {current}")


async def _read(parts: list[_Part], limit: int) -> int:
    size = 0
    for part in parts:
        host = part.host
        if host is None or part.error is not None or part.preferred >= 0:
            continue
        room = min(part.max_bytes, limit - size)
        if part.read_at != host.end and (room > 0 or not size):
            await _read_part(part, host, room, first=not size)
        size += len(part.data)
    return size


async def _read_part(part: _Part, host: PartitionHost, room: int, *, first: bool) -> None:
    if host.broken is not None:
        part.error = host.broken
        return
    at = host.end
    try:
        batches = await host.read(part.offset, room)
    except StreamlogError as error:
        part.error = error
        return
    part.read_at = at
    if batches and (first or len(batches[0]) <= room):
        part.data = batches[0] if len(batches) == 1 else b"".join(batches)


def _answer(parts: list[_Part]) -> Response:
    topics: dict[Any, list[dict[str, Any]]] = {}
    for part in parts:
        host = part.host
        entry = {
            "partition_index": part.index,
            "error_code": 0 if part.error is None else code_of(part.error),
            "high_watermark": -1 if host is None else host.end,
            "last_stable_offset": -1 if host is None else host.end,
            "log_start_offset": -1 if host is None else host.start,
            "aborted_transactions": None,
            "preferred_read_replica": part.preferred,
            "records": part.data,
        }
        topics.setdefault((part.topic, part.topic_id), []).append(entry)
    # Session 0: every request says all it wants.
    return {
        "session_id": 0,
        "responses": [
            {"topic": name, "topic_id": topic_id, "partitions": entries}
            for (name, topic_id), entries in topics.items()
        ],
    }


HANDLERS: dict[int, Handler] = {apis.FETCH: fetch}

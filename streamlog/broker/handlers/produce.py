"""Produce and InitProducerId: records into partitions.

P1  The partitions of a request are queued in the order of the connection's requests (`order`), and answered
    when their commits are done: acks=1 visible, acks=all visible and durable, acks=0 not at all.
P2  An acks=0 request that failed closes the connection, as in Kafka: the only way to tell its client.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import UUID

from streamlog.broker import apis
from streamlog.broker.appends import Produced
from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.kafka_errors import Code, KafkaError, code_of
from streamlog.errors import StreamlogError

_log = logging.getLogger(__name__)
_ACKS = (0, 1, -1)


async def produce(call: Call) -> Response | None:
    """Appends records; the answer names the offset of each partition's first one."""
    body = call.body
    if body.acks not in _ACKS:
        failed = KafkaError(Code.INVALID_REQUIRED_ACKS, f"acks={body.acks}; allowed are 0, 1, -1")
        return _answered(call, [_failed(call, entry, failed) for entry in _entries(call)])
    order: asyncio.Lock = call.peer.notes.setdefault("order", asyncio.Lock())
    # Held while topics are looked up, else a later request could be queued first (P1).
    async with order:
        waiting = [await _queue(call, entry) for entry in _entries(call)]
    answers = [await _result(call, entry) for entry in waiting]
    if body.acks == 0:
        failures = [a for a in answers if a["error_code"]]
        if failures:
            _log.warning("%s: acks=0 and %s", call.peer.host, failures[0]["error_message"])
            call.peer.notes["close"] = True
        return None
    return _answered(call, answers)


def _entries(call: Call) -> list[dict[str, Any]]:
    """One entry a partition of the request."""
    return [
        {
            "topic": getattr(topic, "name", None),
            "topic_id": getattr(topic, "topic_id", None),
            "index": part.index,
            "records": part.records,
        }
        for topic in call.body.topic_data
        for part in topic.partition_data
    ]


async def _queue(call: Call, entry: dict[str, Any]) -> dict[str, Any]:
    broker = call.broker
    try:
        if entry["topic"] is None:
            topic_id: UUID | None = entry["topic_id"]
            info = await broker.topic_cache.with_id(topic_id.hex if topic_id else "")
        else:
            info = await broker.topic_cache.named(entry["topic"])
        if not broker.security.allows(call, "write", "topic", info.name):
            raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
        if not broker.cluster.leads(info.id, entry["index"]):
            raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER)
        if entry["records"] is None:
            raise KafkaError(Code.INVALID_RECORD, "a request without records")
        host = broker.partitions.host(info, entry["index"])
        entry["host"] = host
        entry["answer"] = host.enqueue(entry["records"], durable=call.body.acks == -1)
    except StreamlogError as error:
        entry["error"] = error
    return entry


async def _result(call: Call, entry: dict[str, Any]) -> dict[str, Any]:
    if "error" in entry:
        return _failed(call, entry, entry["error"])
    try:
        done: Produced = await entry["answer"]
    except StreamlogError as error:
        return _failed(call, entry, error)
    if done.error is not None:
        return _failed(call, entry, done.error)
    return {
        "topic": entry["topic"],
        "topic_id": entry["topic_id"],
        "index": entry["index"],
        "error_code": 0,
        "base_offset": -1 if done.offset is None else done.offset,
        "log_append_time": done.timestamp_ms,
        "log_start_offset": entry["host"].start,
    }


def _failed(call: Call, entry: dict[str, Any], error: Exception) -> dict[str, Any]:
    code = code_of(error)
    if call.version < 4 and code == Code.KAFKA_STORAGE_ERROR:
        code = int(Code.NOT_LEADER_OR_FOLLOWER)  # older clients do not know the other
    return {
        "topic": entry["topic"],
        "topic_id": entry["topic_id"],
        "index": entry["index"],
        "error_code": code,
        "error_message": str(error),
        "base_offset": -1,
        "log_append_time": -1,
        "log_start_offset": -1,
    }


def _answered(call: Call, answers: list[dict[str, Any]]) -> Response:
    topics: dict[Any, list[dict[str, Any]]] = {}
    for answer in answers:
        topics.setdefault((answer["topic"], answer["topic_id"]), []).append(answer)
    by_id = call.version >= 13
    return {
        "responses": [
            {("topic_id" if by_id else "name"): topic_id if by_id else name}
            | {"partition_responses": parts}
            for (name, topic_id), parts in topics.items()
        ]
    }


async def init_producer_id(call: Call) -> Response:
    """A number for an idempotent producer. Asked again, it gets a new one: no state is tied to the old."""
    body = call.body
    if body.transactional_id is not None:
        return {
            "error_code": Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "producer_id": -1,
            "producer_epoch": -1,
        }
    if not call.broker.security.allows(call, "idempotent_write", "cluster", "kafka-cluster"):
        raise KafkaError(Code.CLUSTER_AUTHORIZATION_FAILED)
    taken = await call.broker.run(call.broker.producer_ids.take)
    return {"producer_id": taken, "producer_epoch": 0}


HANDLERS: dict[int, Handler] = {
    apis.PRODUCE: produce,
    apis.INIT_PRODUCER_ID: init_producer_id,
}

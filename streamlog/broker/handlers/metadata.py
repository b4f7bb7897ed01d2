"""Metadata: brokers, topics and who leads their partitions."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from streamlog.broker import apis
from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.kafka_errors import Code, KafkaError, code_of
from streamlog.broker.operations import CLUSTER, authorized
from streamlog.errors import StreamlogError, TopicExistsError, TopicNotFoundError
from streamlog.log.registry import TopicInfo

_log = logging.getLogger(__name__)


async def metadata(call: Call) -> Response:
    """All topics, or those asked for by name or id; a missing one is made if that is allowed."""
    cluster = call.broker.cluster
    topics = [_unless_forbidden(call, entry) for entry in await _topics(call)]
    extra = {}
    if getattr(call.body, "include_cluster_authorized_operations", False):
        extra["cluster_authorized_operations"] = authorized(call, "cluster", CLUSTER)
    return extra | {
        "brokers": [
            {"node_id": b.node_id, "host": b.host, "port": b.port, "rack": b.rack}
            for b in cluster.brokers()
        ],
        "cluster_id": call.broker.log.cluster_id,
        "controller_id": cluster.controller.node_id,
        "topics": [entry for entry in topics if entry is not None],
    }


async def _topics(call: Call) -> list[dict[str, Any]]:
    broker = call.broker
    wanted = call.body.topics
    # Version 0 asks for all topics by an empty list, later ones by null.
    if wanted is None or (call.version == 0 and not wanted):
        infos = await broker.run(broker.topics.list, refresh=True)
        return [
            describe(call, info)
            for info in infos
            if broker.security.allows(call, "describe", "topic", info.name)
        ]
    found = []
    for topic in wanted:
        topic_id = getattr(topic, "topic_id", None)
        try:
            if topic.name is None and topic_id is not None:
                info = await broker.topic_cache.with_id(topic_id.hex)
            else:
                info = await _named(call, topic.name)
            found.append(describe(call, info))
        except StreamlogError as error:
            found.append({"error_code": code_of(error), "name": topic.name, "topic_id": topic_id})
    return found


async def _named(call: Call, name: str) -> TopicInfo:
    broker = call.broker
    if not broker.security.allows(call, "describe", "topic", name):
        raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
    try:
        return await broker.run(broker.topics.get, name)
    except TopicNotFoundError:
        allowed = getattr(call.body, "allow_auto_topic_creation", True)
        if not (allowed and broker.settings.auto_create_topics):
            raise
        if not broker.security.allows(call, "create", "topic", name):
            raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED) from None
    try:
        _log.info("topic %r is made for %s", name, call.peer.host)
        return await broker.run(broker.topics.create, name, broker.settings.num_partitions)
    except TopicExistsError:
        return await broker.run(broker.topics.get, name, refresh=True)
    except StreamlogError as error:
        raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, str(error)) from error


def _unless_forbidden(call: Call, entry: dict[str, Any]) -> dict[str, Any] | None:
    """A topic asked for by id that the caller may not see is unknown to it."""
    name = entry.get("name")
    if name is None or call.broker.security.allows(call, "describe", "topic", name):
        return entry
    return {"error_code": Code.TOPIC_AUTHORIZATION_FAILED, "name": name}


def describe(call: Call, info: TopicInfo) -> dict[str, Any]:
    """One topic. The storage holds the replicas, so each partition has one: the broker that serves it."""
    cluster = call.broker.cluster
    partitions = []
    for number in range(info.partitions):
        leader = cluster.leader_of(info.id, number).node_id
        partitions.append(
            {
                "partition_index": number,
                "leader_id": leader,
                "leader_epoch": cluster.epoch,
                "replica_nodes": [leader],
                "isr_nodes": [leader],
            }
        )
    extra = {}
    if getattr(call.body, "include_topic_authorized_operations", False):
        extra["topic_authorized_operations"] = authorized(call, "topic", info.name)
    return extra | {
        "name": info.name,
        "topic_id": UUID(info.id),
        "is_internal": info.name.startswith("__"),
        "partitions": partitions,
    }


HANDLERS: dict[int, Handler] = {apis.METADATA: metadata}

"""What the cluster consists of: its brokers, and the bytes of the partitions that each serves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from streamlog.broker import apis
from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.kafka_errors import Code, KafkaError
from streamlog.broker.operations import CLUSTER, authorized
from streamlog.errors import TopicNotFoundError
from streamlog.log.reader import PartitionReader
from streamlog.log.registry import TopicInfo

_BROKERS = 1


async def describe_cluster(call: Call) -> Response:
    """The live brokers and the controller among them."""
    asked = getattr(call.body, "endpoint_type", _BROKERS)
    if asked != _BROKERS:
        raise KafkaError(
            Code.UNSUPPORTED_ENDPOINT_TYPE,
            "there are no controllers apart from the brokers; ask for 1",
        )
    cluster = call.broker.cluster
    answer: dict[str, Any] = {
        "cluster_id": call.broker.log.cluster_id,
        "controller_id": cluster.controller.node_id,
        "brokers": [
            {"broker_id": b.node_id, "host": b.host, "port": b.port, "rack": b.rack}
            for b in cluster.brokers()
        ],
    }
    if call.body.include_cluster_authorized_operations:
        answer["cluster_authorized_operations"] = authorized(call, "cluster", CLUSTER)
    return answer


async def describe_log_dirs(call: Call) -> Response:
    """Sizes of partitions. A broker names those that it leads, so that a sum over brokers is right."""
    broker = call.broker
    if not broker.security.allows(call, "describe", "cluster", CLUSTER):
        raise KafkaError(Code.CLUSTER_AUTHORIZATION_FAILED)
    where = await broker.run(_led, call)
    sizes = await broker.run(broker.topics.ask, where, _size)
    topics = []
    rows = zip(where, sizes, strict=True)
    for name, group in groupby(rows, key=lambda row: row[0][0].name):
        parts = [{"partition_index": part, "partition_size": size} for (_, part), size in group]
        topics.append({"name": name, "partitions": parts})
    return {"results": [{"log_dir": broker.log.root, "topics": topics}]}


def _led(call: Call) -> Sequence[tuple[TopicInfo, int]]:
    """The partitions asked for that this broker leads; blocks."""
    broker = call.broker
    asked: dict[str, set[int] | None] = {}
    if call.body.topics is None:
        asked = {info.name: None for info in broker.topics.list(refresh=True)}
    else:
        asked = {topic.topic: set(topic.partitions) for topic in call.body.topics}
    found = []
    for name in sorted(asked):
        try:
            info = broker.topics.get(name)
        except TopicNotFoundError:
            continue
        wanted = asked[name]
        for number in range(info.partitions):
            if wanted is not None and number not in wanted:
                continue
            if broker.cluster.leader_of(info.id, number).node_id == broker.cluster.me.node_id:
                found.append((info, number))
    return found


def _size(reader: PartitionReader) -> int:
    return sum(segment.size for segment in reader.segments)


HANDLERS: dict[int, Handler] = {
    apis.DESCRIBE_CLUSTER: describe_cluster,
    apis.DESCRIBE_LOG_DIRS: describe_log_dirs,
}

"""Topics made, deleted and grown, and their oldest records removed.

T1  Each topic of a request fails or succeeds by itself: an error stands in its own entry, with its reason.
T2  `validate_only` makes every check and changes nothing.
T3  The storage holds the replicas: whatever replication factor is asked for is accepted, 1 is answered. A
    manual assignment of replicas says how many partitions there are to be, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from streamlog.broker import apis
from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.configs import parsed, topic_entries
from streamlog.broker.kafka_errors import Code, KafkaError, code_of
from streamlog.broker.operations import CLUSTER
from streamlog.config import TopicConfig, validate_topic_name
from streamlog.errors import InvalidRequestError, StreamlogError
from streamlog.log.registry import TopicInfo, check_partitions

HIGH_WATERMARK = -1
_DEFAULT = -1


async def create_topics(call: Call) -> Response:
    """Makes topics."""
    doubled = _doubled(topic.name for topic in call.body.topics)
    entries = []
    for topic in {topic.name: topic for topic in call.body.topics}.values():
        try:
            if topic.name in doubled:
                raise KafkaError(Code.INVALID_REQUEST, f"topic {topic.name!r} is named twice")
            entries.append(await _create(call, topic))
        except StreamlogError as error:
            entries.append({"name": topic.name} | failure(error))
    await call.broker.topic_cache.renew()
    return {"topics": entries}


async def _create(call: Call, topic: Any) -> dict[str, Any]:
    broker = call.broker
    allows = broker.security.allows
    if not (
        allows(call, "create", "cluster", CLUSTER) or allows(call, "create", "topic", topic.name)
    ):
        raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
    partitions, config = _checked(call, topic)
    topic_id: UUID | None = None
    if call.body.validate_only:
        await broker.run(_check_absent, call, topic.name)
    else:
        info = await broker.run(broker.topics.create, topic.name, partitions, config.to_dict())
        config, topic_id = info.config, UUID(info.id)
    entry: dict[str, Any] = {"name": topic.name, "topic_id": topic_id}
    if not allows(call, "describe_configs", "topic", topic.name):
        return entry | {
            "topic_config_error_code": Code.TOPIC_AUTHORIZATION_FAILED,
            "configs": None,
        }
    return entry | {
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": topic_entries(config),
    }


def _checked(call: Call, topic: Any) -> tuple[int, TopicConfig]:
    """What is asked for, as far as that can be told without looking at the storage."""
    try:
        validate_topic_name(topic.name)
    except InvalidRequestError as error:
        raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, str(error)) from error
    if topic.replication_factor == 0 or topic.replication_factor < _DEFAULT:
        raise KafkaError(
            Code.INVALID_REPLICATION_FACTOR,
            f"{topic.replication_factor} is no replication factor; give 1 or more, or -1",
        )
    count = topic.num_partitions
    if topic.assignments:
        count = _assigned(topic)
    elif count == _DEFAULT:
        count = call.broker.settings.num_partitions
    _check_count(count)
    return count, parsed({config.name: config.value for config in topic.configs})


def _assigned(topic: Any) -> int:
    """How many partitions a manual assignment has (T3)."""
    if topic.num_partitions != _DEFAULT or topic.replication_factor != _DEFAULT:
        raise KafkaError(
            Code.INVALID_REQUEST,
            "both an assignment of replicas and a number of partitions or replicas are given; "
            "give -1 for these, or leave the assignment out",
        )
    numbers = sorted(assignment.partition_index for assignment in topic.assignments)
    if numbers != list(range(len(numbers))):
        raise KafkaError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            f"the partitions assigned are {numbers}; they must be 0 to {len(numbers) - 1}, each once",
        )
    return len(numbers)


def _check_count(count: int) -> None:
    try:
        check_partitions(count)
    except InvalidRequestError as error:
        raise KafkaError(Code.INVALID_PARTITIONS, str(error)) from error


def _check_absent(call: Call, name: str) -> None:
    """Refuses what making the topic would refuse; blocks."""
    if any(info.name == name for info in call.broker.topics.list(refresh=True)):
        raise KafkaError(Code.TOPIC_ALREADY_EXISTS, f"topic {name!r} exists already")


async def delete_topics(call: Call) -> Response:
    """Deletes topics, by name or by id."""
    if call.version >= 6:
        wanted = [(topic.name, topic.topic_id) for topic in call.body.topics]
    else:
        wanted = [(name, None) for name in call.body.topic_names]
    doubled = _doubled(wanted)
    entries = []
    for name, topic_id in dict.fromkeys(wanted):
        entry: dict[str, Any] = {"name": name, "topic_id": topic_id}
        try:
            if (name, topic_id) in doubled:
                raise KafkaError(Code.INVALID_REQUEST, "the topic is named twice")
            info = await _to_delete(call, name, topic_id)
            entry = {"name": info.name, "topic_id": UUID(info.id)}
            await call.broker.run(call.broker.topics.delete, info.name)
        except StreamlogError as error:
            entry |= failure(error)
        entries.append(entry)
    await call.broker.topic_cache.renew()
    return {"responses": entries}


async def _to_delete(call: Call, name: str | None, topic_id: UUID | None) -> TopicInfo:
    broker = call.broker
    if (name is None) == (topic_id is None):
        raise KafkaError(Code.INVALID_REQUEST, "give either a topic's name or its id")
    if topic_id is not None:
        info = await broker.topic_cache.with_id(topic_id.hex)
        # Who may not see a topic does not learn its name from its id.
        if not broker.security.allows(call, "describe", "topic", info.name):
            raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
        name = info.name
    assert name is not None
    if not broker.security.allows(call, "delete", "topic", name):
        raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
    return await broker.run(broker.topics.get, name, refresh=True)


async def create_partitions(call: Call) -> Response:
    """Adds partitions to topics."""
    doubled = _doubled(topic.name for topic in call.body.topics)
    entries = []
    for topic in {topic.name: topic for topic in call.body.topics}.values():
        entry: dict[str, Any] = {"name": topic.name}
        try:
            if topic.name in doubled:
                raise KafkaError(Code.INVALID_REQUEST, f"topic {topic.name!r} is named twice")
            if not call.broker.security.allows(call, "alter", "topic", topic.name):
                raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
            await call.broker.run(_grow, call, topic)
        except StreamlogError as error:
            entry |= failure(error)
        entries.append(entry)
    await call.broker.topic_cache.renew()
    return {"results": entries}


def _grow(call: Call, topic: Any) -> None:
    topics = call.broker.topics
    before = topics.get(topic.name, refresh=True).partitions
    if topic.count <= before:
        raise KafkaError(
            Code.INVALID_PARTITIONS,
            f"topic {topic.name!r} has {before} partitions; {topic.count} are not more, and "
            "partitions can only be added",
        )
    _check_count(topic.count)
    if topic.assignments is not None and len(topic.assignments) != topic.count - before:
        raise KafkaError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            f"{topic.count - before} partitions are to be added, but replicas of "
            f"{len(topic.assignments)} are assigned",
        )
    if not call.body.validate_only:
        topics.add_partitions(topic.name, topic.count)


async def delete_records(call: Call) -> Response:
    """Removes the records of partitions below given offsets."""
    entries = []
    for topic in call.body.topics:
        parts = []
        for part in topic.partitions:
            entry = {"partition_index": part.partition_index, "low_watermark": -1}
            try:
                entry["low_watermark"] = await _truncate(
                    call, topic.name, part.partition_index, part.offset
                )
            except StreamlogError as error:
                entry["error_code"] = code_of(error)
            parts.append(entry)
        entries.append({"name": topic.name, "partitions": parts})
    return {"topics": entries}


async def _truncate(call: Call, name: str, partition: int, before: int) -> int:
    """The new log start."""
    broker = call.broker
    if not broker.security.allows(call, "delete", "topic", name):
        raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
    info = await broker.topic_cache.named(name)
    host = broker.partitions.host(info, partition)
    # The leader has consumers and a tail, which must not give out what is gone.
    if not broker.cluster.leads(info.id, partition):
        raise KafkaError(Code.NOT_LEADER_OR_FOLLOWER)
    if before == HIGH_WATERMARK:
        await host.look()
        before = host.end
    await broker.run(broker.topics.truncate, name, partition, before)
    await host.look()
    return host.start


def failure(error: StreamlogError) -> dict[str, Any]:
    """The fields that tell why an entry failed."""
    return {"error_code": code_of(error), "error_message": str(error)}


def _doubled(names: Iterable[object]) -> set[object]:
    return {name for name, count in Counter(names).items() if count > 1}


HANDLERS: dict[int, Handler] = {
    apis.CREATE_TOPICS: create_topics,
    apis.DELETE_TOPICS: delete_topics,
    apis.CREATE_PARTITIONS: create_partitions,
    apis.DELETE_RECORDS: delete_records,
}

"""OffsetCommit, OffsetFetch and OffsetDelete: where groups stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamlog.broker import apis
from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.groups.changes import Offset, group_code
from streamlog.broker.groups.registry import EmbeddedGroupError
from streamlog.broker.kafka_errors import Code, KafkaError
from streamlog.consumer.group.store import Committed, GroupStore
from streamlog.errors import StreamlogError
from streamlog.model import TopicPartition

_MANY_GROUPS_SINCE = 8
_NO_OFFSET = -1


async def offset_commit(call: Call) -> Response:
    """Commits offsets; each partition is answered by itself."""
    body = call.body
    offsets = [
        _checked(call, topic.name, part) for topic in body.topics for part in topic.partitions
    ]
    try:
        if not call.broker.security.allows(call, "read", "group", body.group_id):
            raise KafkaError(Code.GROUP_AUTHORIZATION_FAILED)
        generation = body.generation_id_or_member_epoch
        member = body.member_id
        simple = generation < 0 and not member
        group = await call.broker.groups.get(body.group_id, create=simple)
        if group is None:
            raise KafkaError(Code.UNKNOWN_MEMBER_ID)
        instance = getattr(body, "group_instance_id", None)
        codes: Sequence[Code] = await group.commit(member, instance, generation, offsets)
    except EmbeddedGroupError:
        codes = [Code.UNKNOWN_MEMBER_ID] * len(offsets)
    except StreamlogError as error:
        codes = [group_code(error)] * len(offsets)
    left = iter(codes)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": part.partition_index, "error_code": next(left)}
                    for part in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


def _checked(call: Call, topic: str, part: Any) -> Offset:
    metadata = part.committed_metadata or ""
    code = Code.NONE
    if not call.broker.security.allows(call, "read", "topic", topic):
        code = Code.TOPIC_AUTHORIZATION_FAILED
    elif len(metadata.encode()) > call.broker.settings.offset_metadata_max:
        code = Code.OFFSET_METADATA_TOO_LARGE
    elif part.committed_offset < 0:
        code = Code.INVALID_REQUEST
    return Offset(topic, part.partition_index, part.committed_offset, metadata, code)


async def offset_fetch(call: Call) -> Response:
    """What groups have committed, of some partitions or of all."""
    body = call.body
    if call.version >= _MANY_GROUPS_SINCE:
        groups = [await _fetch(call, group.group_id, group.topics) for group in body.groups]
        return {"groups": groups}
    return await _fetch(call, body.group_id, body.topics)


async def _fetch(call: Call, group: str, topics: Sequence[Any] | None) -> dict[str, Any]:
    try:
        if not call.broker.security.allows(call, "describe", "group", group):
            raise KafkaError(Code.GROUP_AUTHORIZATION_FAILED)
        committed = await _committed(call, group)
    except StreamlogError as error:
        return _refused(group, topics, group_code(error))
    wanted: Mapping[str, Sequence[int]]
    if topics is None:
        every: dict[str, list[int]] = {}
        for tp in sorted(committed):
            if call.broker.security.allows(call, "describe", "topic", tp.topic):
                every.setdefault(tp.topic, []).append(tp.partition)
        wanted = every
    else:
        wanted = {topic.name: topic.partition_indexes for topic in topics}
    answers = []
    for name, partitions in wanted.items():
        allowed = call.broker.security.allows(call, "describe", "topic", name)
        code = Code.NONE if allowed else Code.TOPIC_AUTHORIZATION_FAILED
        found = committed if allowed else {}
        answers.append(
            {
                "name": name,
                "partitions": [
                    _place(number, found.get(TopicPartition(name, number)), code)
                    for number in partitions
                ],
            }
        )
    return {"group_id": group, "topics": answers}


async def _committed(call: Call, group: str) -> dict[TopicPartition, Committed]:
    """Offsets of topics that there are; those of a topic that was made anew are not its own."""
    broker = call.broker
    broker.groups.check(group)
    loaded = broker.groups.peek(group)
    if loaded is not None:
        found = await loaded.offsets()
    else:
        # Looking needs no coordinator.
        topics = broker.topics
        store = GroupStore(group, topics.objects, broker.runtime, topics.checkpointer)
        _, found = await broker.run(store.read)
    live = {info.name: info.id for info in await broker.run(broker.topics.list)}
    return {tp: item for tp, item in found.items() if live.get(tp.topic) == item.topic_id}


def _place(number: int, item: Committed | None, code: Code) -> dict[str, Any]:
    return {
        "partition_index": number,
        "committed_offset": _NO_OFFSET if item is None else item.offset,
        "committed_leader_epoch": -1,
        "metadata": "" if item is None else item.metadata,
        "error_code": code,
    }


def _refused(group: str, topics: Sequence[Any] | None, code: Code) -> dict[str, Any]:
    # Version 1 has no place for an error but the partitions.
    return {
        "group_id": group,
        "error_code": code,
        "topics": [
            {
                "name": topic.name,
                "partitions": [_place(number, None, code) for number in topic.partition_indexes],
            }
            for topic in topics or ()
        ],
    }


async def offset_delete(call: Call) -> Response:
    """Forgets offsets of topics that nobody of the group subscribes to."""
    body = call.body
    allows = call.broker.security.allows
    if not allows(call, "delete", "group", body.group_id):
        raise KafkaError(Code.GROUP_AUTHORIZATION_FAILED)
    readable = {topic.name: allows(call, "read", "topic", topic.name) for topic in body.topics}
    tps = [
        TopicPartition(topic.name, part.partition_index)
        for topic in body.topics
        for part in topic.partitions
    ]
    try:
        group = await call.broker.groups.get(body.group_id, create=False)
        if group is None:
            await _check_exists(call, body.group_id)
            group = await call.broker.groups.get(body.group_id, create=True)
        assert group is not None
        allowed = [tp for tp in tps if readable[tp.topic]]
        codes = dict(zip(allowed, await group.forget(allowed), strict=True))
    except EmbeddedGroupError as error:
        raise KafkaError(Code.NON_EMPTY_GROUP, str(error)) from error
    except StreamlogError as error:
        raise KafkaError(group_code(error), str(error)) from error
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": part.partition_index,
                        "error_code": codes.get(
                            TopicPartition(topic.name, part.partition_index),
                            Code.TOPIC_AUTHORIZATION_FAILED,
                        ),
                    }
                    for part in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


async def _check_exists(call: Call, group: str) -> None:
    topics = call.broker.topics
    store = GroupStore(group, topics.objects, call.broker.runtime, topics.checkpointer)
    state = await call.broker.run(store.state)
    if store.version < 0 or state.deleted:
        raise KafkaError(Code.GROUP_ID_NOT_FOUND)


HANDLERS: dict[int, Handler] = {
    apis.OFFSET_COMMIT: offset_commit,
    apis.OFFSET_FETCH: offset_fetch,
    apis.OFFSET_DELETE: offset_delete,
}

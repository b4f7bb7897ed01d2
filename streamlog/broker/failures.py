"""The answer to a request that failed as a whole, with its error where the response has room for one.

X1  Every API of `apis.APIS` has an answer here, in every version: at the top of the response where that has
    an error code, else at each topic, partition, group or resource that the request names. A test walks
    all of them.
X2  Where neither is there (Metadata of all topics before version 13, Produce without acknowledgement),
    the connection ends: an answer without an error would be taken for the truth.

Some old versions put the error elsewhere than new ones; both places are filled, and a version takes what it
has (wire's W2). Pure, but for the note that ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from streamlog.broker import apis
from streamlog.broker.call import Call, Response
from streamlog.broker.kafka_errors import code_of
from streamlog.errors import StreamlogError

Fields = dict[str, Any]
_Answer = Callable[[Call, Fields], Fields | None]
_Told = Callable[[Call, Fields], Fields]


def error_response(call: Call, error: Exception) -> Response | None:
    """A response that says that the request failed; None ends the connection (X2)."""
    # What is no error of ours may tell of things that are nobody's business.
    message = str(error) if isinstance(error, StreamlogError) else "an internal error; see the log"
    told: Fields = {"error_code": code_of(error), "error_message": message}
    answer = _ANSWERS[call.api](call, told)
    if answer is None:
        call.peer.notes["close"] = True
    return answer


def _top(_: Call, told: Fields) -> Fields:
    return told


def _topics(
    source: str, to: str, topic_key: str, parts: str, number: str, blank: Mapping[str, Any]
) -> _Told:
    """Answers at each partition: `source` of the request becomes `to`; `number` names a partition."""

    def answer(call: Call, told: Fields) -> Fields:
        topics = []
        for topic in getattr(call.body, source) or ():
            numbers = [_number(part) for part in _partitions(topic)]
            entries = [{number: each} | dict(blank) | told for each in numbers]
            topics.append(
                {
                    topic_key: getattr(topic, topic_key, None),
                    "topic_id": getattr(topic, "topic_id", None),
                    parts: entries,
                }
            )
        return told | {to: topics}

    return answer


def _partitions(topic: Any) -> Any:
    for name in ("partitions", "partition_data", "partition_indexes"):
        if hasattr(topic, name):
            return getattr(topic, name) or ()
    raise AttributeError(f"{topic!r} has no partitions")


def _number(part: Any) -> int:
    for name in ("partition_index", "partition", "index"):
        if hasattr(part, name):
            return int(getattr(part, name))
    return int(part)


_produced = _topics(
    "topic_data",
    "responses",
    "name",
    "partition_responses",
    "index",
    {"base_offset": -1, "log_append_time": -1, "log_start_offset": -1},
)


def _produce(call: Call, told: Fields) -> Fields | None:
    return None if call.body.acks == 0 else _produced(call, told)


_fetched = _topics(
    "topics",
    "responses",
    "topic",
    "partitions",
    "partition_index",
    {"high_watermark": -1, "last_stable_offset": -1, "log_start_offset": -1, "records": b""},
)


def _fetch(call: Call, told: Fields) -> Fields:
    # As Kafka has it: who knows topics by id knows the error at the top.
    return told if call.version >= 13 else _fetched(call, told)


def _metadata(call: Call, told: Fields) -> Fields | None:
    if not call.body.topics:
        return None
    return told | {
        "brokers": [
            {"node_id": b.node_id, "host": b.host, "port": b.port, "rack": b.rack}
            for b in call.broker.cluster.brokers()
        ],
        "cluster_id": call.broker.log.cluster_id,
        "controller_id": call.broker.cluster.controller.node_id,
        "topics": [
            {"name": topic.name, "topic_id": getattr(topic, "topic_id", None)} | told
            for topic in call.body.topics
        ],
    }


_offsets_fetched = _topics(
    "topics",
    "topics",
    "name",
    "partitions",
    "partition_index",
    {"committed_offset": -1, "committed_leader_epoch": -1},
)


def _offset_fetch(call: Call, told: Fields) -> Fields:
    if call.version >= 8:
        groups = [{"group_id": group.group_id} | told for group in call.body.groups]
        return {"groups": groups}
    return _offsets_fetched(call, told)


def _find_coordinator(call: Call, told: Fields) -> Fields:
    nowhere = {"node_id": -1, "host": "", "port": -1}
    keys = getattr(call.body, "coordinator_keys", ())
    return told | nowhere | {"coordinators": [{"key": key} | nowhere | told for key in keys]}


def _join_group(call: Call, told: Fields) -> Fields:
    return told | {"generation_id": -1, "member_id": call.body.member_id}


def _describe_groups(call: Call, told: Fields) -> Fields:
    return {"groups": [{"group_id": group} | told for group in call.body.groups]}


def _delete_groups(call: Call, told: Fields) -> Fields:
    return {"results": [{"group_id": group} | told for group in call.body.groups_names]}


def _create_topics(call: Call, told: Fields) -> Fields:
    return {"topics": [{"name": topic.name} | told for topic in call.body.topics]}


def _delete_topics(call: Call, told: Fields) -> Fields:
    if call.version >= 6:
        named = [{"name": topic.name, "topic_id": topic.topic_id} for topic in call.body.topics]
    else:
        named = [{"name": name} for name in call.body.topic_names]
    return {"responses": [entry | told for entry in named]}


def _create_partitions(call: Call, told: Fields) -> Fields:
    return {"results": [{"name": topic.name} | told for topic in call.body.topics]}


def _init_producer_id(_: Call, told: Fields) -> Fields:
    return told | {"producer_id": -1, "producer_epoch": -1}


def _resources(to: str) -> _Told:
    def answer(call: Call, told: Fields) -> Fields:
        return {
            to: [
                {"resource_type": each.resource_type, "resource_name": each.resource_name} | told
                for each in call.body.resources
            ]
        }

    return answer


def _describe_log_dirs(call: Call, told: Fields) -> Fields:
    # Before version 3 there is no error code at the top, and the only directory has one.
    return told if call.version >= 3 else {"results": [{"log_dir": call.broker.log.root} | told]}


def _alter_scram(call: Call, told: Fields) -> Fields:
    named = [*call.body.deletions, *call.body.upsertions]
    return {"results": [{"user": each.name} | told for each in named]}


def _create_acls(call: Call, told: Fields) -> Fields:
    return {"results": [told for _ in call.body.creations]}


def _delete_acls(call: Call, told: Fields) -> Fields:
    return {"filter_results": [told for _ in call.body.filters]}


_ANSWERS: dict[int, _Answer] = {
    apis.PRODUCE: _produce,
    apis.FETCH: _fetch,
    apis.LIST_OFFSETS: _topics(
        "topics",
        "topics",
        "name",
        "partitions",
        "partition_index",
        {"timestamp": -1, "offset": -1, "leader_epoch": -1},
    ),
    apis.METADATA: _metadata,
    apis.OFFSET_COMMIT: _topics("topics", "topics", "name", "partitions", "partition_index", {}),
    apis.OFFSET_FETCH: _offset_fetch,
    apis.FIND_COORDINATOR: _find_coordinator,
    apis.JOIN_GROUP: _join_group,
    apis.HEARTBEAT: _top,
    apis.LEAVE_GROUP: _top,
    apis.SYNC_GROUP: _top,
    apis.DESCRIBE_GROUPS: _describe_groups,
    apis.LIST_GROUPS: _top,
    apis.SASL_HANDSHAKE: _top,
    apis.API_VERSIONS: _top,
    apis.CREATE_TOPICS: _create_topics,
    apis.DELETE_TOPICS: _delete_topics,
    apis.DELETE_RECORDS: _topics(
        "topics", "topics", "name", "partitions", "partition_index", {"low_watermark": -1}
    ),
    apis.INIT_PRODUCER_ID: _init_producer_id,
    apis.OFFSET_FOR_LEADER_EPOCH: _topics(
        "topics",
        "topics",
        "topic",
        "partitions",
        "partition",
        {"leader_epoch": -1, "end_offset": -1},
    ),
    apis.DESCRIBE_ACLS: _top,
    apis.CREATE_ACLS: _create_acls,
    apis.DELETE_ACLS: _delete_acls,
    apis.DESCRIBE_CONFIGS: _resources("results"),
    apis.ALTER_CONFIGS: _resources("responses"),
    apis.DESCRIBE_LOG_DIRS: _describe_log_dirs,
    apis.SASL_AUTHENTICATE: _top,
    apis.CREATE_PARTITIONS: _create_partitions,
    apis.DELETE_GROUPS: _delete_groups,
    apis.INCREMENTAL_ALTER_CONFIGS: _resources("responses"),
    apis.OFFSET_DELETE: _top,
    apis.DESCRIBE_CLUSTER: _top,
    apis.CONSUMER_GROUP_HEARTBEAT: _top,
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: _top,
    apis.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram,
}

"""Settings of topics and brokers, described and altered; what they are is in `streamlog.broker.configs`."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import Any

from streamlog.broker import apis
from streamlog.broker.call import Call, Handler, Response
from streamlog.broker.configs import (
    FIXED,
    KINDS,
    Kind,
    broker_entries,
    parsed,
    topic_entries,
    without_fixed,
)
from streamlog.broker.kafka_errors import Code, KafkaError, code_of
from streamlog.broker.operations import CLUSTER
from streamlog.config import ALL_KEYS, validate_topic_name
from streamlog.errors import InvalidRequestError, StreamlogError
from streamlog.log.registry import TopicInfo


class Resource(IntEnum):
    """What has settings."""

    TOPIC = 2
    BROKER = 4


class Operation(IntEnum):
    """What IncrementalAlterConfigs does to a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def describe_configs(call: Call) -> Response:
    """Settings of topics and brokers, all or those that are named."""
    results = []
    for resource in call.body.resources:
        entry: dict[str, Any] = _named(resource)
        try:
            found = await _described(call, resource)
        except StreamlogError as error:
            entry |= {"error_code": code_of(error), "error_message": str(error)}
        else:
            keys = resource.configuration_keys
            entry["configs"] = [item for item in found if not keys or item["name"] in keys]
            if not call.body.include_synonyms:
                entry["configs"] = [item | {"synonyms": ()} for item in entry["configs"]]
            if not getattr(call.body, "include_documentation", False):
                entry["configs"] = [item | {"documentation": None} for item in entry["configs"]]
        results.append(entry)
    return {"results": results}


async def _described(call: Call, resource: Any) -> list[dict[str, Any]]:
    allows = call.broker.security.allows
    name = resource.resource_name
    if resource.resource_type == Resource.TOPIC:
        if not allows(call, "describe_configs", "topic", name):
            raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
        return topic_entries((await _topic(call, name)).config)
    if resource.resource_type == Resource.BROKER:
        if not allows(call, "describe_configs", "cluster", CLUSTER):
            raise KafkaError(Code.CLUSTER_AUTHORIZATION_FAILED)
        return _of_broker(call, name)
    raise _no_settings(resource)


async def _topic(call: Call, name: str) -> TopicInfo:
    try:
        validate_topic_name(name)
    except InvalidRequestError as error:
        raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, str(error)) from error
    return await call.broker.run(call.broker.topics.get, name, refresh=True)


def _of_broker(call: Call, name: str) -> list[dict[str, Any]]:
    # An empty name asks for what all brokers are told dynamically: nothing.
    if not name:
        return []
    me = str(call.broker.cluster.me.node_id)
    if name != me:
        raise KafkaError(
            Code.INVALID_REQUEST, f"this is broker {me}; ask broker {name!r} for its own settings"
        )
    return broker_entries(call.broker)


async def alter_configs(call: Call) -> Response:
    """Replaces all settings of topics: what is not named goes back to its default."""

    def changes(_: TopicInfo, resource: Any) -> dict[str, object | None]:
        given = without_fixed({config.name: config.value for config in resource.configs})
        return dict.fromkeys(ALL_KEYS) | parsed(given).to_dict()

    return {"responses": [await _alter(call, each, changes) for each in call.body.resources]}


async def incremental_alter_configs(call: Call) -> Response:
    """Changes single settings of topics."""
    return {"responses": [await _alter(call, each, _steps) for each in call.body.resources]}


def _steps(info: TopicInfo, resource: Any) -> dict[str, object | None]:
    changes: dict[str, object | None] = {}
    for config in resource.configs:
        key, operation = config.name, config.config_operation
        if operation == Operation.DELETE:
            if key not in FIXED:
                changes[key] = None
            continue
        if config.value is None:
            raise KafkaError(Code.INVALID_REQUEST, f"{key} is to be set, but has no value")
        if operation == Operation.SET:
            changes |= without_fixed({key: config.value})
        elif operation in (Operation.APPEND, Operation.SUBTRACT):
            if KINDS.get(key, Kind.LIST) != Kind.LIST:
                raise KafkaError(
                    Code.INVALID_CONFIG,
                    f"{key} is no list: nothing can be appended to it or taken from it; set it",
                )
            have = info.config.effective().get(key, "").split(",")
            named = [part.strip() for part in config.value.split(",")]
            kept = [part for part in have if part not in named]
            changes[key] = ",".join(kept + (named if operation == Operation.APPEND else []))
        else:
            raise KafkaError(Code.INVALID_REQUEST, f"{operation} is no operation on a setting")
    return changes


async def _alter(call: Call, resource: Any, changes: Any) -> dict[str, Any]:
    entry: dict[str, Any] = _named(resource)
    try:
        _check_alterable(call, resource)
        info = await _topic(call, resource.resource_name)
        wanted = changes(info, resource)
        try:
            info.config.updated(wanted)
        except InvalidRequestError as error:
            raise KafkaError(Code.INVALID_CONFIG, str(error)) from error
        if wanted and not call.body.validate_only:
            await call.broker.run(call.broker.topics.alter, info.name, wanted)
            await call.broker.topic_cache.renew()
    except StreamlogError as error:
        entry |= {"error_code": code_of(error), "error_message": str(error)}
    return entry


def _check_alterable(call: Call, resource: Any) -> None:
    allows = call.broker.security.allows
    if resource.resource_type == Resource.BROKER:
        if not allows(call, "alter_configs", "cluster", CLUSTER):
            raise KafkaError(Code.CLUSTER_AUTHORIZATION_FAILED)
        raise KafkaError(
            Code.INVALID_REQUEST,
            "a broker's settings are changed in its file, its flags or its environment; then start it again",
        )
    if resource.resource_type != Resource.TOPIC:
        raise _no_settings(resource)
    if not allows(call, "alter_configs", "topic", resource.resource_name):
        raise KafkaError(Code.TOPIC_AUTHORIZATION_FAILED)
    names = Counter(config.name for config in resource.configs)
    doubled = sorted(name for name, count in names.items() if count > 1)
    if doubled:
        raise KafkaError(Code.INVALID_REQUEST, f"given more than once: {', '.join(doubled)}")


def _named(resource: Any) -> dict[str, Any]:
    return {"resource_type": resource.resource_type, "resource_name": resource.resource_name}


def _no_settings(resource: Any) -> KafkaError:
    return KafkaError(
        Code.INVALID_REQUEST,
        f"resources of type {resource.resource_type} have no settings here; topics (2) and brokers "
        "(4) have",
    )


HANDLERS: dict[int, Handler] = {
    apis.DESCRIBE_CONFIGS: describe_configs,
    apis.ALTER_CONFIGS: alter_configs,
    apis.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
}

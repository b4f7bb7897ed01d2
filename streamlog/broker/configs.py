"""Settings of topics and brokers as Kafka's clients see them.

F1  Kafka's names, streamlog's settings (`streamlog.config.SETTINGS`) and values. A name that streamlog does
    not have is refused, never ignored: nobody is to believe in a setting that does nothing.
F2  What clients like to see but nobody can change here (`FIXED`) is shown as read-only. Writing its value
    back is no change; another value is refused.
F3  A broker's settings come from its file, its flags and its environment: shown, and changed there only.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from streamlog.broker.kafka_errors import Code, KafkaError
from streamlog.config import ALL_KEYS, SETTINGS, TopicConfig
from streamlog.errors import InvalidRequestError

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker


class Source(IntEnum):
    """Where a value comes from."""

    DYNAMIC_TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class Kind(IntEnum):
    """The type of a value."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


KINDS: Final[Mapping[str, Kind]] = {
    "cleanup.policy": Kind.LIST,
    "compression.type": Kind.STRING,
    "delete.retention.ms": Kind.LONG,
    "max.message.bytes": Kind.INT,
    "message.timestamp.type": Kind.STRING,
    "min.cleanable.dirty.ratio": Kind.DOUBLE,
    "min.compaction.lag.ms": Kind.LONG,
    "min.insync.replicas": Kind.INT,
    "remote.storage.enable": Kind.BOOLEAN,
    "retention.bytes": Kind.LONG,
    "retention.hold.groups": Kind.STRING,
    "retention.hold.max.ms": Kind.LONG,
    "retention.ms": Kind.LONG,
    "segment.bytes": Kind.INT,
    "unclean.leader.election.enable": Kind.BOOLEAN,
}
FIXED: Final[Mapping[str, tuple[str, str]]] = {
    "min.insync.replicas": (
        "1",
        "The storage holds the replicas; an acknowledged record is in it.",
    ),
    "remote.storage.enable": ("false", "All data is in the root's storage in any case."),
    "unclean.leader.election.enable": ("false", "No broker can lose what was acknowledged."),
}
_DEFAULTS: Final = {setting.key: setting.default for setting in SETTINGS}


def topic_entries(config: TopicConfig) -> list[dict[str, Any]]:
    """All settings of a topic as DescribeConfigs has them."""
    entries = []
    for key, value in config.effective().items():
        default = {"name": key, "value": _DEFAULTS[key], "source": Source.DEFAULT}
        own = {"name": key, "value": value, "source": Source.DYNAMIC_TOPIC}
        chosen = key in config.explicit
        entries.append(
            {
                "name": key,
                "value": value,
                "config_source": Source.DYNAMIC_TOPIC if chosen else Source.DEFAULT,
                "config_type": KINDS[key],
                "synonyms": [own, default] if chosen else [default],
                "documentation": ALL_KEYS[key],
            }
        )
    for key, (value, doc) in FIXED.items():
        entry = _read_only(key, value, KINDS[key], Source.DEFAULT)
        entries.append(entry | {"documentation": doc})
    return sorted(entries, key=lambda entry: str(entry["name"]))


def broker_entries(broker: Broker) -> list[dict[str, Any]]:
    """The settings of a broker as DescribeConfigs has them; read-only, all of them (F3)."""
    settings, me = broker.settings, broker.cluster.me
    listener = f"PLAINTEXT://{settings.host}:{broker.server.port}"
    values: dict[str, tuple[object, Kind]] = {
        "advertised.listeners": (f"PLAINTEXT://{me.host}:{me.port}", Kind.STRING),
        "auto.create.topics.enable": (settings.auto_create_topics, Kind.BOOLEAN),
        "broker.id": (me.node_id, Kind.INT),
        "broker.rack": (me.rack, Kind.STRING),
        "connections.max.idle.ms": (int(settings.idle_seconds * 1000), Kind.LONG),
        "default.replication.factor": (1, Kind.INT),
        "delete.topic.enable": (True, Kind.BOOLEAN),
        "listeners": (listener, Kind.STRING),
        "log.cleanup.policy": (_DEFAULTS["cleanup.policy"], Kind.LIST),
        "log.dirs": (broker.log.root, Kind.STRING),
        "log.message.timestamp.type": (_DEFAULTS["message.timestamp.type"], Kind.STRING),
        "log.retention.bytes": (_DEFAULTS["retention.bytes"], Kind.LONG),
        "log.retention.ms": (_DEFAULTS["retention.ms"], Kind.LONG),
        "log.segment.bytes": (_DEFAULTS["segment.bytes"], Kind.INT),
        "max.connections": (settings.max_connections, Kind.INT),
        "max.connections.per.ip": (settings.max_connections_per_host, Kind.INT),
        "message.max.bytes": (_DEFAULTS["max.message.bytes"], Kind.INT),
        "min.insync.replicas": (1, Kind.INT),
        "node.id": (me.node_id, Kind.INT),
        "num.partitions": (settings.num_partitions, Kind.INT),
        "offsets.topic.replication.factor": (1, Kind.INT),
        "socket.request.max.bytes": (settings.max_request_bytes, Kind.INT),
        "unclean.leader.election.enable": (False, Kind.BOOLEAN),
    }
    return [
        _read_only(key, _text(value), kind, Source.STATIC_BROKER)
        for key, (value, kind) in sorted(values.items())
    ]


def _read_only(key: str, value: str | None, kind: Kind, source: Source) -> dict[str, Any]:
    return {
        "name": key,
        "value": value,
        "read_only": True,
        "config_source": source,
        "config_type": kind,
        "synonyms": [{"name": key, "value": value, "source": source}],
    }


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def parsed(given: Mapping[str, str | None]) -> TopicConfig:
    """The config that a client asks for."""
    try:
        return TopicConfig.parse(without_fixed(given))
    except InvalidRequestError as error:
        raise KafkaError(Code.INVALID_CONFIG, str(error)) from error


def without_fixed(given: Mapping[str, str | None]) -> dict[str, str | None]:
    """F2."""
    for key in given.keys() & FIXED.keys():
        value, reason = FIXED[key]
        if given[key] != value:
            raise KafkaError(
                Code.INVALID_CONFIG, f"{key} is {value} here and cannot be changed. {reason}"
            )
    return {key: value for key, value in given.items() if key not in FIXED}

"""streamlog: Kafka's topics on Delta tables, without a server.

    >>> import streamlog
    >>> log = streamlog.connect("memory://readme")
    >>> topic = log.create_topic("orders", partitions=4)
    >>> with log.producer() as producer:
    ...     metadata = producer.send("orders", key=b"user-1", value=b"{}").result()
    >>> metadata.partition, metadata.offset
    (0, 0)

Names are loaded at their first use: `import streamlog` alone costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlog import errors
from streamlog.errors import StreamlogError
from streamlog.model import OffsetAndTimestamp, Record, RecordMetadata, TopicPartition

if TYPE_CHECKING:
    from streamlog.client import Log, connect
    from streamlog.consumer.consumer import Consumer
    from streamlog.consumer.group.admin import Group
    from streamlog.consumer.group.session import OffsetAndMetadata
    from streamlog.log.topics import PartitionInfo, TopicDescription, TopicInfo
    from streamlog.producer.producer import Producer

__all__ = [
    "Consumer",
    "Group",
    "Log",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "PartitionInfo",
    "Producer",
    "Record",
    "RecordMetadata",
    "StreamlogError",
    "TopicDescription",
    "TopicInfo",
    "TopicPartition",
    "__version__",
    "connect",
    "errors",
]

_LATE = {
    "Consumer": "streamlog.consumer.consumer",
    "Group": "streamlog.consumer.group.admin",
    "OffsetAndMetadata": "streamlog.consumer.group.session",
    "Log": "streamlog.client",
    "PartitionInfo": "streamlog.log.topics",
    "Producer": "streamlog.producer.producer",
    "TopicDescription": "streamlog.log.topics",
    "TopicInfo": "streamlog.log.topics",
    "connect": "streamlog.client",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from streamlog.version import read_version

        return read_version()
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module 'streamlog' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

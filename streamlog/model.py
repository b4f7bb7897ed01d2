"""The words of the log: what users hold in their hands. Plain immutable values; nothing does I/O."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

Header = tuple[str, bytes | None]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(timestamp_ms: int) -> datetime:
    """Milliseconds since 1970 as an aware datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=timestamp_ms)


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Record(NamedTuple):
    """One record as a consumer sees it; `timestamp` is milliseconds since 1970, as in Kafka."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]

    @property
    def time(self) -> datetime:
        """`timestamp` as an aware datetime in UTC."""
        return to_datetime(self.timestamp)


class RecordMetadata(NamedTuple):
    """Where an acknowledged record is.

    `offset` is None for `acks=0` (nobody waited to learn it), and for a record that an earlier attempt
    wrote so long ago that its place cannot be told from the log's metadata.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp: int

    @property
    def time(self) -> datetime:
        """`timestamp` as an aware datetime in UTC."""
        return to_datetime(self.timestamp)


class OffsetAndTimestamp(NamedTuple):
    """The answer to "which offset is the first at or after this time"."""

    offset: int
    timestamp: int

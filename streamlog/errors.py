"""Every error streamlog raises, by what the caller should do next.

Few kinds, each with a prescription: `ConflictError` (retry), `FencedError` (reopen), `UnavailableError`
(retry later), `InvalidRequestError` (fix the call), `CorruptLogError` (stop and repair). The subclasses
only name the situation. A message says what was wrong, what is allowed and what to do next; messages are
not API, the classes, `retriable` and `kafka_code` are.
"""

from __future__ import annotations

from typing import ClassVar


class StreamlogError(Exception):
    """Root of all errors of streamlog."""

    retriable: ClassVar[bool] = False
    kafka_code: ClassVar[int] = -1


class ConflictError(StreamlogError):
    """Somebody else changed the same thing first; try again."""

    retriable = True
    kafka_code = 7


class FencedError(StreamlogError):
    """A newer holder of the same identity exists; this one must stop, or be opened anew."""

    kafka_code = 47


class IllegalGenerationError(FencedError):
    """The group went on without this member, or gave its partitions to others."""

    kafka_code = 22


class FencedInstanceError(FencedError):
    """Another consumer with the same `group_instance_id` took this one's place."""

    kafka_code = 82


class UnavailableError(StreamlogError):
    """The storage did not answer, or not clearly; the request may be tried again later."""

    retriable = True
    kafka_code = 7


class DeliveryTimeoutError(UnavailableError):
    """A record was not committed within its delivery timeout."""

    retriable = False


class UnknownOutcomeError(UnavailableError):
    """Nobody can tell any more whether a write took place; writing again could double it."""

    retriable = False


class BufferFullError(UnavailableError):
    """The producer's buffer stayed full for longer than `max_block_ms`."""


class StorageFullError(UnavailableError):
    """The storage has no room left."""

    retriable = False
    kafka_code = 56


class InvalidRequestError(StreamlogError):
    """The call itself is wrong; fix it."""

    kafka_code = 42


class PermissionDeniedError(InvalidRequestError):
    """The storage refuses this identity."""

    kafka_code = 29


class RootError(InvalidRequestError):
    """The root is missing, not streamlog's, or of a newer format."""


class TopicNotFoundError(InvalidRequestError):
    """There is no such topic."""

    kafka_code = 3


class TopicExistsError(InvalidRequestError):
    """A topic of this name exists already."""

    kafka_code = 36


class TopicDeletedError(InvalidRequestError):
    """The topic was deleted while it was in use."""

    kafka_code = 3


class GroupNotFoundError(InvalidRequestError):
    """There is no such consumer group."""

    kafka_code = 69


class GroupActiveError(InvalidRequestError):
    """The group has members at work; what was asked for needs it to be empty."""

    kafka_code = 68


class PartitionNotFoundError(InvalidRequestError):
    """The topic has no such partition."""

    kafka_code = 3


class OutOfRangeError(InvalidRequestError):
    """The offset is not in the log (below its start, or beyond its end)."""

    kafka_code = 1


class RecordTooLargeError(InvalidRequestError):
    """The record is larger than the topic's `max.message.bytes`."""

    kafka_code = 10


class ClosedError(InvalidRequestError):
    """The object was closed."""


class CorruptLogError(StreamlogError):
    """The stored log breaks an invariant; nothing is read over. The message names the version."""

    kafka_code = 2

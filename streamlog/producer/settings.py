"""What a user may set on a producer. A frozen value; everything is checked here, once, so that the
rest trusts it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from streamlog.errors import InvalidRequestError

PartitionFunction = Callable[[bytes | None, bytes | None, int], int]

_COMPRESSIONS = ("none", "snappy", "lz4", "zstd")
_PRODUCER_ID = re.compile(r"[a-zA-Z0-9._-]{1,249}")
# One batch becomes one Arrow binary array, whose offsets are 32 bits wide.
_MAX_BATCH_BYTES = 1 << 30
_MAX_MS = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a producer; the names and meanings are Kafka's where Kafka has them.

    acks: 0 (queued), 1 (committed and visible) or "all" (and durable; -1 means the same).
    linger_ms: how long a record may wait for company. Waiting for its ack ends the wait.
    batch_records, batch_bytes: a topic's batch is sent when it has this many records or bytes.
    buffer_bytes: bound of everything accepted and not yet written; beyond it `send` blocks.
    max_block_ms: how long `send` blocks before `BufferFullError`.
    delivery_timeout_ms: a record not committed within it fails with `DeliveryTimeoutError`.
    max_in_flight: how many partitions are appended to at once (one append a partition, always).
    compression: none, snappy, lz4 or zstd; None takes the topic's `compression.type`.
    partitioner: `f(key, value, partitions) -> partition`, instead of murmur2 and sticky rounds.
    producer_id: a stable name; continues its sequence after a restart and fences an older holder.
    """

    acks: int | str = "all"
    linger_ms: float = 5
    batch_records: int = 50_000
    batch_bytes: int = 8 * 1024 * 1024
    buffer_bytes: int = 64 * 1024 * 1024
    max_block_ms: float = 60_000
    delivery_timeout_ms: float = 120_000
    max_in_flight: int = 4
    compression: str | None = None
    partitioner: PartitionFunction | None = None
    producer_id: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "acks", _acks(self.acks))
        object.__setattr__(self, "compression", _compression(self.compression))
        for name, low, high in (
            ("batch_records", 1, 1 << 30),
            ("batch_bytes", 1, _MAX_BATCH_BYTES),
            ("buffer_bytes", 1, 1 << 50),
            ("max_in_flight", 1, 256),
        ):
            _number(name, getattr(self, name), low, high, whole=True)
        for name, low in (("linger_ms", 0), ("max_block_ms", 0), ("delivery_timeout_ms", 1)):
            _number(name, getattr(self, name), low, _MAX_MS, whole=False)
        if self.partitioner is not None and not callable(self.partitioner):
            raise InvalidRequestError(
                f"partitioner={self.partitioner!r} cannot be called; "
                "give a function (key, value, partitions) -> partition, or None"
            )
        if self.producer_id is not None and (
            not isinstance(self.producer_id, str)
            or not _PRODUCER_ID.fullmatch(self.producer_id)
            or self.producer_id in (".", "..")
        ):
            raise InvalidRequestError(
                f"producer_id={self.producer_id!r} is not a name; use 1 to 249 of a-z A-Z 0-9 . _ -"
            )

    @classmethod
    def from_kwargs(cls, **settings: Any) -> ProducerSettings:
        """Settings from keywords; an unknown one is refused with the nearest name."""
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                near = difflib.get_close_matches(name.replace(".", "_"), known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
                raise InvalidRequestError(f"a producer has no setting {name!r}; {hint}")
        return cls(**settings)

    @property
    def waits(self) -> bool:
        """Whether a record counts as sent only once it is committed."""
        return self.acks != 0

    @property
    def durable(self) -> bool:
        """Whether an append has to survive a power cut before it is acknowledged."""
        return self.acks == "all"

    @property
    def batch_limit(self) -> int:
        """Bytes of one batch: `batch_bytes`, or less where the whole buffer is smaller."""
        return min(self.batch_bytes, self.buffer_bytes)


def _acks(value: object) -> Literal[0, 1, "all"]:
    if value is not True and value is not False:
        if value in (0, "0"):
            return 0
        if value in (1, "1"):
            return 1
        if value in (-1, "-1", "all"):
            return "all"
    raise InvalidRequestError(f"acks={value!r} is not known; allowed are 0, 1 and 'all' (or -1)")


def _compression(value: object) -> str | None:
    if value is None or value in _COMPRESSIONS:
        return None if value is None else str(value)
    if value == "uncompressed":
        return "none"
    raise InvalidRequestError(
        f"compression={value!r} is not known; allowed are {', '.join(_COMPRESSIONS)}, "
        "or None for the topic's own"
    )


def _number(name: str, value: object, low: int, high: int, *, whole: bool) -> None:
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise InvalidRequestError(
            f"{name}={value!r} is not allowed; give {kind} from {low} to {high}"
        )

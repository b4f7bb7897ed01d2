"""Settings of a consumer: plain values under Kafka's names, checked once when they are made.

Durations are milliseconds and sizes bytes, as in Kafka; `None` means "no limit"
(`consumer_timeout_ms`) or "as the storage suggests" (`poll_interval_*_ms`: 1 to 50 ms on a local
disk, 10 to 500 ms elsewhere; `heartbeat_interval_ms`: 1 s on a local disk, 3 s elsewhere).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from streamlog.config import validate_group_name
from streamlog.errors import InvalidRequestError

RESETS: Final = ("earliest", "latest", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a consumer fetches; `from_kwargs` answers an unknown name with the nearest one."""

    auto_offset_reset: str = "latest"
    max_poll_records: int = 500
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    consumer_timeout_ms: int | None = None
    metadata_max_age_ms: int = 5_000
    poll_interval_min_ms: float | None = None
    poll_interval_max_ms: float | None = None
    group_id: str | None = None
    group_instance_id: str | None = None
    client_id: str = "streamlog"
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int | None = None
    max_poll_interval_ms: int = 300_000
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    partition_assignment_strategy: Any = "cooperative-sticky"

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in RESETS:
            raise InvalidRequestError(
                f"auto_offset_reset is {self.auto_offset_reset!r}; allowed: {', '.join(RESETS)}"
            )
        _whole("max_poll_records", self.max_poll_records, least=1)
        _whole("fetch_min_bytes", self.fetch_min_bytes, least=1)
        _whole("fetch_max_wait_ms", self.fetch_max_wait_ms, least=0)
        _whole("fetch_max_bytes", self.fetch_max_bytes, least=1)
        _whole("max_partition_fetch_bytes", self.max_partition_fetch_bytes, least=1)
        _whole("metadata_max_age_ms", self.metadata_max_age_ms, least=0)
        if self.consumer_timeout_ms is not None:
            _whole("consumer_timeout_ms", self.consumer_timeout_ms, least=0)
        for name in ("poll_interval_min_ms", "poll_interval_max_ms"):
            value = getattr(self, name)
            if value is not None:
                _positive(name, value)
        low, high = self.poll_interval_min_ms, self.poll_interval_max_ms
        if low is not None and high is not None and low > high:
            raise InvalidRequestError(
                f"poll_interval_min_ms is {low}, above poll_interval_max_ms ({high}); lower it"
            )

        self._check_group()

    def _check_group(self) -> None:
        if self.group_id is not None:
            validate_group_name(self.group_id)
        elif self.group_instance_id is not None:
            raise InvalidRequestError("group_instance_id needs a group_id")
        if self.group_instance_id is not None:
            validate_group_name(self.group_instance_id)
        validate_group_name(self.client_id)
        _whole("session_timeout_ms", self.session_timeout_ms, least=100)
        _whole("max_poll_interval_ms", self.max_poll_interval_ms, least=100)
        _whole("auto_commit_interval_ms", self.auto_commit_interval_ms, least=0)
        if self.heartbeat_interval_ms is not None:
            _whole("heartbeat_interval_ms", self.heartbeat_interval_ms, least=10)
            if self.heartbeat_interval_ms * 2 > self.session_timeout_ms:
                raise InvalidRequestError(
                    f"heartbeat_interval_ms is {self.heartbeat_interval_ms}; allowed: at most half of "
                    f"session_timeout_ms ({self.session_timeout_ms}), so that one lost beat is no death"
                )
        if not isinstance(self.enable_auto_commit, bool):
            raise InvalidRequestError(
                f"enable_auto_commit is {self.enable_auto_commit!r}; allowed: True, False"
            )

    def heartbeat_interval_s(self, *, local: bool) -> float:
        """Seconds between two heartbeats."""
        suggested = 1_000 if local else 3_000
        chosen = self.heartbeat_interval_ms or min(suggested, self.session_timeout_ms // 3)
        return chosen / 1000

    @classmethod
    def from_kwargs(cls, settings: Mapping[str, Any]) -> ConsumerSettings:
        """These settings; an unknown name is refused with the nearest valid one."""
        names = [field.name for field in fields(cls)]
        for name in settings:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
                raise InvalidRequestError(f"a consumer has no setting {name!r}; {hint}")
        return cls(**settings)

    def poll_interval_s(self, *, local: bool) -> tuple[float, float]:
        """The shortest and longest wait between two looks at a silent log, in seconds."""
        low, high = (1.0, 50.0) if local else (10.0, 500.0)
        if self.poll_interval_min_ms is not None:
            low = self.poll_interval_min_ms
            high = max(low, high)
        if self.poll_interval_max_ms is not None:
            high = self.poll_interval_max_ms
            low = min(low, high)
        return low / 1000, high / 1000


def _whole(name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidRequestError(
            f"{name} is {value!r}; allowed: a whole number of at least {least}"
        )


def _positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidRequestError(f"{name} is {value!r}; allowed: a number above 0")

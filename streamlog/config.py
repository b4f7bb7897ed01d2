"""The settings of a topic, under Kafka's names and with Kafka's meaning; the rules for names.

Invariants:
1. A `TopicConfig` that exists is valid: every way to make one goes through the same checks.
2. `TopicConfig.parse(config.to_dict()) == config`: what the registry stores is what was set.
3. Only what was set explicitly is stored, so that a better default in a later release reaches the
   topics which never asked for anything else.

Worked example: `TopicConfig.parse({"retention.ms": -1}).to_dict() == {"retention.ms": "-1"}`; in
Python "unlimited" is None (`config.retention_ms is None`), in Kafka's text it is -1.

`SETTINGS` is the one list of what exists: parsing, help, and docs/configuration.md follow it.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from streamlog.errors import InvalidRequestError

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_NAME_MAX: Final = 249
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")


class _RefusedError(Exception):
    """A value that is not allowed; turned into an error which names the setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a topic: its Kafka name, the field of `TopicConfig`, and what it accepts."""

    key: str
    field: str
    default: str
    allowed: str
    doc: str
    read: Callable[[object], Any]
    write: Callable[[Any], str] = str

    def value(self, raw: object) -> Any:
        """`raw` (text, or a Python value) as the field holds it."""
        try:
            return self.read(raw)
        except _RefusedError:
            raise InvalidRequestError(
                f"{raw!r} is not a value for {self.key}; allowed: {self.allowed} "
                f"(default {self.default})."
            ) from None


def _integer(low: int, high: int) -> Callable[[object], int]:
    def read(raw: object) -> int:
        if isinstance(raw, bool):
            raise _RefusedError
        if isinstance(raw, str) and _INTEGER.fullmatch(raw.strip()) and len(raw) <= 40:
            number = int(raw)
        elif isinstance(raw, int):
            number = raw
        elif isinstance(raw, float) and raw.is_integer():
            number = int(raw)
        else:
            raise _RefusedError
        if not low <= number <= high:
            raise _RefusedError
        return number

    return read


def _integer_or_unlimited(raw: object) -> int | None:
    if raw is None:
        return None
    number = _integer(-1, _INT64_MAX)(raw)
    return None if number == -1 else number


def _write_unlimited(value: int | None) -> str:
    return "-1" if value is None else str(value)


def _ratio(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise _RefusedError
    try:
        number = float(raw)
    except (ValueError, OverflowError):
        raise _RefusedError from None
    if math.isnan(number) or not 0 <= number <= 1:
        raise _RefusedError
    return number


def _choice(*names: str, **synonyms: str) -> Callable[[object], str]:
    def read(raw: object) -> str:
        if not isinstance(raw, str):
            raise _RefusedError
        name = synonyms.get(raw.strip(), raw.strip())
        if name not in names:
            raise _RefusedError
        return name

    return read


def _policy(raw: object) -> frozenset[str]:
    if isinstance(raw, str):
        parts: list[object] = [part.strip() for part in raw.split(",")]
    elif isinstance(raw, list | tuple | set | frozenset):
        parts = list(raw)
    else:
        raise _RefusedError
    policies = {part for part in parts if part in ("delete", "compact") and isinstance(part, str)}
    if not parts or len(policies) != len(set(map(str, parts))):
        raise _RefusedError
    return frozenset(policies)


def _write_policy(value: frozenset[str]) -> str:
    return ",".join(sorted(value))


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        key="cleanup.policy",
        field="cleanup_policy",
        default="delete",
        allowed="delete, compact, or both as compact,delete",
        doc="What happens to old records: deleted by age and size, or all but the last of a key.",
        read=_policy,
        write=_write_policy,
    ),
    Setting(
        key="compression.type",
        field="compression_type",
        default="snappy",
        allowed="none (or uncompressed), snappy, lz4, zstd",
        doc="How the data files are compressed, unless the producer says otherwise.",
        read=_choice("none", "snappy", "lz4", "zstd", uncompressed="none"),
    ),
    Setting(
        key="delete.retention.ms",
        field="delete_retention_ms",
        default="86400000",
        allowed="milliseconds, an integer from 0",
        doc="How long compaction keeps tombstones (keys without a value) for readers to see.",
        read=_integer(0, _INT64_MAX),
    ),
    Setting(
        key="max.message.bytes",
        field="max_message_bytes",
        default="1048588",
        allowed="bytes, an integer from 0 to 2147483647",
        doc="The largest record the topic accepts: key, value and headers together.",
        read=_integer(0, _INT32_MAX),
    ),
    Setting(
        key="message.timestamp.type",
        field="message_timestamp_type",
        default="CreateTime",
        allowed="CreateTime, LogAppendTime",
        doc="Whose time a record carries: the producer's, or that of its append to the log.",
        read=_choice("CreateTime", "LogAppendTime"),
    ),
    Setting(
        key="min.cleanable.dirty.ratio",
        field="min_cleanable_dirty_ratio",
        default="0.5",
        allowed="a number from 0 to 1",
        doc="How large a share of the log must be new before compaction by key runs.",
        read=_ratio,
        write=repr,
    ),
    Setting(
        key="min.compaction.lag.ms",
        field="min_compaction_lag_ms",
        default="0",
        allowed="milliseconds, an integer from 0",
        doc="How long a record is safe from compaction by key.",
        read=_integer(0, _INT64_MAX),
    ),
    Setting(
        key="retention.bytes",
        field="retention_bytes",
        default="-1",
        allowed="bytes a partition, an integer from 0, or -1 for unlimited",
        doc="How large a partition may grow before its oldest files are deleted.",
        read=_integer_or_unlimited,
        write=_write_unlimited,
    ),
    Setting(
        key="retention.hold.groups",
        field="retention_hold_groups",
        default="none",
        allowed="none, warn, hold",
        doc="What retention does about records that a consumer group has yet to read.",
        read=_choice("none", "warn", "hold"),
    ),
    Setting(
        key="retention.hold.max.ms",
        field="retention_hold_max_ms",
        default="86400000",
        allowed="milliseconds, an integer from 0",
        doc="How long beyond their time records are held for a group at most.",
        read=_integer(0, _INT64_MAX),
    ),
    Setting(
        key="retention.ms",
        field="retention_ms",
        default="604800000",
        allowed="milliseconds, an integer from 0, or -1 for unlimited",
        doc="How old records may become before their files are deleted.",
        read=_integer_or_unlimited,
        write=_write_unlimited,
    ),
    Setting(
        key="segment.bytes",
        field="segment_bytes",
        default="134217728",
        allowed="bytes, an integer from 14 to 2147483647",
        doc="The size of data file that small files are merged into.",
        read=_integer(14, _INT32_MAX),
    ),
)

_BY_KEY: Final[dict[str, Setting]] = {setting.key: setting for setting in SETTINGS}

ALL_KEYS: Final[Mapping[str, str]] = {setting.key: setting.doc for setting in SETTINGS}
"""Every key of a topic's config, with one line of help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic. None is "unlimited"; `explicit` are the keys somebody has set."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_type: str = "snappy"
    delete_retention_ms: int = 86_400_000
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    retention_bytes: int | None = None
    retention_hold_groups: str = "none"
    retention_hold_max_ms: int = 86_400_000
    retention_ms: int | None = 604_800_000
    segment_bytes: int = 134_217_728
    explicit: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        explicit = set(self.explicit)
        for key in explicit:
            _setting(key)
        for setting in SETTINGS:
            value = setting.value(getattr(self, setting.field))
            object.__setattr__(self, setting.field, value)
            if setting.write(value) != setting.default:
                explicit.add(setting.key)
        object.__setattr__(self, "explicit", frozenset(explicit))

    @classmethod
    def parse(cls, mapping: Mapping[str, object]) -> TopicConfig:
        """The config that `mapping` asks for, by Kafka's names; the rest is at its default."""
        fields: dict[str, Any] = {}
        for key, raw in mapping.items():
            setting = _setting(key)
            if raw is None:
                raise InvalidRequestError(
                    f"None is not a value for {key}; allowed: {setting.allowed}. "
                    f"Leave the key out for the default ({setting.default})."
                )
            fields[setting.field] = setting.value(raw)
        return cls(**fields, explicit=frozenset(mapping))

    def updated(self, changes: Mapping[str, object | None]) -> TopicConfig:
        """This config with `changes` over it; None puts a setting back to its default."""
        merged: dict[str, object] = dict(self.to_dict())
        for key, raw in changes.items():
            _setting(key)
            if raw is None:
                merged.pop(key, None)
            else:
                merged[key] = raw
        return TopicConfig.parse(merged)

    def to_dict(self) -> dict[str, str]:
        """What was set explicitly, in Kafka's text form, sorted by name."""
        return {key: text for key, text in self.effective().items() if key in self.explicit}

    def effective(self) -> dict[str, str]:
        """Every setting as it applies, defaults included, in Kafka's text form, sorted by name."""
        return {setting.key: setting.write(getattr(self, setting.field)) for setting in SETTINGS}


def _setting(key: object) -> Setting:
    setting = _BY_KEY.get(key) if isinstance(key, str) else None
    if setting is not None:
        return setting
    # Python's spelling (retention_ms) and Kafka's differ only in the separator: no distance.
    spelled = str(key).strip().lower().replace("_", ".").replace("-", ".")
    near = difflib.get_close_matches(spelled, _BY_KEY, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InvalidRequestError(
        f"{key!r} is not a setting of a topic; {hint}The settings are: {', '.join(_BY_KEY)}."
    )


def validate_topic_name(name: str) -> None:
    """Refuse what Kafka refuses as the name of a topic, and the internal names."""
    _validate_name("topic", name)
    if name.startswith("__"):
        raise InvalidRequestError(
            f"{name!r} cannot be the name of a topic: names that begin with '__' are internal; "
            "choose another."
        )


def validate_group_name(name: str) -> None:
    """Refuse what cannot name a consumer group; it names a folder, so a topic's letters apply."""
    _validate_name("consumer group", name)


def _validate_name(what: str, name: object) -> None:
    if not isinstance(name, str):
        problem = f"it is {type(name).__name__}, not str"
    elif not name:
        problem = "it is empty"
    elif len(name) > _NAME_MAX:
        problem = f"it has {len(name)} characters"
    elif name in (".", ".."):
        problem = "'.' and '..' mean folders"
    elif (odd := _NAME.sub("", name)) != "":
        problem = f"it contains {odd[0]!r}"
    else:
        return
    shown = repr(name) if len(repr(name)) <= 80 else repr(name)[:80] + "…"
    raise InvalidRequestError(
        f"{shown} cannot be the name of a {what}: {problem}; allowed are 1 to {_NAME_MAX} "
        "characters out of a-z, A-Z, 0-9, '.', '_' and '-', other than '.' and '..'."
    )

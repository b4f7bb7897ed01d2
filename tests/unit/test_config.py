"""Topic settings: Kafka's names, defaults and text forms; names of topics and groups."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.config import (
    ALL_KEYS,
    SETTINGS,
    TopicConfig,
    validate_group_name,
    validate_topic_name,
)
from streamlog.errors import InvalidRequestError

DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "snappy",
    "delete.retention.ms": "86400000",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "retention.bytes": "-1",
    "retention.hold.groups": "none",
    "retention.hold.max.ms": "86400000",
    "retention.ms": "604800000",
    "segment.bytes": "134217728",
}

values = st.fixed_dictionaries(
    {},
    optional={
        "cleanup.policy": st.sampled_from(["delete", "compact", "compact,delete"]),
        "compression.type": st.sampled_from(["none", "snappy", "lz4", "zstd", "uncompressed"]),
        "delete.retention.ms": st.integers(0, 2**63 - 1),
        "max.message.bytes": st.integers(0, 2**31 - 1),
        "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
        "min.cleanable.dirty.ratio": st.floats(0, 1),
        "min.compaction.lag.ms": st.integers(0, 2**63 - 1),
        "retention.bytes": st.integers(-1, 2**63 - 1),
        "retention.hold.groups": st.sampled_from(["none", "warn", "hold"]),
        "retention.hold.max.ms": st.integers(0, 2**63 - 1),
        "retention.ms": st.integers(-1, 2**63 - 1),
        "segment.bytes": st.integers(14, 2**31 - 1),
    },
)


def test_the_defaults_are_the_documented_ones() -> None:
    config = TopicConfig()
    assert config.effective() == DEFAULTS
    assert config.to_dict() == {}
    assert config == TopicConfig.parse({})
    assert config.retention_ms == 604_800_000
    assert config.retention_bytes is None
    assert config.cleanup_policy == frozenset({"delete"})


def test_every_field_has_a_setting_with_a_line_of_help() -> None:
    fields = {field.name for field in dataclasses.fields(TopicConfig)} - {"explicit"}
    assert {setting.field for setting in SETTINGS} == fields
    assert list(ALL_KEYS) == sorted(DEFAULTS)
    assert all(doc and "\n" not in doc for doc in ALL_KEYS.values())


@given(values)
def test_what_is_stored_is_what_was_set(mapping: dict[str, object]) -> None:
    config = TopicConfig.parse(mapping)
    assert TopicConfig.parse(config.to_dict()) == config
    assert set(config.to_dict()) == set(mapping)
    assert TopicConfig.parse(config.effective()).effective() == config.effective()


@given(values, values)
def test_updating_is_setting_over(before: dict[str, object], changes: dict[str, object]) -> None:
    updated = TopicConfig.parse(before).updated(changes)
    assert updated == TopicConfig.parse({**before, **changes})


def test_none_puts_a_setting_back_to_its_default() -> None:
    config = TopicConfig.parse({"retention.ms": 5, "segment.bytes": 1000})
    updated = config.updated({"retention.ms": None, "retention.bytes": None})
    assert updated.to_dict() == {"segment.bytes": "1000"}
    assert updated.retention_ms == 604_800_000


def test_a_default_set_explicitly_is_remembered() -> None:
    """A later release may change the default; a topic that asked for the value keeps it."""
    assert TopicConfig.parse({"retention.ms": 604_800_000}).to_dict() == {
        "retention.ms": "604800000"
    }


@pytest.mark.parametrize(
    ("key", "raw", "field", "expected"),
    [
        ("retention.ms", "-1", "retention_ms", None),
        ("retention.ms", -1, "retention_ms", None),
        ("retention.ms", " 60000 ", "retention_ms", 60_000),
        ("retention.ms", 6e4, "retention_ms", 60_000),
        ("retention.ms", 0, "retention_ms", 0),
        ("retention.bytes", "1000", "retention_bytes", 1000),
        ("cleanup.policy", "delete, compact", "cleanup_policy", frozenset({"delete", "compact"})),
        ("cleanup.policy", ["compact"], "cleanup_policy", frozenset({"compact"})),
        ("compression.type", "uncompressed", "compression_type", "none"),
        ("min.cleanable.dirty.ratio", "0.25", "min_cleanable_dirty_ratio", 0.25),
        ("min.cleanable.dirty.ratio", 1, "min_cleanable_dirty_ratio", 1.0),
        ("message.timestamp.type", "LogAppendTime", "message_timestamp_type", "LogAppendTime"),
    ],
)
def test_values_are_understood(key: str, raw: object, field: str, expected: object) -> None:
    assert getattr(TopicConfig.parse({key: raw}), field) == expected


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        ("retention.ms", "a week"),
        ("retention.ms", -2),
        ("retention.ms", 1.5),
        ("retention.ms", True),
        ("retention.ms", "1_000"),
        ("retention.ms", "9" * 5000),
        ("retention.ms", 2**63),
        ("retention.ms", float("inf")),
        ("retention.bytes", []),
        ("segment.bytes", 13),
        ("segment.bytes", 2**31),
        ("max.message.bytes", -1),
        ("min.compaction.lag.ms", -1),
        ("delete.retention.ms", ""),
        ("min.cleanable.dirty.ratio", 1.01),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "half"),
        ("min.cleanable.dirty.ratio", False),
        ("min.cleanable.dirty.ratio", 10**400),
        ("cleanup.policy", ""),
        ("cleanup.policy", "delete,"),
        ("cleanup.policy", "remove"),
        ("cleanup.policy", []),
        ("cleanup.policy", 1),
        ("cleanup.policy", [["delete"]]),
        ("compression.type", "gzip"),
        ("compression.type", 1),
        ("message.timestamp.type", "createtime"),
    ],
)
def test_a_value_out_of_place_is_refused_with_what_is_allowed(key: str, raw: object) -> None:
    allowed = next(setting.allowed for setting in SETTINGS if setting.key == key)
    with pytest.raises(InvalidRequestError) as error:
        TopicConfig.parse({key: raw})
    assert key in str(error.value)
    assert allowed in str(error.value)


def test_none_is_refused_when_parsing_with_advice() -> None:
    with pytest.raises(InvalidRequestError, match="Leave the key out"):
        TopicConfig.parse({"retention.ms": None})


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("retention_ms", "retention.ms"),
        ("retention.msec", "retention.ms"),
        ("Retention.Bytes", "retention.bytes"),
        ("cleanup-policy", "cleanup.policy"),
        ("compresion.type", "compression.type"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(wrong: str, near: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"did you mean '{near}'"):
        TopicConfig.parse({wrong: 1})
    with pytest.raises(InvalidRequestError, match=f"did you mean '{near}'"):
        TopicConfig().updated({wrong: None})


def test_a_setting_like_nothing_is_refused_with_the_list() -> None:
    with pytest.raises(InvalidRequestError) as error:
        TopicConfig.parse({"xyzzy": 1})
    assert "did you mean" not in str(error.value)
    assert all(key in str(error.value) for key in ALL_KEYS)


def test_fields_given_directly_are_checked_and_remembered() -> None:
    assert TopicConfig(retention_ms=None).to_dict() == {"retention.ms": "-1"}
    assert TopicConfig(retention_ms=5) == TopicConfig.parse({"retention.ms": "5"})
    with pytest.raises(InvalidRequestError, match=r"segment\.bytes"):
        TopicConfig(segment_bytes=0)
    with pytest.raises(InvalidRequestError, match="not a setting"):
        TopicConfig(explicit=frozenset({"nonsense"}))


@pytest.mark.parametrize("name", ["a", "orders", "Orders.v2_eu-west", "...", "_x", "x" * 249])
def test_kafkas_topic_names_are_accepted(name: str) -> None:
    validate_topic_name(name)
    validate_group_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "a\n", "é", "a~2", "x" * 250, "x" * 5000, None, 7, b"a"]
)
def test_other_names_are_refused_with_what_is_allowed(name: object) -> None:
    allowed = r"name of a topic.*allowed are 1 to 249"
    with pytest.raises(InvalidRequestError, match=allowed) as error:
        validate_topic_name(name)  # type: ignore[arg-type]
    assert len(str(error.value)) < 400
    with pytest.raises(InvalidRequestError, match="name of a consumer group"):
        validate_group_name(name)  # type: ignore[arg-type]


def test_internal_topic_names_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="internal"):
        validate_topic_name("__consumer_offsets")


def test_the_documentation_names_every_setting_with_its_default() -> None:
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    expected = [
        f"| `{setting.key}` | `{setting.default}` | {setting.doc} | {setting.allowed} |"
        for setting in SETTINGS
    ]
    assert rows[1:] == expected

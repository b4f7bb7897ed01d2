"""Options of `format("streamlog")`: the names, the precedence and the words of Spark's Kafka source.

Pure: text in, checked values out. An unknown option is refused with the nearest name, so that a typing
error cannot silently read another part of a topic.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from streamlog.errors import InvalidRequestError
from streamlog.model import TopicPartition
from streamlog.schema import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS

STORAGE_PREFIX = "storage."
EARLIEST, LATEST = -2, -1

_COMMON = ("root",)
_SOURCE = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "includeHeaders",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "groupId",
)
_SINK = ("topic", "acks", "compression", "partitioner", "delivery", "includeHeaders")
# What Spark itself hands over beside the user's own.
_OF_SPARK = ("checkpointLocation", "path", "queryName", "truncate", "numRows")

Word = Literal["earliest", "latest", "group"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where to begin or to end: a word, offsets, or times (milliseconds), for all or by partition."""

    word: Word | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    times: Mapping[TopicPartition, int] | None = None
    time: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What to read, from where to where, and how it is cut into tasks."""

    root: str
    storage: Mapping[str, str] = field(default_factory=dict)
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()
    start: Place = Place(word="latest")
    end: Place = Place(word="latest")
    no_match: Literal["error", "latest"] = "error"
    fail_on_data_loss: bool = True
    headers: bool = False
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    min_partitions: int | None = None
    max_records: int | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where and how to write."""

    root: str
    storage: Mapping[str, str] = field(default_factory=dict)
    topic: str | None = None
    acks: str = "all"
    compression: str | None = None
    partitioner: Literal["murmur2", "roundrobin"] = "murmur2"
    exactly_once: bool = True


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a reader."""
    given = _known(options, _COMMON + _SOURCE)
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if given.get(name)]
    if len(chosen) != 1:
        said = " and ".join(chosen) if chosen else "none of them"
        raise InvalidRequestError(
            f"give one of the options subscribe, subscribePattern and assign; there is {said}"
        )
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if name in given:
                raise InvalidRequestError(f"{name} is for batch queries; a stream has no end")
    start = _place(given, "starting", default="latest" if streaming else "earliest")
    end = _place(given, "ending", default="latest")
    if end.word in ("earliest", "group"):
        raise InvalidRequestError(f"endingOffsets cannot be {end.word!r}; allowed: latest, or JSON")
    if not streaming and start.word == "latest":
        raise InvalidRequestError(
            "startingOffsets cannot be 'latest' in a batch query; allowed: earliest, or JSON"
        )
    if not streaming:
        _refuse("startingOffsets", start, LATEST, "-1 (latest) cannot begin a batch query")
        _refuse("endingOffsets", end, EARLIEST, "-2 (earliest) cannot end one")
    group = given.get("groupId")
    if start.word == "group" and group is None:
        raise InvalidRequestError("startingOffsets=group needs the option groupId")
    return SourceOptions(
        root=_root(given),
        storage=_storage(options),
        topics=_names(given["subscribe"]) if "subscribe" in chosen else (),
        pattern=_pattern(given["subscribePattern"]) if "subscribePattern" in chosen else None,
        partitions=_partitions(given["assign"]) if "assign" in chosen else (),
        start=start,
        end=end,
        no_match=_one_of(given, "startingOffsetsByTimestampStrategy", ("error", "latest"), "error"),
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        headers=_flag(given, "includeHeaders", default=False),
        max_offsets=_count(given, "maxOffsetsPerTrigger"),
        min_offsets=_count(given, "minOffsetsPerTrigger"),
        max_delay_ms=_duration(given.get("maxTriggerDelay", "15m")),
        min_partitions=_count(given, "minPartitions"),
        max_records=_count(given, "maxRecordsPerPartition"),
        group=group,
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The options of a writer."""
    given = _known(options, _COMMON + _SINK)
    return SinkOptions(
        root=_root(given),
        storage=_storage(options),
        topic=given.get("topic") or None,
        acks=_one_of(given, "acks", ("1", "all", "-1"), "all"),
        compression=_one_of(given, "compression", ("none", "snappy", "lz4", "zstd"), None),
        partitioner=_one_of(given, "partitioner", ("murmur2", "roundrobin"), "murmur2"),
        exactly_once=_one_of(given, "delivery", ("exactly-once", "at-least-once"), "exactly-once")
        == "exactly-once",
    )


def _known(options: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options under their proper spelling; Spark hands them over in lower case."""
    spelled = {name.lower(): name for name in names}
    ignored = {name.lower() for name in _OF_SPARK}
    found: dict[str, str] = {}
    for key, value in options.items():
        lower = key.lower()
        if lower in spelled:
            found[spelled[lower]] = str(value)
        elif not lower.startswith(STORAGE_PREFIX) and lower not in ignored:
            near = difflib.get_close_matches(lower, spelled, n=1, cutoff=0.5)
            hint = f"did you mean {spelled[near[0]]!r}? " if near else ""
            hint = _kafka_hint(lower) or hint
            raise InvalidRequestError(
                f"format('streamlog') has no option {key!r}; {hint}There are: {', '.join(names)}, and "
                f"{STORAGE_PREFIX}* for options of the object store"
            )
    return found


def _kafka_hint(lower: str) -> str:
    if lower == "kafka.bootstrap.servers":
        return "give root, the address of the log, instead. "
    if lower.startswith(("kafka.", "kafkaconsumer.", "fetchoffset.")):
        return "there is no Kafka client behind it, so leave such options out. "
    return ""


def _root(given: Mapping[str, str]) -> str:
    root = given.get("root") or os.environ.get("STREAMLOG_ROOT")
    if not root:
        raise InvalidRequestError(
            "no root given: .option('root', '/data/log') or 's3://bucket/prefix', or set STREAMLOG_ROOT"
        )
    if root.lower().startswith("memory://"):
        raise InvalidRequestError(
            f"the root {root!r} lives in one process only, and Spark works in many: give a path or a bucket"
        )
    # Executors run in folders of their own, where a relative path would be another one.
    return root if "://" in root else os.path.abspath(root)


def _storage(options: Mapping[str, str]) -> dict[str, str]:
    return {
        key[len(STORAGE_PREFIX) :]: str(value)
        for key, value in options.items()
        if key.lower().startswith(STORAGE_PREFIX)
    }


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidRequestError(f"subscribe={text!r} names no topic; write them as 'a,b'")
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidRequestError(
            f"subscribePattern={text!r} is not a regular expression: {error}"
        ) from None
    return text


def _partitions(text: str) -> tuple[TopicPartition, ...]:
    data = _json("assign", text)
    found = []
    for topic, numbers in data.items():
        if not isinstance(numbers, list) or not all(
            isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers
        ):
            raise InvalidRequestError(
                f"assign: {topic!r} has {numbers!r}; write a list of partition numbers, as in "
                '{"orders": [0, 1]}'
            )
        found += [TopicPartition(topic, number) for number in numbers]
    if not found:
        raise InvalidRequestError('assign names no partition; write {"orders": [0, 1]}')
    return tuple(sorted(set(found)))


def _place(given: Mapping[str, str], end: str, *, default: Word) -> Place:
    """By precedence: one time for all, times a partition, offsets."""
    if f"{end}Timestamp" in given:
        return Place(time=_time(f"{end}Timestamp", given[f"{end}Timestamp"]))
    if f"{end}OffsetsByTimestamp" in given:
        name = f"{end}OffsetsByTimestamp"
        return Place(times=_by_partition(name, given[name], MIN_TIMESTAMP_MS))
    name = f"{end}Offsets"
    text = given.get(name, default).strip()
    if text.lower() in ("earliest", "latest", "group"):
        word: Any = text.lower()
        return Place(word=word)
    return Place(offsets=_by_partition(name, text, EARLIEST))


def _refuse(name: str, place: Place, offset: int, why: str) -> None:
    for tp, given in (place.offsets or {}).items():
        if given == offset:
            raise InvalidRequestError(
                f"{name}: {tp}: {why}; give an offset, or leave the option out"
            )


def _by_partition(name: str, text: str, least: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    words = "" if least >= 0 else ", where -2 is earliest and -1 is latest"
    for topic, numbers in _json(name, text).items():
        if not isinstance(numbers, dict) or not numbers:
            raise InvalidRequestError(
                f"{name}: {topic!r} has {numbers!r}; write "
                f'{{"{topic}": {{"0": 23, "1": 42}}}}{words}'
            )
        for partition, value in numbers.items():
            if not _NUMBER.fullmatch(partition):
                raise InvalidRequestError(
                    f"{name}: {partition!r} of {topic!r} is not a partition number"
                )
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidRequestError(
                    f"{name}: {topic!r}, partition {partition}: {value!r} is not allowed; give a whole "
                    f"number from {least}"
                )
            found[TopicPartition(topic, int(partition))] = value
    return found


# Digits of ASCII: str.isdigit takes "²" for one, which int() then refuses.
_NUMBER = re.compile("0|[1-9][0-9]*")


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        data = json.loads(text, object_pairs_hook=_object)
    except ValueError as error:
        what = "JSON"
        if name in ("startingOffsets", "endingOffsets"):
            what = "a word (earliest, latest) or JSON"
        raise InvalidRequestError(f"{name}: {text!r} is not {what}: {error}") from None
    if not isinstance(data, dict) or not data:
        raise InvalidRequestError(
            f"{name}: {text!r} is JSON, but no object with topics as its keys"
        )
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; a key given twice is a mistake, and the last one would win in silence."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return found


def _time(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text.strip()) or not int(text) <= MAX_TIMESTAMP_MS:
        raise InvalidRequestError(
            f"{name}={text!r} is not a time; give milliseconds since 1970, up to {MAX_TIMESTAMP_MS}"
        )
    return int(text)


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text.strip()) or int(text) < 1:
        raise InvalidRequestError(f"{name}={text!r} is not allowed; give a whole number from 1")
    return int(text)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidRequestError(f"{name}={given[name]!r} is not allowed; give true or false")
    return text == "true"


def _one_of(
    given: Mapping[str, str], name: str, allowed: tuple[str, ...], default: str | None
) -> Any:
    text = given.get(name)
    if text is None:
        return default
    if text.strip().lower() not in allowed:
        raise InvalidRequestError(
            f"{name}={text!r} is not allowed; give one of {', '.join(allowed)}"
        )
    return text.strip().lower()


_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration(text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]+)\s*(ms|s|m|min|h|d)\s*", text.lower())
    if match is None:
        raise InvalidRequestError(
            f"maxTriggerDelay={text!r} is not a duration; write it as 15m, 30s or 1h"
        )
    return int(match[1]) * _UNITS[match[2]]

"""Options of format("streamlog"): every name, word and JSON form, the precedence, and what is refused how."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.errors import InvalidRequestError
from streamlog.model import TopicPartition
from streamlog.spark.options import (
    Place,
    SinkOptions,
    SourceOptions,
    sink_options,
    source_options,
)

ROOT = "/data/log"


def stream(**given: object) -> SourceOptions:
    return source_options({"root": ROOT, "subscribe": "t"} | texts(given), streaming=True)


def batch(**given: object) -> SourceOptions:
    return source_options({"root": ROOT, "subscribe": "t"} | texts(given), streaming=False)


def sink(**given: object) -> SinkOptions:
    return sink_options({"root": ROOT} | texts(given))


def texts(given: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in given.items()}


def tp(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, partition)


# what to read


def test_defaults_of_a_stream() -> None:
    assert stream() == SourceOptions(root=ROOT, topics=("t",), start=Place(word="latest"))


def test_defaults_of_a_batch() -> None:
    assert batch() == SourceOptions(root=ROOT, topics=("t",), start=Place(word="earliest"))


def test_subscribe_takes_many_names_each_once() -> None:
    assert stream(subscribe=" a, b ,a,").topics == ("a", "b")


def test_subscribe_pattern() -> None:
    options = source_options({"root": ROOT, "subscribePattern": "a.*"}, streaming=True)
    assert (options.pattern, options.topics) == ("a.*", ())


def test_assign() -> None:
    text = '{"b": [1, 0], "a": [2, 2]}'
    options = source_options({"root": ROOT, "assign": text}, streaming=True)
    assert options.partitions == (tp(2, "a"), tp(0, "b"), tp(1, "b"))


def test_names_of_options_have_no_case() -> None:
    options = source_options(
        {"ROOT": ROOT, "SUBSCRIBE": "t", "mAXoffsetspertrigger": "7"}, streaming=True
    )
    assert (options.topics, options.max_offsets) == (("t",), 7)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "there is none of them"),
        ({"subscribe": ""}, "there is none of them"),
        ({"subscribe": "t", "assign": '{"t": [0]}'}, "there is subscribe and assign"),
        ({"subscribe": "t", "subscribePattern": "t"}, "there is subscribe and subscribePattern"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribePattern": "(a"}, "is not a regular expression"),
        ({"assign": "[1]"}, "no object with topics as its keys"),
        ({"assign": "{}"}, "no object with topics as its keys"),
        ({"assign": '{"t": []}'}, "names no partition"),
        ({"assign": '{"t": 0}'}, "'t' has 0; write a list of partition numbers"),
        ({"assign": '{"t": [-1]}'}, "'t' has [-1]"),
        ({"assign": '{"t": [true]}'}, "'t' has [True]"),
        ({"assign": '{"t": [0'}, "is not JSON: Expecting"),
        ({"assign": '{"t": [0], "t": [1]}'}, "'t' is there twice"),
    ],
)
def test_what_is_read_is_said_once_and_clearly(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        source_options({"root": ROOT} | given, streaming=True)
    assert message in str(caught.value)


# from where, to where


@pytest.mark.parametrize("word", ["earliest", "latest", "EARLIEST", " latest "])
def test_words_for_the_start_of_a_stream(word: str) -> None:
    assert stream(startingOffsets=word).start.word == word.strip().lower()


def test_the_start_of_a_group_needs_the_group() -> None:
    options = stream(startingOffsets="group", groupId="g")
    assert (options.start, options.group) == (Place(word="group"), "g")
    with pytest.raises(InvalidRequestError, match="needs the option groupId"):
        stream(startingOffsets="group")


def test_offsets_as_json_with_both_words_of_kafka() -> None:
    text = '{"t": {"0": 23, "1": -2, "2": -1}}'
    assert stream(startingOffsets=text).start.offsets == {tp(0): 23, tp(1): -2, tp(2): -1}
    text = '{"t": {"0": 23, "1": -1}}'
    assert batch(endingOffsets=text).end.offsets == {tp(0): 23, tp(1): -1}


def test_times_by_partition() -> None:
    options = batch(
        startingOffsetsByTimestamp='{"t": {"0": 1000}}',
        endingOffsetsByTimestamp='{"t": {"0": 2000}}',
    )
    assert (options.start.times, options.end.times) == ({tp(0): 1000}, {tp(0): 2000})


def test_one_time_for_all() -> None:
    options = batch(startingTimestamp=0, endingTimestamp="253402300799999")
    assert (options.start.time, options.end.time) == (0, 253_402_300_799_999)


def test_a_time_goes_before_times_and_those_before_offsets() -> None:
    times = '{"t": {"0": 1}}'
    given = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": times}
    assert stream(**given).start == Place(times={tp(0): 1})
    assert stream(**given, startingTimestamp=5).start == Place(time=5)
    given = {"endingOffsets": "latest", "endingOffsetsByTimestamp": times}
    assert batch(**given).end == Place(times={tp(0): 1})
    assert batch(**given, endingTimestamp=5).end == Place(time=5)


@pytest.mark.parametrize("strategy", ["error", "latest"])
def test_strategy_where_no_record_is_young_enough(strategy: str) -> None:
    assert stream(startingOffsetsByTimestampStrategy=strategy).no_match == strategy


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "startingOffsets",
            "{bad",
            "startingOffsets: '{bad' is not a word (earliest, latest) or JSON",
        ),
        ("startingOffsets", "sooner", "is not a word (earliest, latest) or JSON"),
        ("startingOffsets", "", "is not a word (earliest, latest) or JSON"),
        ("startingOffsets", "3", "no object with topics as its keys"),
        ("startingOffsets", '{"t": 3}', "'t' has 3; write"),
        ("startingOffsets", '{"t": {}}', "'t' has {}; write"),
        ("startingOffsets", '{"t": {"x": 3}}', "'x' of 't' is not a partition number"),
        ("startingOffsets", '{"t": {"²": 3}}', "is not a partition number"),
        ("startingOffsets", '{"t": {"00": 3}}', "is not a partition number"),
        ("startingOffsets", '{"t": {"0": 3, "0": 4}}', "'0' is there twice"),
        ("startingOffsets", '{"t": {"0": -3}}', "'t', partition 0: -3 is not allowed"),
        ("startingOffsets", '{"t": {"0": 1.5}}', "1.5 is not allowed"),
        ("startingOffsets", '{"t": {"0": "1"}}', "'1' is not allowed"),
        ("startingOffsets", '{"t": {"0": true}}', "True is not allowed"),
        ("startingOffsetsByTimestamp", '{"t": {"0": -1}}', "-1 is not allowed"),
        (
            "startingOffsetsByTimestamp",
            "latest",
            "startingOffsetsByTimestamp: 'latest' is not JSON",
        ),
        ("startingTimestamp", "yesterday", "is not a time; give milliseconds since 1970"),
        ("startingTimestamp", "-1", "is not a time"),
        ("startingTimestamp", "²", "is not a time"),
        ("startingTimestamp", "253402300800000", "is not a time"),
        ("startingOffsetsByTimestampStrategy", "earliest", "give one of error, latest"),
    ],
)
def test_a_malformed_start_is_refused_with_its_place(name: str, text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        stream(**{name: text})
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} is for batch queries"):
        stream(**{name: "latest"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOffsets": "latest"}, "cannot be 'latest' in a batch query"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "t-0: -1 (latest) cannot begin a batch query"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be 'earliest'"),
        ({"endingOffsets": "group", "groupId": "g"}, "endingOffsets cannot be 'group'"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "t-0: -2 (earliest) cannot end one"),
    ],
)
def test_a_batch_begins_before_it_ends(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        batch(**given)
    assert message in str(caught.value)


# how


def test_counts_flags_and_durations() -> None:
    options = stream(
        maxOffsetsPerTrigger=1,
        minOffsetsPerTrigger=2,
        maxTriggerDelay="30s",
        minPartitions=3,
        maxRecordsPerPartition=4,
        failOnDataLoss="FALSE",
        includeHeaders=" true ",
        groupId="g",
        groupIdPrefix="ignored",
    )
    assert options == SourceOptions(
        root=ROOT,
        topics=("t",),
        max_offsets=1,
        min_offsets=2,
        max_delay_ms=30_000,
        min_partitions=3,
        max_records=4,
        fail_on_data_loss=False,
        headers=True,
        group="g",
    )


@pytest.mark.parametrize(
    "name",
    ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "minPartitions", "maxRecordsPerPartition"],
)
@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "", "²"])
def test_a_count_is_a_whole_number_from_1(name: str, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}=.* is not allowed; give a whole number"):
        stream(**{name: text})


@pytest.mark.parametrize("name", ["failOnDataLoss", "includeHeaders"])
def test_a_flag_is_true_or_false(name: str) -> None:
    with pytest.raises(
        InvalidRequestError, match=f"{name}='yes' is not allowed; give true or false"
    ):
        stream(**{name: "yes"})


@pytest.mark.parametrize(
    ("text", "millis"),
    [("15m", 900_000), ("15min", 900_000), ("1 h", 3_600_000), ("250ms", 250), ("2D", 172_800_000)],
)
def test_durations(text: str, millis: int) -> None:
    assert stream(maxTriggerDelay=text).max_delay_ms == millis


@pytest.mark.parametrize("text", ["15", "soon", "-1s", "1.5h"])
def test_a_duration_has_a_unit(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a duration; write it as 15m"):
        stream(maxTriggerDelay=text)


# the root and the store


def test_the_root_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMLOG_ROOT", "s3://bucket/log")
    assert source_options({"subscribe": "t"}, streaming=True).root == "s3://bucket/log"
    assert sink_options({}).root == "s3://bucket/log"
    assert sink_options({"root": ROOT}).root == ROOT


def test_no_root_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMLOG_ROOT", raising=False)
    with pytest.raises(InvalidRequestError, match="no root given"):
        sink_options({"topic": "t"})


def test_a_relative_root_is_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sink_options({"root": "log"}).root == str(tmp_path / "log")


def test_a_memory_root_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="lives in one process only"):
        stream(root="memory://x")


def test_storage_options_are_passed_on() -> None:
    given = {"storage.aws_region": "eu-1", "Storage.Secret": "x"}
    assert stream(**given).storage == {"aws_region": "eu-1", "Secret": "x"}
    assert sink(**given).storage == {"aws_region": "eu-1", "Secret": "x"}


# what is unknown


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("startngOffsets", "has no option 'startngOffsets'; did you mean 'startingOffsets'?"),
        ("endingOffset", "did you mean 'endingOffsets'?"),
        ("kafka.bootstrap.servers", "give root, the address of the log, instead"),
        ("kafka.group.id", "there is no Kafka client behind it"),
        ("kafkaConsumer.pollTimeoutMs", "there is no Kafka client behind it"),
        ("fetchOffset.numRetries", "there is no Kafka client behind it"),
        ("topic", "has no option 'topic'"),
        ("qqqqqqqqqqqq", "has no option 'qqqqqqqqqqqq'; There are: root, subscribe,"),
    ],
)
def test_an_unknown_option_is_refused_with_a_hint(name: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        stream(**{name: "x"})
    assert message in str(caught.value)


def test_options_of_spark_itself_pass() -> None:
    assert sink(checkpointLocation="/c", queryName="q", path="/p") == SinkOptions(root=ROOT)


# the sink


def test_defaults_of_the_sink() -> None:
    assert sink() == SinkOptions(
        root=ROOT,
        topic=None,
        acks="all",
        compression=None,
        partitioner="murmur2",
        exactly_once=True,
    )


@pytest.mark.parametrize("acks", ["1", "all", "-1", "ALL"])
def test_acks(acks: str) -> None:
    assert sink(acks=acks).acks == acks.lower()


@pytest.mark.parametrize("compression", ["none", "snappy", "lz4", "zstd"])
def test_compression(compression: str) -> None:
    assert sink(compression=compression).compression == compression


def test_partitioner_delivery_and_topic() -> None:
    options = sink(partitioner="RoundRobin", delivery="at-least-once", topic="t")
    assert (options.partitioner, options.exactly_once, options.topic) == ("roundrobin", False, "t")
    assert sink(delivery="exactly-once").exactly_once


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("acks", "0", "acks='0' is not allowed; give one of 1, all, -1"),
        ("compression", "gzip", "give one of none, snappy, lz4, zstd"),
        ("partitioner", "random", "give one of murmur2, roundrobin"),
        ("delivery", "at-most-once", "give one of exactly-once, at-least-once"),
        ("subscribe", "t", "has no option 'subscribe'"),
        ("topics", "t", "did you mean 'topic'?"),
    ],
)
def test_what_the_sink_refuses(name: str, text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        sink(**{name: text})
    assert message in str(caught.value)

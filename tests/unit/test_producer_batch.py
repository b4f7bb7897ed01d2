"""`send_batch`: Arrow tables of any layout become the same records, or are refused whole."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import streamlog
from streamlog import Log
from streamlog.errors import (
    BufferFullError,
    InvalidRequestError,
    PartitionNotFoundError,
    RecordTooLargeError,
    StreamlogError,
    TopicDeletedError,
)
from streamlog.hashing import partition_for
from streamlog.model import Record

_names = itertools.count()


@pytest.fixture
def log() -> Iterator[Log]:
    with streamlog.connect(f"memory://producer-batch-{next(_names)}") as opened:
        yield opened


def read(log: Log, topic: str = "t") -> list[Record]:
    with log.consumer(topic, auto_offset_reset="earliest") as consumer:
        ends = sum(consumer.end_offsets(list(consumer.assignment())).values())
        found: list[Record] = []
        while len(found) < ends:
            found += consumer.poll(timeout_ms=1000)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def send(log: Log, data: Any, topic: str = "t", **settings: Any) -> list[Record]:
    """Send one table and read the topic back."""
    with log.producer(**settings) as producer:
        producer.send_batch(topic, data).result(30)
    return read(log, topic)


VALUES = [b"a", None, b"", b"ccc", b"a"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.binary()),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_every_layout_of_bytes_and_text_is_taken(log: Log, kind: pa.DataType) -> None:
    log.create_topic("t")
    if pa.types.is_dictionary(kind):
        column = pa.array(VALUES, pa.binary()).cast(kind.value_type).dictionary_encode().cast(kind)
    else:
        column = pa.array(VALUES, pa.binary()).cast(pa.large_binary()).cast(kind)
    records = send(log, pa.table({"value": column, "key": column}))
    assert [record.value for record in records] == VALUES
    assert [record.key for record in records] == VALUES
    assert [record.offset for record in records] == [0, 1, 2, 3, 4]


def test_bytes_of_fixed_size_are_taken(log: Log) -> None:
    log.create_topic("t")
    records = send(log, pa.table({"value": pa.array([b"ab", None], pa.binary(2))}))
    assert [record.value for record in records] == [b"ab", None]


def test_a_record_batch_a_slice_and_chunks_are_taken(log: Log) -> None:
    log.create_topic("t")
    whole = pa.table({"value": [b"%d" % i for i in range(100)]})
    chunked = pa.concat_tables([whole.slice(i, 1) for i in range(10, 40)])
    with log.producer() as producer:
        producer.send_batch("t", whole.slice(0, 10).to_batches()[0])
        producer.send_batch("t", chunked)
        producer.send_batch("t", whole.slice(40, 60))
    assert [record.value for record in read(log)] == [b"%d" % i for i in range(100)]


def test_columns_may_be_chunked_differently(log: Log) -> None:
    log.create_topic("t", partitions=3)
    numbers = [b"%d" % i for i in range(50)]
    table = pa.table(
        {
            "key": pa.chunked_array([numbers[:20], numbers[20:]], pa.binary()),
            "value": pa.chunked_array([numbers[:7], numbers[7:33], numbers[33:]], pa.string()),
        }
    )
    records = send(log, table)
    assert all(record.key == record.value for record in records)
    assert all(record.partition == partition_for(record.key or b"", 3) for record in records)
    assert sorted(int(record.value or b"") for record in records) == list(range(50))


def test_a_table_of_no_rows_is_done_at_once(log: Log) -> None:
    log.create_topic("t")
    with log.producer() as producer:
        ack = producer.send_batch("t", pa.table({"value": pa.array([], pa.binary())}))
        assert ack.done()
        assert ack.result(30) == []
    assert read(log) == []


def test_a_column_of_nulls_is_taken(log: Log) -> None:
    log.create_topic("t")
    table = pa.table({name: pa.nulls(2) for name in ("value", "key", "headers", "timestamp")})
    records = send(log, table.append_column("partition", pa.nulls(2)))
    assert [(r.value, r.key, r.headers) for r in records] == [(None, None, ())] * 2
    assert all(record.timestamp > 1_600_000_000_000 for record in records)


def test_the_answer_names_the_runs_of_offsets(log: Log) -> None:
    log.create_topic("t", partitions=2)
    with log.producer() as producer:
        producer.send("t", b"before", partition=1)
        table = pa.table({"value": [b"v"] * 5, "partition": [1, 0, 1, 1, 0]})
        ack = producer.send_batch("t", table)
        assert sorted(ack.result(30)) == [("t", 0, 0, 2), ("t", 1, 1, 3)]
        assert ack.done()
        assert ack.exception() is None
        assert "done" in repr(ack)


def test_a_large_table_is_cut_and_keeps_its_order(log: Log) -> None:
    log.create_topic("t", partitions=2)
    count = 20_000
    table = pa.table({"value": [b"%d" % i for i in range(count)]})
    table = table.append_column("key", pa.array([b"%d" % (i % 10) for i in range(count)]))
    with log.producer(batch_bytes=10_000, buffer_bytes=50_000) as producer:
        parts = producer.send_batch("t", table).result(30)
        assert len(parts) > 10
        assert sum(part.records for part in parts) == count
    records = read(log)
    for partition in range(2):
        found = [int(r.value or b"") for r in records if r.partition == partition]
        assert found == sorted(found)
    assert sorted(int(r.value or b"") for r in records) == list(range(count))


def test_acks_0_of_a_table(log: Log) -> None:
    log.create_topic("t")
    with log.producer(acks=0) as producer:
        ack = producer.send_batch("t", pa.table({"value": [b"v"]}))
        assert ack.done()
        assert ack.result() == [("t", 0, None, 1)]
    assert len(read(log)) == 1


# Partitions


def test_rows_without_a_partition_follow_their_key(log: Log) -> None:
    log.create_topic("t", partitions=4)
    keys = [b"a", b"b", b"c", b"d", b"e"]
    partition = pa.array([None, 3, None, 0, None], pa.int64())
    records = send(log, pa.table({"value": keys, "key": keys, "partition": partition}))
    found = {record.key: record.partition for record in records}
    assert found == {
        b"a": partition_for(b"a", 4),
        b"b": 3,
        b"c": partition_for(b"c", 4),
        b"d": 0,
        b"e": partition_for(b"e", 4),
    }


@pytest.mark.parametrize("partition", [-1, 4])
def test_a_partition_out_of_range_refuses_the_table(log: Log, partition: int) -> None:
    log.create_topic("t", partitions=4)
    table = pa.table({"value": [b"a", b"b"], "partition": [0, partition]})
    with log.producer() as producer:
        with pytest.raises(PartitionNotFoundError, match=f"no partition {partition}; .*0 to 3"):
            producer.send_batch("t", table)
        producer.send("t", b"other")
    assert [record.value for record in read(log)] == [b"other"]


def test_a_partition_added_meanwhile_is_known(log: Log) -> None:
    log.create_topic("t")
    with log.producer() as producer:
        producer.send("t", b"v").result(30)
        log.add_partitions("t", 3)
        table = pa.table({"value": [b"v"], "partition": [2]})
        assert producer.send_batch("t", table).result(30) == [("t", 2, 0, 1)]


def test_a_function_chooses_the_partitions(log: Log) -> None:
    log.create_topic("t", partitions=3)
    table = pa.table({"value": [b"", b"x", b"xx", b"x"], "partition": [None, None, None, 0]})
    records = send(log, table, partitioner=lambda key, value, count: len(value or b"") % count)
    assert [(r.partition, r.value) for r in records] == [(0, b""), (0, b"x"), (1, b"x"), (2, b"xx")]


def test_a_function_that_is_wrong_refuses_the_table(log: Log) -> None:
    log.create_topic("t", partitions=3)
    with (
        log.producer(partitioner=lambda key, value, count: 3) as producer,
        pytest.raises(PartitionNotFoundError, match="returned 3; allowed are 0 to 2"),
    ):
        producer.send_batch("t", pa.table({"value": [b"v"]}))
    assert read(log) == []


# Timestamps and headers


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([0, 1_700_000_000_123]), [0, 1_700_000_000_123]),
        (pa.array([5, 6], pa.int16()), [5, 6]),
        (pa.array([5_999, 6_000], pa.timestamp("us", "UTC")), [5, 6]),
        (pa.array([5_000_000, 6_999_999], pa.timestamp("ns", "Europe/Berlin")), [5, 6]),
        (pa.array([5, 6], pa.timestamp("s", "UTC")), [5000, 6000]),
        (pa.array([datetime(1970, 1, 2, tzinfo=UTC)] * 2), [86_400_000] * 2),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_timestamps_of_every_unit(log: Log, column: pa.Array, expected: list[int]) -> None:
    log.create_topic("t")
    records = send(log, pa.table({"value": [b"a", b"b"], "timestamp": column}))
    assert [record.timestamp for record in records] == expected


def test_a_missing_timestamp_is_now(log: Log) -> None:
    log.create_topic("t")
    before = time.time_ns() // 1_000_000
    records = send(log, pa.table({"value": [b"a", b"b"], "timestamp": pa.array([7, None])}))
    assert records[0].timestamp == 7
    assert before <= records[1].timestamp <= time.time_ns() // 1_000_000


def test_log_append_time_replaces_the_column(log: Log) -> None:
    log.create_topic("t", config={"message.timestamp.type": "LogAppendTime"})
    before = time.time_ns() // 1_000_000
    records = send(log, pa.table({"value": [b"a"], "timestamp": [7]}))
    assert records[0].timestamp >= before


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([0, -1]), "timestamp -1 is out of range"),
        (pa.array([0, 253_402_300_800_000]), "timestamp 253402300800000 is out of range"),
        (pa.array([0, 2**63], pa.uint64()), "column 'timestamp'"),
        (pa.array([0, 2**62], pa.timestamp("s", "UTC")), "column 'timestamp'.* out of bounds"),
        (pa.array([5, 6], pa.timestamp("ms")), r"timestamp\[ms\], without a time zone; say which"),
        (pa.array(["now", "then"]), "column 'timestamp' is string; it must be an integer"),
        (pa.array([1.5, 2.5]), "column 'timestamp' is double"),
    ],
    ids=range(7),
)
def test_a_bad_timestamp_refuses_the_table(log: Log, column: pa.Array, message: str) -> None:
    log.create_topic("t")
    with log.producer() as producer, pytest.raises(InvalidRequestError, match=message):
        producer.send_batch("t", pa.table({"value": [b"a", b"b"], "timestamp": column}))
    assert read(log) == []


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_headers_are_taken(log: Log, kind: pa.DataType) -> None:
    log.create_topic("t", partitions=2)
    entries = pa.list_(pa.struct([("key", kind), ("value", pa.binary())]))
    headers = pa.array(
        [[("a", b"1"), ("a", None)], None, [], [("b", b"")]],
        entries,
    )
    table = pa.table({"value": [b"0", b"1", b"2", b"3"], "headers": headers})
    table = table.append_column("partition", pa.array([1, 0, 1, 0]))
    found = {record.value: record.headers for record in send(log, table)}
    assert found == {b"0": (("a", b"1"), ("a", None)), b"1": (), b"2": (), b"3": (("b", b""),)}


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        (pa.array(["a"]), "column 'headers' is string; it must be list<struct<key"),
        (pa.array([[{"name": "a", "value": b""}]]), "column 'headers' is list"),
        (
            pa.array(
                [[(None, b"")]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            ),
            "a header has no key",
        ),
    ],
    ids=["text", "names", "null"],
)
def test_bad_headers_refuse_the_table(log: Log, headers: pa.Array, message: str) -> None:
    log.create_topic("t")
    with log.producer() as producer, pytest.raises(InvalidRequestError, match=message):
        producer.send_batch("t", pa.table({"value": [b"a"], "headers": headers}))


# What is refused


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([b"v"], "takes a pyarrow Table or RecordBatch, not a list"),
        (pa.table({"key": [b"k"]}), "no column 'value'; it has key"),
        (pa.table({}), "no column 'value'; it has none"),
        (pa.table({"value": [b"v"], "keys": [b"k"]}), "no column 'keys'; did you mean 'key'"),
        (pa.table({"value": [b"v"], "xyz": [b"k"]}), "no column 'xyz'; allowed are value, key"),
        (pa.table([[b"v"], [b"v"]], ["value", "value"]), "two columns named 'value'"),
        (pa.table({"value": [5]}), "column 'value' is int64; it must be binary or string"),
        (
            pa.table({"value": pa.array([5]).dictionary_encode()}),
            "column 'value' is int64; it must be binary or string",
        ),
        (pa.table({"value": [b"v"], "key": [[b"k"]]}), "column 'key' is list"),
        (pa.table({"value": [b"v"], "partition": ["0"]}), "column 'partition' is string"),
    ],
    ids=range(10),
)
def test_a_table_of_another_shape_is_refused(log: Log, data: Any, message: str) -> None:
    log.create_topic("t")
    with log.producer() as producer:
        with pytest.raises(InvalidRequestError, match=message):
            producer.send_batch("t", data)
        producer.send("t", b"other")
    assert [record.value for record in read(log)] == [b"other"]


def test_a_row_too_large_refuses_the_table(log: Log) -> None:
    log.create_topic("t", config={"max.message.bytes": 100})
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    fits = {"key": [b"kk", b"k"], "value": [b"x" * 90, b"y" * 99]}
    with log.producer(batch_bytes=50) as producer:
        producer.send_batch("t", pa.table(fits))
        larger = {"key": [b"kk", b"kk"], "value": [b"x" * 90, b"y" * 99]}
        with pytest.raises(RecordTooLargeError, match=r"row 1 has 101 bytes.*nothing of the table"):
            producer.send_batch("t", pa.table(larger))
        headers = pa.array([[("é" * 4, b"1")], None], kind)
        with pytest.raises(RecordTooLargeError, match="row 0 has 101 bytes"):
            producer.send_batch("t", pa.table(fits | {"headers": headers}))
        log.alter_topic("t", {"max.message.bytes": 101})
        producer.send_batch("t", pa.table(larger))
    assert len(read(log)) == 4


def test_a_compacted_topic_needs_keys_in_every_row(log: Log) -> None:
    log.create_topic("t", config={"cleanup.policy": "compact"})
    with log.producer() as producer:
        with pytest.raises(InvalidRequestError, match="1 rows have no key"):
            producer.send_batch("t", pa.table({"value": [b"v", b"v"], "key": [b"k", None]}))
        with pytest.raises(InvalidRequestError, match="2 rows have no key"):
            producer.send_batch("t", pa.table({"value": [b"v", b"v"]}))
        producer.send_batch("t", pa.table({"value": [None, b"v"], "key": [b"k", b"l"]}))
    assert [(r.key, r.value) for r in read(log)] == [(b"k", None), (b"l", b"v")]


def test_a_table_waits_for_room_up_to_max_block_ms(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from streamlog.producer.lane import Lane

    log.create_topic("t")
    hold = threading.Event()
    append = Lane.append

    def slow(lane: Lane, group: Any) -> Any:
        hold.wait(10)
        return append(lane, group)

    monkeypatch.setattr(Lane, "append", slow)
    with log.producer(buffer_bytes=1000, max_block_ms=20) as producer:
        first = producer.send_batch("t", pa.table({"value": [b"x" * 900]}))
        with pytest.raises(BufferFullError, match="buffer stayed full"):
            producer.send_batch("t", pa.table({"value": [b"x" * 900]}))
        hold.set()
        assert first.result(30)[0].records == 1
        producer.flush()
        assert producer.metrics()["buffered_bytes"] == 0


def test_a_failed_part_does_not_hide_what_was_written(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamlog.producer.lane import Lane

    log.create_topic("t", partitions=2)
    append = Lane.append

    def failing(lane: Lane, group: Any) -> Any:
        if lane.partition == 1:
            raise StreamlogError("injected")
        return append(lane, group)

    monkeypatch.setattr(Lane, "append", failing)
    with log.producer() as producer:
        table = pa.table({"value": [b"a", b"b"], "partition": [0, 1]})
        ack = producer.send_batch("t", table)
        with pytest.raises(StreamlogError, match="injected"):
            ack.result(30)
        assert ack.written() == [("t", 0, 0, 1)]


def test_a_table_for_a_deleted_topic_fails(log: Log) -> None:
    log.create_topic("t")
    table = pa.table({"value": [b"a"]})
    with log.producer() as producer:
        producer.send_batch("t", table).result(30)
        log.delete_topic("t")
        log.create_topic("t")
        assert isinstance(producer.send_batch("t", table).exception(30), TopicDeletedError)
        assert producer.send_batch("t", table).result(30) == [("t", 0, 0, 1)]
    assert len(read(log)) == 1

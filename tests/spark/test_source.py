"""Reading topics from Spark, as a batch and as a stream."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

import streamlog
from streamlog.errors import (
    InvalidRequestError,
    OutOfRangeError,
    PartitionNotFoundError,
    StreamlogError,
)
from streamlog.spark.options import source_options
from streamlog.spark.source import BatchReader, Range, StreamReader, Task
from tests.fakes import FakeClock
from tests.spark.queries import (
    T0,
    Batches,
    batch,
    drain,
    fill,
    found,
    start,
    stream,
    values,
    wait_for,
)

pytestmark = pytest.mark.spark


@pytest.fixture
def orders(log: streamlog.Log) -> streamlog.Log:
    """Topic `orders`: partition 0 has v0 to v9, partition 1 has v10 to v29, partition 2 nothing."""
    log.create_topic("orders", partitions=3)
    fill(log, "orders", range(10), 0)
    fill(log, "orders", range(10, 30), 1)
    return log


# a batch


KAFKA_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT"
)


def test_columns_types_and_contents_are_those_of_sparks_kafka_source(
    spark: SparkSession, log: streamlog.Log
) -> None:
    log.create_topic("a", partitions=2)
    log.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    with log.producer() as producer:
        producer.send(
            "a", b"1", key=b"k", partition=1, timestamp=T0, headers=[("h", b"x"), ("n", None)]
        )
        producer.send("a", None, key=b"\xff", partition=1, timestamp=T0 + 1)
        producer.send("a", "", partition=0, timestamp=0)
        producer.send("stamped", b"x")
    headers = KAFKA_COLUMNS + ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    wanted = spark.createDataFrame(
        [
            (None, bytearray(), "a", 0, 0, datetime.fromtimestamp(0, UTC), 0, None),
            (
                bytearray(b"k"),
                bytearray(b"1"),
                "a",
                1,
                0,
                datetime.fromtimestamp(T0 / 1000, UTC),
                0,
                [("h", bytearray(b"x")), ("n", None)],
            ),
            (
                bytearray(b"\xff"),
                None,
                "a",
                1,
                1,
                datetime.fromtimestamp((T0 + 1) / 1000, UTC),
                0,
                None,
            ),
        ],
        headers,
    )
    both = batch(spark, log, subscribe="a", includeHeaders="true").orderBy("partition", "offset")
    assert_df_equality(both, wanted)
    bare = batch(spark, log, subscribe="a").orderBy("partition", "offset")
    assert_df_equality(bare, wanted.drop("headers"))
    stamped = batch(spark, log, subscribe="stamped")
    row = stamped.selectExpr("timestampType", "unix_millis(timestamp) AS at").first()
    assert row is not None
    assert row.timestampType == 1
    assert abs(row.at - time.time() * 1000) < 300_000


def test_subscribe_pattern_and_assign(spark: SparkSession, orders: streamlog.Log) -> None:
    orders.create_topic("orders-eu")
    orders.create_topic("returns")
    fill(orders, "orders-eu", range(30, 35))
    fill(orders, "returns", range(40, 45))
    assert found(batch(spark, orders, subscribe="orders,returns")) == values(
        [*range(30), *range(40, 45)]
    )
    # The whole name must match, as in Kafka.
    assert found(batch(spark, orders, subscribePattern="orders")) == values(range(30))
    assert found(batch(spark, orders, subscribePattern="orders.*")) == values(range(35))
    assert found(batch(spark, orders, subscribePattern="nothing")) == []
    assigned = json.dumps({"orders": [1], "returns": [0]})
    assert found(batch(spark, orders, assign=assigned)) == values([*range(10, 30), *range(40, 45)])


def test_an_empty_topic_has_no_rows_but_columns(spark: SparkSession, log: streamlog.Log) -> None:
    log.create_topic("empty", partitions=2)
    frame = batch(spark, log, subscribe="empty")
    assert frame.collect() == []
    assert_df_equality(frame, spark.createDataFrame([], KAFKA_COLUMNS))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(30)),
        ({"startingOffsets": {"orders": {"0": 7, "1": -2, "2": 0}}}, range(7, 30)),
        ({"endingOffsets": {"orders": {"0": 2, "1": -1, "2": -1}}}, [0, 1, *range(10, 30)]),
        (
            {
                "startingOffsets": {"orders": {"0": 5, "1": 20, "2": -2}},
                "endingOffsets": {"orders": {"0": 3, "1": 20, "2": 0}},
            },
            [],
        ),
        (
            {"startingTimestamp": T0 + 8000, "startingOffsetsByTimestampStrategy": "latest"},
            range(8, 30),
        ),
        ({"endingTimestamp": T0 + 12_000}, range(12)),
        (
            {
                "startingOffsetsByTimestamp": {
                    "orders": {"0": T0 + 4000, "1": T0 + 28_500, "2": 0}
                },
                "startingOffsetsByTimestampStrategy": "latest",
                "endingOffsetsByTimestamp": {"orders": {"0": T0 + 6000, "1": T0 * 2, "2": T0}},
            },
            [4, 5, 29],
        ),
    ],
)
def test_where_a_batch_begins_and_ends(
    spark: SparkSession, orders: streamlog.Log, options: dict[str, object], wanted: list[int]
) -> None:
    texts = {k: json.dumps(v) if isinstance(v, dict) else v for k, v in options.items()}
    assert found(batch(spark, orders, subscribe="orders", **texts)) == values(wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nope"}, "nope"),
        (
            {"subscribe": "orders", "assign": "{}"},
            "give one of the options subscribe, subscribePattern",
        ),
        (
            {"assign": '{"orders": [3]}'},
            "assign names orders-3, but topic 'orders' has 3 partitions",
        ),
        (
            {"subscribe": "orders", "startingOffsets": "{bad"},
            "startingOffsets: '{bad' is not a word",
        ),
        ({"subscribe": "orders", "startngOffsets": "x"}, "did you mean 'startingOffsets'?"),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 1}}'},
            "startingOffsets says nothing about orders-1",
        ),
        (
            {"subscribe": "orders", "endingOffsets": '{"x": {"0": 1}}'},
            "endingOffsets names x-0, which is not read by this query",
        ),
        (
            {"subscribe": "orders", "startingOffsetsByTimestamp": '{"orders": {"0": 1}}'},
            "startingOffsetsByTimestamp says nothing about orders-1",
        ),
        (
            {"subscribe": "orders", "endingOffsets": '{"orders": {"0": 11, "1": 0, "2": 0}}'},
            "orders-0: offset 11 is not in the log, which is [0, 10)",
        ),
        (
            {"subscribe": "orders", "startingTimestamp": T0 + 20_000},
            "orders-0: no record is as young as",
        ),
        ({"subscribe": "orders", "root": "/nowhere/at/all"}, "there is no log at /nowhere/at/all"),
    ],
)
def test_bad_input_is_said_while_planning(
    orders: streamlog.Log, options: dict[str, object], message: str
) -> None:
    with pytest.raises(StreamlogError) as caught:
        plan(orders, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nope"}, "there is no topic 'nope'"),
        ({"subscribe": "orders", "startngOffsets": "x"}, "did you mean 'startingOffsets'?"),
    ],
)
def test_bad_input_is_an_error_on_the_driver_with_our_words(
    spark: SparkSession, orders: streamlog.Log, options: dict[str, object], message: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        batch(spark, orders, **options).collect()
    assert message in str(caught.value)


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, orders: streamlog.Log) -> None:
    reader = spark.read.format("streamlog").schema("value STRING")
    with pytest.raises(PySparkException, match=r"leave .schema\(\) out"):
        reader.option("root", orders.root).option("subscribe", "orders").load().collect()


def test_offsets_beyond_the_log_are_clipped_without_fail_on_data_loss(
    spark: SparkSession, orders: streamlog.Log
) -> None:
    orders.truncate("orders", 0, 4)
    where = json.dumps({"orders": {"0": 0, "1": 25, "2": 7}})
    with pytest.raises(AnalysisException, match="orders-0: offset 0 is not in the log"):
        batch(spark, orders, subscribe="orders", startingOffsets=where).collect()
    frame = batch(
        spark,
        orders,
        subscribe="orders",
        startingOffsets=where.replace("25", "12"),
        failOnDataLoss="false",
    )
    assert found(frame) == values([*range(4, 10), *range(22, 30)])


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        # Few records share a task, unless more are asked for.
        ({}, 1),
        ({"minPartitions": 2}, 2),
        ({"minPartitions": 6}, 6),
        ({"minPartitions": 1000}, 30),
        ({"maxRecordsPerPartition": 7}, 5),
        ({"maxRecordsPerPartition": 29}, 2),
        ({"maxRecordsPerPartition": 30}, 1),
        ({"maxRecordsPerPartition": 7, "minPartitions": 3}, 5),
        ({"maxRecordsPerPartition": 20, "minPartitions": 10}, 11),
    ],
)
def test_tasks(orders: streamlog.Log, options: dict[str, object], tasks: int) -> None:
    planned = plan(orders, subscribe="orders", **options)
    assert len(planned) == tasks
    ends = {0: 0, 1: 0}
    for item in ranges_of(planned):
        assert item.start == ends[item.partition]
        assert item.end > item.start
        ends[item.partition] = item.end
    assert ends == {0: 10, 1: 20}


def test_a_large_partition_is_read_by_many_tasks(
    spark: SparkSession, orders: streamlog.Log
) -> None:
    frame = batch(spark, orders, subscribe="orders", minPartitions=6)
    assert frame.rdd.getNumPartitions() == 6
    assert found(frame) == values(range(30))


# filters


def plan(log: streamlog.Log, *filters: Filter, **options: object) -> list[Task]:
    texts = {"root": log.root} | {name: str(value) for name, value in options.items()}
    reader = BatchReader(source_options(texts, streaming=False))
    # All are handed back: Spark filters once more.
    assert list(reader.pushFilters(list(filters))) == list(filters)
    tasks = reader.partitions()
    assert tasks  # Spark needs one to tell the schema
    return in_tasks(tasks)


def in_tasks(tasks: Sequence[InputPartition]) -> list[Task]:
    assert all(isinstance(item, Task) for item in tasks)
    return [item for item in tasks if isinstance(item, Task) and item.ranges]


def ranges_of(tasks: Sequence[InputPartition]) -> list[Range]:
    return [part for task in in_tasks(tasks) for part in task.ranges]


def spans(tasks: Sequence[InputPartition]) -> list[tuple[int, int, int]]:
    return [(item.partition, item.start, item.end) for item in ranges_of(tasks)]


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([], [(0, 0, 10), (1, 0, 20)]),
        ([EqualTo(("partition",), 1)], [(1, 0, 20)]),
        ([In(("partition",), (0, 2))], [(0, 0, 10)]),
        ([EqualTo(("topic",), "other")], []),
        ([In(("topic",), ("orders",))], [(0, 0, 10), (1, 0, 20)]),
        ([EqualTo(("offset",), 9)], [(0, 9, 10), (1, 9, 10)]),
        ([GreaterThan(("offset",), 9)], [(1, 10, 20)]),
        ([GreaterThanOrEqual(("offset",), 9)], [(0, 9, 10), (1, 9, 20)]),
        ([LessThan(("offset",), 2)], [(0, 0, 2), (1, 0, 2)]),
        ([LessThanOrEqual(("offset",), 2)], [(0, 0, 3), (1, 0, 3)]),
        ([GreaterThan(("offset",), 5), LessThan(("offset",), 4)], []),
        ([LessThan(("offset",), -5)], []),
        ([Not(EqualTo(("partition",), 1))], [(0, 0, 10), (1, 0, 20)]),
        ([EqualTo(("value", "offset"), 9)], [(0, 0, 10), (1, 0, 20)]),
        ([EqualTo(("partition",), 0), EqualTo(("partition",), 1)], []),
    ],
)
def test_filters_cut_the_ranges(
    orders: streamlog.Log, filters: list[Filter], wanted: list[tuple[int, int, int]]
) -> None:
    assert spans(plan(orders, *filters, subscribe="orders")) == wanted


def test_filters_leave_json_offsets_alone(orders: streamlog.Log) -> None:
    """All partitions are named, though the filter leaves most of them out."""
    where = json.dumps({"orders": {"0": 1, "1": 2, "2": 0}})
    ranges = plan(orders, EqualTo(("partition",), 1), subscribe="orders", startingOffsets=where)
    assert spans(ranges) == [(1, 2, 20)]


def test_filters_on_time_go_to_the_tasks(orders: streamlog.Log) -> None:
    early = datetime.fromtimestamp(T0 / 1000, UTC)
    late = datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
    planned = plan(
        orders,
        GreaterThan(("timestamp",), early),
        LessThanOrEqual(("timestamp",), late),
        subscribe="orders",
    )
    (one, two) = ranges_of(planned)
    assert (one.min_time_us, one.max_time_us) == (T0 * 1000, 253_402_300_799_999_999)
    assert (two.min_time_us, two.max_time_us) == (T0 * 1000, 253_402_300_799_999_999)


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("partition = 1 AND offset BETWEEN 3 AND 5", [13, 14, 15]),
        ("offset >= 8 AND offset < 11", [8, 9, 18, 19, 20]),
        ("topic = 'orders' AND offset IN (1, 12)", [1, 11, 22]),
        ("topic <> 'orders'", []),
        ("offset < 2 OR partition = 0", [*range(10), 10, 11]),
        ("CAST(offset AS STRING) = '19'", [29]),
        ("offset <=> 4 AND NOT partition = 0", [14]),
        ("timestamp > timestamp '2023-11-14 22:13:28.000'", range(9, 30)),
        ("timestamp = timestamp '2023-11-14 22:13:28.000'", [8]),
        (
            "timestamp >= timestamp '2023-11-14 22:13:27' AND timestamp < timestamp '2023-11-14 22:13:29'",
            [7, 8],
        ),
        ("partition = 1 AND value = X'7631'", []),
    ],
)
def test_filtered_rows_are_right(
    spark: SparkSession, orders: streamlog.Log, condition: str, wanted: list[int]
) -> None:
    assert found(batch(spark, orders, subscribe="orders").where(condition)) == values(wanted)


def test_times_are_filtered_right_in_any_time_zone(
    spark: SparkSession, orders: streamlog.Log
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        frame = batch(spark, orders, subscribe="orders")
        # 22:13:28 UTC is 03:58:28 the next day in Nepal.
        assert found(frame.where("timestamp > timestamp '2023-11-15 03:58:28'")) == values(
            range(9, 30)
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


# a stream


def test_available_now_reads_all_there_is_and_a_restart_goes_on_exactly(
    spark: SparkSession, orders: streamlog.Log, tmp_path: Path
) -> None:
    frame = stream(
        spark, orders, subscribe="orders", maxOffsetsPerTrigger=12, includeHeaders="true"
    )
    assert frame.columns[-1] == "headers"
    first = drain(frame, tmp_path / "c")
    assert first.values == values(range(30))
    assert max(first.sizes) <= 12
    assert len(first.sizes) == 3
    assert drain(frame, tmp_path / "c").sizes == []
    fill(orders, "orders", range(30, 40), 2)
    fill(orders, "orders", range(40, 45), 0)
    assert drain(frame, tmp_path / "c").values == values(range(30, 45))


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.isdigit()}


def test_a_running_query_sees_new_records_partitions_and_topics(
    spark: SparkSession, log: streamlog.Log, tmp_path: Path
) -> None:
    log.create_topic("a1")
    fill(log, "a1", range(5))
    batches = Batches()
    frame = stream(spark, log, subscribePattern="a.*", startingOffsets="latest")
    query = start(frame, tmp_path / "c", batches)
    try:
        wait_for(lambda: query.lastProgress is not None, query)
        fill(log, "a1", range(5, 8))
        wait_for(lambda: batches.values == values(range(5, 8)), query)
        log.add_partitions("a1", 2)
        fill(log, "a1", range(8, 12), 1)
        log.create_topic("b1")
        fill(log, "b1", range(90, 95))
        log.create_topic("a2")
        fill(log, "a2", range(12, 15))
        wait_for(lambda: len(batches.values) >= 10, query)
        assert batches.values == values(range(5, 15))
        # A batch whose end Spark has not noted yet would lawfully come again.
        begun, ended = tmp_path / "c/offsets", tmp_path / "c/commits"
        wait_for(lambda: names_in(begun) == names_in(ended), query)
    finally:
        query.stop()
    fill(log, "a2", range(15, 17))
    log.create_topic("a3", partitions=2)
    fill(log, "a3", range(17, 19))
    assert drain(frame, tmp_path / "c").values == values(range(15, 19))


def test_tasks_of_a_stream(spark: SparkSession, orders: streamlog.Log, tmp_path: Path) -> None:
    frame = stream(spark, orders, subscribe="orders", maxRecordsPerPartition=6)
    batches = drain(frame, tmp_path / "c")
    assert batches.tasks[0] == 6
    assert batches.values == values(range(30))


def test_few_records_of_many_partitions_share_a_task(
    spark: SparkSession, orders: streamlog.Log, tmp_path: Path
) -> None:
    together = drain(stream(spark, orders, subscribe="orders"), tmp_path / "one")
    assert together.tasks[0] == 1
    assert together.values == values(range(30))
    fill(orders, "orders", range(30, 1030), 2)
    apart = drain(stream(spark, orders, subscribe="orders"), tmp_path / "two")
    assert apart.tasks[0] == 2
    assert apart.values == values(range(1030))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"startingOffsets": '{"orders": {"0": -1, "1": 15, "2": -2}}'}, range(25, 30)),
        (
            {"startingTimestamp": T0 + 26_000, "startingOffsetsByTimestampStrategy": "latest"},
            range(26, 30),
        ),
        ({"assign": '{"orders": [0]}'}, range(10)),
    ],
)
def test_where_a_stream_begins(
    spark: SparkSession,
    orders: streamlog.Log,
    tmp_path: Path,
    options: dict[str, object],
    wanted: list[int],
) -> None:
    topic = {} if "assign" in options else {"subscribe": "orders"}
    assert drain(stream(spark, orders, **topic, **options), tmp_path / "c").values == values(wanted)


def test_errors_of_a_stream_carry_the_message(
    spark: SparkSession, orders: streamlog.Log, tmp_path: Path
) -> None:
    where = '{"orders": {"0": 99, "1": 0, "2": 0}}'
    frame = stream(spark, orders, subscribe="orders", startingOffsets=where)
    with pytest.raises(StreamingQueryException, match="orders-0: offset 99 is not in the log"):
        drain(frame, tmp_path / "c")
    with pytest.raises(StreamingQueryException, match="nope"):
        drain(stream(spark, orders, subscribe="nope"), tmp_path / "d")


# progress as a group


def lags(log: streamlog.Log, group: str) -> dict[int, int]:
    return {row["partition"]: row["lag"] for row in log.group(group).lag().to_pylist()}


def test_progress_is_a_groups_and_another_query_starts_from_it(
    spark: SparkSession, orders: streamlog.Log, tmp_path: Path
) -> None:
    frame = stream(spark, orders, subscribe="orders", groupId="sparky", maxOffsetsPerTrigger=11)
    assert drain(frame, tmp_path / "c").values == values(range(30))
    assert lags(orders, "sparky") == {0: 0, 1: 0, 2: 0}
    fill(orders, "orders", range(30, 34), 0)
    assert lags(orders, "sparky")[0] == 4
    group = {"startingOffsets": "group", "groupId": "sparky"}
    assert found(batch(spark, orders, subscribe="orders", **group)) == values(range(30, 34))
    assert lags(orders, "sparky")[0] == 4
    again = stream(spark, orders, subscribe="orders", **group)
    assert drain(again, tmp_path / "other").values == values(range(30, 34))
    assert lags(orders, "sparky")[0] == 0
    # The first query's own checkpoint stays the authority for it.
    assert drain(frame, tmp_path / "c").values == values(range(30, 34))


def test_a_group_with_members_is_not_taken_from_them(
    spark: SparkSession, orders: streamlog.Log, tmp_path: Path
) -> None:
    with orders.consumer("orders", group_id="busy") as consumer:
        consumer.poll(timeout_ms=500)
        frame = stream(spark, orders, subscribe="orders", groupId="busy")
        with pytest.raises(StreamingQueryException, match="'busy' has members at work \\(1\\)"):
            drain(frame, tmp_path / "c")


# retention, deletion, compaction under a query


@pytest.mark.parametrize("forgiving", [False, True])
def test_truncate_under_a_query(
    spark: SparkSession, orders: streamlog.Log, tmp_path: Path, forgiving: bool
) -> None:
    frame = stream(spark, orders, subscribe="orders", failOnDataLoss=str(not forgiving).lower())
    drain(frame, tmp_path / "c")
    fill(orders, "orders", range(30, 40), 0)
    orders.truncate("orders", 1, 20)  # read already: no loss
    orders.truncate("orders", 0, 15)
    if forgiving:
        assert drain(frame, tmp_path / "c").values == values(range(35, 40))
        return
    with pytest.raises(StreamingQueryException) as caught:
        drain(frame, tmp_path / "c")
    assert "orders-0: offsets 10 to 14 were removed before they were read" in str(caught.value)
    assert "failOnDataLoss is true" in str(caught.value)


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "recreated"])
@pytest.mark.parametrize("how", ["subscribe", "pattern", "assign"])
def test_a_topic_that_goes_away_under_a_query(
    spark: SparkSession, orders: streamlog.Log, tmp_path: Path, again: bool, how: str
) -> None:
    orders.create_topic("other")
    what: dict[str, object] = {
        "subscribe": {"subscribe": "orders,other"},
        "pattern": {"subscribePattern": "o.*"},
        "assign": {"assign": '{"orders": [0, 1], "other": [0]}'},
    }[how]  # type: ignore[assignment]
    strict = stream(spark, orders, **what)
    drain(strict, tmp_path / "c")
    orders.delete_topic("orders")
    fill(orders, "other", range(50, 55))
    if again:
        orders.create_topic("orders", partitions=2)
        fill(orders, "orders", range(60, 63), 0)
    word = "deleted and made again" if again else "deleted"
    with pytest.raises(
        StreamingQueryException, match=f"topic 'orders' was {word} while the query ran"
    ):
        drain(strict, tmp_path / "c")
    loose = stream(spark, orders, failOnDataLoss="false", **what)
    wanted = values([*range(50, 55), *(range(60, 63) if again else ())])
    assert drain(loose, tmp_path / "c").values == wanted
    assert drain(loose, tmp_path / "c").values == []


def test_a_foreign_optimize_between_batches(
    spark: SparkSession, orders: streamlog.Log, tmp_path: Path
) -> None:
    frame = stream(spark, orders, subscribe="orders", maxOffsetsPerTrigger=9)
    seen: list[bytes] = []
    number = 30
    for _ in range(3):
        seen += drain(frame, tmp_path / "c").values
        for _ in range(3):
            fill(orders, "orders", range(number, number + 4), 0)
            number += 4
        before = orders.describe("orders").partitions[0].files
        DeltaTable(f"{orders.root}/{orders.topic('orders').path}/0").optimize.compact()
        assert orders.describe("orders").partitions[0].files < before
    seen += drain(frame, tmp_path / "c").values
    assert seen == values(range(number))
    assert found(batch(spark, orders, subscribe="orders", minPartitions=9)) == values(range(number))


# the reader by itself: what would need long waits with a query


def reader(log: streamlog.Log, clock: FakeClock | None = None, **options: object) -> StreamReader:
    texts = {"root": log.root, "subscribe": "orders", "startingOffsets": "earliest"}
    made = StreamReader(
        source_options(texts | {k: str(v) for k, v in options.items()}, streaming=True)
    )
    if clock is not None:
        made._clock = clock
    return made


def offsets(log: streamlog.Log, *ends: int) -> dict[str, object]:
    numbers = {str(partition): end for partition, end in enumerate(ends)}
    return {"orders": numbers, "#ids": {"orders": log.topic("orders").id}}


def test_limits_of_a_trigger(orders: streamlog.Log) -> None:
    assert reader(orders).getDefaultReadLimit() == ReadAllAvailable()
    assert reader(orders, minOffsetsPerTrigger=5).getDefaultReadLimit() == ReadMinRows(5)
    limited = reader(orders, maxOffsetsPerTrigger=6, minOffsetsPerTrigger=5)
    assert limited.getDefaultReadLimit() == ReadMaxRows(6)
    begin = limited.initialOffset()
    assert begin == offsets(orders, 0, 0, 0)
    assert limited.latestOffset(begin, ReadMaxRows(6)) == offsets(orders, 2, 4, 0)
    assert limited.latestOffset(begin, ReadMaxRows(1000)) == offsets(orders, 10, 20, 0)
    # However small, a limit lets the query get on.
    assert limited.latestOffset(begin, ReadMaxRows(1)) == offsets(orders, 1, 0, 0)


def test_every_limit_reaches_the_end_without_a_record_twice(orders: streamlog.Log) -> None:
    for rows in (1, 2, 3, 7, 29):
        source = reader(orders, maxOffsetsPerTrigger=rows)
        at, seen = source.initialOffset(), 0
        while (to := source.latestOffset(at, ReadMaxRows(rows))) != at:
            count = sum(item.end - item.start for item in ranges_of(source.partitions(at, to)))
            assert 0 < count <= rows
            seen += count
            at = to
        assert seen == 30


def test_a_trigger_waits_for_enough_records_but_not_for_ever(orders: streamlog.Log) -> None:
    clock = FakeClock()
    source = reader(orders, clock, minOffsetsPerTrigger=8, maxTriggerDelay="10m")
    limit = ReadMinRows(8)
    begin = offsets(orders, 10, 18, 0)
    # As in Spark's Kafka source the first trigger does not wait.
    done = source.latestOffset(begin, limit)
    assert done == offsets(orders, 10, 20, 0)
    fill(orders, "orders", range(30, 35), 2)
    clock.advance(599)
    assert source.latestOffset(done, limit) == done
    clock.advance(1)
    later = source.latestOffset(done, limit)
    assert later == offsets(orders, 10, 20, 5)
    fill(orders, "orders", range(35, 42), 2)
    assert source.latestOffset(later, limit) == later
    # Trigger.Once reads all, whatever the minimum.
    assert source.latestOffset(later, ReadAllAvailable()) == offsets(orders, 10, 20, 12)
    fill(orders, "orders", range(42, 43), 2)
    assert source.latestOffset(later, limit) == offsets(orders, 10, 20, 13)


def test_available_now_ends_though_records_keep_coming(orders: streamlog.Log) -> None:
    source = reader(orders, minOffsetsPerTrigger=1000)
    source.prepareForTriggerAvailableNow()
    fill(orders, "orders", range(30, 40), 0)
    orders.add_partitions("orders", 4)
    fill(orders, "orders", range(40, 45), 3)
    end = source.latestOffset(offsets(orders, 0, 0, 0), ReadAllAvailable())
    assert end == offsets(orders, 10, 20, 0, 0)
    assert source.latestOffset(end, ReadAllAvailable()) == end
    assert source.reportLatestOffset() == offsets(orders, 20, 20, 0, 5)


def test_a_log_that_lost_its_end_is_data_loss(orders: streamlog.Log) -> None:
    ahead = offsets(orders, 10, 25, 0)
    with pytest.raises(OutOfRangeError, match="orders-1 ends at 20, but was read up to 25"):
        reader(orders).latestOffset(ahead, ReadAllAvailable())
    loose = reader(orders, failOnDataLoss="false")
    assert loose.latestOffset(ahead, ReadAllAvailable()) == offsets(orders, 10, 20, 0)


@pytest.mark.parametrize("forgiving", [False, True])
def test_truncate_between_planning_and_reading(orders: streamlog.Log, forgiving: bool) -> None:
    source = reader(
        orders, failOnDataLoss=str(not forgiving).lower(), subscribe="orders", minPartitions=2
    )
    (one, _) = source.partitions(offsets(orders, 0, 0, 0), offsets(orders, 10, 20, 0))
    orders.truncate("orders", 0, 6)
    if forgiving:
        rows = [v for part in source.read(one) for v in part.column("value").to_pylist()]
        assert rows == values(range(6, 10))
        orders.truncate("orders", 0, 10)
        assert list(source.read(one)) == []
        return
    with pytest.raises(OutOfRangeError, match="offsets 0 to 5 were removed before they were read"):
        list(source.read(one))


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("forgiving", [False, True])
def test_a_topic_deleted_between_planning_and_reading(
    orders: streamlog.Log, forgiving: bool, again: bool
) -> None:
    source = reader(orders, failOnDataLoss=str(not forgiving).lower(), minPartitions=2)
    begin, end = offsets(orders, 0, 0, 0), offsets(orders, 10, 20, 0)
    (one, _) = source.partitions(begin, end)
    orders.delete_topic("orders")
    if again:
        orders.create_topic("orders", partitions=3)
    if forgiving:
        assert list(source.read(one)) == []
        assert list(source.partitions(begin, end)) == []
        return
    with pytest.raises(OutOfRangeError, match="'orders' was deleted while it was read"):
        list(source.read(one))
    with pytest.raises(OutOfRangeError, match="'orders' was deleted"):
        source.partitions(begin, end)


def test_a_checkpoint_of_another_source_is_refused(orders: streamlog.Log) -> None:
    with pytest.raises(InvalidRequestError, match=r"was not written by format\('streamlog'\)"):
        reader(orders).latestOffset({"orders": {"0": 3}}, ReadAllAvailable())


def test_an_assigned_partition_that_is_not_there_is_refused(orders: streamlog.Log) -> None:
    texts = {"root": orders.root, "assign": '{"orders": [7]}', "startingOffsets": "earliest"}
    with pytest.raises(PartitionNotFoundError, match="assign names orders-7"):
        StreamReader(source_options(texts, streaming=True)).initialOffset()


def test_a_minimum_does_not_hold_up_a_query_for_ever(
    spark: SparkSession, orders: streamlog.Log, tmp_path: Path
) -> None:
    batches = Batches()
    frame = stream(
        spark, orders, subscribe="orders", minOffsetsPerTrigger=1000, maxTriggerDelay="2s"
    )
    query = start(frame, tmp_path / "c", batches)
    try:
        wait_for(lambda: len(batches.values) == 30, query)
        begun = time.monotonic()
        fill(orders, "orders", range(30, 33), 0)
        wait_for(lambda: len(batches.values) == 33, query)
        assert time.monotonic() - begun < 30
    finally:
        query.stop()

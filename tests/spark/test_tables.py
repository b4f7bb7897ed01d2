"""Topics, groups and lag as DataFrames and SQL views over the native Delta tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from chispa import assert_df_equality
from pyspark.sql import SparkSession

import streamlog
from streamlog.errors import InvalidRequestError, TopicNotFoundError
from streamlog.spark import groups_df, lag_df, register_tables, topic_df, topics_df
from tests.spark.queries import T0, batch, fill, found, values

pytestmark = pytest.mark.spark


@pytest.fixture
def orders(log: streamlog.Log) -> streamlog.Log:
    """Topic `orders`: v0 to v9 in partition 0, v10 to v29 in partition 1, nothing in partition 2."""
    log.create_topic("orders", partitions=3, config={"retention.ms": 1000})
    fill(log, "orders", range(10), 0)
    fill(log, "orders", range(10, 30), 1)
    return log


@pytest.fixture(autouse=True)
def views(spark: SparkSession) -> Iterator[None]:
    yield
    for table in spark.catalog.listTables():
        if table.isTemporary:
            spark.catalog.dropTempView(table.name)


def test_sql_over_a_topic(spark: SparkSession, orders: streamlog.Log) -> None:
    assert register_tables(spark, orders) == ["streamlog_orders"]
    counted = spark.sql(
        "SELECT partition, count(*) AS n, max(offset) AS last, CAST(min(value) AS STRING) AS least "
        "FROM streamlog_orders GROUP BY partition ORDER BY partition"
    )
    wanted = [(0, 10, 9, "v0"), (1, 20, 19, "v10")]
    assert_df_equality(
        counted,
        spark.createDataFrame(wanted, "partition INT, n BIGINT, last BIGINT, least STRING"),
        ignore_nullable=True,
    )
    late = spark.sql("SELECT value FROM orders WHERE timestamp > timestamp '2023-11-14 22:13:47'")
    assert found(late) == values([28, 29])


def test_a_view_has_the_rows_of_the_source(spark: SparkSession, orders: streamlog.Log) -> None:
    names = ["partition", "offset", "timestamp", "key", "value", "headers"]
    native = topic_df(spark, "orders", orders)
    assert native.columns == names
    source = batch(spark, orders, subscribe="orders", includeHeaders="true").select(*names)
    assert_df_equality(
        native, source, ignore_row_order=True, ignore_nullable=True, ignore_metadata=True
    )


def test_a_view_follows_appends(spark: SparkSession, orders: streamlog.Log) -> None:
    register_tables(spark, orders.root, topics=["orders"])
    assert spark.table("orders").count() == 30
    fill(orders, "orders", range(30, 35), 1)
    assert found(spark.table("orders")) == values(range(35))
    # A partition's first record makes its table, which the view learns when it is made again.
    fill(orders, "orders", range(35, 37), 2)
    register_tables(spark, orders)
    assert found(spark.table("orders")) == values(range(37))


def test_names_and_choice_of_topics(spark: SparkSession, orders: streamlog.Log) -> None:
    orders.create_topic("eu.returns-new")
    fill(orders, "eu.returns-new", range(3))
    assert register_tables(spark, orders, "kafka", topics=["eu.returns-new"]) == [
        "kafka_eu_returns_new"
    ]
    assert found(spark.table("eu_returns_new")) == values(range(3))
    assert not spark.catalog.tableExists("orders")
    with pytest.raises(TopicNotFoundError, match="nope"):
        register_tables(spark, orders, topics=["nope"])


def test_an_unused_topic_is_empty(spark: SparkSession, log: streamlog.Log) -> None:
    log.create_topic("new", partitions=2)
    frame = topic_df(spark, "new", log)
    assert frame.collect() == []
    wanted = (
        "partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
        "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    assert_df_equality(frame, spark.createDataFrame([], wanted))


def test_only_records_from_the_log_start_on(spark: SparkSession, orders: streamlog.Log) -> None:
    """The log start lies inside a file, which stays."""
    orders.truncate("orders", 0, 4)
    orders.truncate("orders", 1, 20)
    assert found(topic_df(spark, "orders", orders)) == values(range(4, 10))
    register_tables(spark, orders)
    assert found(spark.table("orders")) == values(range(4, 10))


def test_json_values_become_columns(spark: SparkSession, log: streamlog.Log) -> None:
    log.create_topic("j")
    with log.producer() as producer:
        for value in (b'{"n": 1, "s": "a"}', b'{"n": 2}', b"no json", None):
            producer.send("j", value)
    frame = topic_df(spark, "j", log, value_schema="n INT, s STRING").orderBy("offset")
    assert_df_equality(
        frame.selectExpr("offset", "value.n", "value.s"),
        spark.createDataFrame(
            [(0, 1, "a"), (1, 2, None), (2, None, None), (3, None, None)],
            "offset BIGINT, n INT, s STRING",
        ),
        ignore_nullable=True,
    )


def test_time_travel(spark: SparkSession, log: streamlog.Log) -> None:
    log.create_topic("t", partitions=2)
    before = datetime.now(UTC) - timedelta(seconds=5)
    fill(log, "t", range(5), 0)
    time.sleep(1.2)
    middle = datetime.now(UTC)
    time.sleep(1.2)
    fill(log, "t", range(5, 8), 0)
    fill(log, "t", range(8, 10), 1)
    assert found(topic_df(spark, "t", log, as_of=middle)) == values(range(5))
    nepal = middle.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert found(topic_df(spark, "t", log, as_of=nepal)) == values(range(5))
    assert found(topic_df(spark, "t", log, as_of=before)) == []
    later = datetime.now(UTC) + timedelta(hours=1)
    assert found(topic_df(spark, "t", log, as_of=later)) == values(range(10))
    with pytest.raises(InvalidRequestError, match="has no time zone"):
        topic_df(spark, "t", log, as_of=datetime(2026, 1, 1))  # noqa: DTZ001


def test_topics_groups_and_lag(spark: SparkSession, orders: streamlog.Log) -> None:
    with orders.consumer("orders", group_id="g", auto_offset_reset="earliest") as consumer:
        seen = 0
        while seen < 30:
            seen += len(consumer.poll(timeout_ms=1000))
        consumer.commit()
    fill(orders, "orders", range(30, 34), 1)
    info = orders.topic("orders")
    assert_df_equality(
        topics_df(spark, orders.root),
        spark.createDataFrame(
            [("orders", info.id, 3, {"retention.ms": "1000"}, info.created_at)],
            "topic STRING, id STRING, partitions INT, config MAP<STRING, STRING>, created_at TIMESTAMP",
        ),
    )
    (group,) = groups_df(spark, orders).collect()
    assert (group.group, group.members) == ("g", 0)
    wanted = [("g", "orders", 0, 10, 10, 0), ("g", "orders", 1, 20, 24, 4)]
    lag = lag_df(spark, orders).drop("owner", "committed_at").where("committed > 0")
    assert_df_equality(
        lag.orderBy("partition"),
        spark.createDataFrame(
            wanted,
            "group STRING, topic STRING, partition INT, committed BIGINT, end BIGINT, lag BIGINT",
        ),
    )


def test_a_memory_root_and_a_missing_root_are_refused(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with streamlog.connect("memory://tables") as log:
        log.create_topic("t")
        with pytest.raises(InvalidRequestError, match="lives in this process only"):
            topic_df(spark, "t", log)
    with pytest.raises(streamlog.StreamlogError, match="there is no log at"):
        register_tables(spark, str(tmp_path_factory.mktemp("none") / "x"))


def test_times_of_records_are_those_of_the_log(spark: SparkSession, orders: streamlog.Log) -> None:
    row = topic_df(spark, "orders", orders).selectExpr("min(unix_millis(timestamp)) AS at").first()
    assert row is not None
    assert row.at == T0

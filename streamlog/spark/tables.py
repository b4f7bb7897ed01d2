"""Topics, groups and lag as DataFrames and SQL views.

A topic's partitions are Delta tables, so a view over them runs in the JVM at native speed; the view only
adds the partition's number. Views are made for the partitions there are: after adding some, or after a
partition got its first record, register again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from streamlog.client import Log, connect
from streamlog.errors import InvalidRequestError, TopicNotFoundError
from streamlog.log.topics import TopicInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
_EMPTY = (
    "partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def register_tables(
    spark: SparkSession,
    root: str | Log | None = None,
    schema: str = "streamlog",
    *,
    topics: Iterable[str] | None = None,
    temporary: bool = True,
) -> list[str]:
    """Makes a view a topic: `streamlog.orders` in a metastore, or the temporary view `orders`.

    A session without a metastore cannot keep views in a schema; with `temporary` (the default) they are
    made as `<schema>_<topic>` and as `<topic>`, for this session only. Returns the names.
    """
    log = _log(root)
    chosen = log.topics() if topics is None else [log.topic(name) for name in topics]
    names = []
    if not temporary:
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {_quoted(schema)}")
    for info in chosen:
        if temporary:
            frame = _native(spark, log, info, None)
            name = f"{schema}_{info.name}"
            frame.createOrReplaceTempView(_view_name(name))
            frame.createOrReplaceTempView(_view_name(info.name))
            names.append(_view_name(name))
        else:
            name = f"{_quoted(schema)}.{_quoted(info.name)}"
            spark.sql(f"CREATE OR REPLACE VIEW {name} AS {_select(log, info)}")
            names.append(name)
    return names


def topic_df(
    spark: SparkSession,
    topic: str,
    root: str | Log | None = None,
    *,
    value_schema: str | StructType | None = None,
    as_of: datetime | None = None,
) -> DataFrame:
    """A topic as a DataFrame over its native Delta tables.

    With `value_schema` (DDL or a StructType) JSON values become the columns of `value`; a value that is
    no such JSON is null there. `as_of` shows the topic as it was at a time.
    """
    log = _log(root)
    frame = _native(spark, log, log.topic(topic), as_of)
    if value_schema is not None:
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

        parsed = F.from_json(F.col("value").cast("string"), value_schema)
        frame = frame.withColumn("value", parsed)
    return frame


def topics_df(spark: SparkSession, root: str | Log | None = None) -> DataFrame:
    """One row a topic: name, id, partitions, config, created_at."""
    rows = [
        (i.name, i.id, i.partitions, i.config.to_dict(), i.created_at) for i in _log(root).topics()
    ]
    return spark.createDataFrame(
        rows,
        "topic STRING, id STRING, partitions INT, config MAP<STRING, STRING>, created_at TIMESTAMP",
    )


def groups_df(spark: SparkSession, root: str | Log | None = None) -> DataFrame:
    """One row a consumer group: name, state, members, generation."""
    rows = [(g.name, g.state, g.members, g.generation) for g in _log(root).groups()]
    return spark.createDataFrame(rows, "group STRING, state STRING, members INT, generation BIGINT")


def lag_df(spark: SparkSession, root: str | Log | None = None) -> DataFrame:
    """One row a group and partition: committed, end, lag, owner, committed_at."""
    log = _log(root)
    rows = [
        (g.name, p.topic, p.partition, p.committed, p.end, p.lag, p.owner, p.committed_at)
        for g in log.groups()
        for p in log.group(g.name).describe().partitions
    ]
    return spark.createDataFrame(
        rows,
        "group STRING, topic STRING, partition INT, committed BIGINT, end BIGINT, lag BIGINT, "
        "owner STRING, committed_at TIMESTAMP",
    )


def _log(root: str | Log | None) -> Log:
    return root if isinstance(root, Log) else connect(root, create=False)


def _tables(log: Log, info: TopicInfo) -> dict[int, str]:
    """The partitions that have a table, with their addresses as Spark writes them."""
    base = log.root.rstrip("/")
    if base.startswith("memory:"):
        raise InvalidRequestError("a memory root lives in this process only; Spark cannot read it")
    described = log.describe(info.name).partitions
    scheme = base if "://" in base else f"file://{base}"
    if scheme.startswith("s3://"):
        # Hadoop's S3 client is known by this name.
        scheme = "s3a" + scheme[2:]
    return {p.partition: f"{scheme}/{info.path}/{p.partition}" for p in described if p.version >= 0}


def _starts(log: Log, info: TopicInfo) -> dict[int, int]:
    return {p.partition: p.start for p in log.describe(info.name).partitions}


def _native(spark: SparkSession, log: Log, info: TopicInfo, as_of: datetime | None) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom

    frames = []
    starts = _starts(log, info)
    for partition, path in _tables(log, info).items():
        if as_of is None:
            frame = spark.read.format("delta").load(path)
        else:
            former = _former(spark, path, as_of)
            if former is None:
                continue
            frame = former
        if as_of is None and starts[partition]:
            frame = frame.where(F.col("offset") >= starts[partition])
        frames.append(frame.select(F.lit(partition).alias("partition"), *_COLUMNS[1:]))
    if not frames:
        return spark.createDataFrame([], _EMPTY)
    return reduce(lambda one, two: one.unionByName(two), frames)


def _former(spark: SparkSession, path: str, as_of: datetime) -> DataFrame | None:
    """A partition's table as it was; None if it had no record yet."""
    from pyspark.errors import AnalysisException

    if as_of.tzinfo is None:
        raise InvalidRequestError(f"as_of={as_of!r} has no time zone; give one")
    moment = as_of.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%fZ")
    reader = spark.read.format("delta")
    try:
        return reader.option("timestampAsOf", moment).load(path)
    except AnalysisException as error:
        # Delta refuses times outside the table's history, which for a log are plain questions.
        if error.getCondition() == "DELTA_TIMESTAMP_GREATER_THAN_COMMIT":
            return spark.read.format("delta").load(path)
        if error.getCondition() != "DELTA_TIMESTAMP_EARLIER_THAN_COMMIT_RETENTION":
            raise
        history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`")
        if history.where("version = 0").isEmpty():
            raise InvalidRequestError(
                f"as_of={as_of.isoformat()}: the history of {path} does not reach back so far"
            ) from error
        return None


def _select(log: Log, info: TopicInfo) -> str:
    starts = _starts(log, info)
    parts = [
        f"SELECT {partition} AS partition, {', '.join(f'`{c}`' for c in _COLUMNS[1:])} "
        f"FROM delta.`{path}` WHERE offset >= {starts[partition]}"
        for partition, path in _tables(log, info).items()
    ]
    if not parts:
        raise TopicNotFoundError(
            f"topic {info.name!r} has no records yet, so there is no table to make a view of; write one, "
            "or use temporary views"
        )
    return " UNION ALL ".join(parts)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _view_name(name: str) -> str:
    """A topic's name as a view's: dots and dashes are not allowed there."""
    return name.replace(".", "_").replace("-", "_")

"""Joins two topics by key, where their records lie close together in time, and writes the pairs to a third.

    spark-submit --py-files dist/streamlog-0.1.0-py3-none-any.whl jobs/streams/join_topics.py \
        --root s3://bucket/log --from orders --with payments --to paid --within '10 minutes' \
        --checkpoint s3://bucket/ck/paid

A pair is a record of `--from` and one of `--with` with the same key, which is at most `--within` younger.
It is written as `{"left", "right", "seconds"}` as soon as both are there. The bound and `--late` tell Spark
how long to remember a record that waits for its partner, so the state does not grow for ever.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own idiom
from pyspark.sql.streaming.query import StreamingQuery

from streamlog.spark import register


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; durations are Spark's, such as `5 seconds`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True, help="where the topics are")
    parser.add_argument("--from", dest="left", required=True, help="topic of what comes first")
    parser.add_argument("--with", dest="right", required=True, help="topic of what follows")
    parser.add_argument("--to", dest="target", required=True, help="topic for the pairs")
    parser.add_argument("--checkpoint", required=True, help="folder of the query's progress")
    parser.add_argument("--within", default="10 minutes", help="how much later it may follow")
    parser.add_argument("--late", default="1 minute", help="how late a record may come")
    parser.add_argument("--trigger", default="5 seconds", help="available-now, or how often to run")
    return parser.parse_args(argv)


def pairs(left: DataFrame, right: DataFrame, within: str, late: str) -> DataFrame:
    """One row a pair, with the columns of the sink."""
    one = left.withWatermark("timestamp", late).alias("one")
    two = right.withWatermark("timestamp", late).alias("two")
    close = F.expr(
        "one.key = two.key AND two.timestamp BETWEEN one.timestamp"
        f" AND one.timestamp + INTERVAL {within}"
    )
    joined = F.struct(
        F.col("one.value").cast("string").alias("left"),
        F.col("two.value").cast("string").alias("right"),
        F.expr("(unix_millis(two.timestamp) - unix_millis(one.timestamp)) / 1000").alias("seconds"),
    )
    return one.join(two, close).select(
        F.col("one.key").alias("key"),
        F.to_json(joined).alias("value"),
        F.col("two.timestamp").alias("timestamp"),
    )


def run(spark: SparkSession, args: argparse.Namespace) -> StreamingQuery:
    """Starts the query."""

    def records(topic: str) -> DataFrame:
        reader = spark.readStream.format("streamlog").option("root", args.root)
        return reader.option("subscribe", topic).option("startingOffsets", "earliest").load()

    now = args.trigger == "available-now"
    writer = (
        pairs(records(args.left), records(args.right), args.within, args.late)
        .writeStream.format("streamlog")
        .option("root", args.root)
        .option("topic", args.target)
        .option("checkpointLocation", args.checkpoint)
    )
    return (
        writer.trigger(availableNow=True) if now else writer.trigger(processingTime=args.trigger)
    ).start()


if __name__ == "__main__":
    spark = SparkSession.builder.appName("join_topics").getOrCreate()
    register(spark)
    run(spark, arguments()).awaitTermination()

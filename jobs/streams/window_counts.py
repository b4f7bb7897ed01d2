"""Counts a topic's records per key in windows of event time, and writes the counts to another topic.

    spark-submit --py-files dist/streamlog-0.1.0-py3-none-any.whl jobs/streams/window_counts.py \
        --root s3://bucket/log --from clicks --to clicks-per-minute --checkpoint s3://bucket/ck/clicks

A window is written once, as `{"start", "end", "count"}` under its key, when the watermark has passed its
end: records that come later than `--late` are not counted.
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
    parser.add_argument("--from", dest="source", required=True, help="topic to count")
    parser.add_argument("--to", dest="target", required=True, help="topic for the counts")
    parser.add_argument("--checkpoint", required=True, help="folder of the query's progress")
    parser.add_argument("--window", default="1 minute", help="length of a window")
    parser.add_argument("--late", default="1 minute", help="how late a record may come")
    parser.add_argument("--trigger", default="5 seconds", help="available-now, or how often to run")
    return parser.parse_args(argv)


def counts(records: DataFrame, window: str, late: str) -> DataFrame:
    """One row a key and closed window, with the columns of the sink."""
    return (
        records.withWatermark("timestamp", late)
        .groupBy("key", F.window("timestamp", window))
        .count()
        .select(
            "key",
            F.to_json(F.struct("window.start", "window.end", "count")).alias("value"),
            F.col("window.end").alias("timestamp"),
        )
    )


def run(spark: SparkSession, args: argparse.Namespace) -> StreamingQuery:
    """Starts the query."""
    records = (
        spark.readStream.format("streamlog")
        .option("root", args.root)
        .option("subscribe", args.source)
        .option("startingOffsets", "earliest")
        .load()
    )
    now = args.trigger == "available-now"
    writer = (
        counts(records, args.window, args.late)
        .writeStream.format("streamlog")
        .option("root", args.root)
        .option("topic", args.target)
        .option("checkpointLocation", args.checkpoint)
    )
    return (
        writer.trigger(availableNow=True) if now else writer.trigger(processingTime=args.trigger)
    ).start()


if __name__ == "__main__":
    spark = SparkSession.builder.appName("window_counts").getOrCreate()
    register(spark)
    run(spark, arguments()).awaitTermination()

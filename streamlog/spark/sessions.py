"""A Spark session that knows streamlog: a new local one, or one that exists."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from streamlog.errors import InvalidRequestError
from streamlog.spark.datasource import StreamlogDataSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_WORKER_PATH = "spark.executorEnv.PYTHONPATH"
_WORKERS = str(Path(__file__).parent / "workers")


def session(
    app: str = "streamlog",
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    *,
    delta: bool = True,
) -> SparkSession:
    """A local session with Delta Lake and `format("streamlog")`; an active one is returned as it is.

    `delta=False` leaves Delta's jars out (they are fetched from Maven at the first start); topics then
    cannot be read as native tables, everything else works.
    """
    from pyspark.sql import SparkSession

    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise InvalidRequestError(
            "Spark needs Java 17 or later, and there is none: install it (Debian: apt install "
            "openjdk-17-jre-headless) or set JAVA_HOME"
        )
    where = master or os.environ.get("SPARK_MASTER") or "local[*]"
    builder = SparkSession.builder.appName(app).master(where)
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        # By default 50 tasks look at the log of each Delta table in every query; a topic has many small ones.
        "spark.databricks.delta.snapshotPartitions": "1",
    } | dict(config or {})
    if where == "local" or where.startswith("local["):
        # Not on a cluster, whose executors would lose the path they were given.
        given = settings.get(_WORKER_PATH)
        settings[_WORKER_PATH] = os.pathsep.join([_WORKERS, *([given] if given else [])])
    for key, value in settings.items():
        builder = builder.config(key, value)
    if delta:
        from delta import configure_spark_with_delta_pip

        builder = builder.config(
            "spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"
        ).config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        builder = configure_spark_with_delta_pip(builder)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Makes `format("streamlog")` known to a session: a notebook's, Databricks', Spark Connect's."""
    # Off by default in Spark 4.2, and a source that can push filters is refused without it.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(StreamlogDataSource)

"""One Spark session for the whole suite: two cores, small shuffles, Delta's jars, streamlog registered.

Without Java nothing here can run: every test of this folder is then skipped, with the reason.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import streamlog
from bench.jars import MissingError, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    java = os.environ.get("JAVA_HOME") or shutil.which("java")
    for item in items:
        if here not in item.path.parents:
            continue
        # pyspark leaves its own sockets and temporary files to the collector.
        item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
        item.add_marker(
            pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
        )
        if not java:
            item.add_marker(
                pytest.mark.skip(reason="Spark needs Java 17 or later: install it or set JAVA_HOME")
            )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from streamlog.spark import session

    # Spark's own Kafka source and sink, for test_kafka.py; without them only that file is skipped.
    try:
        kafka = {"spark.jars": ",".join(map(str, spark_jars()))}
    except MissingError:
        kafka = {}
    spark = session(
        "streamlog-tests",
        "local[2]",
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "2g",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        }
        | kafka,
    )
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[streamlog.Log]:
    with streamlog.connect(tmp_path / "root") as log:
        yield log

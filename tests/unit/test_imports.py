"""Importing the library stays light: each check runs in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import streamlog


def _modules_after(statement: str) -> set[str]:
    code = f"import sys, json\n{statement}\njson.dump(sorted(sys.modules), sys.stdout)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("heavy", ["pyspark", "typer", "click", "rich", "duckdb", "polars"])
def test_importing_streamlog_does_not_load(heavy: str) -> None:
    loaded = _modules_after("import streamlog")
    assert "streamlog" in loaded
    assert heavy not in loaded


def test_every_public_name_resolves_without_loading_spark_or_the_command_line() -> None:
    loaded = _modules_after(
        "import streamlog\nfor name in streamlog.__all__: getattr(streamlog, name)"
    )
    assert not loaded & {"pyspark", "typer", "click", "streamlog.cli"}


def test_the_command_line_does_not_load_spark() -> None:
    assert "pyspark" not in _modules_after("import streamlog.cli")


def test_the_python_of_a_streaming_query_loads_neither_pandas_nor_the_sink(tmp_path: Path) -> None:
    with streamlog.connect(tmp_path) as log:
        log.create_topic("t", partitions=2)
        with log.producer() as producer:
            producer.send("t", "a")
    loaded = _modules_after(
        "from streamlog.spark.datasource import StreamlogDataSource as S\n"
        f"s = S({{'root': {str(tmp_path)!r}, 'subscribe': 't', 'startingOffsets': 'earliest'}})\n"
        "reader = s.streamReader(s.schema())\n"
        "reader.prepareForTriggerAvailableNow()\n"
        "start = reader.initialOffset()\n"
        "assert reader.partitions(start, reader.reportLatestOffset())"
    )
    # A query waits for this process, whenever it starts.
    assert not loaded & {"pandas", "pyarrow.compute", "streamlog.spark.sink"}

"""Importing the library stays light: each check runs in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


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

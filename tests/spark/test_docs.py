"""The Spark examples of README and docs run, and print what the documents say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_spark_example_of_the_readme_prints_what_it_says(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("README.md", "python")[0], "README, first example", "exec"), {})
    capsys.readouterr()
    exec(compile(blocks("README.md", "py")[0], "README, in Spark", "exec"), {})
    assert capsys.readouterr().out.strip() in (ROOT / "README.md").read_text()


def test_the_examples_of_the_spark_document_run_in_order(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for number, example in enumerate(blocks("docs/spark.md", "py")):
        exec(compile(example, f"docs/spark.md, example {number}", "exec"), namespace)
    printed = capsys.readouterr().out
    for shown in blocks("docs/spark.md", ""):
        if shown.startswith("+"):
            assert shown.strip() in printed
    assert "2 records, lag 0\n" in printed
    assert printed.endswith("2 3\n")

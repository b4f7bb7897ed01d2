"""The README's Python examples run, and the first one prints what the README says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLES[number], f"README example {number}", "exec"), {})
    printed = capsys.readouterr().out
    assert printed
    if number == 0:
        assert "RecordMetadata(topic='orders', partition=2, offset=0, timestamp=" in printed
        assert "2 0 b'ann' b'{\"item\": \"tea\"}'" in printed


def test_documents_that_are_linked_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert "docs/format.md" in links
    for link in links:
        assert (ROOT / link).is_file(), link

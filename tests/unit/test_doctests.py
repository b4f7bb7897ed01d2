"""The examples in docstrings run as tests, each module's in an empty working directory."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import streamlog


def _modules() -> list[str]:
    found = pkgutil.walk_packages(streamlog.__path__, "streamlog.")
    # Importing a `__main__` runs the program.
    return ["streamlog", *(m.name for m in found if not m.name.endswith("__main__"))]


@pytest.mark.parametrize("name", _modules())
def test_examples_in_docstrings_print_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STREAMLOG_ROOT", raising=False)
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples in {name} failed"

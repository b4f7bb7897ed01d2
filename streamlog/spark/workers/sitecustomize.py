"""Run at the start of every Python that Spark starts for a session of ours: its folder is on their path.

Spark puts pyspark as a zip in front of the path, and one of its jars. Nothing from a zip is kept compiled:
each process spends half a second on it, and every streaming query waits for a new process. The same pyspark
lies installed around that zip, compiled; here the zip and the jar go behind it.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def installed_first(path: list[str]) -> list[str]:
    """The path with archives of an installed pyspark behind all else; others stay where they are."""
    folders = {os.path.realpath(entry) for entry in path}

    def is_archive_of_installed(entry: str) -> bool:
        before, found, _ = os.path.realpath(entry).rpartition(f"{os.sep}pyspark{os.sep}")
        return bool(found) and entry.endswith((".zip", ".jar")) and before in folders

    late = [entry for entry in path if is_archive_of_installed(entry)]
    return [entry for entry in path if entry not in late] + late


def _run_shadowed() -> None:
    """The `sitecustomize` that would have been found but for this one."""
    here = os.path.dirname(os.path.realpath(__file__))
    spec = PathFinder.find_spec(
        "sitecustomize", [entry for entry in sys.path if os.path.realpath(entry) != here]
    )
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if __name__ == "sitecustomize":
    sys.path[:] = installed_first(sys.path)
    _run_shadowed()

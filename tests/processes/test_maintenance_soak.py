"""Maintenance and a Spark stream killed at random moments beside producers and readers; nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.maintenance_actors import LOAD, SEGMENT_BYTES, SOURCES
from tests.processes.maintenance_soak import has_java, soak

pytestmark = pytest.mark.processes


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [3])
def test_maintenance_may_die_at_any_moment(tmp_path: Path, seed: int) -> None:
    found = soak(tmp_path, seconds=24, seed=seed, spark=has_java())
    assert found["kills"] >= 3
    assert found["merges"] >= 10
    assert found["records"] > 1000
    assert found["retentions"] > 0
    # A merged file has at least half the size of a segment, or it waits with fewer than 32 others.
    partitions, _ = SOURCES[LOAD]
    assert found["files"] < found["bytes"] / (SEGMENT_BYTES / 2) + 32 * partitions

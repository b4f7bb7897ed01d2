"""Maintenance killed at random moments beside producers and readers; nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.maintenance_soak import PARTITIONS, SEGMENT_BYTES, soak

pytestmark = pytest.mark.processes


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [3])
def test_maintenance_may_die_at_any_moment(tmp_path: Path, seed: int) -> None:
    found = soak(tmp_path, seconds=24, seed=seed)
    assert found["kills"] >= 5
    assert found["merges"] >= 10
    assert found["records"] > 1000
    # A merged file has at least half the size of a segment, or it waits with fewer than 32 others.
    assert found["files"] < found["bytes"] / (SEGMENT_BYTES / 2) + 32 * PARTITIONS
    assert found["files"] < found["appends"] / 5

"""The group's promises under random disturbance, in short; `make soak` runs it for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.group_soak import soak

pytestmark = pytest.mark.processes


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [11])
def test_a_group_survives_kills_suspensions_joins_and_leaves(tmp_path: Path, seed: int) -> None:
    found = soak(tmp_path, seconds=15, seed=seed, members=6)
    disturbed = sum(found.get(kind, 0) for kind in ("kill", "suspend", "resume", "add", "remove"))
    assert disturbed >= 5
    assert found["generations"] >= 3
    assert found["records"] > 2000

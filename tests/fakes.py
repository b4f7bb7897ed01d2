"""Time and identity for tests: a clock that moves only when told, ids and chance from a seed."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from streamlog.clock import Runtime


def any_root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The root of a fixture with the parameters "memory" and "disk".

    Memory is shared by name in a process: by the whole id, or tests of one name in two files would meet.
    """
    if request.param == "memory":
        return f"memory://{request.node.nodeid.replace('/', '-')}"
    return f"{tmp_path}/root"


class FakeClock:
    """A clock that stands still until `sleep` or `advance`; both its times move together."""

    def __init__(self, time_ms: int = 1_700_000_000_000, monotonic: float = 1_000.0) -> None:
        self._start_ms = time_ms
        self._start_monotonic = monotonic
        self._elapsed = 0.0
        self._lock = threading.Lock()
        self.slept: list[float] = []

    def time_ms(self) -> int:
        return self._start_ms + round(self._elapsed * 1000)

    def monotonic(self) -> float:
        return self._start_monotonic + self._elapsed

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass without anybody having asked for a sleep."""
        if seconds < 0:
            raise ValueError(f"time runs forward only, not by {seconds}")
        with self._lock:
            self._elapsed += seconds


class SeededIds:
    """32 hex digits from a seed: as unique as real ones, the same in every run."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def new(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"


def fake_runtime(seed: int = 0, clock: FakeClock | None = None) -> Runtime:
    """A runtime that repeats itself; give several of them one `clock` and different seeds."""
    return Runtime(
        clock=clock or FakeClock(), ids=SeededIds(seed), rng=random.Random(f"rng-{seed}")
    )

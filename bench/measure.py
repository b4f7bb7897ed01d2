"""How things are measured here: two actions in turns, in fresh folders, compared by their medians.

The machines are noisy, so absolute times mean little; what one action costs beside the other, a moment
later on the same machine, means something.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Result:
    """A figure beside what it has to be."""

    name: str
    value: float
    required: float
    at_least: bool = True
    unit: str = "x"
    detail: str = ""

    @property
    def good(self) -> bool:
        """Whether the requirement is met."""
        return self.value >= self.required if self.at_least else self.value <= self.required


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """An empty folder, gone afterwards."""
    root = Path(tempfile.mkdtemp(prefix="streamlog-bench-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def seconds(action: Callable[[], object]) -> float:
    """How long an action takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def in_turns(
    first: Callable[[], object], second: Callable[[], object], rounds: int, block: int = 1
) -> tuple[float, float]:
    """The median seconds of two actions, one after the other, each first in every other round.

    `block`: how often one is repeated in its turn. Very short actions need it, or each would be
    measured in what the other leaves behind (threads that end, dirty caches) instead of its own.
    """
    times: dict[Callable[[], object], list[float]] = {first: [], second: []}
    gc.collect()
    for number in range(rounds):
        for action in (first, second) if number % 2 == 0 else (second, first):
            times[action] += [seconds(action) for _ in range(block)]
    return statistics.median(times[first]), statistics.median(times[second])

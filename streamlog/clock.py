"""Time, chance and identity, injected: the only module that may touch the real ones (ruff enforces it).

`monotonic` counts while the machine is suspended too (CLOCK_BOOTTIME): the safety rules about writers
that slept (design, rule 6) compare it with the log floor, and a laptop's closed lid is exactly such a sleep.
"""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """Wall time for people, monotonic time for decisions."""

    def time_ms(self) -> int: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clocks."""

    _boottime = getattr(time, "CLOCK_BOOTTIME", None)

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        if self._boottime is None:
            return time.monotonic()
        return time.clock_gettime(self._boottime)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Ids(Protocol):
    """Unique identifiers."""

    def new(self) -> str: ...


class RandomIds:
    """Random UUIDs as 32 hex digits."""

    def new(self) -> str:
        return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What a component needs of the outside world besides storage."""

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    rng: random.Random = field(default_factory=random.Random)

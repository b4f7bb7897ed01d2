"""Which heartbeats stopped, by counting one's own looks: nobody's clock matters, nor one's own.

L1  A heartbeat that was the same at `missed` looks in a row after the first has stopped. Only looks that the
    storage answered count, so that nobody is found dead because the storage is slow.
L2  One that is absent at two looks in a row is gone: its broker left, or lost its place. Not at the first,
    for a listing of a storage is no snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_ABSENT_LOOKS = 2


class Liveness(Generic[K]):
    """What was seen so far; one thread at a time."""

    def __init__(self, missed: int) -> None:
        self._missed = missed
        self._seen: dict[K, tuple[str | None, int]] = {}

    def look(self, beats: Mapping[K, str], expected: Collection[K]) -> None:
        """Takes in one look; `expected` are those that should have one."""
        seen: dict[K, tuple[str | None, int]] = {}
        for key in {*beats, *expected}:
            sign = beats.get(key)
            before = self._seen.get(key)
            same = before is not None and before[0] == sign
            seen[key] = (sign, before[1] + 1 if same and before is not None else 0)
        self._seen = seen

    def stopped(self, key: K) -> bool:
        """Whether a broker is to be counted dead."""
        sign, times = self._seen.get(key, (None, 0))
        return times >= (self._missed if sign is not None else _ABSENT_LOOKS - 1)

    def dead(self) -> set[K]:
        """All that stopped or are gone."""
        return {key for key in self._seen if self.stopped(key)}

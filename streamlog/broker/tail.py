"""The newest batches of partitions, kept in memory as consumers are sent them.

T1  A partition's chunks follow each other without a gap that the log does not have: each begins at the
    offset where the one before ended. What does not follow replaces all that was kept.
T2  All partitions share one amount of memory; the chunk that came first goes first.

Used by the event loop only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """One batch: the offsets from `first` up to, not including, `next`."""

    first: int
    next: int
    data: bytes


class TailMemory:
    """What the tails of all partitions may take together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._order: deque[Tail] = deque()
        self.used = 0

    def added(self, tail: Tail, size: int) -> None:
        """Counts a chunk, and makes room for it (T2)."""
        self.used += size
        self._order.append(tail)
        while self.used > self._limit and self._order:
            self._order.popleft().drop_first()


class Tail:
    """The tail of one partition."""

    def __init__(self, memory: TailMemory) -> None:
        self._memory = memory
        self._chunks: list[Chunk] = []
        self._firsts: list[int] = []
        # Chunks of ours that were dropped out of turn; their turns in `TailMemory` count no more.
        self._skipped = 0

    @property
    def start(self) -> int | None:
        """The first offset that is here."""
        return self._firsts[0] if self._firsts else None

    @property
    def next(self) -> int | None:
        """The offset after the last one that is here."""
        return self._chunks[-1].next if self._chunks else None

    def add(self, chunk: Chunk) -> None:
        """Keeps a chunk (T1)."""
        if self._chunks and self._chunks[-1].next != chunk.first:
            self.clear()
        self._chunks.append(chunk)
        self._firsts.append(chunk.first)
        self._memory.added(self, len(chunk.data))

    def read(self, offset: int, max_bytes: int) -> list[Chunk]:
        """Chunks from the one that holds `offset` on, up to so many bytes but at least one; [] if absent."""
        if not self._chunks or not self._firsts[0] <= offset < self._chunks[-1].next:
            return []
        index = bisect_right(self._firsts, offset) - 1
        found = [self._chunks[index]]
        size = len(found[0].data)
        for chunk in self._chunks[index + 1 :]:
            size += len(chunk.data)
            if size > max_bytes:
                break
            found.append(chunk)
        return found

    def clear(self) -> None:
        """Forgets all: the log was rewritten, or we lost sight of it."""
        self._memory.used -= sum(len(chunk.data) for chunk in self._chunks)
        self._skipped += len(self._chunks)
        self._chunks.clear()
        self._firsts.clear()

    def drop_first(self) -> None:
        """Gives the oldest chunk's memory back, at its turn."""
        if self._skipped:
            self._skipped -= 1
            return
        if self._chunks:
            self._memory.used -= len(self._chunks[0].data)
            del self._chunks[0]
            del self._firsts[0]

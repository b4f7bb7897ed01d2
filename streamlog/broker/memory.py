"""A bounded amount of memory that requests share: who finds none left waits, and so does its socket."""

from __future__ import annotations

import asyncio
from collections import deque


class Memory:
    """For one event loop. First come, first served, so that a large request is not passed for ever."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._free = total
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used(self) -> int:
        """Bytes taken now."""
        return self._total - self._free

    async def take(self, size: int) -> None:
        """Waits until so much is free; more than there is at all counts as everything."""
        size = min(size, self._total)
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, turn)
        self._waiting.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size)
            else:
                self._waiting.remove(entry)
                self._admit()
            raise

    def give(self, size: int) -> None:
        """Gives back what was taken."""
        self._free += min(size, self._total)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            size, turn = self._waiting.popleft()
            self._free -= size
            turn.set_result(None)

"""The bound on a producer's memory: how many bytes are between `send` and the end of their append.

Invariants
1. `used` counts what open batches were granted, and all that is being cut, queued and in flight.
   It passes `limit` only if nothing else was there when it was taken (a batch larger than the
   buffer could never be sent otherwise), or by what Arrow's form of a batch is larger than the
   bytes of its records.
2. Who waits is served in turn: a large table is not starved by small batches.

Shares the sender's lock; methods take it unless they say otherwise.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from streamlog.errors import BufferFullError


class Room:
    """Bytes in use, and a place to wait for some to become free."""

    def __init__(self, lock: threading.Lock, limit: int, hurry: Callable[[], None]) -> None:
        self._lock = lock
        self._freed = threading.Condition(lock)
        self._hurry = hurry
        self._queue: deque[object] = deque()
        self.limit = limit
        self.used = 0
        # Set when the sender stops: nobody has to wait any more, what comes is refused anyway.
        self.open = False

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for room. Under the lock."""
        return bool(self._queue)

    def changed(self) -> None:
        """Tell those who wait that bytes may be free. Under the lock."""
        self._freed.notify_all()

    def reserve(self, size: int, timeout: float | None) -> None:
        """Take `size` bytes, waiting up to `timeout` seconds for them."""
        with self._lock:
            if self._queue or not self._fits(size):
                self._wait(size, timeout)
            self.used += size

    def release(self, size: int) -> None:
        """Give bytes back."""
        with self._lock:
            self.used -= size
            self._freed.notify_all()

    def _fits(self, size: int) -> bool:
        return self.used == 0 or self.used + size <= self.limit or self.open

    def _wait(self, size: int, timeout: float | None) -> None:
        ticket = object()
        self._queue.append(ticket)
        try:
            self._hurry()
            if not self._freed.wait_for(
                lambda: self.open or (self._queue[0] is ticket and self._fits(size)), timeout
            ):
                raise BufferFullError(
                    f"the buffer stayed full ({self.used} of buffer_bytes={self.limit} are taken) "
                    f"for {timeout:g} s; the store is slower than the sender: send more slowly, or "
                    "raise buffer_bytes or max_block_ms"
                )
        finally:
            self._queue.remove(ticket)
            self._freed.notify_all()

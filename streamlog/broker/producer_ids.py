"""Producer ids: whole numbers that no two producers of a root ever share.

A broker takes a block of a thousand by put-if-absent of the block's number and hands them out; what is left
of it when the broker ends is lost, and nobody minds. Block markers are never deleted: one that was could be
taken again by a broker that slept.
"""

from __future__ import annotations

import threading

from streamlog import paths
from streamlog.errors import UnavailableError
from streamlog.storage.objects import Objects

BLOCK = 1000
_TRIES = 64


class ProducerIds:
    """The ids of one root; safe for several threads, and blocks."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._next = self._end = 0

    def take(self) -> int:
        """An id that nobody else has."""
        with self._lock:
            if self._next == self._end:
                self._next = self._take_block() * BLOCK
                self._end = self._next + BLOCK
            self._next += 1
            return self._next - 1

    def _take_block(self) -> int:
        folder = paths.PRODUCER_IDS_DIR
        for _ in range(_TRIES):
            taken = [int(name) for name in self._objects.names(folder) if name.isdigit()]
            block = max(taken, default=-1) + 1
            if self._objects.put_if_absent(f"{folder}/{block:020d}", b"", durable=True):
                return block
        raise UnavailableError("other brokers took every block of producer ids; try again")

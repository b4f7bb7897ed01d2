"""What became of records on their way: a `Delivery` (one sealed batch) and its `Chunk`s (one a
partition).

Invariants
1. A delivery is open, then sealed, then done; it never goes back. Each record has a number; where
   threads sent at once, its place in the batch may be another. The chunk of partition p holds p's
   records in the order of their places, so the offset of a record is its chunk's base offset plus
   the number of records of the same partition placed before it.
2. A chunk ends exactly once: acknowledged, or failed. Callbacks run once, outside all locks.
3. No lock, event or number is kept a record: offsets are worked out when somebody asks.

Any thread may wait; the sealing thread seals; one sender thread ends a chunk.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from streamlog.batch import RecordColumns
from streamlog.errors import StreamlogError, UnavailableError
from streamlog.model import RecordMetadata

logger = logging.getLogger(__name__)

Callback = Callable[[RecordMetadata | None, StreamlogError | None], object]


class Chunk:
    """The records of one delivery that go to one partition; appended together, in order."""

    __slots__ = (
        "base_offset",
        "columns",
        "count",
        "deadline",
        "delivery",
        "done",
        "error",
        "nbytes",
        "partition",
        "timestamp_ms",
    )

    def __init__(self, partition: int, columns: RecordColumns, deadline: float) -> None:
        self.partition = partition
        self.columns: RecordColumns | None = columns
        self.count = len(columns)
        self.nbytes = columns.nbytes
        self.deadline = deadline
        self.delivery: Delivery | None = None
        self.done = False
        self.error: StreamlogError | None = None
        self.base_offset: int | None = None
        self.timestamp_ms: int | None = None


class Delivery:
    """The fate of one batch of a topic."""

    __slots__ = (
        "_assigned",
        "_callbacks",
        "_chunks",
        "_condition",
        "_pending",
        "_places",
        "_positions",
        "_sealed",
        "_stamps",
        "error",
        "hasten",
        "topic",
    )

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.error: StreamlogError | None = None
        # Ends the batch's linger; set while the batch is open.
        self.hasten: Callable[[], None] | None = None
        self._condition = threading.Condition(threading.Lock())
        self._sealed = False
        self._pending = 0
        self._chunks: Sequence[Chunk] = ()
        self._places: dict[int, int] | None = None
        self._assigned: NDArray[np.integer] | None = None
        self._positions: NDArray[np.int64] | None = None
        self._stamps: Sequence[int] | NDArray[np.int64] = ()
        self._callbacks: list[tuple[int, Callback]] = []

    @property
    def finished(self) -> bool:
        """Whether every record has its answer."""
        return self._sealed and self._pending == 0

    @property
    def chunks(self) -> Sequence[Chunk]:
        """The chunks, once sealed."""
        return self._chunks

    def seal(
        self,
        chunks: Sequence[Chunk],
        assigned: NDArray[np.integer] | None = None,
        stamps: Sequence[int] | NDArray[np.int64] = (),
        numbers: NDArray[np.int64] | None = None,
    ) -> None:
        """Fix which record goes where; `call_back` follows.

        `assigned` is a partition a place, None for one chunk; `numbers` is the record of each
        place, None if that is its number.
        """
        for chunk in chunks:
            chunk.delivery = self
        with self._condition:
            if numbers is not None:
                self._places = {number: place for place, number in enumerate(numbers.tolist())}
            self._chunks, self._assigned, self._stamps = chunks, assigned, stamps
            self._pending = sum(not chunk.done for chunk in chunks)
            self._sealed = True
            self.hasten = None
            self._condition.notify_all()

    def fail(self, error: StreamlogError) -> None:
        """End a delivery that could not even be cut into chunks; `call_back` follows."""
        with self._condition:
            self.error, self._sealed, self.hasten = error, True, None
            self._condition.notify_all()

    def end(
        self,
        chunk: Chunk,
        *,
        base_offset: int | None = None,
        timestamp_ms: int | None = None,
        error: StreamlogError | None = None,
    ) -> None:
        """End one chunk; its memory is let go at once."""
        with self._condition:
            chunk.columns = None
            if chunk.done:
                return
            chunk.base_offset, chunk.timestamp_ms, chunk.error = base_offset, timestamp_ms, error
            chunk.done = True
            self._pending -= 1
            self._condition.notify_all()
        self.call_back()

    def abandon(self, error: StreamlogError) -> None:
        """End a delivery in a forked child, where its locks may be held by threads that are not."""
        self._condition = threading.Condition(threading.Lock())
        self._callbacks, self.hasten = [], None
        self.error, self._pending, self._sealed = error, 0, True

    def holds(self, number: int) -> bool:
        """Whether a record is in a delivery that was sealed."""
        assert self._sealed
        if self.error is not None:
            return True
        return number in self._places if self._places is not None else number < len(self._stamps)

    def done(self, number: int) -> bool:
        """Whether record `number` has its answer."""
        if not self._sealed:
            return False
        return self.error is not None or self._chunk(self._place(number)).done

    def wait(self, number: int | None, timeout: float | None) -> None:
        """Wait for one record, or (None) for all. Waiting ends the batch's linger."""
        hasten = self.hasten
        if hasten is not None:
            hasten()
        with self._condition:
            ended = self._condition.wait_for(
                lambda: self.finished or (number is not None and self.done(number)), timeout
            )
        if not ended:
            raise UnavailableError(
                f"{self.topic}: not acknowledged within {timeout} s; it may still be, "
                "so ask again rather than send again"
            )

    def outcome(self, number: int) -> tuple[RecordMetadata | None, StreamlogError | None]:
        """The answer for a record that is done."""
        if self.error is not None:
            return None, self.error
        place = self._place(number)
        chunk = self._chunk(place)
        if chunk.error is not None:
            return None, chunk.error
        base = chunk.base_offset
        stamp = chunk.timestamp_ms
        return (
            RecordMetadata(
                self.topic,
                chunk.partition,
                None if base is None else base + self._position(place),
                int(self._stamps[place]) if stamp is None else stamp,
            ),
            None,
        )

    def add_callback(self, number: int, callback: Callback) -> None:
        """Call `callback(metadata, error)` once record `number` is done, maybe at once."""
        with self._condition:
            ready = self.done(number)
            if not ready:
                self._callbacks.append((number, callback))
        if ready:
            self._run(number, callback)

    def _place(self, number: int) -> int:
        return number if self._places is None else self._places[number]

    def _chunk(self, place: int) -> Chunk:
        if self._assigned is None:
            return self._chunks[0]
        partition = self._assigned[place]
        for chunk in self._chunks:
            if chunk.partition == partition:
                return chunk
        raise AssertionError(f"place {place} of {self.topic} is in no chunk")

    def _position(self, place: int) -> int:
        if self._assigned is None:
            return place
        if self._positions is None:
            order = np.argsort(self._assigned, kind="stable")
            positions = np.empty(len(order), np.int64)
            start = 0
            for count in np.unique(self._assigned, return_counts=True)[1]:
                positions[order[start : start + count]] = np.arange(count)
                start += count
            self._positions = positions
        return int(self._positions[place])

    def call_back(self) -> None:
        """Run the callbacks of records that have their answer."""
        if not self._callbacks:
            return
        with self._condition:
            ready = [entry for entry in self._callbacks if self.done(entry[0])]
            self._callbacks = [entry for entry in self._callbacks if not self.done(entry[0])]
        for number, callback in ready:
            self._run(number, callback)

    def _run(self, number: int, callback: Callback) -> None:
        try:
            callback(*self.outcome(number))
        except (Exception, SystemExit):
            # A user's callback must not take down the sender, nor the callbacks after it.
            logger.exception("%s: a delivery callback raised", self.topic)

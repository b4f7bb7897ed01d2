"""The open batch of one topic, and its way into Arrow.

Invariants
1. `Batch.rows` holds key, value and number of each record, one after the other, put there by one
   `list.extend`: it is atomic, so that several threads may add, and an interrupt (Ctrl-C) between
   two statements leaves a record whole or not there at all. Headers, partitions and timestamps
   that the caller gave are few; they are kept beside it by number.
2. Numbers are handed out once, but rows may lie in another order, and numbers may be missing.
3. A batch is closed by setting `rows` to None. Whoever added a row and then still finds
   `batch.rows` in place is in the batch; otherwise only the delivery, once sealed, can tell.
4. Of a topic at most one batch is open, and closed ones are cut in the order they were closed.
5. `granted` bytes of the producer's buffer belong to the batch, from its opening until it is cut.

`lock` guards the opening and closing of batches and all additions but those of `Producer.send`'s
short way, which takes no lock at all (a lock is a third of what it costs). `seal_lock` is taken
before it and held while closed batches are cut and queued. A crash loses what is here: none of it
was acknowledged (acks=0 promises nothing else).
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamlog.batch import RecordColumns
from streamlog.log.topics import TopicInfo
from streamlog.model import Header
from streamlog.producer.delivery import Chunk, Delivery
from streamlog.producer.partitioner import assign, split

# Reading the clock costs a tenth of a `send`. Within a batch (which lives for about `linger_ms`) it
# is read for every 16th record, unless batches are meant to live long.
_STAMP_EVERY = 16
_LONG_LINGER_MS = 10

# A batch takes its bytes of the buffer bit by bit, doubling from here: thousands of topics with a
# few records each must not fill the buffer with empty promises.
FIRST_GRANT = 16 * 1024

_COLUMNS = 3


class Batch:
    """Records on their way to one topic, not yet cut by partition."""

    __slots__ = (
        "buffer",
        "delivery",
        "every",
        "explicit",
        "granted",
        "headers",
        "info",
        "max_record",
        "max_records",
        "null_keys",
        "number",
        "opened",
        "room",
        "rows",
        "stamped",
        "stamps",
        "sticky",
        "tick",
    )

    def __init__(self, buffer: TopicBuffer, delivery: Delivery, opened: float) -> None:
        self.buffer = buffer
        self.delivery = delivery
        self.opened = opened
        self.every = buffer.stamp_every
        self.max_records = buffer.max_records
        self.sticky = buffer.next_sticky()
        self.follow(buffer.info)
        # What the batch may still take of the bytes it was granted. Kept without a lock, so a
        # little more or less than exact when several threads send.
        self.room = 0
        self.granted = 0
        self.number = itertools.count().__next__
        # The number from which on `turn` has to be asked.
        self.tick = 0
        self.rows: list[bytes | int | None] | None = []
        self.stamps: list[int] = []
        self.headers: dict[int, list[Header]] = {}
        self.explicit: dict[int, int] = {}
        self.stamped: dict[int, int] = {}

    def follow(self, info: TopicInfo) -> None:
        """Take up a change of the topic: its partitions, its limits."""
        self.info = info
        self.max_record = info.config.max_message_bytes
        self.null_keys = "compact" not in info.config.cleanup_policy

    def turn(self, number: int, now_ms: int) -> bool:
        """Note the time at record `number`; False if it may be the last and has to go the long way."""
        if number >= self.max_records - 1:
            return False
        self.stamps.extend((number, now_ms))
        self.tick = min(number + self.every, self.max_records - 1)
        return True

    def wants(self, size: int, limit: int) -> int:
        """How many bytes more the batch needs to take `size`; 0 if it is full and has to go."""
        assert self.rows is not None
        missing = max(1, size - self.room)
        if not self.rows:
            return max(missing, min(FIRST_GRANT, limit))
        if self.granted + missing > limit:
            return 0
        return min(max(missing, self.granted), limit - self.granted)

    def full(self, limit: int) -> bool:
        """Whether the batch has all the records or bytes it may have."""
        assert self.rows is not None
        return len(self.rows) >= _COLUMNS * self.max_records or (
            self.granted >= limit and self.room <= 0
        )

    def grant(self, size: int) -> None:
        """Add to the bytes the batch may take. Under `lock`."""
        self.granted += size
        self.room += size

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        now_ms: int,
        stamp: int | None,
        headers: list[Header] | None,
        partition: int | None,
        size: int,
    ) -> int:
        """Add a record that fits, and return its number. Under `lock`."""
        assert self.rows is not None
        number = self.number()
        self.stamps.extend((number, now_ms))
        if headers:
            self.headers[number] = headers
        if partition is not None:
            self.explicit[number] = partition
        if stamp is not None:
            self.stamped[number] = stamp
        self.room -= size
        self.rows.extend((key, value, number))
        return number


class Filled(NamedTuple):
    """A closed batch and its rows."""

    batch: Batch
    rows: list[bytes | int | None]


class TopicBuffer:
    """The open batch of a topic, and those closed and not yet cut."""

    __slots__ = (
        "batch",
        "closed",
        "info",
        "lock",
        "max_records",
        "seal_lock",
        "stamp_every",
        "sticky",
    )

    def __init__(self, info: TopicInfo, max_records: int, linger_ms: float, sticky: int) -> None:
        self.lock = threading.Lock()
        self.seal_lock = threading.Lock()
        self.info = info
        self.max_records = max_records
        self.stamp_every = 1 if linger_ms > _LONG_LINGER_MS else _STAMP_EVERY
        self.sticky = sticky
        self.batch: Batch | None = None
        self.closed: deque[Filled] = deque()

    def next_sticky(self) -> int:
        """The partition of the next run of records without a key. Under a lock."""
        self.sticky += 1
        return self.sticky % self.info.partitions

    def follow(self, info: TopicInfo) -> None:
        """Take up a change of the topic. Under `lock`."""
        self.info = info
        if self.batch is not None:
            self.batch.follow(info)
            self.batch.sticky %= info.partitions

    def close_batch(self) -> None:
        """Close the open batch, to be cut later. Under `lock`."""
        batch = self.batch
        assert batch is not None
        assert batch.rows is not None
        rows, batch.rows = batch.rows, None
        self.batch = None
        self.closed.append(Filled(batch, rows))


class Cut(NamedTuple):
    """A batch by partition; `numbers` is None if record i has number i."""

    chunks: list[Chunk]
    assigned: NDArray[np.integer] | None
    stamps: NDArray[np.int64]
    numbers: NDArray[np.int64] | None


def cut(filled: Filled, deadline: float) -> Cut:
    """A closed batch as chunks by partition, with each record's partition and timestamp (ms)."""
    batch, rows = filled
    # Rows that come after this belong to nobody: their senders find out and send them again.
    end = len(rows)
    if not end:
        return Cut([], None, np.empty(0, np.int64), None)
    numbers = np.fromiter(rows[2:end:_COLUMNS], np.int64, end // _COLUMNS)
    places = _Places(numbers)
    stamps = _stamps(batch, numbers, in_order=places.in_order)
    places.write(stamps, batch.stamped)
    headers = None
    if batch.headers:
        headers = [batch.headers.get(number) for number in numbers.tolist()]
    columns = RecordColumns.of(rows[0:end:_COLUMNS], rows[1:end:_COLUMNS], stamps, headers)
    explicit = None
    if batch.explicit:
        explicit = np.full(len(numbers), -1, np.int64)
        places.write(explicit, batch.explicit)
    assigned = assign(columns.key, batch.info.partitions, batch.sticky, explicit)
    parts = split(columns, assigned, batch.sticky)
    chunks = [Chunk(partition, part, deadline) for partition, part in parts]
    return Cut(chunks, assigned, stamps, None if places.in_order else numbers)


class _Places:
    """Where the record of a number is among the rows."""

    def __init__(self, numbers: NDArray[np.int64]) -> None:
        self._count = len(numbers)
        self._order: NDArray[np.int64] | None = None
        self.in_order = bool((numbers == np.arange(len(numbers))).all())
        if not self.in_order:
            self._order = np.full(int(numbers.max()) + 1, -1, np.int64)
            self._order[numbers] = np.arange(len(numbers))

    def write(self, column: NDArray[np.int64], given: dict[int, int]) -> None:
        """Put what was given for single records into a column of all."""
        if not given:
            return
        numbers = np.fromiter(given, np.int64, len(given))
        values = np.fromiter(given.values(), np.int64, len(given))
        limit = self._count if self._order is None else len(self._order)
        inside = numbers < limit
        numbers, values = numbers[inside], values[inside]
        if self._order is not None:
            numbers = self._order[numbers]
            numbers, values = numbers[numbers >= 0], values[numbers >= 0]
        column[numbers] = values


def _stamps(batch: Batch, numbers: NDArray[np.int64], *, in_order: bool) -> NDArray[np.int64]:
    """The time of each record: the last that was noted before it."""
    noted = np.array(batch.stamps, np.int64).reshape(-1, 2)
    noted = noted[np.argsort(noted[:, 0], kind="stable")]
    noted[0, 0] = 0
    if in_order:
        ends = np.append(np.minimum(noted[1:, 0], len(numbers)), len(numbers))
        return np.repeat(noted[:, 1], np.diff(ends, prepend=0))
    places = np.searchsorted(noted[:, 0], numbers, "right") - 1
    stamps: NDArray[np.int64] = noted[places, 1]
    return stamps

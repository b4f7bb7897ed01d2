"""The open batch of one topic, and its way into Arrow.

Invariants
1. A record has a number, handed out once by an iterator of the interpreter's own (one step, that no
   thread and no Ctrl-C can come between), and its place in `keys` and `values` is its number. The
   value is put there last: a place whose value is still the mark `_EMPTY` holds no record, whatever
   interrupted its sender. Headers, partitions and timestamps that the caller gave are few; they
   are kept beside it by number.
2. There is a place for every number below `tick`. `values` is made longer before `keys`, and
   copied before it: where a copy has a value, it has its key.
3. A batch is closed by clearing `open`. Whoever put a record in its place and then still finds the
   batch open is in it; otherwise only the delivery, once sealed, can tell.
4. Of a topic at most one batch is open. Cutting a closed one changes nothing, so that anybody may do
   it, twice even; closed batches are sealed and queued in the order they were closed.
5. `granted` bytes of the producer's buffer belong to the batch, from its opening until it is cut.

`lock` guards the opening and closing of batches and all additions but those of `Producer.send`'s
short way, which takes no lock at all (a lock would double what it costs). `seal_lock` is taken
before it and held while closed batches are sealed and queued. A crash loses what is here: none of it
was acknowledged (acks=0 promises nothing else).
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamlog.batch import RecordColumns
from streamlog.log.topics import TopicInfo
from streamlog.model import Header
from streamlog.producer.delivery import Chunk, Delivery
from streamlog.producer.partitioner import assign, split

# Reading the clock costs half of a `send`. Within a batch (which lives for about `linger_ms`) it is
# read for every 16th record, or less often while the millisecond stays the same; for every record if
# batches are meant to live long.
_STAMP_EVERY = 16
_STAMP_SELDOM = 512
_LONG_LINGER_MS = 10

# A batch takes its bytes of the buffer bit by bit, doubling from here: thousands of topics with a
# few records each must not fill the buffer with empty promises.
FIRST_GRANT = 16 * 1024

# What is in the place of a record that is not there yet; no caller can send it.
_EMPTY: Any = object()


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
        "keys",
        "max_record",
        "max_records",
        "null_keys",
        "numbers",
        "open",
        "opened",
        "room",
        "stamped",
        "stamps",
        "sticky",
        "tick",
        "values",
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
        self.open = True
        self.numbers: Iterator[int] = itertools.count()
        # The number from which on the time is to be noted, and places are to be made.
        self.tick = 0
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
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
        """Note the time at record `number` and make places; False if the batch is full before it."""
        if number >= self.max_records:
            return False
        stamps = self.stamps
        if self.every > 1:
            same = bool(stamps) and stamps[-1] == now_ms
            self.every = min(2 * self.every, _STAMP_SELDOM) if same else _STAMP_EVERY
        stamps.extend((number, now_ms))
        # The last record of a batch comes by here too, to close it.
        places = max(number + 1, min(number + self.every, self.max_records - 1))
        self._make_places(places)
        self.tick = places
        return True

    def _make_places(self, count: int) -> None:
        # Threads that do this at once make more than they need; nobody looks at those.
        for column in (self.values, self.keys):
            column.extend([_EMPTY] * (count - len(column)))

    def wants(self, size: int, limit: int) -> int:
        """How many bytes more the batch needs to take `size`; 0 if it is full and has to go."""
        missing = max(1, size - self.room)
        if not self.values:
            return max(missing, min(FIRST_GRANT, limit))
        if self.granted + missing > limit:
            return 0
        return min(max(missing, self.granted), limit - self.granted)

    def full(self, number: int, limit: int) -> bool:
        """Whether the batch has, with record `number`, all the records or bytes it may have."""
        return number >= self.max_records - 1 or (self.granted >= limit and self.room <= 0)

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
        number = next(self.numbers)
        self.stamps.extend((number, now_ms))
        if headers:
            self.headers[number] = headers
        if partition is not None:
            self.explicit[number] = partition
        if stamp is not None:
            self.stamped[number] = stamp
        self.room -= size
        self._make_places(number + 1)
        self.keys[number] = key
        self.values[number] = value
        return number

    def drop(self) -> None:
        """Let the records go, once they are cut; a late sender finds no place any more."""
        self.values.clear()
        self.keys.clear()


class Filled:
    """A closed batch, the number up to which its records go, and its cut if there is one already."""

    __slots__ = ("batch", "cut", "end")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.end = next(batch.numbers)
        self.cut: Cut | None = None


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

    def close_batch(self) -> Filled:
        """Close the open batch, to be cut and queued later. Under `lock`."""
        batch = self.batch
        assert batch is not None
        batch.open = False
        self.batch = None
        filled = Filled(batch)
        self.closed.append(filled)
        return filled


class Cut(NamedTuple):
    """A batch by partition; `numbers` is None if record i has number i."""

    chunks: list[Chunk]
    assigned: NDArray[np.integer] | None
    stamps: NDArray[np.int64]
    numbers: NDArray[np.int64] | None


def cut(filled: Filled, deadline: float) -> Cut:
    """A closed batch as chunks by partition, with each record's partition and timestamp (ms)."""
    batch = filled.batch
    # Records put in their places after this belong to nobody: their senders find out and send them
    # again.
    values = batch.values[: filled.end]
    keys = batch.keys[: filled.end]
    try:
        value = pa.array(values, pa.binary())
        numbers = np.arange(len(values))
    except pa.ArrowTypeError:
        numbers = np.array([n for n, value in enumerate(values) if value is not _EMPTY], np.int64)
        keys, values = [keys[n] for n in numbers], [values[n] for n in numbers]
        value = pa.array(values, pa.binary())
    if not len(numbers):
        return Cut([], None, np.empty(0, np.int64), None)
    places = _Places(numbers)
    stamps = _stamps(batch, numbers, in_order=places.in_order)
    places.write(stamps, batch.stamped)
    headers = None
    if batch.headers:
        headers = [batch.headers.get(number) for number in numbers.tolist()]
    columns = RecordColumns.of(keys, value, stamps, headers)
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

"""The way into one partition: a queue of chunks, and the appends that empty it.

Invariants
1. At most one append of a lane is under way (`busy`), and chunks leave in the order they came: the
   order of a partition is the order of `send`, whatever is retried.
2. Chunks that wait together are appended together, up to the batch size: a slow store gets larger
   appends, not a longer queue.
3. A sequence of a stable producer is used once: an append that failed, even one whose outcome is
   unknown, never shares its mark with another.

`chunks` and `busy` belong to the sender's lock; `serve` runs in the one thread that set `busy`,
without it. A crash loses the queue; none of it was acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from streamlog.batch import RecordColumns
from streamlog.clock import Runtime
from streamlog.errors import DeliveryTimeoutError, StreamlogError, UnknownOutcomeError
from streamlog.log.partition import PartitionLog
from streamlog.log.topics import TopicInfo, Topics
from streamlog.producer.delivery import Chunk
from streamlog.producer.sequence import PartitionSequence
from streamlog.producer.settings import ProducerSettings
from streamlog.schema import TIMESTAMP_TYPE

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0


class Lane:
    """One partition as this producer sees it."""

    def __init__(
        self,
        info: TopicInfo,
        partition: int,
        topics: Topics,
        settings: ProducerSettings,
        runtime: Runtime,
        sequence: PartitionSequence | None,
    ) -> None:
        self.info = info
        self.partition = partition
        self.chunks: deque[Chunk] = deque()
        self.busy = False
        self.sequence = sequence
        self._topics = topics
        self._settings = settings
        self._runtime = runtime
        self._log: PartitionLog | None = None

    def __str__(self) -> str:
        return f"{self.info.name}-{self.partition}"

    def take(self) -> list[Chunk]:
        """The chunks of the next append. Under the sender's lock."""
        group = [self.chunks.popleft()]
        size = group[0].nbytes
        # An append ends with its first chunk's deadline: later chunks must not lose much of theirs.
        latest = group[0].deadline + self._settings.delivery_timeout_ms / 4000
        while (
            self.chunks
            and size + self.chunks[0].nbytes <= self._settings.batch_bytes
            and self.chunks[0].deadline <= latest
        ):
            size += self.chunks[0].nbytes
            group.append(self.chunks.popleft())
        return group

    def expired(self, chunk: Chunk) -> bool:
        """Whether a chunk's delivery timeout has passed."""
        return chunk.deadline <= self._runtime.clock.monotonic()

    def timeout(self) -> DeliveryTimeoutError:
        """The error of a chunk that expired in the queue."""
        return DeliveryTimeoutError(
            f"{self}: not sent within delivery_timeout_ms={self._settings.delivery_timeout_ms:g}, "
            "because appends before it took that long; send again, more slowly, "
            "or with a longer timeout"
        )

    def append(self, group: Sequence[Chunk]) -> tuple[int | None, int | None]:
        """Append a group of chunks; returns the first offset and, for LogAppendTime, the time."""
        deadline = group[0].deadline
        log = self.open(deadline)
        columns = RecordColumns.concat(
            [chunk.columns for chunk in group if chunk.columns is not None]
        )
        stamp: int | None = None
        if self.info.config.message_timestamp_type == "LogAppendTime":
            stamp = self._runtime.clock.time_ms()
            columns = RecordColumns(
                key=columns.key,
                value=columns.value,
                timestamp=pa.array(np.full(len(columns), stamp * 1000)).view(TIMESTAMP_TYPE),
                headers=columns.headers,
            )
        mark = None if self.sequence is None else self.sequence.mark(len(columns))
        appended = log.append(
            columns,
            durable=self._settings.durable,
            compression=self._settings.compression or self.info.config.compression_type,
            producer=mark,
            deadline=deadline,
        )
        return appended.base_offset, stamp

    def open(self, deadline: float) -> PartitionLog:
        """The partition's log, opened at its first use; a silent store is asked again."""
        pause = _FIRST_PAUSE
        while True:
            try:
                if self._log is None:
                    self._log = self._topics.partition_log(self.info, self.partition)
                if self.sequence is not None:
                    self.sequence.open(self._log, deadline)
                return self._log
            except StreamlogError as error:
                if not error.retriable:
                    raise
                wait = pause * (0.5 + self._runtime.rng.random())
                if self._runtime.clock.monotonic() + wait >= deadline:
                    raise DeliveryTimeoutError(
                        f"{self}: could not be opened within "
                        f"delivery_timeout_ms={self._settings.delivery_timeout_ms:g}: {error}"
                    ) from error
            self._runtime.clock.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def position(self, deadline: float) -> int:
        """How many records the producer's id has in the partition."""
        assert self.sequence is not None
        self.open(deadline)
        return self.sequence.sequence

    def unexpected(self, error: Exception) -> UnknownOutcomeError:
        """A fault of ours, not of the store: nothing is known about the append."""
        return UnknownOutcomeError(
            f"{self}: the append broke off with {type(error).__name__}: {error}; "
            "read the log's end before sending again"
        )

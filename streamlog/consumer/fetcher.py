"""Fills the buffers of a consumer's partitions: one loop over their readers, no thread a partition.

On a local disk a look at a silent partition costs microseconds, so the consumer's own thread
visits the partitions in turn and stops as soon as enough is buffered. Elsewhere a look is a
request of milliseconds, so a small pool asks for several partitions at once; an answer that comes
late is kept for the next poll.

Invariants
1. A lane (one reader) is used by one thread at a time: while its task runs nobody else touches the
   reader.
2. Buffers and positions are changed by the consumer's thread only; a task just returns what it
   found.
3. A task's answer counts only if the partition's epoch is still the one it was asked for.
4. An error of one partition does not keep the records of the others back: they are handed out
   first, and the error is raised by the next poll.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from streamlog.clock import Clock
from streamlog.consumer.settings import ConsumerSettings
from streamlog.consumer.subscription import PartitionState
from streamlog.errors import OutOfRangeError, StreamlogError
from streamlog.log.reader import PartitionReader
from streamlog.log.topics import TopicInfo, Topics
from streamlog.model import TopicPartition

_log = logging.getLogger(__name__)

POOL_THREADS: Final = 8
STALE_S: Final = 1.0  # a reader with a backlog still looks for news (a moved start) this often
GRACE_S: Final = 0.5  # even poll(0) waits this long for the requests it has just made
SLICE_S: Final = 0.05  # how late a wakeup may be noticed
ANY: Final = 2**31 - 1

T = TypeVar("T")


class Fetched(NamedTuple):
    """What one visit of a partition found."""

    position: int  # where it began to read
    batch: pa.RecordBatch | None
    end: int | None  # the position behind a gap that reaches up to the end


class Lane:
    """One partition's reader, opened at first use, and the task that is using it."""

    __slots__ = ("_open", "_reader", "looked_at", "task", "tp")

    def __init__(self, topics: Topics, info: TopicInfo, partition: int) -> None:
        self.tp = TopicPartition(info.name, partition)
        self._open: Callable[[], PartitionReader] = lambda: topics.partition_reader(info, partition)
        self._reader: PartitionReader | None = None
        self.looked_at = float("-inf")
        self.task: tuple[Future[Fetched], PartitionState, int] | None = None

    def look(self, clock: Clock, *, older_than: float = 0.0) -> PartitionReader:
        """The reader, with a view not older than asked for."""
        now = clock.monotonic()
        if self._reader is None:
            self._reader = self._open()
        elif now - self.looked_at < older_than:
            return self._reader
        self._reader.refresh()
        self.looked_at = now
        return self._reader


class Fetcher:
    """Readers, buffers and the waiting for remote answers of one consumer."""

    def __init__(self, topics: Topics, settings: ConsumerSettings, clock: Clock) -> None:
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self.local = topics.objects.local
        self._quiet_s = settings.poll_interval_s(local=self.local)[0]
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._failure: StreamlogError | None = None

    def close(self) -> None:
        """Stop asking; tasks under way end by themselves and are not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        self._lanes.clear()

    def raise_failure(self) -> None:
        """Raise what the last fill kept back in favour of records."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def retain(self, states: Iterable[PartitionState]) -> None:
        """Forget the readers of all other partitions."""
        keys = {(state.info.id, state.tp.partition) for state in states}
        self._lanes = {key: lane for key, lane in self._lanes.items() if key in keys}
        self._failure = None

    def ask(
        self, where: Sequence[tuple[TopicInfo, int]], question: Callable[[PartitionReader], T]
    ) -> list[T]:
        """The answers of fresh readers to a question, several at once where a look is a request."""
        lanes = [self._lane(info, partition) for info, partition in where]

        def answer(lane: Lane) -> T:
            return question(lane.look(self._clock))

        for lane in lanes:
            if lane.task is not None:
                wait([lane.task[0]])
        if self.local or len(lanes) < 2:
            return [answer(lane) for lane in lanes]
        return list(self._threads().map(answer, lanes))

    def fill(
        self,
        states: Sequence[PartitionState],
        *,
        records: int,
        enough: int,
        deadline: float,
        woken: Callable[[], bool],
    ) -> None:
        """Fetch until `records` or `fetch_max_bytes` are buffered or every partition was visited.

        With `enough` bytes above 1 it also fetches behind what is buffered, up to
        `max_partition_fetch_bytes` a partition. `deadline` and `woken` bound the wait for remote
        answers, nothing else.
        """
        if self.local:
            # A partition that was silent a moment ago is skipped while others have something.
            now = self._clock.monotonic()
            if not self._visit(states, records, enough > 1, now):
                self._visit(states, records, enough > 1, float("inf"))
        else:
            # An answer to an earlier poll's request may be older than this call: then ask again.
            earlier = self._harvest()
            self._request(states, enough > 1)
            self._collect(states, enough, deadline, woken)
            if earlier and not any(state.batches for state in states):
                self._request(states, enough > 1)
                self._collect(states, enough, deadline, woken)
        if not any(state.batches for state in states):
            self.raise_failure()

    def _wants(self, state: PartitionState, gather: bool) -> bool:
        if not state.batches:
            return True
        return gather and state.nbytes < self._settings.max_partition_fetch_bytes

    def _visit(
        self, states: Sequence[PartitionState], records: int, gather: bool, now: float
    ) -> bool:
        rows = nbytes = 0
        for state in states:
            if self._wants(state, gather) and state.quiet_until <= now:
                try:
                    lane = self._lane(state.info, state.tp.partition)
                    self._apply(state, self._fetch(lane, state.fetch_offset, state.reset))
                except StreamlogError as error:
                    self._failure = self._failure or error
            rows += state.rows
            nbytes += state.nbytes
            if rows >= records or nbytes >= self._settings.fetch_max_bytes:
                break
        return rows > 0

    def _request(self, states: Sequence[PartitionState], gather: bool) -> None:
        for state in states:
            lane = self._lane(state.info, state.tp.partition)
            if lane.task is None and self._wants(state, gather):
                offset, reset = state.fetch_offset, state.reset
                future = self._threads().submit(self._fetch, lane, offset, reset)
                lane.task = (future, state, state.epoch)

    def _collect(
        self,
        states: Sequence[PartitionState],
        enough: int,
        deadline: float,
        woken: Callable[[], bool],
    ) -> None:
        """Wait for answers: until there is enough, all have come, or it took too long."""
        deadline = max(deadline, self._clock.monotonic() + GRACE_S)
        while running := self._harvest():
            if sum(state.nbytes for state in states) >= enough:
                return
            if self._clock.monotonic() >= deadline or woken():
                return
            wait(running, timeout=SLICE_S, return_when=FIRST_COMPLETED)

    def _harvest(self) -> list[Future[Fetched]]:
        """Put the answers that have come into their buffers; returns the tasks still under way."""
        running = []
        for lane in self._lanes.values():
            if lane.task is None:
                continue
            future, state, epoch = lane.task
            if not future.done():
                running.append(future)
                continue
            lane.task = None
            try:
                fetched = future.result()
            except StreamlogError as error:
                if epoch == state.epoch:
                    self._failure = self._failure or error
                continue
            if epoch == state.epoch:
                self._apply(state, fetched)
        return running

    def _fetch(self, lane: Lane, offset: int | None, reset: str) -> Fetched:
        """One visit, in the consumer's thread or in the pool; changes nothing but the reader."""
        reader = lane.look(self._clock, older_than=0.0 if offset is None else STALE_S)
        if offset is None:
            offset = _by_policy(lane.tp, reader, reset)
        if offset >= reader.end:
            reader = lane.look(self._clock)
        if not reader.start <= offset <= reader.end:
            offset = self._out_of_range(lane.tp, reader, offset)
        limit = self._settings.max_partition_fetch_bytes
        try:
            batch = reader.read(offset, max_records=ANY, max_bytes=limit)
        except OutOfRangeError:  # the log start passed us between the look and the read
            reader = lane.look(self._clock)
            offset = self._out_of_range(lane.tp, reader, offset)
            batch = reader.read(offset, max_records=ANY, max_bytes=limit)
        if batch is not None and batch.num_rows:
            return Fetched(offset, batch, None)
        return Fetched(offset, None, max(offset, reader.end))

    def _out_of_range(self, tp: TopicPartition, reader: PartitionReader, offset: int) -> int:
        policy = self._settings.auto_offset_reset
        span = f"the log holds offsets {reader.start} to {reader.end}"
        if policy == "none":
            raise OutOfRangeError(
                f"{tp}: position {offset} is out of range, {span} (the last not yet written); "
                "seek into it, or set auto_offset_reset to earliest or latest"
            )
        target = _by_policy(tp, reader, policy)
        _log.warning("%s: position %d out of range, %s; on at %d", tp, offset, span, target)
        return target

    def _apply(self, state: PartitionState, fetched: Fetched) -> None:
        if not state.batches:
            state.position = fetched.position if fetched.end is None else fetched.end
        if fetched.batch is not None:
            state.put(fetched.batch)
        else:
            state.quiet_until = self._clock.monotonic() + self._quiet_s

    def _lane(self, info: TopicInfo, partition: int) -> Lane:
        key = (info.id, partition)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(self._topics, info, partition)
        return lane

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="streamlog-fetch")
        return self._pool


def _by_policy(tp: TopicPartition, reader: PartitionReader, policy: str) -> int:
    if policy == "none":
        raise OutOfRangeError(
            f"{tp}: there is no position to begin at and auto_offset_reset is 'none'; seek first, "
            "or set it to earliest or latest"
        )
    return reader.start if policy == "earliest" else reader.end

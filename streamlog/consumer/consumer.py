"""The consumer: reads records of assigned or subscribed partitions, in order within each of them.

Invariants
1. Within a partition records come in the order of their offsets, each once, from `position` on;
   `position` is always the next record the user has not got yet, in the middle of an iteration
   too.
2. Nothing fetched before a `seek`, `pause`, `unsubscribe` or `close` comes out of it afterwards (a
   paused partition's buffer comes when it is resumed).
3. Partitions take turns at being first, so a busy one cannot starve the others.
4. With `auto_offset_reset="latest"` the end is taken when the partition is assigned, not at the
   first poll: what is written after `subscribe` returned is read.

One thread uses a consumer; only `wakeup` may be called from another.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from operator import length_hint
from types import TracebackType
from typing import Final, NamedTuple, Self

import pyarrow as pa

from streamlog.clock import Runtime
from streamlog.consumer.fetcher import ANY, Fetcher
from streamlog.consumer.group.session import (
    Callback,
    GroupSession,
    OffsetAndMetadata,
    RebalanceListener,
)
from streamlog.consumer.group.store import Committed
from streamlog.consumer.poller import Piece, Poller
from streamlog.consumer.positions import Positions, to_tp
from streamlog.consumer.records import to_records, to_table
from streamlog.consumer.settings import ConsumerSettings
from streamlog.consumer.subscription import PartitionState, Subscription
from streamlog.display import Offsets, Records
from streamlog.errors import ClosedError, InvalidRequestError, StreamlogError
from streamlog.log.topics import Topics
from streamlog.model import OffsetAndTimestamp, Record, TopicPartition

_log = logging.getLogger(__name__)

CHUNK: Final = 512  # records an iteration makes at once: few enough to die young, cheap enough


class _Chunk(NamedTuple):
    """What an iteration is handing out: the rows, the records made of them, and how far it is."""

    state: PartitionState
    rows: pa.RecordBatch
    records: list[Record]
    iterator: Iterator[Record]


class Consumer:
    """Reads topics; see `subscribe`, `assign`, `poll`, `poll_arrow`, or iterate over it."""

    def __init__(self, topics: Topics, settings: ConsumerSettings, runtime: Runtime) -> None:
        self._topics = topics
        self._settings = settings
        self._subscription = Subscription(settings.auto_offset_reset)
        self._fetcher = Fetcher(topics, settings, runtime.clock)
        self._positions = Positions(topics, self._subscription, self._fetcher)
        self._group: GroupSession | None = None
        if settings.group_id is not None:
            self._group = GroupSession(topics, settings, runtime, self._subscription, self._fetcher)
        self._poller = Poller(
            topics, settings, runtime.clock, self._subscription, self._fetcher, self._group
        )
        self._chunk: _Chunk | None = None
        self._waiting: list[tuple[dict[TopicPartition, OffsetAndMetadata], Callback | None]] = []
        self._stream: Iterator[Record] | None = None
        self._closed = False

    # what to read

    def subscribe(
        self,
        topics: str | Iterable[str] | None = None,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read all partitions of `topics`, or of all topics whose whole name matches `pattern`.

        New partitions (and new topics that match) are taken up within `metadata_max_age_ms` and
        read from their beginning. Partitions that were subscribed before keep their position.

        With a `group_id` the group shares the partitions out among its members; `listener` is told
        of those that come and go.
        """
        self._begin()
        if (topics is None) == (pattern is None):
            raise InvalidRequestError("subscribe: give either topics or a pattern")
        if pattern is not None:
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise InvalidRequestError(
                    f"subscribe: {pattern!r} is not a regular expression: {error}"
                ) from None
            if self._group is not None:
                self._group.subscribe((), compiled, listener)
                return
            new = self._subscription.subscribe_pattern(compiled, self._topics.list())
        else:
            names = [topics] if isinstance(topics, str) else list(dict.fromkeys(topics or ()))
            if not names:
                raise InvalidRequestError(
                    "subscribe: the list of topics is empty; call unsubscribe() to read nothing"
                )
            if self._group is not None:
                self._group.subscribe(names, None, listener)
                return
            new = self._subscription.subscribe([self._topics.get(name) for name in names])
        self._take_up(new)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; those assigned before keep their position."""
        self._begin()
        wanted = [to_tp(tp, "assign") for tp in partitions]
        new = self._subscription.assign(wanted, self._topics.get)
        if self._group is not None:
            self._group.start_from_committed(new)
        self._take_up(new)

    def unsubscribe(self) -> None:
        """Read nothing any more; a member leaves its group."""
        self._begin()
        if self._group is not None:
            self._commit_waiting()
            self._group.unsubscribe()
        self._subscription.clear()
        self._fetcher.retain(())

    def subscription(self) -> set[str]:
        """The names of the topics that are read."""
        return set(self._subscription.names)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read."""
        return {state.tp for state in self._subscription.states}

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions (all, if none is named) until they are resumed."""
        self._begin()
        for state in self._subscription.several(_tps(partitions, "pause"), "pause"):
            state.paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Go on with these partitions, or with all."""
        self._begin()
        for state in self._subscription.several(_tps(partitions, "resume"), "resume"):
            state.paused = False

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {state.tp for state in self._subscription.states if state.paused}

    # reading

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """Up to `max_records` records (default `max_poll_records`), waiting at most `timeout_ms`.

        Returns an empty list if there are none; 0 looks once and does not wait for new ones.
        """
        limit = self._settings.max_poll_records if max_records is None else max_records
        records = Records()
        for state, rows in self._poll(timeout_ms, limit):
            records += to_records(state.tp, rows)
        return records

    def poll_arrow(self, timeout_ms: float = 0, max_records: int | None = None) -> pa.Table:
        """Like `poll`, as a table: topic, partition, offset, timestamp, key, value, headers.

        Without `max_records` it is as much as one fetch brings: `max_partition_fetch_bytes` of each
        partition, `fetch_max_bytes` in all.
        """
        pieces = self._poll(timeout_ms, ANY if max_records is None else max_records)
        return to_table([(state.tp, rows) for state, rows in pieces])

    def __iter__(self) -> Iterator[Record]:
        """Records for ever; `consumer_timeout_ms` without one, `wakeup` and `close` end it."""
        if self._group is not None:
            return self._restless()
        return chain.from_iterable(self._chunks())

    def __next__(self) -> Record:
        if self._stream is None:
            self._stream = iter(self)
        try:
            return next(self._stream)
        except BaseException:  # a generator that raised is spent: the next call begins a new one
            self._stream = None
            raise

    def wakeup(self) -> None:
        """Make a waiting `poll` return at once, empty; from any thread. An iteration ends."""
        self._poller.wakeup()

    # positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go to an offset; one outside the log follows `auto_offset_reset` at the next poll."""
        self._begin()
        self._positions.seek(to_tp(partition, "seek"), offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go to the first record of these partitions, or of all."""
        self._begin()
        self._positions.seek_to_beginning(_tps(partitions, "seek_to_beginning"))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go behind the last record of these partitions, or of all."""
        self._begin()
        self._positions.seek_to_end(_tps(partitions, "seek_to_end"))

    def seek_to_time(self, time: int | datetime, *partitions: TopicPartition) -> None:
        """Go to the first record at or after `time`: epoch milliseconds or an aware datetime."""
        self._begin()
        self._positions.seek_to_time(time, _tps(partitions, "seek_to_time"))

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record this consumer hands out."""
        self._check_open()
        tp = to_tp(partition, "position")
        chunk = self._chunk
        if chunk is not None and chunk.state.tp == tp:
            left = length_hint(chunk.iterator)
            if left:
                return chunk.records[-left].offset
        return self._positions.position(tp)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The log start of any partitions."""
        self._check_open()
        return Offsets(self._positions.starts(list(partitions)))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The next offset to be written to any partitions."""
        self._check_open()
        return Offsets(self._positions.ends(list(partitions)))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time, for any partitions; None if there is none."""
        self._check_open()
        return self._positions.for_times(times)

    def lag(self) -> Offsets:
        """How far each assigned partition's end is ahead of the position, by a fresh look."""
        self._check_open()
        self._positions.resolve(self._subscription.states)
        positions = {state.tp: self.position(state.tp) for state in self._subscription.states}
        ends = self._positions.ends(list(positions))
        return Offsets({tp: max(0, ends[tp] - position) for tp, position in positions.items()})

    # committed offsets

    def commit(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
    ) -> None:
        """Commit offsets to the group: those given (the next to read), or all positions.

        Raises `IllegalGenerationError` if a partition is not this member's any more.
        """
        self._check_open()
        group = self._need_group("commit")
        # Those that wait are older than this one, and must not come after it.
        self._commit_waiting()
        if offsets is None:
            group.commit(self._current())
            return
        given = _given(offsets, "commit")
        group.check(given)
        group.commit(given)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None,
        callback: Callback | None = None,
    ) -> None:
        """Commit at the next `poll` (or `close`), and call `callback(offsets, error)` afterwards.

        Of several that wait, the newest offset of each partition is committed, once.
        """
        self._check_open()
        self._need_group("commit_async")
        if offsets is None:
            given = self._current()
        else:
            given = _given(offsets, "commit_async")
        self._waiting.append((given, callback))

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed | None]:
        """What the group has committed for partitions (those assigned, if none are named)."""
        self._check_open()
        group = self._need_group("committed")
        wanted = self.assignment() if partitions is None else partitions
        return group.committed([to_tp(tp, "committed") for tp in wanted])

    @property
    def member_id(self) -> str | None:
        """The id of this consumer in its group; None outside of one."""
        return None if self._group is None else self._group.member_id

    @property
    def generation(self) -> int:
        """The group's generation this consumer takes part in; -1 outside of one."""
        return -1 if self._group is None else self._group.generation

    # the end

    def close(self) -> None:
        """Stop reading and leave the group; a second call does nothing."""
        if not self._closed:
            if self._group is not None:
                self._group.check_outside()
            self._drop_chunk()
            try:
                self._leave()
            finally:
                self._closed = True
                self._subscription.clear()
                self._fetcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # inside

    def _leave(self) -> None:
        if self._group is None:
            return
        try:
            self._commit_waiting()
            self._group.commit_on_close()
        finally:
            self._group.close()

    def _need_group(self, doing: str) -> GroupSession:
        if self._group is None:
            raise InvalidRequestError(
                f"{doing}: this consumer has no group; open it with group_id='…' to commit offsets"
            )
        return self._group

    def _current(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions of all partitions that have one."""
        chunk = self._chunk
        found = {
            state.tp: OffsetAndMetadata(state.position)
            for state in self._subscription.states
            if state.position is not None
        }
        if chunk is not None and chunk.state.tp in found:
            found[chunk.state.tp] = OffsetAndMetadata(self.position(chunk.state.tp))
        return found

    def _commit_waiting(self) -> None:
        """All commits that wait, as one."""
        waiting, self._waiting = self._waiting, []
        if not waiting or self._group is None:
            return
        merged: dict[TopicPartition, OffsetAndMetadata] = {}
        for given, _ in waiting:
            merged.update(given)
        error: StreamlogError | None = None
        try:
            self._group.check(merged)
            self._group.commit(merged)
        except StreamlogError as failure:
            error = failure
            _log.warning("commit_async: %s", failure)
        for given, callback in waiting:
            if callback is not None:
                callback(given, error)

    def _restless(self) -> Iterator[Record]:
        """Record by record, so that a rebalance need not wait for the rest of a chunk."""
        assert self._group is not None
        for chunk in self._chunks():
            for record in chunk:
                yield record
                if self._group.restless:
                    self._drop_chunk()
                    break

    def _chunks(self) -> Iterator[Iterator[Record]]:
        timeout = self._settings.consumer_timeout_ms
        while not self._closed:
            pieces = self._poll(float("inf") if timeout is None else timeout, CHUNK, one=True)
            if not pieces:
                return
            state, rows = pieces[0]
            records = to_records(state.tp, rows)
            self._chunk = _Chunk(state, rows, records, iter(records))
            yield self._chunk.iterator

    def _poll(self, timeout_ms: float, limit: int, *, one: bool = False) -> list[Piece]:
        self._begin()
        if self._waiting:
            self._commit_waiting()
        return self._poller.poll(timeout_ms, limit, one=one)

    def _take_up(self, new: list[PartitionState]) -> None:
        self._poller.synced()
        self._fetcher.retain(self._subscription.states)
        if self._settings.auto_offset_reset == "latest":
            self._positions.resolve(new)

    def _begin(self) -> None:
        """Before reading or moving: the rest of an iteration's chunk goes back into the buffer."""
        self._check_open()
        self._drop_chunk()

    def _drop_chunk(self) -> None:
        chunk, self._chunk = self._chunk, None
        if chunk is None:
            return
        left = length_hint(chunk.iterator)
        if left:
            rest = chunk.rows.slice(chunk.rows.num_rows - left)
            chunk.state.put_back(rest, chunk.records[-left].offset)
            chunk.records.clear()  # ends the iterator that still refers to them

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this consumer is closed; open another one")


def _given(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata], doing: str
) -> dict[TopicPartition, OffsetAndMetadata]:
    if not isinstance(offsets, Mapping):
        raise InvalidRequestError(
            f"{doing}: {offsets!r} is not a map of TopicPartition(topic, partition) to offsets"
        )
    return {
        to_tp(tp, doing): item if isinstance(item, OffsetAndMetadata) else OffsetAndMetadata(item)
        for tp, item in offsets.items()
    }


def _tps(values: Iterable[object], doing: str) -> list[TopicPartition]:
    return [to_tp(value, doing) for value in values]

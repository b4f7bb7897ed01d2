"""Which partitions a consumer reads, and how far it is in each of them.

Invariants
1. A consumer either subscribes (topics or a pattern) or assigns; changing from one to the other
   goes through `clear`.
2. `position` is the offset of the next record the user gets; `None` means it is still to be found
   by `reset`. What is fetched and not yet handed out waits in `batches` and always begins at or
   after `position`.
3. `seek` empties `batches` and raises `epoch`; a fetch that was under way for an older epoch is
   thrown away, so nothing from before a seek appears after it.
4. Partitions and topics that appear after the subscription are read from their beginning: whatever
   they hold was written after the user asked for it.
5. A topic that was deleted and made again is another topic (its id differs): never read on at an
   old position.

Not safe for concurrent use: it belongs to the consumer's thread.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

import pyarrow as pa

from streamlog.consumer.records import last_offset
from streamlog.errors import (
    InvalidRequestError,
    PartitionNotFoundError,
    TopicDeletedError,
)
from streamlog.log.topics import TopicInfo
from streamlog.model import TopicPartition


class Mode(Enum):
    """How the set of partitions came about."""

    NONE = "none"
    TOPICS = "topics"
    PATTERN = "pattern"
    ASSIGNED = "assigned"
    GROUP = "group"


class PartitionState:
    """One partition: the position, what is buffered, and whether it is paused."""

    __slots__ = (
        *("tp", "info", "reset", "position", "epoch", "paused"),
        *("quiet_until", "batches", "rows", "nbytes"),
    )

    def __init__(self, tp: TopicPartition, info: TopicInfo, reset: str) -> None:
        self.tp = tp
        self.info = info
        self.reset = reset
        self.position: int | None = None
        self.epoch = 0
        self.paused = False
        self.quiet_until = 0.0
        self.batches: deque[pa.RecordBatch] = deque()
        self.rows = 0
        self.nbytes = 0

    @property
    def fetch_offset(self) -> int | None:
        """Where the next fetch begins: behind what is buffered."""
        return last_offset(self.batches[-1]) + 1 if self.batches else self.position

    def seek(self, offset: int) -> None:
        """Go to an offset; what was fetched is forgotten."""
        self.batches.clear()
        self.rows = self.nbytes = 0
        self.position = offset
        self.quiet_until = 0.0
        self.epoch += 1

    def put(self, batch: pa.RecordBatch) -> None:
        """Buffer a fetched batch behind the others."""
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.nbytes += batch.nbytes

    def take(self, limit: int) -> pa.RecordBatch:
        """Up to `limit` rows of the first buffered batch; the position moves behind them."""
        batch = self.batches.popleft()
        if batch.num_rows > limit:
            self.batches.appendleft(batch.slice(limit))
            batch = batch.slice(0, limit)
        rows = batch.num_rows
        self.nbytes -= self.nbytes * rows // self.rows  # by share: exact sizes of slices cost more
        self.rows -= rows
        self.position = last_offset(batch) + 1
        return batch

    def put_back(self, batch: pa.RecordBatch, offset: int) -> None:
        """Rows that were taken and did not reach the user; `offset` is the first of them."""
        self.batches.appendleft(batch)
        self.rows += batch.num_rows
        self.nbytes += batch.nbytes
        self.position = offset


class Subscription:
    """The consumer's partitions, in the order in which they take turns."""

    def __init__(self, reset: str) -> None:
        self._reset = reset
        self.mode = Mode.NONE
        self.names: tuple[str, ...] = ()
        self.pattern: re.Pattern[str] | None = None
        self._states: dict[TopicPartition, PartitionState] = {}
        self._order: deque[PartitionState] = deque()

    @property
    def states(self) -> list[PartitionState]:
        """All partitions."""
        return list(self._states.values())

    def keys(self) -> set[tuple[str, int]]:
        """The partitions by topic id: a topic made again is another one."""
        return {(state.info.id, tp.partition) for tp, state in self._states.items()}

    def turn(self) -> list[PartitionState]:
        """The partitions that are not paused; each call begins with the next one, to be fair."""
        self._order.rotate(-1)
        return [state for state in self._order if not state.paused]

    def get(self, tp: TopicPartition, doing: str) -> PartitionState:
        """The state of an assigned partition; `doing` names the call in the error."""
        state = self._states.get(tp)
        if state is None:
            have = ", ".join(map(str, sorted(self._states))) or "none; subscribe or assign first"
            raise InvalidRequestError(
                f"{doing}: {tp} is not assigned to this consumer (assigned: {have})"
            )
        return state

    def several(self, tps: Sequence[TopicPartition], doing: str) -> list[PartitionState]:
        """The states of `tps`; all of them if none is named."""
        if tps:
            return [self.get(tp, doing) for tp in tps]
        if not self._states and self.mode not in (Mode.PATTERN, Mode.GROUP):
            raise InvalidRequestError(
                f"{doing}: no partition is assigned; subscribe or assign first"
            )
        return self.states

    def clear(self) -> None:
        """Back to reading nothing."""
        self.mode = Mode.NONE
        self.names = ()
        self.pattern = None
        self._install({})

    def subscribe(self, infos: Sequence[TopicInfo]) -> list[PartitionState]:
        """Read all partitions of these topics; returns those that are new to this consumer."""
        self._enter(Mode.TOPICS)
        self.names = tuple(info.name for info in infos)
        self.pattern = None
        return self._merge(infos, self._reset)

    def subscribe_pattern(
        self, pattern: re.Pattern[str], infos: Iterable[TopicInfo]
    ) -> list[PartitionState]:
        """Read all topics whose whole name matches, now and later."""
        self._enter(Mode.PATTERN)
        self.pattern = pattern
        matching = [info for info in infos if pattern.fullmatch(info.name)]
        self.names = tuple(info.name for info in matching)
        return self._merge(matching, self._reset)

    def assign(
        self, tps: Iterable[TopicPartition], info_of: Callable[[str], TopicInfo]
    ) -> list[PartitionState]:
        """Read exactly these partitions; positions of those already assigned stay."""
        infos = {tp: info_of(tp.topic) for tp in tps}
        for tp, info in infos.items():
            check_partition(tp, info)
        self._enter(Mode.ASSIGNED)
        self.names = tuple(dict.fromkeys(tp.topic for tp in infos))
        return self._install(infos)

    def manage(self, names: Sequence[str], pattern: re.Pattern[str] | None) -> None:
        """Leave it to a group which partitions are read."""
        self._enter(Mode.GROUP)
        self.names = tuple(names)
        self.pattern = pattern

    def own(self, wanted: dict[TopicPartition, TopicInfo]) -> list[PartitionState]:
        """Read exactly what the group gave; positions of what stays are kept. Returns the new ones."""
        if self.pattern is not None:
            self.names = tuple(sorted({tp.topic for tp in wanted}))
        return self._install(wanted)

    def sync(self, infos: Iterable[TopicInfo]) -> list[PartitionState]:
        """Take up new partitions and topics of the registry's list; returns the new ones."""
        current = {info.name: info for info in infos}
        if self.mode is Mode.PATTERN and self.pattern is not None:
            matching = [info for info in current.values() if self.pattern.fullmatch(info.name)]
            self.names = tuple(info.name for info in matching)
            return self._merge(matching, "earliest")
        known = {state.tp.topic: state.info.id for state in self._states.values()}
        for name in self.names:
            info = current.get(name)
            if info is None or info.id != known[name]:
                again = "" if info is None else ", and another topic of this name was made since"
                raise TopicDeletedError(
                    f"topic {name!r} was deleted while this consumer read it{again}; "
                    "subscribe again without it, or open a new consumer"
                )
        if self.mode is Mode.TOPICS:
            return self._merge([current[name] for name in self.names], "earliest")
        return []

    def _enter(self, mode: Mode) -> None:
        groups = {
            Mode.TOPICS: "subscribe",
            Mode.PATTERN: "subscribe",
            Mode.GROUP: "subscribe",
            Mode.ASSIGNED: "assign",
        }
        if self.mode is not Mode.NONE and groups[self.mode] != groups[mode]:
            raise InvalidRequestError(
                f"this consumer uses {groups[self.mode]}(); it cannot use {groups[mode]}() too: "
                "call unsubscribe() first, or open another consumer"
            )
        self.mode = mode

    def _merge(self, infos: Iterable[TopicInfo], reset: str) -> list[PartitionState]:
        wanted = {
            TopicPartition(info.name, number): info
            for info in infos
            for number in range(info.partitions)
        }
        return self._install(wanted, reset)

    def _install(
        self, wanted: dict[TopicPartition, TopicInfo], reset: str | None = None
    ) -> list[PartitionState]:
        kept: dict[TopicPartition, PartitionState] = {}
        new = []
        for tp, info in wanted.items():
            state = self._states.get(tp)
            if state is None or state.info.id != info.id:
                state = PartitionState(tp, info, reset or self._reset)
                new.append(state)
            kept[tp] = state
        if new or len(kept) != len(self._states):
            self._order = deque(kept.values())
        self._states = kept
        return new


def check_partition(tp: TopicPartition, info: TopicInfo) -> None:
    """Refuse a partition number the topic does not have."""
    if isinstance(tp.partition, bool) or not isinstance(tp.partition, int):
        raise InvalidRequestError(f"the partition in {tp!r} is not a whole number")
    if not 0 <= tp.partition < info.partitions:
        raise PartitionNotFoundError(
            f"topic {tp.topic!r} has no partition {tp.partition}; "
            f"allowed: 0 to {info.partitions - 1}"
        )

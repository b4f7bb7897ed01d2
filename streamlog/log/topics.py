"""Topics: made, changed, described, deleted; and the way to their partitions.

O1  The registry's row comes first. A partition's table is made by whoever needs it first, by
    put-if-absent of version 0, and only while the registry still has the topic.
O2  Deleting marks the registry, then seals every partition (making those that nobody used), and only
    then removes files. A client that slept through it finds the seal, or no table at all, and its
    records fail; they never land in a topic of the same name that was made later.
O3  A deleted partition's `_delta_log` outlives the log floor, checkpoints go before commits, and commits
    go from version 0 upwards: at no moment can a sleeper take what is left for a live table.

Safe to use from several threads; the logs and readers handed out are not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeVar

import pyarrow as pa

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.config import TopicConfig, validate_topic_name
from streamlog.errors import (
    CorruptLogError,
    InvalidRequestError,
    PartitionNotFoundError,
    TopicNotFoundError,
    UnavailableError,
)
from streamlog.log import commit as commits
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.partition import PartitionLog, deleted
from streamlog.log.reader import PartitionReader
from streamlog.log.registry import DeletedTopic, Registry, TopicInfo
from streamlog.log.versions import LOG_FLOOR_SECONDS
from streamlog.model import to_datetime
from streamlog.schema import RECORD_SCHEMA
from streamlog.storage.objects import Objects

__all__ = ["PartitionInfo", "TopicDescription", "TopicInfo", "Topics"]

S = TypeVar("S")
T = TypeVar("T")

_log = logging.getLogger(__name__)

_WORKERS = 16
_EPOCH_TRIES = 64


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition as it is now. `records` are those from `start` on; `version` is -1 if unused."""

    partition: int
    start: int
    end: int
    records: int
    bytes: int
    files: int
    version: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with all its partitions."""

    info: TopicInfo
    partitions: tuple[PartitionInfo, ...]

    @property
    def records(self) -> int:
        """Records in all partitions."""
        return sum(part.records for part in self.partitions)

    @property
    def bytes(self) -> int:
        """Bytes of all live files."""
        return sum(part.bytes for part in self.partitions)

    @property
    def files(self) -> int:
        """Live files of all partitions."""
        return sum(part.files for part in self.partitions)

    def to_arrow(self) -> pa.Table:
        """One row a partition, ready for a DataFrame."""
        columns: dict[str, pa.Array] = {
            "topic": pa.array([self.info.name] * len(self.partitions), pa.string())
        }
        for field in fields(PartitionInfo):
            numbers = [getattr(part, field.name) for part in self.partitions]
            columns[field.name] = pa.array(numbers, pa.int64())
        return pa.table(columns)

    def _repr_html_(self) -> str:
        from streamlog import display

        return display.description_html(self)


class Topics:
    """The topics under one root."""

    def __init__(
        self,
        objects: Objects,
        runtime: Runtime,
        checkpointer: Checkpointer,
        floor: float = LOG_FLOOR_SECONDS,
    ) -> None:
        self.objects = objects
        self._runtime = runtime
        self.checkpointer = checkpointer
        self._floor = floor
        self._registry = Registry(objects, runtime, checkpointer)

    def create(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        if_not_exists: bool = False,
    ) -> TopicInfo:
        """Makes a topic; with `if_not_exists`, returns the one there is."""
        validate_topic_name(name)
        settings = TopicConfig.parse(config or {})
        return self._registry.add(name, partitions, settings, if_not_exists=if_not_exists)

    def get(self, name: str, refresh: bool = False) -> TopicInfo:
        """A topic by its name, at most a few seconds old; TopicNotFoundError if there is none."""
        if not isinstance(name, str):
            raise InvalidRequestError(
                f"a topic's name is a str, not {type(name).__name__} ({name!r})"
            )
        return self._registry.get(name, refresh=refresh)

    def list(self, refresh: bool = False) -> Sequence[TopicInfo]:
        """All topics by name, at most a few seconds old."""
        live = self._registry.live(refresh=refresh)
        return [live[name] for name in sorted(live)]

    def chosen(self, names: Iterable[str]) -> Sequence[TopicInfo]:
        """The topics of these names, freshly looked up; all of them if none is named."""
        wanted = [self.get(name, refresh=True) for name in names]
        return wanted or self.list(refresh=True)

    def alter(self, name: str, config: Mapping[str, object | None]) -> TopicInfo:
        """Changes settings of a topic; None puts one back to its default."""
        return self._registry.alter(name, config)

    def add_partitions(self, name: str, total: int) -> TopicInfo:
        """Raises a topic's partitions to `total`. Keys then map to partitions anew, as in Kafka."""
        return self._registry.grow(name, total)

    def delete(self, name: str) -> None:
        """Deletes a topic: at once for everybody, then its files."""
        at = to_datetime(int(self.objects.store_time() * 1000))
        gone = self._registry.mark_deleted(name, at)
        self._clear(gone, with_log=False)
        self.purge()

    def purge(self) -> None:
        """Removes the last of topics that were deleted longer ago than anybody sleeps (O3)."""
        now = self.objects.store_time()
        for topic in self._registry.deleted():
            if now - topic.deleted_at.timestamp() > 2 * self._floor:
                self._clear(topic, with_log=True)
                self._registry.mark_purged(topic.id)

    def _clear(self, topic: DeletedTopic, *, with_log: bool) -> None:
        # Sealing comes first even if it was done: a deletion may have crashed half way.
        partitions = range(topic.partitions)
        self.each(partitions, partial(self._seal, topic))
        self.each(partitions, partial(self._remove_files, topic, with_log))

    def describe(self, name: str) -> TopicDescription:
        """A topic with the state of each of its partitions, freshly looked at."""
        info = self._registry.get(name, refresh=True)

        def look(reader: PartitionReader) -> PartitionInfo:
            segments = reader.segments
            return PartitionInfo(
                partition=int(reader.table.rpartition("/")[2]),
                start=reader.start,
                end=reader.end,
                records=reader.records,
                bytes=sum(segment.size for segment in segments),
                files=len(segments),
                version=reader.version,
            )

        where = [(info, partition) for partition in range(info.partitions)]
        return TopicDescription(info, tuple(self.ask(where, look)))

    def truncate(self, name: str, partition: int, before_offset: int) -> int:
        """Removes the records below an offset; returns the new log start."""
        if isinstance(before_offset, bool) or not isinstance(before_offset, int):
            raise InvalidRequestError(
                f"offset {before_offset!r} is not valid; give a whole number from 0"
            )
        info = self._registry.get(name, refresh=True)
        return self.partition_log(info, partition).truncate(before_offset)

    def partition_log(self, info: TopicInfo, partition: int) -> PartitionLog:
        """The writer's end of a partition."""
        table = self.table(info, partition)
        create = partial(self._create_table, info, table)
        return PartitionLog(
            self.objects, table, self._runtime, self.checkpointer, create, self._floor
        )

    def partition_reader(self, info: TopicInfo, partition: int) -> PartitionReader:
        """The reader's end of a partition."""
        return PartitionReader(
            self.objects, self.table(info, partition), self._runtime, self._floor
        )

    def ask(
        self, where: Sequence[tuple[TopicInfo, int]], question: Callable[[PartitionReader], T]
    ) -> Sequence[T]:
        """The answers of freshly opened readers to one question, in the order of `where`."""

        def answer(index: int) -> T:
            reader = self.partition_reader(*where[index])
            reader.refresh()
            return question(reader)

        return self.each(range(len(where)), answer)

    def take_epoch(self, producer_id: str) -> int:
        """The next epoch of a stable producer id; whoever holds a lower one is fenced by it."""
        folder = paths.producer_dir(producer_id)
        for _ in range(_EPOCH_TRIES):
            taken = [int(name) for name in self.objects.names(folder) if name.isdigit()]
            epoch = max(taken, default=0) + 1
            if self.objects.put_if_absent(
                paths.producer_epoch(producer_id, epoch), b"", durable=True
            ):
                return epoch
        raise UnavailableError(
            f"producer id {producer_id!r}: {_EPOCH_TRIES} others started with it meanwhile; give each "
            "producer an id of its own"
        )

    def table(self, info: TopicInfo, partition: int) -> str:
        """The path of a partition's table; PartitionNotFoundError if there is no such partition."""
        if (
            isinstance(partition, bool)
            or not isinstance(partition, int)
            or not 0 <= partition < info.partitions
        ):
            last = info.partitions - 1
            raise PartitionNotFoundError(
                f"topic {info.name!r} has no partition {partition!r}; it has "
                f"{'only 0' if last == 0 else f'0 to {last}'}"
            )
        return paths.partition_dir(info.name, info.incarnation, partition)

    def _create_table(self, info: TopicInfo, table: str) -> None:
        """Version 0, while the topic exists; looked up again afterwards, for who slept in between."""
        self._check_live(info)
        self._put_first(table)
        self._check_live(info)

    def _check_live(self, info: TopicInfo) -> None:
        try:
            current = self._registry.get(info.name, refresh=True)
        except TopicNotFoundError:
            raise deleted(info.path) from None
        if current.id != info.id:
            raise deleted(info.path)

    def _put_first(self, table: str) -> None:
        now_ms = self._runtime.clock.time_ms()
        data = commits.build(
            "create",
            commit_id=self._runtime.ids.new(),
            previous=None,
            now_ms=now_ms,
            actions=[
                *commits.create_actions(self._runtime.ids.new(), RECORD_SCHEMA, now_ms),
                commits.txn_action(commits.END, 0, now_ms),
            ],
            details={"durable": True},
        )
        # Lost or won does not matter: any version 0 of streamlog is as good, and it is read next.
        self.objects.put_if_absent(paths.commit_file(table, 0), data, durable=True)

    def _seal(self, topic: DeletedTopic, partition: int) -> None:
        table = paths.partition_dir(topic.name, topic.incarnation, partition)
        create = partial(self._put_first, table)
        log = PartitionLog(
            self.objects, table, self._runtime, self.checkpointer, create, self._floor
        )
        try:
            log.seal()
        except CorruptLogError as error:
            # Every writer refuses a broken log, which is as good as a seal; it must stay deletable.
            _log.warning("deleting a broken partition: %s", error)

    def _remove_files(self, topic: DeletedTopic, with_log: bool, partition: int) -> None:
        table = paths.partition_dir(topic.name, topic.incarnation, partition)
        log = paths.log_dir(table)
        if with_log:
            names = self.objects.names(log)
            checkpoints = [name for name in names if paths.parse_commit(name) is None]
            self.objects.delete([f"{log}/{name}" for name in checkpoints])
            self.objects.delete([paths.commit_file(table, 0)])
            self.objects.delete_tree(table)
            return
        data = [info.path for info in self.objects.list(table) if not info.path.startswith(log)]
        self.objects.delete(data)

    def each(self, items: Sequence[S], action: Callable[[S], T]) -> Sequence[T]:
        """One action an item, in order; several at once where a request is slow."""
        if self.objects.local or len(items) < 2:
            return [action(item) for item in items]
        with ThreadPoolExecutor(_WORKERS, "streamlog-topics") as pool:
            return list(pool.map(action, items))

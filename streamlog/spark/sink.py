"""Writing topics from Spark: each record once, however tasks are cut, retried or killed.

Tasks do not append. They stage their rows as Arrow files under the root, without offsets; the driver's
commit gives offsets and appends once a topic partition, with a mark of (query, batch) in that very commit:

    task:    rows ──▶ __spark/<query>/<batch>-<task>-<unique>.arrow   (its name goes to the driver)
    driver:  put-if-absent __spark/<query>/<batch>.json               (the manifest: which files count)
             append piece by piece, a partition at a time, with the piece's mark in the commit:
             txn `streamlog.query:<query>` = batch * 2^20 + piece + 1
             put <batch>.json.done, delete the staged files

W1  The first manifest of a batch wins; every replay finishes that one and ignores its own staging. It names
    the staged files in the order of the tasks, cut into pieces of bounded size, the topics' ids and numbers
    of partitions, and the partitioner: records go to the same partitions in every attempt, also if the topic
    grew, an option changed or Spark cut the batch differently.
W2  A partition that carries a piece's mark has all its records up to that piece; it is skipped.
W3  A record without a key goes to a partition that depends on the record and the batch, not on the task.
W4  What a manifest names is deleted only after `.done`, so an aborted batch keeps its staging: the replay
    needs it. The next finished batch removes all that its query staged before; `clean` removes what queries
    left that have been silent for long.

`delivery=at-least-once` is for large backfills: tasks append directly, and a retried task writes again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from streamlog import paths
from streamlog.batch import RecordColumns
from streamlog.clock import Runtime
from streamlog.errors import (
    InvalidRequestError,
    PartitionNotFoundError,
    RecordTooLargeError,
    StreamlogError,
    TopicDeletedError,
    TopicNotFoundError,
    UnavailableError,
)
from streamlog.hashing import partitions_for
from streamlog.log.backoff import Backoff
from streamlog.log.partition import AppMark
from streamlog.log.topics import TopicInfo, Topics
from streamlog.schema import HEADERS_TYPE, MAX_TIMESTAMP_MS, TIMESTAMP_TYPE
from streamlog.spark.kept import used_topics
from streamlog.spark.options import SinkOptions

_log = logging.getLogger(__name__)
T = TypeVar("T")

_QUERY_PREFIX = "streamlog.query:"
# What a task holds before it puts a file, and what the driver reads and appends at once.
_STAGE_BYTES = 64 << 20
_PIECE_BYTES = 128 << 20
_PIECES = 1 << 20
# An append that the store does not confirm for so long fails its batch; the replay finishes it.
_PATIENCE_SECONDS = 120.0
_DRAIN_SECONDS = 30.0
# Spark replays its last batch only; a few more manifests are kept for whoever looks.
_KEPT_MANIFESTS = 10
_WORKERS = 16
_CLEAN_EVERY = 1000

_STAGED = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", TIMESTAMP_TYPE),
        pa.field("headers", HEADERS_TYPE),
    ]
)


@dataclass
class Staged(WriterCommitMessage):
    """What one task staged: its files with their sizes, in the order of its rows."""

    query: str
    task: int
    files: tuple[tuple[str, int], ...]
    topics: tuple[str, ...]


def refuse_overwrite(overwrite: bool) -> None:
    """A log is appended to."""
    if overwrite:
        raise InvalidRequestError(
            "a topic cannot be overwritten, only appended to: use .mode('append'), or delete the topic "
            "and make it again"
        )


class _Writer:
    """What the stream's and the batch's writer have in common."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options = options
        check_schema(schema, options)

    def stage(self, iterator: Iterator[pa.RecordBatch], query: str, batch: int) -> Staged:
        """In a task: the rows into files of the staging area, as few as possible."""
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        with used_topics(self.options.root, self.options.storage) as topics:
            if not self.options.exactly_once:
                return self._append_directly(iterator, query, batch, task, topics)
            return self._stage(iterator, query, batch, task, topics)

    def _stage(
        self,
        iterator: Iterator[pa.RecordBatch],
        query: str,
        batch: int,
        task: int,
        topics: Topics,
    ) -> Staged:
        infos = _Infos(topics)
        names: set[str] = set()
        files: list[tuple[str, int]] = []
        for data in _files(self._checked(iterator, infos, names)):
            name = f"{batch:010d}-{task:06d}-{Runtime().ids.new()}.arrow"
            path = f"{staging(query)}/{name}"
            topics.objects.put_new(path, data, durable=True)
            files.append((path, data.size))
        return Staged(query, task, tuple(files), tuple(sorted(names)))

    def finish(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """On the driver: append what the tasks staged, once."""
        staged = [m for m in messages if isinstance(m, Staged)]
        if not staged or not self.options.exactly_once:
            return
        with used_topics(self.options.root, self.options.storage) as topics:
            BatchCommit(topics, self.options, staged, batch).run()
            # This process may end soon, and with it the thread that writes checkpoints.
            topics.checkpointer.drain(_DRAIN_SECONDS)

    def _checked(
        self, iterator: Iterator[pa.RecordBatch], infos: _Infos, names: set[str]
    ) -> Iterator[pa.RecordBatch]:
        now_ms = Runtime().clock.time_ms()
        for item in iterator:
            if item.num_rows:
                normal = self._normal(item, now_ms)
                names |= infos.check(normal)
                yield normal

    def _normal(self, item: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
        """A batch of Spark's with the columns of the staging files."""
        count = item.num_rows
        have = {name: item.column(index) for index, name in enumerate(item.schema.names)}
        by_lower = {name.lower(): name for name in have}

        def column(name: str, kind: pa.DataType) -> pa.Array:
            found = by_lower.get(name)
            return pa.nulls(count, kind) if found is None else have[found].cast(kind)

        topic = column("topic", pa.string())
        if self.options.topic is not None:
            # As in Spark's Kafka sink: the option wins over the column.
            topic = pa.repeat(pa.scalar(self.options.topic, pa.string()), count)
        elif topic.null_count:
            raise InvalidRequestError(
                "a row has a null topic; give every row a topic, or set the option 'topic' for all"
            )
        stamps = column("timestamp", TIMESTAMP_TYPE)
        micros = stamps.view(pa.int64()).fill_null(now_ms * 1000).to_numpy(zero_copy_only=False)
        if count and (micros.min() < 0 or micros.max() > MAX_TIMESTAMP_MS * 1000 + 999):
            raise InvalidRequestError("a row's timestamp is before 1970 or after the year 9999")
        whole = pa.array(micros // 1000 * 1000).view(TIMESTAMP_TYPE)
        return pa.RecordBatch.from_arrays(
            [
                topic,
                column("partition", pa.int32()),
                column("key", pa.binary()),
                column("value", pa.binary()),
                whole,
                column("headers", HEADERS_TYPE),
            ],
            schema=_STAGED,
        )

    def _append_directly(
        self,
        iterator: Iterator[pa.RecordBatch],
        query: str,
        batch: int,
        task: int,
        topics: Topics,
    ) -> Staged:
        infos = _Infos(topics)
        waiting: list[pa.RecordBatch] = []
        size = 0

        def flush() -> None:
            counts = {name: info.partitions for name, info in infos.all.items()}
            parts = _by_partition(waiting, counts, batch, self.options.partitioner)
            for (name, number), part in parts:
                append(topics, self.options, infos.all[name], number, part(), None, Runtime())

        for item in self._checked(iterator, infos, set()):
            if waiting and size + item.nbytes > _STAGE_BYTES:
                flush()
                waiting, size = [], 0
            waiting.append(item)
            size += item.nbytes
        flush()
        topics.checkpointer.drain(_DRAIN_SECONDS)
        return Staged(query, task, (), ())


def _files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Buffer]:
    """Batches as Arrow streams, each of a bounded size."""
    sink = pa.BufferOutputStream()
    stream: Any = None
    for item in batches:
        if stream is not None and sink.tell() + item.nbytes > _STAGE_BYTES:
            stream.close()
            yield sink.getvalue()
            sink, stream = pa.BufferOutputStream(), None
        if stream is None:
            stream = pa.ipc.new_stream(sink, _STAGED)
        stream.write_batch(item)
    if stream is not None:
        stream.close()
        yield sink.getvalue()


class StreamWriter(DataSourceStreamArrowWriter, _Writer):
    """`writeStream.format("streamlog")`."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _Writer.__init__(self, options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if not self.options.exactly_once:
            return self.stage(iterator, query or "", int(batch or 0))
        if not query or batch is None:
            raise InvalidRequestError(
                "this Spark does not tell its tasks the query's id, which exactly-once needs; use "
                ".option('delivery', 'at-least-once')"
            )
        return self.stage(iterator, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.finish(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """W4: nothing. A commit that failed half way is finished from what was staged."""


class BatchWriter(DataSourceArrowWriter, _Writer):
    """`write.format("streamlog")`; its own id stands for the query's."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        _Writer.__init__(self, options, schema)
        self.job = "batch-" + Runtime().ids.new()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.stage(iterator, self.job, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.finish(messages, 0)
        self._forget()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # A job is never replayed: another run of it has another id.
        self._forget()

    def _forget(self) -> None:
        if self.options.exactly_once:
            with used_topics(self.options.root, self.options.storage) as topics:
                _best_effort(lambda: topics.objects.delete_tree(staging(self.job)))


class BatchCommit:
    """One batch on its way into its topics."""

    def __init__(
        self,
        topics: Topics,
        options: SinkOptions,
        staged: Sequence[Staged],
        batch: int,
        runtime: Runtime | None = None,
    ) -> None:
        self._topics = topics
        self._objects = topics.objects
        self._options = options
        self._staged = sorted(staged, key=lambda item: item.task)
        self._query = staged[0].query
        self._batch = batch
        self._runtime = runtime or Runtime()
        self._path = manifest_path(self._query, batch)

    def run(self) -> None:
        """Does what is left to do; doing it again does nothing."""
        if not self._is_done():
            manifest = self._manifest()
            if manifest is None:
                return
            if self._write(manifest):
                self._persist(self._put_done)
        _best_effort(self._clean_up)

    def _put_done(self) -> None:
        # Only what is certainly there lets the staged files go (S3 may say "exists" of nothing).
        won = self._objects.put_if_absent(self._path + _DONE, b"", durable=True)
        if not won and not self._is_done():
            raise UnavailableError(f"{self._path}{_DONE}: said to exist, but it is not there")

    def _is_done(self) -> bool:
        return self._objects.head(self._path + _DONE) is not None

    def _write(self, manifest: Mapping[str, Any]) -> bool:
        """Appends all pieces; False if another driver turns out to have finished the batch."""
        about: Mapping[str, Mapping[str, Any]] = manifest["topics"]
        infos = {name: self._info(name, item["id"]) for name, item in about.items()}
        counts = {name: int(item["partitions"]) for name, item in about.items()}
        # At once, and not one after the other: each waits for its own disk or store.
        with ThreadPoolExecutor(_WORKERS, "streamlog-sink") as pool:
            for number, files in enumerate(manifest["pieces"]):
                batches: list[pa.RecordBatch] = []
                for path, data in zip(files, pool.map(self._objects.get, files), strict=True):
                    if data is None:
                        return self._missing(path)
                    with pa.ipc.open_stream(pa.BufferReader(data)) as stream:
                        batches += stream
                mark = AppMark(_QUERY_PREFIX + self._query, self._batch * _PIECES + number + 1)
                parts = _by_partition(batches, counts, self._batch, manifest["partitioner"])
                appends = [
                    pool.submit(self._append, infos[name], partition, part, mark)
                    for (name, partition), part in parts
                ]
                # All of them, also if one failed: none may still run when the batch is tried again.
                wait(appends)
                for done in appends:
                    done.result()
        return True

    def _append(
        self, info: TopicInfo, partition: int, part: Callable[[], RecordColumns], mark: AppMark
    ) -> None:
        append(self._topics, self._options, info, partition, part(), mark, self._runtime)

    def _missing(self, path: str) -> bool:
        if self._is_done():
            return False
        raise InvalidRequestError(
            f"{path}, staged for batch {self._batch}, is gone, and the batch is not finished: was it "
            "removed by hand? The rest of the batch cannot be written; start the query with a new "
            "checkpoint"
        )

    def _manifest(self) -> dict[str, Any] | None:
        """W1: the first one that was put; None if there is none and nothing to write."""
        if (found := self._load()) is not None:
            return found
        files = [file for item in self._staged for file in item.files]
        if not files:
            return None
        names = sorted({name for item in self._staged for name in item.topics})
        infos = {name: self._topics.get(name, refresh=True) for name in names}
        mine = {
            "pieces": _pieces(files),
            "topics": {n: {"id": i.id, "partitions": i.partitions} for n, i in infos.items()},
            "partitioner": self._options.partitioner,
        }
        data = json.dumps(mine).encode()

        def put() -> dict[str, Any]:
            # Lost, won or unclear: what is there counts.
            self._objects.put_if_absent(self._path, data, durable=True)
            if (first := self._load()) is None:
                raise UnavailableError(f"{self._path}: said to exist, but it is not there")
            return first

        return self._persist(put)

    def _load(self) -> dict[str, Any] | None:
        data = self._objects.get(self._path)
        return None if data is None else dict(json.loads(data))

    def _persist(self, act: Callable[[], T]) -> T:
        """An act that may be done again, until the store answers or patience ends."""
        deadline = self._runtime.clock.monotonic() + _PATIENCE_SECONDS
        pause = Backoff(self._runtime, deadline, f"batch {self._batch} of query {self._query}")
        while True:
            try:
                return act()
            except UnavailableError as error:
                if not error.retriable:
                    raise
                pause.after_failure(error)

    def _info(self, name: str, topic_id: str) -> TopicInfo:
        try:
            info = self._topics.get(name, refresh=True)
        except TopicNotFoundError:
            info = None
        if info is None or info.id != topic_id:
            raise TopicDeletedError(
                f"topic {name!r} was deleted{' and made again' if info else ''} while batch "
                f"{self._batch} was written; what is left of the batch belongs to the old topic. Start "
                "the query with a new checkpoint"
            )
        return info

    def _clean_up(self) -> None:
        """W4: files that were staged up to this batch, and manifests that Spark can no longer ask for."""
        gone = []
        for info in self._objects.list(staging(self._query)):
            name = info.path.rpartition("/")[2]
            number = name[:10]
            if not number.isdigit():
                continue
            staged = name.endswith(".arrow") and int(number) <= self._batch
            if staged or int(number) < self._batch - _KEPT_MANIFESTS:
                gone.append(info.path)
        self._objects.delete(gone)
        if self._batch % _CLEAN_EVERY == 0:
            clean(self._topics)


def _pieces(files: Sequence[tuple[str, int]]) -> list[list[str]]:
    """Files in their order, as many a piece as the driver reads at once."""
    pieces: list[list[str]] = []
    size = 0
    for path, length in files:
        if not pieces or size + length > _PIECE_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(path)
        size += length
    return pieces


def _best_effort(act: Callable[[], object]) -> None:
    """Tidying must not fail a batch that is written."""
    try:
        act()
    except StreamlogError as error:
        _log.warning("staged files stay for now: %s", error)


class _Infos:
    """Topics as a task knows them, and the checks that can be made before the driver commits."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.all: dict[str, TopicInfo] = {}

    def check(self, batch: pa.RecordBatch) -> set[str]:
        """The names of the topics in a batch; errors are raised here, before anything is written."""
        names = {name for name in batch.column("topic").unique().to_pylist() if name is not None}
        for name in names:
            if name not in self.all:
                self.all[name] = self._topics.get(name, refresh=True)
        for name in names:
            import pyarrow.compute as pc

            rows = batch
            if len(names) > 1:
                rows = batch.filter(pc.equal(batch.column("topic"), name))
            _check_rows(self.all[name], rows)
        return names


def _check_rows(info: TopicInfo, rows: pa.RecordBatch) -> None:
    sizes = _lengths(rows.column("key")) + _lengths(rows.column("value"))
    headers = rows.column("headers")
    if headers.null_count < len(headers):
        sizes = sizes + _header_sizes(info, headers)
    largest = int(sizes.max())
    if largest > info.config.max_message_bytes:
        raise RecordTooLargeError(
            f"a row for topic {info.name!r} has {largest} bytes; its max.message.bytes is "
            f"{info.config.max_message_bytes}: raise it, or cut the row"
        )
    if "compact" in info.config.cleanup_policy and rows.column("key").null_count:
        raise InvalidRequestError(
            f"topic {info.name!r} is compacted, so every row needs a key; some have none"
        )
    given = rows.column("partition").drop_null().to_numpy()
    if len(given) and (given.min() < 0 or given.max() >= info.partitions):
        raise PartitionNotFoundError(
            f"a row names partition {int(given.min() if given.min() < 0 else given.max())} of topic "
            f"{info.name!r}, which has 0 to {info.partitions - 1}"
        )


def _header_sizes(info: TopicInfo, headers: pa.Array) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    entries = headers.flatten()
    if entries.null_count or entries.field("key").null_count:
        raise InvalidRequestError(
            f"a row for topic {info.name!r} has a header without a key; give every header one"
        )
    each = _lengths(entries.field("key")) + _lengths(entries.field("value"))
    ends = np.cumsum(np.concatenate(([0], each)))
    counts = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False)
    stops = np.cumsum(np.concatenate(([0], counts)))
    found: NDArray[np.int64] = ends[stops[1:]] - ends[stops[:-1]]
    return found


def append(
    topics: Topics,
    options: SinkOptions,
    info: TopicInfo,
    number: int,
    columns: RecordColumns,
    mark: AppMark | None,
    runtime: Runtime,
) -> None:
    """One append to one partition."""
    if info.config.message_timestamp_type == "LogAppendTime":
        now_us = runtime.clock.time_ms() * 1000
        stamps = pa.array(np.full(len(columns), now_us)).view(TIMESTAMP_TYPE)
        columns = RecordColumns(columns.key, columns.value, stamps, columns.headers)
    topics.partition_log(info, number).append(
        columns,
        durable=options.acks != "1",
        compression=options.compression or info.config.compression_type,
        app=mark,
        deadline=runtime.clock.monotonic() + _PATIENCE_SECONDS,
    )


def _by_partition(
    batches: Sequence[pa.RecordBatch],
    counts: Mapping[str, int],
    batch: int,
    partitioner: str,
) -> Iterator[tuple[tuple[str, int], Callable[[], RecordColumns]]]:
    """Staged rows by topic and partition, in their order; `counts` are the topics' partitions.

    A partition's rows are copied when they are asked for: several threads do that at once.
    """
    if not batches:
        return
    import pyarrow.compute as pc

    table = pa.Table.from_batches(batches)
    for name in sorted(counts):
        rows = table if len(counts) == 1 else table.filter(pc.equal(table["topic"], name))
        if rows.num_rows == 0:
            continue
        # One chunk: a piece is far below the 2 GB where Arrow would keep several.
        (chunk,) = rows.combine_chunks().to_batches()
        columns = RecordColumns(
            key=chunk.column("key"),
            value=chunk.column("value"),
            timestamp=chunk.column("timestamp"),
            headers=chunk.column("headers"),
        )
        assigned = _assign(chunk, counts[name], batch, partitioner)
        for number in np.unique(assigned).tolist():
            yield (name, int(number)), partial(_rows_of, columns, assigned, int(number))


def _rows_of(columns: RecordColumns, assigned: NDArray[np.int64], partition: int) -> RecordColumns:
    places = np.flatnonzero(assigned == partition)
    return columns if len(places) == len(columns) else columns.take(pa.array(places))


def _assign(
    chunk: pa.RecordBatch, partitions: int, batch: int, partitioner: str
) -> NDArray[np.int64]:
    keys, values = chunk.column("key"), chunk.column("value")
    if partitioner == "roundrobin":
        assigned = (np.arange(len(keys), dtype=np.int64) + batch) % partitions
    else:
        assigned = partitions_for(keys, partitions).astype(np.int64)
        if keys.null_count:
            # W3: by the value, turned on by the batch, so that a hot value does not always hit one.
            spread = (partitions_for(values, partitions).astype(np.int64) + batch) % partitions
            assigned = np.where(keys.is_null().to_numpy(zero_copy_only=False), spread, assigned)
    explicit = chunk.column("partition")
    if explicit.null_count == len(explicit):
        return assigned
    given = explicit.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.where(given < 0, assigned, given).astype(np.int64)


def _lengths(column: pa.Array) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    found: NDArray[np.int64] = (
        pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return found


_DONE = ".done"


def staging(query: str) -> str:
    """The folder of what a query stages."""
    return f"{paths.STAGING_DIR}/{query}"


def manifest_path(query: str, batch: int) -> str:
    """The manifest of a batch."""
    return f"{staging(query)}/{batch:010d}.json"


def clean(topics: Topics, older_than: float = 7 * 86_400.0) -> list[str]:
    """W4: removes what queries staged that were silent for `older_than` seconds; returns their ids."""
    objects = topics.objects
    limit = objects.store_time() - older_than
    newest: dict[str, float] = {}
    for info in objects.list(paths.STAGING_DIR):
        query = info.path.split("/")[1]
        newest[query] = max(newest.get(query, 0.0), info.modified)
    dead = sorted(query for query, modified in newest.items() if modified < limit)
    for query in dead:
        objects.delete_tree(staging(query))
    return dead


_TEXT: tuple[type[DataType], ...] = (StringType, BinaryType)


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Refuses columns that cannot be written, on the driver, before a task runs."""
    fields = {field.name.lower(): field.dataType for field in schema.fields}
    if len(fields) != len(schema.fields):
        raise InvalidRequestError(
            f"two columns have the same name: {', '.join(f.name for f in schema.fields)}; select one"
        )
    allowed = ("key", "value", "headers", "topic", "partition", "timestamp")
    # The source's own columns pass, so that a topic can be copied as it was read.
    unknown = sorted(set(fields) - {*allowed, "offset", "timestamptype"})
    if unknown:
        raise InvalidRequestError(
            f"the sink has no column {unknown[0]!r}; select {', '.join(allowed)} (value is required)"
        )
    if "value" not in fields:
        raise InvalidRequestError(
            "the rows have no column 'value'; select one, as string or binary"
        )
    if options.topic is None and "topic" not in fields:
        raise InvalidRequestError(
            "no topic: give a column 'topic', or the option 'topic' for all rows"
        )
    for name in ("key", "value"):
        if name in fields and not isinstance(fields[name], _TEXT):
            raise InvalidRequestError(
                f"column {name!r} is {fields[name].simpleString()}; it must be string or binary: "
                "CAST it, or use to_json"
            )
    wanted = {"topic": "string", "partition": "int", "timestamp": "timestamp"}
    for name, kind in wanted.items():
        if name in fields and fields[name].simpleString() != kind:
            raise InvalidRequestError(
                f"column {name!r} is {fields[name].simpleString()}; it must be {kind}"
            )
    if "headers" in fields:
        found = fields["headers"]
        item = found.elementType if isinstance(found, ArrayType) else None
        if (
            not isinstance(item, StructType)
            or item.names != ["key", "value"]
            or not isinstance(item["key"].dataType, StringType)
            or not isinstance(item["value"].dataType, BinaryType)
        ):
            raise InvalidRequestError(
                f"column 'headers' is {found.simpleString()}; it must be "
                "array<struct<key: string, value: binary>>"
            )

"""Reading topics from Spark, as a stream and as a batch, with the columns of Spark's Kafka source.

Both range over offsets, never over files, so compaction and retention under a running query are harmless.
A stream's offset is `{topic: {partition: next offset}}`, as Spark's Kafka source writes it into its
checkpoint. Everything here runs in Python workers of the driver, but for `read`, which runs in tasks.

Q1  A batch's range is decided once (`latestOffset`) and read exactly: `partitions` cuts it into tasks, and a
    task returns all records of its range or fails.
Q2  Offsets that are gone (retention) are an error with `failOnDataLoss`, else they are skipped and said so.
Q3  A topic that was deleted and made again is another one: its offsets start anew, which is data loss.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from streamlog.clock import Runtime
from streamlog.errors import (
    GroupActiveError,
    InvalidRequestError,
    OutOfRangeError,
    PartitionNotFoundError,
    StreamlogError,
    TopicDeletedError,
    TopicNotFoundError,
)
from streamlog.log.topics import TopicInfo, Topics
from streamlog.model import TopicPartition
from streamlog.schema import HEADERS_TYPE, TIMESTAMP_TYPE
from streamlog.spark.kept import KeptTopics, open_topics, used_topics
from streamlog.spark.options import EARLIEST, LATEST, Place, SourceOptions

_log = logging.getLogger(__name__)

_BATCH_RECORDS = 50_000
_BATCH_BYTES = 32 << 20
# Ranges of together no more records than this are one task's.
_SHARED_RECORDS = 1000
_CREATE_TIME, _LOG_APPEND_TIME = 0, 1

_FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", TIMESTAMP_TYPE),
    pa.field("timestampType", pa.int32()),
]
_HEADERS_FIELD = pa.field("headers", HEADERS_TYPE)

Offsets = dict[TopicPartition, int]
_Spans = Mapping[TopicPartition, tuple[int, int]]

if TYPE_CHECKING:
    from streamlog.consumer.group.store import GroupStore


def spark_schema(*, headers: bool) -> StructType:
    """The columns of Spark's Kafka source, made without a JVM."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if headers:
        header = [StructField("key", StringType()), StructField("value", BinaryType())]
        fields.append(StructField("headers", ArrayType(StructType(header))))
    return StructType(fields)


@dataclass(frozen=True)
class Range:
    """Offsets [start, end) of a partition, and times where a filter bounds them."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    min_time_us: int | None = None
    max_time_us: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start},{self.end})"


@dataclass(frozen=True)
class Task(InputPartition):
    """What one task reads: one range, or several short ones after another."""

    ranges: tuple[Range, ...]

    @property
    def value(self) -> str:  # what Spark shows of an input partition
        return ", ".join(map(str, self.ranges))


class RangeReader:
    """Reads ranges of offsets as Arrow batches; used by tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        fields = [*_FIELDS, _HEADERS_FIELD] if options.headers else _FIELDS
        self._schema = pa.schema(fields)

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """All records of a task's ranges, each in order."""
        if not task.ranges:
            return
        with used_topics(self._options.root, self._options.storage) as topics:
            for part in task.ranges:
                yield from self._range(topics, part)

    def _range(self, topics: Topics, part: Range) -> Iterator[pa.RecordBatch]:
        options = self._options
        try:
            info = topics.get(part.topic, refresh=True)
            if info.id != part.topic_id:
                raise TopicDeletedError(f"topic {part.topic!r} was made again")
            reader = topics.partition_reader(info, part.partition)
            reader.refresh()
        except (TopicNotFoundError, TopicDeletedError) as error:
            lost(options, f"topic {part.topic!r} was deleted while it was read ({error})")
            return
        kind = info.config.message_timestamp_type
        stamp_type = _LOG_APPEND_TIME if kind == "LogAppendTime" else _CREATE_TIME
        where = f"{part.topic}-{part.partition}"
        if reader.end < part.end:
            lost(options, f"{where} ends at {reader.end}, but offsets up to {part.end} were there")
        position = part.start
        while position < min(part.end, reader.end):
            if position < reader.start:
                top = min(reader.start, part.end)
                lost(options, f"{where}: {removed(position, top)}")
                position = top
                continue
            try:
                rows = reader.read(
                    position,
                    max_records=min(_BATCH_RECORDS, part.end - position),
                    max_bytes=_BATCH_BYTES,
                )
            except OutOfRangeError:
                if position >= reader.start:
                    raise
                continue  # truncated under this very read: said above
            except TopicDeletedError as error:
                lost(options, f"topic {part.topic!r} was deleted while it was read ({error})")
                return
            if rows is None:
                return
            last = int(rows.column("offset")[-1].as_py())
            position = last + 1
            if last >= part.end:
                # Behind a gap the next records lie beyond this task's range.
                inside = int((rows.column("offset").to_numpy() < part.end).sum())
                rows = rows.slice(0, inside)
            rows = _within_time(rows, part)
            if rows.num_rows:
                yield self._batch(part, rows, stamp_type)

    def _batch(self, part: Range, rows: pa.RecordBatch, stamp_type: int) -> pa.RecordBatch:
        count = rows.num_rows
        columns = [
            rows.column("key"),
            rows.column("value"),
            pa.repeat(part.topic, count),
            pa.repeat(pa.scalar(part.partition, pa.int32()), count),
            rows.column("offset"),
            rows.column("timestamp"),
            pa.repeat(pa.scalar(stamp_type, pa.int32()), count),
        ]
        if self._options.headers:
            columns.append(rows.column("headers"))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def removed(low: int, high: int) -> str:
    """What became of offsets [low, high)."""
    return f"offsets {low} to {high - 1} were removed before they were read (retention or truncate)"


def lost(options: SourceOptions, what: str) -> None:
    """Q2: an error that stops the query, or a warning."""
    if options.fail_on_data_loss:
        raise OutOfRangeError(
            f"{what}. The query stops, because failOnDataLoss is true; set it to false to go on with "
            "what is there"
        )
    _log.warning("%s; going on, because failOnDataLoss is false", what)


def _within_time(rows: pa.RecordBatch, part: Range) -> pa.RecordBatch:
    if part.min_time_us is None and part.max_time_us is None:
        return rows
    micros = rows.column("timestamp").view(pa.int64()).to_numpy()
    wanted = micros >= (part.min_time_us if part.min_time_us is not None else 0)
    if part.max_time_us is not None:
        wanted &= micros <= part.max_time_us
    return rows if wanted.all() else rows.filter(pa.array(wanted))


class Planner:
    """Which partitions there are, where they begin and end, and how ranges are cut. On the driver."""

    def __init__(self, options: SourceOptions, topics: KeptTopics) -> None:
        self.options = options
        self.topics = topics

    def partitions(self, *, gone: bool = False) -> dict[TopicPartition, TopicInfo]:
        """The partitions to read, as of now; with `gone`, topics that are not there are left out."""
        options = self.options
        live = {info.name: info for info in self.topics.list(refresh=True)}
        if options.pattern is not None:
            pattern = re.compile(options.pattern)
            return _all_of(info for info in live.values() if pattern.fullmatch(info.name))
        named = options.topics or tuple(dict.fromkeys(tp.topic for tp in options.partitions))
        if gone:
            named = tuple(name for name in named if name in live)
        infos = {name: live.get(name) or self.topics.get(name) for name in named}
        if not options.partitions:
            return _all_of(infos.values())
        chosen = {tp: infos[tp.topic] for tp in options.partitions if tp.topic in infos}
        for tp, info in chosen.items():
            if tp.partition >= info.partitions:
                raise PartitionNotFoundError(
                    f"assign names {tp}, but topic {tp.topic!r} has {info.partitions} partitions, from 0"
                )
        return chosen

    def spans(self, infos: _Infos) -> dict[TopicPartition, tuple[int, int]]:
        """Log start and end of partitions."""
        tps = list(infos)
        answers = self.topics.ask(
            [(infos[tp], tp.partition) for tp in tps], lambda reader: (reader.start, reader.end)
        )
        return dict(zip(tps, answers, strict=True))

    def check(self, place: Place, infos: _Infos, *, end: bool) -> None:
        """Refuses a place that does not name exactly the partitions that are read."""
        given = place.offsets if place.offsets is not None else place.times
        if given is None:
            return
        name = f"{'ending' if end else 'starting'}Offsets{'' if place.times is None else 'ByTimestamp'}"
        if unknown := sorted(set(given) - set(infos)):
            raise InvalidRequestError(
                f"{name} names {unknown[0]}, which is not read by this query; name the partitions of the "
                "subscribed topics"
            )
        if missing := sorted(set(infos) - set(given)):
            words = "" if place.offsets is None else " (-2 is earliest, -1 is latest)"
            raise InvalidRequestError(
                f"{name} says nothing about {missing[0]}; give all partitions{words}"
            )

    def resolve(self, place: Place, infos: _Infos, spans: _Spans, *, end: bool) -> Offsets:
        """The offsets that a place means, for these partitions."""
        if place.time is not None or place.times is not None:
            return self._by_time(place, infos, spans, end=end)
        if place.word == "group":
            return self._of_group(infos, spans)
        if place.offsets is None:
            index = 0 if place.word == "earliest" else 1
            return {tp: span[index] for tp, span in spans.items()}
        found: Offsets = {}
        for tp, (start, stop) in spans.items():
            offset = place.offsets[tp]
            if offset == EARLIEST:
                offset = start
            elif offset == LATEST:
                offset = stop
            elif not start <= offset <= stop:
                if self.options.fail_on_data_loss:
                    raise OutOfRangeError(
                        f"{tp}: offset {offset} is not in the log, which is [{start}, {stop}); give one "
                        "that is, or set failOnDataLoss=false to take the nearest"
                    )
                offset = min(max(offset, start), stop)
            found[tp] = offset
        return found

    def _by_time(self, place: Place, infos: _Infos, spans: _Spans, *, end: bool) -> Offsets:
        found: Offsets = {}
        times = place.times
        for tp, info in infos.items():
            moment = place.time if times is None else times[tp]
            assert moment is not None
            reader = self.topics.partition_reader(info, tp.partition)
            reader.refresh()
            hit = reader.offset_for_time(moment)
            if hit is not None:
                found[tp] = hit[0]
            elif end or self.options.no_match == "latest":
                found[tp] = spans[tp][1]
            else:
                raise InvalidRequestError(
                    f"{tp}: no record is as young as {moment} ms; set "
                    "startingOffsetsByTimestampStrategy=latest to begin at the end then"
                )
        self.topics.release()
        return found

    def _of_group(self, infos: _Infos, spans: _Spans) -> Offsets:
        assert self.options.group is not None
        _, committed = group_store(self.topics, self.options.group).read()
        found: Offsets = {}
        for tp, info in infos.items():
            known = committed.get(tp)
            start, stop = spans[tp]
            if known is None or known.topic_id != info.id:
                found[tp] = start
            else:
                found[tp] = min(max(known.offset, start), stop)
        return found

    def cut(
        self,
        infos: _Infos,
        ranges: _Spans,
        times: tuple[int | None, int | None] = (None, None),
    ) -> list[Task]:
        """Tasks: at least `minPartitions`, none above `maxRecordsPerPartition`, by offsets.

        Ranges of few records share a task: starting one costs more than reading them.
        """
        options = self.options
        counts = [end - start for start, end in ranges.values() if end > start]
        total = sum(counts)
        largest = options.max_records or total
        wanted = options.min_partitions or 0
        if total and sum(-(-count // largest) for count in counts) < wanted:
            largest = max(1, total // wanted)
        found = []
        for tp in sorted(ranges):
            start, end = ranges[tp]
            count = end - start
            if count <= 0:
                continue
            pieces = -(-count // largest)
            for piece in range(pieces):
                low = start + count * piece // pieces
                high = start + count * (piece + 1) // pieces
                found.append(Range(tp.topic, infos[tp].id, tp.partition, low, high, *times))
        return _shared(found, 0 if wanted else min(largest, _SHARED_RECORDS))


def _shared(ranges: Iterable[Range], most: int) -> list[Task]:
    """Neighbours of together at most so many records in one task."""
    groups: list[list[Range]] = []
    size = 0
    for part in ranges:
        count = part.end - part.start
        if not groups or size + count > most:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += count
    return [Task(tuple(group)) for group in groups]


_Infos = Mapping[TopicPartition, TopicInfo]


def _all_of(infos: Iterable[TopicInfo]) -> dict[TopicPartition, TopicInfo]:
    return {TopicPartition(i.name, number): i for i in infos for number in range(i.partitions)}


class BatchReader(DataSourceReader):
    """`spark.read.format("streamlog")`."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._bounds = _Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Bounds on offset, timestamp, partition and topic cut the ranges; the rest is Spark's."""
        for item in filters:
            # Kept for Spark too: a bound only leaves out what cannot match.
            self._bounds.add(item)
            yield item

    def partitions(self) -> Sequence[InputPartition]:
        with used_topics(self.options.root, self.options.storage) as topics:
            return self._tasks(Planner(self.options, topics))

    def _tasks(self, planner: Planner) -> list[Task]:
        infos = planner.partitions()
        start, end = self.options.start, self.options.end
        planner.check(start, infos, end=False)
        planner.check(end, infos, end=True)
        # Partitions that a filter leaves out are not even opened.
        infos = {tp: info for tp, info in infos.items() if self._bounds.admits(tp)}
        spans = planner.spans(infos)
        starts = planner.resolve(start, infos, spans, end=False)
        ends = planner.resolve(end, infos, spans, end=True)
        ranges = {
            tp: self._bounds.narrow(starts[tp], ends[tp]) for tp in infos if starts[tp] < ends[tp]
        }
        # An empty read still needs one task to tell its schema.
        return planner.cut(infos, ranges, self._bounds.times) or [Task(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return RangeReader(self.options).read(partition)


class _Bounds:
    """What filters say about the range of a scan; everything else stays Spark's business."""

    def __init__(self) -> None:
        self.low, self.high = 0, 2**63 - 1
        self.min_us: int | None = None
        self.max_us: int | None = None
        self.topics: set[str] | None = None
        self.partitions: set[int] | None = None

    @property
    def times(self) -> tuple[int | None, int | None]:
        return self.min_us, self.max_us

    def admits(self, tp: TopicPartition) -> bool:
        return (self.topics is None or tp.topic in self.topics) and (
            self.partitions is None or tp.partition in self.partitions
        )

    def narrow(self, start: int, end: int) -> tuple[int, int]:
        low = max(start, self.low)
        return low, max(low, min(end, self.high))

    def add(self, item: Filter) -> None:
        column = getattr(item, "attribute", None)
        if column == ("offset",):
            self._offset(item)
        elif column == ("timestamp",):
            self._time(item)
        elif column == ("topic",) and (names := _values(item)) is not None:
            self.topics = names if self.topics is None else self.topics & names
        elif column == ("partition",) and (numbers := _values(item)) is not None:
            self.partitions = numbers if self.partitions is None else self.partitions & numbers

    def _offset(self, item: Filter) -> None:
        if isinstance(item, EqualTo):
            self.low, self.high = max(self.low, item.value), min(self.high, item.value + 1)
        elif isinstance(item, GreaterThan):
            self.low = max(self.low, item.value + 1)
        elif isinstance(item, GreaterThanOrEqual):
            self.low = max(self.low, item.value)
        elif isinstance(item, LessThan):
            self.high = min(self.high, item.value)
        elif isinstance(item, LessThanOrEqual):
            self.high = min(self.high, item.value + 1)

    def _time(self, item: Filter) -> None:
        micros = _micros(getattr(item, "value", None))
        if micros is None:
            return
        if isinstance(item, GreaterThan | GreaterThanOrEqual | EqualTo):
            self.min_us = micros if self.min_us is None else max(self.min_us, micros)
        if isinstance(item, LessThan | LessThanOrEqual | EqualTo):
            self.max_us = micros if self.max_us is None else min(self.max_us, micros)


def _values(item: Filter) -> set[Any] | None:
    if isinstance(item, EqualTo):
        return {item.value}
    if isinstance(item, In):
        return set(item.value)
    return None


def _micros(value: object) -> int | None:
    if not isinstance(value, datetime):
        return None
    aware = value if value.tzinfo is not None else value.astimezone()
    # By whole numbers: a float holds microseconds exactly only up to the year 2255.
    return (aware - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("streamlog")`."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._planner: Planner | None = None
        self._frozen: Offsets | None = None
        self._shown: dict[str, Any] | None = None
        self._triggered: float | None = None
        self._clock = Runtime().clock

    # Spark pickles the reader to its tasks; what only the driver needs stays behind.
    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:
        planner = self._plan()
        infos = planner.partitions()
        planner.check(self.options.start, infos, end=False)
        spans = planner.spans(infos)
        return _to_json(planner.resolve(self.options.start, infos, spans, end=False), infos)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.min_offsets is not None:
            return ReadMinRows(self.options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        _, self._frozen = self._ends()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        infos, ends = self._ends()
        return _to_json(ends, infos)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # Asked for the next batch, Spark has finished those before it.
        self.commit(start)
        infos, ends = self._ends()
        begin = self._begin(start, infos)
        for tp, end in ends.items():
            if end < begin[tp]:
                self._lost(
                    f"{tp} ends at {end}, but was read up to {begin[tp]}: the log lost records"
                )
                begin[tp] = end
        if self._frozen is not None:
            # A partition that is newer than the query's start is the next run's.
            ends = {
                tp: max(begin[tp], min(end, self._frozen.get(tp, begin[tp])))
                for tp, end in ends.items()
            }
        if self._too_few(begin, ends, limit):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = _limited(begin, ends, limit.max_rows)
        return _to_json(ends, infos)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        planner = self._plan()
        infos = planner.partitions(gone=True)
        begin = self._begin(start, infos)
        last, ids = _from_json(end), _ids(end)
        alive: dict[TopicPartition, TopicInfo] = {}
        for tp in last:
            if tp in infos and infos[tp].id == ids[tp.topic]:
                alive[tp] = infos[tp]
        for topic in sorted({tp.topic for tp in last if tp not in alive}):
            self._lost(f"topic {topic!r} was deleted while the query ran")
        spans = planner.spans(alive)
        ranges = {}
        for tp in alive:
            low, stop = begin[tp], last[tp]
            log_start = spans[tp][0]
            if low < log_start and low < stop:
                top = min(log_start, stop)
                self._lost(f"{tp}: {removed(low, top)}")
                low = top
            ranges[tp] = (low, stop)
        return planner.cut(alive, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        return RangeReader(self.options).read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """The query's progress, shown as a group's; the query's own checkpoint stays the authority."""
        if self.options.group is None or end == self._shown:
            return
        from streamlog.consumer.group.store import OffsetToCommit

        planner = self._plan()
        infos = planner.partitions(gone=True)
        ids = _ids(end)
        items = [
            OffsetToCommit(infos[tp], tp.partition, offset)
            for tp, offset in _from_json(end).items()
            if tp in infos and infos[tp].id == ids[tp.topic]
        ]
        store = group_store(planner.topics, self.options.group)
        try:
            store.announce()
            store.commit(items, None, -1)
            self._shown = end
        except GroupActiveError:
            raise
        except StreamlogError as error:
            # The next batch commits again; progress shown late is no reason to stop a query.
            _log.warning("group %s: not committed: %s", self.options.group, error)

    def _plan(self) -> Planner:
        if self._planner is None:
            topics = open_topics(self.options.root, self.options.storage)
            self._planner = Planner(self.options, topics)
        return self._planner

    def _ends(self) -> tuple[dict[TopicPartition, TopicInfo], Offsets]:
        planner = self._plan()
        # A named topic that is gone is missed by `_begin`, which knows whether it was ever read.
        infos = planner.partitions(gone=True)
        return infos, {tp: span[1] for tp, span in planner.spans(infos).items()}

    def _begin(self, start: dict[str, Any], infos: _Infos) -> Offsets:
        """Where each partition is; one that joined a running query begins at 0."""
        known, ids = _from_json(start), _ids(start)
        now = {tp.topic: info.id for tp, info in infos.items()}
        for topic in sorted({tp.topic for tp in known}):
            if now.get(topic) != ids[topic]:
                again = "" if topic not in now else " and made again"
                self._lost(f"topic {topic!r} was deleted{again} while the query ran")
                known = {tp: offset for tp, offset in known.items() if tp.topic != topic}
        return {tp: known.get(tp, 0) for tp in infos}

    def _too_few(self, begin: Offsets, ends: Offsets, limit: ReadLimit) -> bool:
        """Whether to wait for `minOffsetsPerTrigger`; `maxTriggerDelay` after a trigger, no longer.

        As in Spark's Kafka source the first trigger never waits, nor does one that is to read all.
        """
        least = self.options.min_offsets
        if least is None or self._frozen is not None or isinstance(limit, ReadAllAvailable):
            return False
        available = sum(max(0, ends[tp] - begin[tp]) for tp in ends)
        now = self._clock.monotonic()
        last = self._triggered
        if (
            last is not None
            and available < least
            and (now - last) * 1000 < self.options.max_delay_ms
        ):
            return True
        self._triggered = now
        return False

    def _lost(self, what: str) -> None:
        lost(self.options, what)


def group_store(topics: Topics, group: str) -> GroupStore:
    """The table of a group."""
    # Here and not above: Spark starts a Python for every batch, and few queries have a group.
    from streamlog.config import validate_group_name
    from streamlog.consumer.group.store import GroupStore

    validate_group_name(group)
    return GroupStore(group, topics.objects, Runtime(), topics.checkpointer)


def _limited(begin: Offsets, ends: Offsets, rows: int) -> Offsets:
    """At most so many rows, in proportion to what each partition has, each a little at least."""
    available = {tp: max(0, ends[tp] - begin[tp]) for tp in ends}
    total = sum(available.values())
    if total <= rows:
        return ends
    limited: Offsets = {}
    left = rows
    for tp in sorted(ends, key=lambda tp: available[tp]):
        share = min(available[tp], max(1, rows * available[tp] // total), left)
        limited[tp] = begin[tp] + share
        left -= share
    return limited


# No topic can have this name.
_IDS = "#ids"


def _to_json(offsets: Offsets, infos: Mapping[TopicPartition, TopicInfo]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    found[_IDS] = {tp.topic: infos[tp].id for tp in sorted(offsets)}
    return found


def _from_json(data: Mapping[str, Any]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, numbers in data.items()
        if topic != _IDS
        for partition, offset in numbers.items()
    }


def _ids(data: Mapping[str, Any]) -> dict[str, str]:
    try:
        return dict(data[_IDS])
    except KeyError:
        raise InvalidRequestError(
            f"the checkpoint's offset {json.dumps(data)} was not written by format('streamlog'); start "
            "with a new checkpointLocation, and with startingOffsets to go on where the old query was"
        ) from None

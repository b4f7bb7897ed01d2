"""`PartitionReader`: any offset, any time, within bounds, decoding no more than it must."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamlog import batch, paths
from streamlog.batch import RecordColumns
from streamlog.errors import (
    CorruptLogError,
    OutOfRangeError,
    TopicDeletedError,
    UnavailableError,
)
from streamlog.log import commit as commits
from streamlog.log import reader as reader_module
from streamlog.log.commit import Segment
from streamlog.log.files import DataFile
from streamlog.log.reader import PartitionReader
from streamlog.log.versions import LOG_FLOOR_SECONDS
from streamlog.log.view import PartitionView
from streamlog.schema import MAX_TIMESTAMP_MS, RECORD_SCHEMA
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects
from tests.fakes import FakeClock, fake_runtime
from tests.fault.faulty import Fault, FaultyObjects, Script
from tests.partitions import T0, Meanwhile, Partition, append, columns, numbered, read_all

ALL = 1 << 30


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "disk"])
def objects(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Objects:
    root = f"memory://{tmp_path}" if request.param == "memory" else str(tmp_path / "root")
    return open_objects(root, None, fake_runtime(99, clock))


@pytest.fixture
def partition(objects: Objects, clock: FakeClock) -> Partition:
    return Partition(objects, fake_runtime(1, clock))


@pytest.fixture
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten records a row group."""
    monkeypatch.setattr(batch, "ROW_GROUP_RECORDS", 10)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The row groups decoded so far, as (first digits of the file's name, number)."""
    found: list[tuple[str, int]] = []
    real = DataFile.read

    def read(self: DataFile, groups: list[int]) -> pa.Table:
        found.extend((self.name.rsplit("/", 1)[-1][17:20], group) for group in groups)
        return real(self, groups)

    monkeypatch.setattr(DataFile, "read", read)
    return found


def fill(partition: Partition, files: int, records: int) -> list[tuple[int, bytes | None]]:
    """Files of so many records, one millisecond apart; what they hold."""
    log = partition.log()
    log.refresh()
    for _ in range(files):
        numbers = range(log.end, log.end + records)
        log.append(
            columns(*[b"%d" % n for n in numbers], timestamps=[T0 + n for n in numbers]),
            durable=False,
            compression="none",
        )
    return [(n, b"%d" % n) for n in range(log.end)]


def offsets(rows: pa.RecordBatch | None) -> list[int] | None:
    return None if rows is None else list(rows.column("offset").to_pylist())


def opened(objects: FaultyObjects) -> list[int]:
    """The first offsets of the data files opened so far."""
    names = [path.rsplit("/", 1)[-1] for operation, path in objects.calls if operation == "open"]
    return [number for name in names if (number := paths.parse_data_file(name)) is not None]


def rewrite(
    partition: Partition,
    gone: Sequence[Segment],
    parts: Iterable[Sequence[tuple[int, bytes | None]]],
    *,
    foreign: bool = False,
    delete: bool = True,
) -> None:
    """Replaces files: by streamlog's own rewrite, or as another engine does, without statistics."""
    runtime = partition.runtime
    view = PartitionView(partition.objects, partition.table, runtime)
    view.open()
    actions: list[dict[str, Any]] = [
        commits.remove_action(segment.path, segment.size, T0, data_change=False) for segment in gone
    ]
    for part in parts:
        numbers = [number for number, _ in part]
        table = pa.table(
            [
                pa.array(numbers, pa.int64()),
                pa.array([1000 * (T0 + n) for n in numbers]).view(pa.timestamp("us", tz="UTC")),
                pa.nulls(len(part), pa.binary()),
                pa.array([value for _, value in part], pa.binary()),
                pa.nulls(len(part), RECORD_SCHEMA.field("headers").type),
            ],
            schema=RECORD_SCHEMA,
        )
        body = batch.encode_table(table, "none")
        name = paths.data_file(min(numbers), runtime.ids.new())
        if foreign:
            name = f"part-{runtime.ids.new()}.parquet"
        partition.objects.put_new(f"{partition.table}/{name}", body, durable=False)
        low, high = min(numbers), max(numbers)
        times = 1000 * (T0 + low), 1000 * (T0 + high)
        segment = Segment(name, body.size, len(part), low, high, *times)
        action = commits.add_action(segment, T0, data_change=False)
        if foreign:
            del action["add"]["stats"]
        actions.append(action)
    data = commits.build(
        "rewrite",
        commit_id=runtime.ids.new(),
        previous=view.versions.commit_id,
        now_ms=T0,
        actions=actions,
    )
    if foreign:
        data = data.replace(b'"streamlog":{', b'"other":{').replace(b"STREAMLOG ", b"OPTIMIZE ")
    path = paths.commit_file(partition.table, view.versions.version + 1)
    assert partition.objects.put_if_absent(path, data, durable=False)
    if delete:
        partition.objects.delete([f"{partition.table}/{segment.path}" for segment in gone])


# offsets


def test_a_partition_nobody_wrote_to_is_empty(partition: Partition) -> None:
    reader = partition.topics.partition_reader(partition.info, 0)
    assert reader.refresh() is False
    assert (reader.start, reader.end, reader.version, reader.records) == (0, 0, -1, 0)
    assert reader.read(0, max_records=1, max_bytes=1) is None
    assert reader.offset_for_time(0) is None
    append(partition.log(), b"first")
    assert reader.refresh() is True
    assert read_all(reader) == [(0, b"first")]


def test_any_offset_can_be_read_from(partition: Partition) -> None:
    contents = fill(partition, 5, 4)
    reader = partition.reader()
    for start in [*range(21), *reversed(range(21))]:
        assert read_all(reader, start) == contents[start:]


def test_reading_at_the_end_finds_nothing_until_there_is_more(partition: Partition) -> None:
    fill(partition, 1, 3)
    reader = partition.reader()
    assert reader.read(3, max_records=10, max_bytes=ALL) is None
    append(partition.log(), b"new")
    assert reader.read(3, max_records=10, max_bytes=ALL) is None, "not before a refresh"
    assert reader.refresh() is True
    assert offsets(reader.read(3, max_records=10, max_bytes=ALL)) == [3]
    assert reader.refresh() is False


@pytest.mark.parametrize("offset", [-1, 4, 1 << 62])
def test_an_offset_outside_the_log_is_an_error(partition: Partition, offset: int) -> None:
    fill(partition, 1, 3)
    with pytest.raises(OutOfRangeError, match=rf"offset {offset} of topics/t/0 .* \[0, 3\)"):
        partition.reader().read(offset, max_records=1, max_bytes=1)


def test_a_refresh_without_news_is_one_request(partition: Partition) -> None:
    fill(partition, 3, 3)
    counting = FaultyObjects(partition.objects, Script())
    reader = partition.over(counting).reader()
    counting.calls.clear()
    assert reader.refresh() is False
    assert counting.calls == [("get", paths.commit_file("topics/t/0", 4))]


def test_a_deleted_topic_is_an_error(partition: Partition) -> None:
    fill(partition, 1, 3)
    reader = partition.reader()
    partition.log().seal()
    with pytest.raises(TopicDeletedError, match="topics/t/0 belongs to a topic that was deleted"):
        reader.refresh()


# bounds


@pytest.mark.parametrize("count", [1, 2, 3, 4, 100])
def test_at_most_so_many_records(partition: Partition, count: int) -> None:
    contents = fill(partition, 2, 4)
    reader = partition.reader()
    position, found = 0, []
    while (rows := reader.read(position, max_records=count, max_bytes=ALL)) is not None:
        assert 1 <= rows.num_rows <= count
        found += offsets(rows) or []
        position = found[-1] + 1
    assert found == [offset for offset, _ in contents]


def test_at_most_so_many_bytes_but_at_least_one_record(partition: Partition) -> None:
    rng = random.Random(5)
    keys = [rng.choice([None, b"", b"k" * rng.randrange(200)]) for _ in range(60)]
    values = [rng.choice([None, b"", b"v" * rng.randrange(900)]) for _ in range(60)]
    sizes = [len(key or b"") + len(value or b"") for key, value in zip(keys, values, strict=True)]
    partition.log().append(
        RecordColumns.of(keys, values, [T0] * 60), durable=False, compression="zstd"
    )
    reader = partition.reader()
    for limit in (1, 50, 300, 1000, 5000, 30_000):
        for start in range(60):
            got = offsets(reader.read(start, max_records=1000, max_bytes=limit))
            assert got is not None
            fits = 1
            while start + fits < 60 and sum(sizes[start : start + fits + 1]) <= limit:
                fits += 1
            if fits < len(got):
                # The whole row group is small enough: nothing is counted.
                assert sum(sizes) < limit
            else:
                assert got == list(range(start, start + fits))


def test_bytes_are_counted_where_all_keys_or_values_are_null(partition: Partition) -> None:
    values: list[bytes | None] = [b"x" * 100] * 10
    log = partition.log()
    log.append(RecordColumns.of([None] * 10, values, [T0] * 10), durable=False, compression="none")
    log.append(RecordColumns.of(values, [None] * 10, [T0] * 10), durable=False, compression="none")
    reader = partition.reader()
    assert offsets(reader.read(0, max_records=99, max_bytes=350)) == [0, 1, 2]
    assert offsets(reader.read(12, max_records=99, max_bytes=350)) == [12, 13, 14]


# pruning


def test_only_the_file_of_the_offset_is_opened(partition: Partition) -> None:
    fill(partition, 20, 5)
    counting = FaultyObjects(partition.objects, Script())
    reader = partition.over(counting).reader()
    assert opened(counting) == [], "opening a log looks into no data file"
    assert offsets(reader.read(52, max_records=2, max_bytes=ALL)) == [52, 53]
    assert opened(counting) == [50]
    assert offsets(reader.read(54, max_records=9, max_bytes=ALL)) == [54]
    assert opened(counting) == [50], "still open"
    assert offsets(reader.read(55, max_records=1, max_bytes=ALL)) == [55]
    assert opened(counting) == [50, 55]


def test_reading_through_opens_each_file_once(partition: Partition) -> None:
    contents = fill(partition, 40, 5)
    counting = FaultyObjects(partition.objects, Script())
    assert read_all(partition.over(counting).reader()) == contents
    assert opened(counting) == list(range(0, 200, 5))


@pytest.mark.usefixtures("small_row_groups")
def test_only_the_row_group_of_the_offset_is_decoded(
    partition: Partition, decoded: list[tuple[str, int]]
) -> None:
    fill(partition, 2, 45)
    reader = partition.reader()
    assert offsets(reader.read(27, max_records=2, max_bytes=ALL)) == [27, 28]
    assert decoded == [("000", 2)]
    assert offsets(reader.read(29, max_records=9, max_bytes=ALL)) == [29]
    assert decoded == [("000", 2)], "small reads do not decode it again"
    assert offsets(reader.read(88, max_records=9, max_bytes=ALL)) == [88, 89]
    assert decoded == [("000", 2), ("045", 4)]


@pytest.mark.usefixtures("small_row_groups")
def test_reading_through_decodes_each_row_group_once(
    partition: Partition, decoded: list[tuple[str, int]]
) -> None:
    contents = fill(partition, 2, 45)
    assert read_all(partition.reader()) == contents
    assert decoded == [(name, group) for name in ("000", "045") for group in range(5)]


def test_a_row_group_that_arrow_splits_is_read_whole(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond 2 GB of values Arrow hands out two batches; the second must not be passed over."""
    contents = fill(partition, 2, 10)
    real = DataFile.read

    class Split:
        """A table whose chunks cannot be combined into one."""

        def __init__(self, table: pa.Table) -> None:
            self._table = table
            self.num_rows = table.num_rows

        def combine_chunks(self) -> Split:
            return self

        def to_batches(self) -> list[pa.RecordBatch]:
            return [part for part in self._table.to_batches(max_chunksize=4) if part.num_rows]

    def read(self: DataFile, groups: list[int]) -> Any:
        return Split(real(self, groups))

    monkeypatch.setattr(DataFile, "read", read)
    assert read_all(partition.reader()) == contents
    for start in range(20):
        assert read_all(partition.reader(), start) == contents[start:]


# time


def stamped(partition: Partition, *files: Sequence[int]) -> None:
    log = partition.log()
    for times in files:
        values = [b"%d" % time for time in times]
        log.append(columns(*values, timestamps=times), durable=False, compression="none")


@pytest.mark.usefixtures("small_row_groups")
def test_the_first_offset_at_or_after_a_time(partition: Partition) -> None:
    """Create times need not rise with offsets; the first offset counts, as in Kafka."""
    rng = random.Random(3)
    times = [T0 + rng.randrange(300) for _ in range(120)]
    stamped(partition, times[:35], times[35:36], times[36:80], times[80:])
    reader = partition.reader()
    for moment in range(T0 - 1, T0 + 302):
        first = next((n for n, time in enumerate(times) if time >= moment), None)
        expected = None if first is None else (first, times[first])
        assert reader.offset_for_time(moment) == expected
    for moment in (0, MAX_TIMESTAMP_MS, 1 << 62):
        expected = (0, times[0]) if moment == 0 else None
        assert reader.offset_for_time(moment) == expected


def test_a_time_at_the_end_of_the_range_is_found(partition: Partition) -> None:
    stamped(partition, [0, 1], [MAX_TIMESTAMP_MS])
    reader = partition.reader()
    assert reader.offset_for_time(0) == (0, 0)
    assert reader.offset_for_time(2) == (2, MAX_TIMESTAMP_MS)
    assert reader.offset_for_time(MAX_TIMESTAMP_MS) == (2, MAX_TIMESTAMP_MS)
    assert reader.offset_for_time(1 << 62) == (2, MAX_TIMESTAMP_MS), "the end of the range"


def test_a_time_before_the_log_start_is_not_found(partition: Partition) -> None:
    fill(partition, 3, 10)
    partition.log().truncate(14)
    assert partition.reader().offset_for_time(T0 + 3) == (14, T0 + 14)
    partition.log().truncate(30)
    assert partition.reader().offset_for_time(T0 + 3) is None


def test_files_that_end_before_the_time_are_not_opened(partition: Partition) -> None:
    fill(partition, 20, 5)
    counting = FaultyObjects(partition.objects, Script())
    reader = partition.over(counting).reader()
    assert reader.offset_for_time(T0 + 77) == (77, T0 + 77)
    assert opened(counting) == [75]
    assert reader.offset_for_time(T0 + 5_000) is None
    assert opened(counting) == [75]


@pytest.mark.usefixtures("small_row_groups")
def test_row_groups_that_end_before_the_time_are_not_decoded(
    partition: Partition, decoded: list[tuple[str, int]]
) -> None:
    fill(partition, 1, 95)
    assert partition.reader().offset_for_time(T0 + 77) == (77, T0 + 77)
    assert decoded == [("000", 7)]


# gaps


def kept(contents: list[tuple[int, bytes | None]], *gone: int) -> list[tuple[int, bytes | None]]:
    return [entry for entry in contents if entry[0] not in gone]


@pytest.mark.usefixtures("small_row_groups")
@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize(
    "gone",
    [
        [3],
        [0, 1, 2],
        [27, 28, 29],
        [30, 31, 45],
        list(range(10, 20)),
        list(range(1, 59)),
        list(range(30)),
        list(range(0, 60, 2)),
    ],
)
def test_a_gap_is_crossed_from_any_offset_in_it(
    partition: Partition, gone: list[int], foreign: bool
) -> None:
    contents = fill(partition, 2, 30)
    left = kept(contents, *gone)
    shuffled = list(left)
    if foreign:
        random.Random(1).shuffle(shuffled)
        # Another engine may not drop records in a rewrite: streamlog's own compaction came before.
        rewrite(partition, partition.reader().segments, [left])
    rewrite(partition, partition.reader().segments, [shuffled], foreign=foreign)
    for start in range(60):
        found = offsets(partition.reader().read(start, max_records=1, max_bytes=1))
        assert found == ([entry[0] for entry in left if entry[0] >= start][:1] or None)
    reader = partition.reader()
    assert read_all(reader) == left
    assert reader.end == 60


def test_records_are_counted_from_the_log_start(partition: Partition) -> None:
    fill(partition, 3, 10)
    assert partition.reader().records == 30
    partition.log().truncate(14)
    reader = partition.reader()
    assert (reader.records, reader.start, reader.end, len(reader.segments)) == (16, 14, 30, 2)


# other engines' files


def test_overlapping_files_are_merged_in_order(partition: Partition) -> None:
    contents = fill(partition, 6, 10)
    parts = [[entry for entry in contents if entry[0] % 3 == rest] for rest in range(3)]
    rewrite(partition, partition.reader().segments, parts, foreign=True)
    assert read_all(partition.reader()) == contents
    for start in range(0, 60, 7):
        assert read_all(partition.reader(), start) == contents[start:]


def test_a_file_that_reaches_over_others_is_found_behind_them(partition: Partition) -> None:
    contents = fill(partition, 6, 10)
    segments = partition.reader().segments
    rewrite(
        partition,
        [segments[0], segments[4]],
        [[*contents[40:50], *contents[:10]]],
        foreign=True,
    )
    for start in range(60):
        assert read_all(partition.reader(), start) == contents[start:]
    assert partition.reader().offset_for_time(T0 + 45) == (45, T0 + 45)


def test_what_is_sorted_at_once_is_bounded_by_bytes(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "_WINDOW_BYTES", 50_000)
    values = [b"x" * 10_000] * 40
    append(partition.log(), *values)
    contents = numbered(*values)
    shuffled = list(contents)
    random.Random(1).shuffle(shuffled)
    rewrite(partition, partition.reader().segments, [shuffled], foreign=True)
    reader = partition.reader()
    rows = reader.read(0, max_records=1000, max_bytes=ALL)
    assert rows is not None
    assert 1 <= rows.num_rows <= 5
    assert read_all(reader) == contents


# truncates and rewrites under a reader


def test_a_truncate_is_out_of_range_after_a_refresh(partition: Partition) -> None:
    contents = fill(partition, 3, 10)
    reader = partition.reader()
    assert offsets(reader.read(5, max_records=2, max_bytes=ALL)) == [5, 6]
    partition.log().truncate(14)
    reader.refresh()
    for offset in (7, 13):
        with pytest.raises(OutOfRangeError, match=r"\[14, 30\)"):
            reader.read(offset, max_records=2, max_bytes=ALL)
    assert read_all(reader, 14) == contents[14:]


def test_a_truncate_found_by_a_vanished_file_is_out_of_range_not_silence(
    partition: Partition,
) -> None:
    fill(partition, 3, 10)
    reader = partition.reader()
    gone = [segment.path for segment in reader.segments[:2]]
    partition.log().truncate(20)
    partition.objects.delete([f"{partition.table}/{path}" for path in gone])
    with pytest.raises(OutOfRangeError, match=r"offset 3 .* \[20, 30\)"):
        reader.read(3, max_records=2, max_bytes=ALL)
    assert offsets(reader.read(20, max_records=2, max_bytes=ALL)) == [20, 21]


@pytest.mark.parametrize("foreign", [False, True])
def test_files_replaced_under_a_reader_are_looked_up_again(
    partition: Partition, foreign: bool
) -> None:
    contents = fill(partition, 6, 10)
    reader = partition.reader()
    assert offsets(reader.read(0, max_records=5, max_bytes=ALL)) == [0, 1, 2, 3, 4]
    rewrite(partition, partition.reader().segments, [contents], foreign=foreign)
    assert read_all(reader, 5) == contents[5:]
    assert reader.version == 7


def test_a_file_replaced_while_it_is_being_opened(partition: Partition) -> None:
    contents = fill(partition, 6, 10)
    segments = partition.reader().segments
    meanwhile = Meanwhile(
        "open",
        lambda path: path.endswith(segments[3].path),
        lambda: rewrite(partition, segments, [contents]),
    )
    reader = partition.over(FaultyObjects(partition.objects, meanwhile)).reader()
    assert read_all(reader) == contents
    assert meanwhile.happened


def test_a_time_is_found_in_files_replaced_meanwhile(partition: Partition) -> None:
    contents = fill(partition, 6, 10)
    reader = partition.reader()
    rewrite(partition, partition.reader().segments, [contents])
    assert reader.offset_for_time(T0 + 44) == (44, T0 + 44)


class Churn:
    """A plan that replaces the files each time one is about to be opened."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self.times = 0

    def next(self, operation: str, path: str) -> Fault | None:
        if operation == "open" and path.endswith(".parquet"):
            self.times += 1
            self._action()
        return None


def test_files_replaced_faster_than_they_are_read_are_an_error_to_try_again(
    partition: Partition,
) -> None:
    """Never rows of another place, never silence."""
    contents = fill(partition, 2, 10)
    churn = Churn(lambda: rewrite(partition, partition.reader().segments, [contents]))
    reader = partition.over(FaultyObjects(partition.objects, churn)).reader()
    with pytest.raises(UnavailableError, match=r"topics/t/0 at offset 3 .* try again"):
        reader.read(3, max_records=1, max_bytes=1)
    assert churn.times > 1


def test_a_file_that_the_log_still_names_is_an_error_when_it_is_missing(
    partition: Partition,
) -> None:
    contents = fill(partition, 3, 10)
    reader = partition.reader()
    lost = reader.segments[1].path
    partition.objects.delete([f"{partition.table}/{lost}"])
    with pytest.raises(CorruptLogError) as caught:
        reader.read(12, max_records=1, max_bytes=1)
    assert f"topics/t/0/{lost} is named by version 3 of the log but is not there" in str(
        caught.value
    )
    assert "Restore it from a backup" in str(caught.value)
    assert read_all(reader, 20) == contents[20:]


def test_rows_that_were_deleted_meanwhile_are_not_handed_out(partition: Partition) -> None:
    contents = fill(partition, 1, 10)
    reader = partition.reader()
    assert offsets(reader.read(0, max_records=2, max_bytes=ALL)) == [0, 1]
    rewrite(partition, reader.segments, [kept(contents, 4)], delete=False)
    reader.refresh()
    assert read_all(reader, 2) == kept(contents, 0, 1, 4)


def test_a_version_lost_below_others_is_noticed_by_who_polls(
    partition: Partition, clock: FakeClock
) -> None:
    """The missing next version looks like nothing new, however often one asks."""
    fill(partition, 2, 5)
    reader: PartitionReader = partition.reader()
    fill(partition, 2, 5)
    partition.objects.delete([paths.commit_file(partition.table, 3)])
    started = clock.monotonic()

    def poll() -> None:
        while clock.monotonic() < started + 2 * LOG_FLOOR_SECONDS:
            assert reader.refresh() is False
            clock.advance(10)

    with pytest.raises(CorruptLogError, match="version 3 is missing though version 4 exists"):
        poll()
    assert LOG_FLOOR_SECONDS / 5 < clock.monotonic() - started < LOG_FLOOR_SECONDS / 2

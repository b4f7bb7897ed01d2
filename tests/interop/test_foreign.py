"""What other engines may lawfully do to a partition's table: no record is lost, doubled or out of order.

Each operation runs on sixty records in six files while a reader and a writer are open, and returns the
offsets it deleted. What deltalake does not do itself is committed by hand, in Spark's form.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import streamlog
from streamlog.schema import MAX_TIMESTAMP_MS
from tests.interop.tables import (
    T0,
    Row,
    Table,
    add,
    arrow,
    drain,
    remove,
    row,
    rows_of,
    simple,
    spark_info,
)

FILES, RECORDS = 6, 10
END = FILES * RECORDS

Operation = Callable[[Table], set[int]]


def compact(table: Table) -> set[int]:
    assert table.delta.optimize.compact()["numFilesRemoved"] == FILES
    return set()


def z_order(table: Table) -> set[int]:
    table.delta.optimize.z_order(["key", "timestamp"])
    return set()


def z_order_into_many_files(table: Table) -> set[int]:
    table.delta.optimize.z_order(["key"], target_size=600)
    return set()


def delete_one_row(table: Table) -> set[int]:
    table.delta.delete("offset = 17")
    return {17}


def delete_first_and_last_rows(table: Table) -> set[int]:
    table.delta.delete(f"offset < 3 or offset >= {END - 2}")
    return {0, 1, 2, END - 2, END - 1}


def delete_a_key(table: Table) -> set[int]:
    table.delta.delete("key = CAST('key-1' AS BYTEA)")
    return set(range(1, END, 4))


def delete_a_whole_file(table: Table) -> set[int]:
    table.delta.delete("offset >= 20 and offset < 30")
    return set(range(20, 30))


def delete_everything(table: Table) -> set[int]:
    table.delta.delete()
    return set(range(END))


def delete_after_z_order(table: Table) -> set[int]:
    z_order(table)
    return delete_a_key(table)


def vacuum(table: Table) -> set[int]:
    compact(table)
    gone = table.delta.vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
    )
    assert len(gone) == FILES
    return set()


def set_properties(table: Table) -> set[int]:
    table.delta.alter.set_table_properties({"delta.logRetentionDuration": "interval 90 days"})
    return set()


def change_feed_and_delete(table: Table) -> set[int]:
    table.delta.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    table.delta.delete("offset = 31")
    assert (table.path / "_change_data").exists()
    return {31}


def log_compaction(table: Table) -> set[int]:
    table.delta.compact_logs(0, 4)
    assert list((table.path / "_delta_log").glob("*.compacted.json"))
    return set()


def checkpoint(table: Table) -> set[int]:
    table.delta.create_checkpoint()
    return set()


def fsck_after_a_lost_file(table: Table) -> set[int]:
    table.data_paths()[2].unlink()
    assert len(table.delta.repair()["files_removed"]) == 1
    return set(range(20, 30))


# in Spark's form


def shuffled(offsets: range | list[int]) -> list[Row]:
    rows = [simple(offset) for offset in offsets]
    random.Random(7).shuffle(rows)
    return rows


def spark_optimize(table: Table) -> set[int]:
    """One file, unsorted, without statistics, with Spark's INT96 timestamps."""
    file = table.write_file(
        "part-00000-0aa0.c000.snappy.parquet",
        shuffled(range(END)),
        use_deprecated_int96_timestamps=True,
        row_group_size=9,
    )
    removes = table.remove_all()
    table.commit([spark_info("OPTIMIZE", predicate="[]", zOrderBy="[]"), *removes, add(file)])
    return set()


def spark_optimize_to_overlapping_files(table: Table) -> set[int]:
    """Three files whose offsets interleave; one with statistics, one with some, one with none."""
    removes = table.remove_all()
    files = [
        table.write_file(f"part-0000{n}-0bb0.c000.parquet", shuffled(range(n, END, 3)))
        for n in range(3)
    ]
    full = {
        "numRecords": 20,
        "minValues": {"offset": 0, "timestamp": "2023-11-14T22:13:20.000Z"},
        "maxValues": {"offset": 57, "timestamp": "2023-11-14T22:13:20.570Z"},
        "nullCount": {"offset": 0, "timestamp": 0},
    }
    adds = [add(files[0], full), add(files[1], {"numRecords": 20}), add(files[2])]
    table.commit([spark_info("OPTIMIZE"), *removes, *adds])
    return set()


def spark_optimize_around_a_file(table: Table) -> set[int]:
    """Small files are put together and a file between them stays: the new one reaches over it."""
    paths = table.data_paths()
    parts = [*range(10), *range(40, 50)]
    file = table.write_file("part-00000-0cc0.c000.parquet", shuffled(parts))
    removes = [remove(paths[0].name), remove(paths[4].name)]
    table.commit([spark_info("OPTIMIZE"), *removes, add(file)])
    return set()


def spark_optimize_twice_and_vacuum(table: Table) -> set[int]:
    """A file without statistics is replaced and gone before a late reader could measure it."""
    spark_optimize(table)
    (first,) = table.data_paths()
    second = table.write_file("part-00000-0dd0.c000.parquet", shuffled(range(END)))
    table.commit([spark_info("OPTIMIZE"), remove(first.name), add(second)])
    first.unlink()
    return spark_vacuum(table)


def spark_vacuum(table: Table) -> set[int]:
    table.commit([spark_info("VACUUM START", retentionCheckEnabled="false")])
    table.commit([spark_info("VACUUM END", status="COMPLETED")])
    return set()


def spark_delete(table: Table) -> set[int]:
    """Rows of one file go; the file that is left has its columns in another order."""
    path = table.data_paths()[3]
    left = arrow(simple(offset) for offset in range(30, 40) if offset % 3)
    file = table.write_file(
        "part-00000-0ee0.c000.parquet",
        left.select(["value", "key", "headers", "timestamp", "offset"]),
    )
    info = spark_info("DELETE", predicate='["((offset % 3) = 0)"]')
    table.commit([info, remove(path.name, data_change=True), add(file, data_change=True)])
    return {30, 33, 36, 39}


def spark_delete_of_files(table: Table) -> set[int]:
    paths = table.data_paths()
    removes = [remove(path.name, data_change=True) for path in paths[1:3]]
    table.commit([spark_info("DELETE"), *removes])
    return set(range(10, 30))


def spark_statistics_again(table: Table) -> set[int]:
    """ANALYZE … COMPUTE DELTA STATISTICS adds live paths again, without removing them."""
    adds = [
        add(
            (path.name, path.stat().st_size),
            {
                "numRecords": 10,
                "minValues": {"offset": 10 * number},
                "maxValues": {"offset": 10 * number + 9},
            },
        )
        for number, path in enumerate(table.data_paths())
    ]
    table.commit([spark_info("COMPUTE STATS"), *adds[:4]])
    return set()


def spark_empty_file(table: Table) -> set[int]:
    """An OPTIMIZE may leave a file without a single row."""
    path = table.data_paths()[5]
    full = table.write_file("part-00000-0ff0.c000.parquet", shuffled(range(50, 60)))
    none = table.write_file("part-00001-0ff0.c000.parquet", [])
    table.commit([spark_info("OPTIMIZE"), remove(path.name), add(full), add(none)])
    return set()


def spark_properties(table: Table) -> set[int]:
    metadata: dict[str, Any] = _metadata(table)
    metadata["metaData"]["configuration"]["delta.dataSkippingNumIndexedCols"] = "0"
    metadata["metaData"]["description"] = "orders of the shop"
    table.commit([spark_info("SET TBLPROPERTIES"), metadata])
    return set()


def spark_writer_protocol(table: Table) -> set[int]:
    """Writer features that ask nothing of an appender."""
    features = ["appendOnly", "changeDataFeed", "invariants"]
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    table.commit([spark_info("UPGRADE PROTOCOL"), {"protocol": protocol}])
    return set()


def a_txn_of_another_application(table: Table) -> set[int]:
    table.commit(
        [spark_info("STREAMING UPDATE"), {"txn": {"appId": "query-1", "version": 7}}],
    )
    return set()


def _metadata(table: Table) -> dict[str, Any]:
    lines = table.commit_path(0).read_text().splitlines()
    found: dict[str, Any] = next(json.loads(line) for line in lines if '"metaData"' in line)
    return found


LAWFUL: list[Operation] = [
    compact,
    z_order,
    z_order_into_many_files,
    delete_one_row,
    delete_first_and_last_rows,
    delete_a_key,
    delete_a_whole_file,
    delete_everything,
    delete_after_z_order,
    vacuum,
    set_properties,
    change_feed_and_delete,
    log_compaction,
    checkpoint,
    fsck_after_a_lost_file,
    spark_optimize,
    spark_optimize_to_overlapping_files,
    spark_optimize_around_a_file,
    spark_optimize_twice_and_vacuum,
    spark_vacuum,
    spark_delete,
    spark_delete_of_files,
    spark_statistics_again,
    spark_empty_file,
    spark_properties,
    spark_writer_protocol,
    a_txn_of_another_application,
]
every_operation = pytest.mark.parametrize("operation", LAWFUL)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template") / "root"
    Table(root).fill(FILES, RECORDS)
    return root


@pytest.fixture
def table(template: Path, tmp_path: Path) -> Table:
    """Sixty records in six files."""
    shutil.copytree(template, tmp_path / "root")
    return Table(tmp_path / "root")


def kept(gone: set[int], end: int = END) -> list[Row]:
    return [simple(offset) for offset in range(end) if offset not in gone]


@every_operation
def test_who_was_reading_and_who_comes_later_read_the_same(
    table: Table, operation: Operation
) -> None:
    tailing = table.reader()
    seen = tailing.read(0, max_records=25, max_bytes=1 << 20)
    assert seen is not None
    position = int(seen.column("offset")[-1].as_py()) + 1
    gone = operation(table)
    tailing.refresh()
    after = [entry for entry in kept(gone) if entry["offset"] >= position]
    assert drain(tailing, position) == after
    assert drain(tailing) == kept(gone)
    assert drain(table.reader()) == kept(gone)
    assert (tailing.start, tailing.end) == (0, END)


@every_operation
def test_any_offset_and_any_time_is_found(table: Table, operation: Operation) -> None:
    gone = operation(table)
    rows = kept(gone)
    for offset in range(END):
        wanted = next((entry for entry in rows if entry["offset"] >= offset), None)
        # A fresh reader each time: one that has read on keeps decoded rows, and would not search.
        found = table.reader().read(offset, max_records=1, max_bytes=1)
        assert (None if found is None else rows_of(pa.table(found))) == (
            None if wanted is None else [wanted]
        )
    reader = table.reader()
    for moment in range(T0 - 5, T0 + 10 * END + 5, 5):
        late = next((entry for entry in rows if entry["timestamp"] >= 1000 * moment), None)
        assert reader.offset_for_time(moment) == (
            None if late is None else (late["offset"], late["timestamp"] // 1000)
        )


@every_operation
@pytest.mark.parametrize("checkpointed", [False, True])
def test_appends_go_on_with_dense_offsets(
    table: Table, operation: Operation, checkpointed: bool
) -> None:
    writer, tailing = table.log(), table.reader()
    writer.refresh()
    gone = operation(table)
    if checkpointed:
        table.delta.create_checkpoint()
    assert table.append([simple(END)], writer) == END
    assert table.append([simple(END + 1), simple(END + 2)], table.log()) == END + 1
    assert table.append([simple(END + 3)], writer) == END + 3
    tailing.refresh()
    expected = kept(gone, END + 4)
    assert drain(tailing) == expected
    fresh = table.reader()
    assert drain(fresh) == expected
    assert (fresh.start, fresh.end) == (0, END + 4)
    assert rows_of(table.delta.to_pyarrow_table()) == expected


@every_operation
def test_a_truncate_works_on_what_is_left(table: Table, operation: Operation) -> None:
    tailing = table.reader()
    gone = operation(table)
    assert table.log().truncate(23) == 23
    expected = [entry for entry in kept(gone) if entry["offset"] >= 23]
    tailing.refresh()
    assert drain(tailing) == expected
    assert drain(table.reader()) == expected


@every_operation
def test_a_consumer_sees_each_record_once(table: Table, operation: Operation) -> None:
    with (
        streamlog.connect(table.root) as log,
        log.consumer("orders", auto_offset_reset="earliest") as consumer,
    ):
        before = [record.offset for record in consumer.poll(5_000, max_records=13)]
        gone = operation(table)
        table.append([simple(END)])
        found = list(before)
        while found[-1] < END:
            found += [record.offset for record in consumer.poll(5_000, max_records=13)]
    assert before == list(range(len(before)))
    assert before
    assert found == sorted(set(found))
    # What the consumer had fetched before a delete, it may still hand out.
    assert set(range(END + 1)) - gone <= set(found) <= set(range(END + 1))


@pytest.mark.parametrize("seed", range(6))
def test_any_mix_of_lawful_operations(table: Table, seed: int) -> None:
    rng = random.Random(seed)
    rows = {offset: simple(offset) for offset in range(END)}
    writer, tailing = table.log(), table.reader()
    for _ in range(12):
        delta = table.delta
        match rng.randrange(6):
            case 0:
                delta.optimize.compact()
            case 1:
                delta.optimize.z_order(["key"], target_size=rng.choice([500, 1_000, 100_000]))
            case 2:
                low = rng.randrange(writer.end or END)
                high = low + rng.randrange(1, 12)
                delta.delete(f"offset >= {low} and offset < {high}")
                rows = {n: entry for n, entry in rows.items() if not low <= n < high}
            case 3:
                delta.create_checkpoint()
            case 4:
                delta.vacuum(
                    retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
                )
            case _:
                writer.refresh()
                first = writer.end
                new = [simple(first + number) for number in range(rng.randrange(1, 9))]
                assert table.append(new, writer) == first
                rows |= {entry["offset"]: entry for entry in new}
        expected = [rows[offset] for offset in sorted(rows)]
        tailing.refresh()
        assert drain(tailing) == expected, f"seed {seed}"
        assert drain(table.reader()) == expected, f"seed {seed}"


# single points


def test_times_beyond_nanoseconds_survive_spark_s_int96(tmp_path: Path) -> None:
    table = Table(tmp_path)
    rows = [row(0, None, b"a", 0), row(1, None, b"z", MAX_TIMESTAMP_MS)]
    table.append(rows)
    removes = table.remove_all()
    file = table.write_file("part-0.parquet", rows, use_deprecated_int96_timestamps=True)
    table.commit([spark_info("OPTIMIZE"), *removes, add(file)])
    reader = table.reader()
    assert drain(reader) == rows
    assert reader.offset_for_time(MAX_TIMESTAMP_MS) == (1, MAX_TIMESTAMP_MS)


def test_a_file_without_statistics_is_opened_once_a_client_not_once_a_read(table: Table) -> None:
    spark_optimize(table)
    reader = table.reader()
    (segment,) = reader.segments
    assert (segment.first, segment.last, segment.records) == (0, END - 1, END)
    assert (segment.min_timestamp_us, segment.max_timestamp_us) == (
        1000 * T0,
        1000 * (T0 + 10 * (END - 1)),
    )


def test_a_large_gap_between_rows_of_one_file_is_crossed_at_once(table: Table) -> None:
    """Offsets of an unsorted file may be far apart, after a long log was mostly deleted."""
    far = 40_000_000_000
    table.log().refresh()
    commit = table.commit_path(table.newest)
    ours = commit.read_text()
    # The log is grown by hand, for nobody appends forty billion records in a test.
    paths = table.data_paths()
    file = table.write_file("part-0.parquet", [*shuffled(range(50, 60)), simple(far)])
    removed = remove(paths[5].name, data_change=True)
    table.commit([spark_info("DELETE"), removed, add(file, data_change=True)])
    text = ours.replace(f'"version": {END}', f'"version": {far + 1}')
    text = text.replace(f'"version":{END}', f'"version":{far + 1}')
    text = text.replace('"offset\\":59', f'"offset\\":{far}').replace(
        '"numRecords\\":10', f'"numRecords\\":{far + 1 - 50}'
    )
    commit.write_text(text)
    reader = table.reader()
    assert reader.end == far + 1
    assert drain(reader, 45) == [*kept(set())[45:], simple(far)]


def test_the_snapshot_of_deltalake_agrees_after_all(table: Table) -> None:
    spark_optimize_around_a_file(table)
    table.fill(1, 3)
    assert rows_of(DeltaTable(str(table.path)).to_pyarrow_table()) == drain(table.reader())

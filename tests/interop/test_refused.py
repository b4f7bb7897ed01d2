"""What breaks the log: refused by who was there and by who comes later, naming version and engine.

Each break returns the version that did it, who, and a word of the message. Its message must also say
what to do, and doing that must bring the log back.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, TableFeatures, write_deltalake
from deltalake.schema import PrimitiveType

import streamlog
from streamlog.consumer.consumer import Consumer
from streamlog.errors import CorruptLogError
from tests.interop.tables import (
    SPARK,
    T0,
    Row,
    Table,
    add,
    arrow,
    drain,
    remove,
    row,
    simple,
    spark_info,
)

FILES, RECORDS = 4, 5
END = FILES * RECORDS
DELTA_RS = "delta-rs:py-"

Break = Callable[[Table], tuple[str, str]]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template") / "root"
    Table(root).fill(FILES, RECORDS)
    return root


@pytest.fixture
def table(template: Path, tmp_path: Path) -> Table:
    """Twenty records in four files."""
    shutil.copytree(template, tmp_path / "root")
    return Table(tmp_path / "root")


def everything() -> list[Row]:
    return [simple(offset) for offset in range(END)]


# the breaks: each makes one commit


def append(table: Table) -> tuple[str, str]:
    write_deltalake(table.delta, arrow([simple(END)]), mode="append")
    return DELTA_RS, "adds, changes or takes back records"


def append_of_an_offset_that_exists(table: Table) -> tuple[str, str]:
    write_deltalake(table.delta, arrow([row(3, None, b"another", T0)]), mode="append")
    return DELTA_RS, "adds, changes or takes back records"


def overwrite(table: Table) -> tuple[str, str]:
    write_deltalake(table.delta, arrow([simple(0)]), mode="overwrite")
    return DELTA_RS, "adds, changes or takes back records"


def update(table: Table) -> tuple[str, str]:
    table.delta.update({"value": "CAST('changed' AS BYTEA)"}, predicate="offset = 7")
    return DELTA_RS, "UPDATE"


def merge(table: Table) -> tuple[str, str]:
    (
        table.delta.merge(arrow([simple(7)]), "s.offset = t.offset", "s", "t")
        .when_matched_update({"value": "CAST('changed' AS BYTEA)"})
        .execute()
    )
    return DELTA_RS, "MERGE"


def restore(table: Table) -> tuple[str, str]:
    table.delta.restore(2)
    return DELTA_RS, "RESTORE"


def add_column(table: Table) -> tuple[str, str]:
    table.delta.alter.add_columns(Field("extra", PrimitiveType("string")))
    return DELTA_RS, "the schema was changed"


def add_constraint(table: Table) -> tuple[str, str]:
    table.delta.alter.add_constraint({"small": "offset < 1000"})
    return DELTA_RS, "the constraint small was added"


def deletion_vectors(table: Table) -> tuple[str, str]:
    table.delta.alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    return DELTA_RS, "deletionVectors switched on"


def _metadata(table: Table) -> dict[str, Any]:
    lines = table.commit_path(0).read_text().splitlines()
    found: dict[str, Any] = next(json.loads(line) for line in lines if '"metaData"' in line)
    return found


def spark_deletion_vectors(table: Table) -> tuple[str, str]:
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "appendOnly", "invariants"],
    }
    metadata = _metadata(table)
    metadata["metaData"]["configuration"]["delta.enableDeletionVectors"] = "true"
    table.commit([spark_info("SET TBLPROPERTIES"), {"protocol": protocol}, metadata])
    return SPARK, "deletionVectors switched on"


def spark_deletion_vectors_by_property_alone(table: Table) -> tuple[str, str]:
    metadata = _metadata(table)
    metadata["metaData"]["configuration"]["delta.enableDeletionVectors"] = "true"
    table.commit([spark_info("SET TBLPROPERTIES"), metadata])
    return SPARK, "deletion vectors were switched on"


def spark_column_mapping(table: Table) -> tuple[str, str]:
    metadata = _metadata(table)
    metadata["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"
    metadata["metaData"]["configuration"]["delta.columnMapping.maxColumnId"] = "7"
    schema = json.loads(metadata["metaData"]["schemaString"])
    nested = schema["fields"][4]["type"]["elementType"]["fields"]
    for number, column in enumerate([*schema["fields"], *nested], 1):
        column["metadata"] = {
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": column["name"],
        }
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    protocol = {"minReaderVersion": 2, "minWriterVersion": 5}
    table.commit([spark_info("SET TBLPROPERTIES"), {"protocol": protocol}, metadata])
    return SPARK, "reader version 2"


def spark_column_mapping_by_property_alone(table: Table) -> tuple[str, str]:
    metadata = _metadata(table)
    metadata["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"
    table.commit([spark_info("SET TBLPROPERTIES"), metadata])
    return SPARK, "column mapping was switched on (mode name)"


def spark_change_of_type(table: Table) -> tuple[str, str]:
    metadata = _metadata(table)
    schema = metadata["metaData"]["schemaString"]
    metadata["metaData"]["schemaString"] = schema.replace('"binary"', '"string"', 1)
    table.commit([spark_info("CHANGE COLUMN"), metadata])
    return SPARK, "the schema was changed"


def spark_append_that_claims_no_change(table: Table) -> tuple[str, str]:
    """`df.write.option("dataChange", "false")` appends all the same."""
    file = table.write_file("part-0.parquet", [simple(END)])
    table.commit([spark_info("WRITE", mode="Append"), add(file)])
    return SPARK, "turns 0 records into 1"


def spark_optimize_that_loses_records(table: Table) -> tuple[str, str]:
    file = table.write_file("part-0.parquet", [simple(offset) for offset in range(1, END)])
    table.commit([spark_info("OPTIMIZE"), *table.remove_all(), add(file)])
    return SPARK, f"turns {END} records into {END - 1}"


def spark_optimize_that_adds_records(table: Table) -> tuple[str, str]:
    file = table.write_file("part-0.parquet", [simple(offset) for offset in range(END + 1)])
    table.commit([spark_info("OPTIMIZE"), *table.remove_all(), add(file)])
    return SPARK, f"turns {END} records into {END + 1}"


def spark_optimize_that_moves_records(table: Table) -> tuple[str, str]:
    first = table.data_paths()[0].name
    file = table.write_file("part-0.parquet", [simple(offset) for offset in range(100, 105)])
    table.commit([spark_info("OPTIMIZE"), remove(first), add(file)])
    return SPARK, "offsets outside [0, 4]"


def spark_remove_that_claims_no_change(table: Table) -> tuple[str, str]:
    table.commit([spark_info("OPTIMIZE"), remove(table.data_paths()[1].name)])
    return SPARK, "turns 5 records into 0"


def spark_remove_of_a_file_that_is_not_live(table: Table) -> tuple[str, str]:
    table.commit([spark_info("DELETE"), remove("part-unknown.parquet", data_change=True)])
    return SPARK, "part-unknown.parquet, which is not live"


def spark_delete_that_adds_records(table: Table) -> tuple[str, str]:
    first = table.data_paths()[0].name
    file = table.write_file("part-0.parquet", [simple(offset) for offset in range(END)])
    actions = [remove(first, data_change=True), add(file, data_change=True)]
    table.commit([spark_info("DELETE"), *actions])
    return SPARK, f"turns 5 records into {END}"


def a_commit_without_a_commit_info(table: Table) -> tuple[str, str]:
    file = table.write_file("part-0.parquet", [simple(END)])
    table.commit([add(file, data_change=True)])
    return "an unknown engine", "adds, changes or takes back records"


BREAKS: list[Break] = [
    append,
    append_of_an_offset_that_exists,
    overwrite,
    update,
    merge,
    restore,
    add_column,
    add_constraint,
    deletion_vectors,
    spark_deletion_vectors,
    spark_deletion_vectors_by_property_alone,
    spark_column_mapping,
    spark_column_mapping_by_property_alone,
    spark_change_of_type,
    spark_append_that_claims_no_change,
    spark_optimize_that_loses_records,
    spark_optimize_that_adds_records,
    spark_optimize_that_moves_records,
    spark_remove_that_claims_no_change,
    spark_remove_of_a_file_that_is_not_live,
    spark_delete_that_adds_records,
    a_commit_without_a_commit_info,
]
every_break = pytest.mark.parametrize("broken_by", BREAKS)


def check_message(error: CorruptLogError, engine: str, what: str) -> None:
    message = str(error)
    assert f"topics/orders/0, version {FILES + 1} by {engine}" in message
    assert what in message
    assert (
        f"Stop all clients, move version {FILES + 1} and all above it out of _delta_log" in message
    )


@every_break
def test_who_is_there_refuses_it(table: Table, broken_by: Break) -> None:
    reader, writer = table.reader(), table.log()
    writer.refresh()
    engine, what = broken_by(table)
    for _ in range(2):  # a second try is no way around
        with pytest.raises(CorruptLogError) as read:
            reader.refresh()
        check_message(read.value, engine, what)
        with pytest.raises(CorruptLogError) as written:
            table.append([simple(END)], writer)
        check_message(written.value, engine, what)
    assert (reader.version, table.newest) == (FILES, FILES + 1)
    assert drain(reader) == everything(), "what was read before is still good"


@every_break
@pytest.mark.parametrize("checkpoint", ["none", "before", "at", "above"])
def test_who_comes_later_refuses_it(table: Table, broken_by: Break, checkpoint: str) -> None:
    """A checkpoint of another engine must not fold the break into a state that looks sound."""
    if checkpoint == "before":
        table.delta.create_checkpoint()
    engine, what = broken_by(table)
    if checkpoint == "above":
        table.commit([spark_info("VACUUM START")])
    newest = table.newest
    if checkpoint in ("at", "above"):
        table.delta.create_checkpoint()
    for _ in range(2):
        with pytest.raises(CorruptLogError) as read:
            table.reader()
        check_message(read.value, engine, what)
        with pytest.raises(CorruptLogError) as written:
            table.append([simple(END)])
        check_message(written.value, engine, what)
    assert table.newest == newest, "nothing was committed above it"


@every_break
def test_what_the_message_says_brings_the_log_back(
    table: Table, broken_by: Break, tmp_path: Path
) -> None:
    broken_by(table)
    table.delta.create_checkpoint()
    with pytest.raises(CorruptLogError) as caught:
        table.reader()
    told = re.search(r"move version (\d+) and all above it out of _delta_log", str(caught.value))
    assert told is not None
    for path in (table.path / "_delta_log").iterdir():
        if path.name == "_last_checkpoint" or int(path.name[:20]) >= int(told[1]):
            path.rename(tmp_path / path.name)
    assert table.append([simple(END)]) == END
    assert drain(table.reader()) == [*everything(), simple(END)]
    found = table.delta.to_pyarrow_table().sort_by("offset")
    assert found["offset"].to_pylist() == list(range(END + 1))


def test_a_break_below_a_cleaned_log_is_refused_by_its_checkpoint(table: Table) -> None:
    """The commits are gone that would tell the engine; the checkpoint still tells that it is wrong."""
    spark_column_mapping(table)
    table.delta.create_checkpoint()
    for version in range(FILES + 1):
        table.commit_path(version).unlink()
    with pytest.raises(CorruptLogError) as caught:
        table.reader()
    check_message(caught.value, SPARK, "reader version 2")
    table.commit_path(FILES + 1).unlink()
    with pytest.raises(CorruptLogError) as caught:
        table.reader()
    assert f"at or before version {FILES + 1}, by another engine: the protocol" in str(caught.value)
    assert "from a backup" in str(caught.value)


def test_a_foreign_append_in_a_cleaned_log_is_refused_by_its_offsets(table: Table) -> None:
    append(table)
    table.delta.create_checkpoint()
    for version in range(FILES + 2):
        table.commit_path(version).unlink()
    with pytest.raises(CorruptLogError) as caught:
        table.reader()
    assert f"holds offset {END}, beyond the log's end {END}" in str(caught.value)
    assert f"at or before version {FILES + 1}" in str(caught.value)


def test_a_lawful_commit_at_a_checkpoint_of_a_cleaned_log_is_fine(table: Table) -> None:
    table.delta.optimize.compact()
    table.delta.create_checkpoint()
    for version in range(FILES):
        table.commit_path(version).unlink()
    assert drain(table.reader()) == everything()
    assert table.append([simple(END)]) == END


def poll_on(consumer: Consumer) -> None:
    """Past what the consumer had fetched before."""
    for _ in range(50):
        consumer.poll(100)


def test_the_consumer_and_the_producer_say_it_too(table: Table) -> None:
    with streamlog.connect(table.root) as log:
        with log.consumer("orders", auto_offset_reset="earliest") as consumer:
            assert len(consumer.poll(5_000, max_records=100)) > 0
            append(table)
            with pytest.raises(CorruptLogError, match=f"version {FILES + 1} by {DELTA_RS}"):
                poll_on(consumer)
        producer = log.producer(linger_ms=0, delivery_timeout_ms=5_000)
        with pytest.raises(CorruptLogError, match=f"version {FILES + 1} by {DELTA_RS}"):
            producer.send("orders", b"x").result(timeout=10)
        producer.close()


# versions that were replaced, damaged or lost


def test_a_replaced_version_is_refused_where_the_chain_breaks(table: Table) -> None:
    """An engine that overwrites instead of creating: its rewrite takes the place of an append."""
    lost = table.commit_path(FILES)
    paths = table.data_paths()
    file = table.write_file("part-0.parquet", [simple(offset) for offset in range(10)])
    writer, tailing = table.log(), table.reader()
    writer.refresh()
    assert tailing.version == FILES
    before = lost.read_bytes()
    table.commit(
        [spark_info("OPTIMIZE"), *[remove(path.name) for path in paths[:2]], add(file)], FILES
    )
    # Whoever read the version before it was replaced goes on from there.
    assert table.append([simple(END)], writer) == END
    tailing.refresh()
    assert drain(tailing) == [*everything(), simple(END)]
    for later in (table.reader, lambda: table.append([simple(0)])):
        with pytest.raises(CorruptLogError) as caught:
            later()
        message = str(caught.value)
        assert f"version {FILES + 1} by streamlog/" in message
        assert (
            f"version {FILES} by {SPARK} (OPTIMIZE): another engine replaced a version" in message
        )
        assert f"restore version {FILES} of _delta_log from a backup" in message
    lost.write_bytes(before)
    assert drain(table.reader()) == [*everything(), simple(END)]


def test_a_replaced_version_is_refused_by_who_read_the_former_one(table: Table) -> None:
    tailing = table.reader()
    paths = table.data_paths()
    file = table.write_file("part-0.parquet", [simple(offset) for offset in range(10)])
    table.commit(
        [spark_info("OPTIMIZE"), *[remove(path.name) for path in paths[:2]], add(file)], FILES
    )
    table.append([simple(15)])  # by who knows only the version that is there now
    with pytest.raises(CorruptLogError, match="another engine replaced a version"):
        tailing.refresh()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _blank(path: Path) -> None:
    path.write_bytes(b"\n\n")


def _not_json(path: Path) -> None:
    path.write_bytes(b"\x00\xff not a commit")


def _not_actions(path: Path) -> None:
    path.write_bytes(b"[1, 2]\n")


def _cut_in_a_line(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-40])


def _cut_between_lines(path: Path) -> None:
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (_empty, "is empty"),
    (_blank, "is empty"),
    (_not_json, "is not valid Delta JSON"),
    (_not_actions, "is not valid Delta JSON"),
    (_cut_in_a_line, "is not valid Delta JSON"),
    (_cut_between_lines, "an append must add exactly one file"),
]


@pytest.mark.parametrize(("damage", "what"), DAMAGES)
@pytest.mark.parametrize("version", [FILES, FILES - 1])
@pytest.mark.parametrize("there", [True, False])
def test_a_damaged_commit_is_refused(
    table: Table, damage: Callable[[Path], None], what: str, version: int, there: bool
) -> None:
    hidden = [table.commit_path(number) for number in range(version, FILES + 1)]
    contents = [path.read_bytes() for path in hidden]
    for path in hidden:
        path.unlink()
    reader, writer = table.reader(), table.log()
    writer.refresh()
    for path, data in zip(hidden, contents, strict=True):
        path.write_bytes(data)
    damage(table.commit_path(version))
    before = (version - 1) * RECORDS
    attempts: list[Callable[[], object]] = (
        [reader.refresh, lambda: table.append([simple(before)], writer)]
        if there
        else [table.reader, lambda: table.append([simple(END)])]
    )
    for attempt in attempts:
        with pytest.raises(CorruptLogError) as caught:
            attempt()
        assert f"topics/orders/0, version {version}" in str(caught.value)
        assert what in str(caught.value)
        assert "_delta_log" in str(caught.value)
        assert "backup" in str(caught.value)
    assert table.newest == FILES
    if there:
        assert drain(reader) == everything()[:before], "up to the damage all is good"
    damaged = table.commit_path(version)
    damaged.write_bytes(contents[0])
    assert drain(table.reader()) == everything(), "after the repair it names"


def test_an_empty_newest_commit_may_be_deleted_as_the_message_says(table: Table) -> None:
    _empty(table.commit_path(FILES))
    with pytest.raises(CorruptLogError, match="If it is the newest version, delete that file"):
        table.reader()
    table.commit_path(FILES).unlink()
    assert table.append([simple(15)]) == 15
    assert drain(table.reader()) == everything()[:16]


@pytest.mark.parametrize("missing", [0, 1, FILES - 1])
def test_a_hole_in_the_versions_is_refused(table: Table, missing: int) -> None:
    path = table.commit_path(missing)
    data = path.read_bytes()
    path.unlink()
    for attempt in (table.reader, lambda: table.append([simple(END)])):
        with pytest.raises(CorruptLogError) as caught:
            attempt()
        message = str(caught.value)
        assert f"version {missing} is missing though version {FILES} exists" in message
        assert f"Restore topics/orders/0/_delta_log/{missing:020d}.json from a backup" in message
    assert not path.exists(), "no writer took the name of the missing version"
    path.write_bytes(data)
    assert drain(table.reader()) == everything()


def test_a_hole_above_a_checkpoint_is_refused(table: Table) -> None:
    table.delta.create_checkpoint()
    table.fill(2, 1)
    table.commit_path(FILES + 1).unlink()
    with pytest.raises(CorruptLogError, match=f"version {FILES + 1} is missing though"):
        table.reader()


# data files


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def _garbage(path: Path) -> None:
    path.write_bytes(b"\x00" * path.stat().st_size)


def _damaged_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4:80] = b"\xff" * 76
    path.write_bytes(data)


def _other_columns(path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", "b"]}), path)


def _one_column_more(path: Path) -> None:
    rows = arrow(everything()[5:10])
    pq.write_table(rows.append_column("extra", pa.array([1] * 5)), path)


def _other_types(path: Path) -> None:
    rows = arrow(everything()[5:10])
    names = pa.array(["not a time"] * 5)
    pq.write_table(rows.set_column(1, "timestamp", names), path)


def _null_offset(path: Path) -> None:
    rows = arrow(everything()[5:10])
    offsets = pa.array([5, 6, None, 8, 9], pa.int64())
    pq.write_table(rows.set_column(0, pa.field("offset", pa.int64()), offsets), path)


def _offset_twice(path: Path) -> None:
    rows = [simple(offset) for offset in (5, 6, 7, 7, 9)]
    pq.write_table(arrow(rows), path)


def _fewer_rows(path: Path) -> None:
    pq.write_table(arrow(everything()[5:8]), path)


FILE_DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (_cut, "is not a readable Parquet file"),
    (_empty, "is not a readable Parquet file"),
    (_garbage, "is not a readable Parquet file"),
    (_damaged_page, "is not a readable Parquet file"),
    (Path.unlink, f"is named by version {FILES} of the log but is not there"),
    (_other_columns, "has the columns id, name instead of offset, timestamp, key, value, headers"),
    (_one_column_more, "has the columns offset, timestamp, key, value, headers, extra instead of"),
    (_other_types, "is not a readable Parquet file"),
    (_null_offset, "is not a readable Parquet file"),
    (_fewer_rows, "holds 3 records, but the log counts 5 in it"),
    (_offset_twice, "offsets do not rise from row to row between 5 and 9"),
]


@pytest.mark.parametrize(("damage", "what"), FILE_DAMAGES)
@pytest.mark.parametrize("there", [True, False])
def test_a_damaged_data_file_stops_readers_at_it(
    table: Table, damage: Callable[[Path], None], what: str, there: bool
) -> None:
    tailing = table.reader()
    path = table.data_paths()[1]
    whole = path.read_bytes()
    damage(path)
    reader = tailing if there else table.reader()
    assert drain_until_error(reader) == everything()[:5]
    with pytest.raises(CorruptLogError) as caught:
        reader.read(5, max_records=10, max_bytes=1 << 20)
    assert what in str(caught.value)
    assert "topics/orders/0" in str(caught.value)
    assert "backup" in str(caught.value)
    assert drain(reader, 10) == everything()[10:], (
        "the files after it can be read by who seeks there"
    )
    assert table.append([simple(END)]) == END, "appending needs no old file"
    path.write_bytes(whole)
    assert drain(table.reader()) == [*everything(), simple(END)]


def drain_until_error(reader: Any) -> list[Row]:
    """What comes before the first error."""
    found: list[Row] = []
    position = 0
    while True:
        try:
            batch = reader.read(position, max_records=100, max_bytes=1 << 20)
        except CorruptLogError:
            return found
        assert batch is not None, "the damage was passed over in silence"
        found += [simple(offset) for offset in batch.column("offset").to_pylist()]
        position = found[-1]["offset"] + 1


@pytest.mark.parametrize("damage", [_cut, _garbage, _other_columns, Path.unlink])
def test_a_damaged_file_without_statistics_is_an_error_too(
    table: Table, damage: Callable[[Path], None]
) -> None:
    file = table.write_file("part-0.parquet", everything())
    table.commit([spark_info("OPTIMIZE"), *table.remove_all(), add(file)])
    damage(table.path / "part-0.parquet")
    with pytest.raises(CorruptLogError, match=r"topics/orders/0/part-0\.parquet"):
        table.reader().read(0, max_records=1, max_bytes=1)


# checkpoints


def _checkpoint(table: Table) -> Path:
    table.delta.create_checkpoint()
    (path,) = (table.path / "_delta_log").glob("*.checkpoint.parquet")
    return path


CHECKPOINT_DAMAGES: list[Callable[[Path], None]] = [
    _empty,
    _cut,
    _garbage,
    _damaged_page,
    _other_columns,
]


@pytest.mark.parametrize("damage", CHECKPOINT_DAMAGES)
def test_a_damaged_checkpoint_does_no_harm_while_all_commits_are_there(
    table: Table, damage: Callable[[Path], None]
) -> None:
    damage(_checkpoint(table))
    assert drain(table.reader()) == everything()
    assert table.append([simple(END)]) == END
    assert drain(table.reader()) == [*everything(), simple(END)]


@pytest.mark.parametrize("damage", CHECKPOINT_DAMAGES)
def test_a_damaged_checkpoint_of_a_cleaned_log_is_refused(
    table: Table, damage: Callable[[Path], None]
) -> None:
    path = _checkpoint(table)
    for version in range(FILES):
        table.commit_path(version).unlink()
    table.fill(1, 1)
    whole = path.read_bytes()
    damage(path)
    for attempt in (table.reader, lambda: table.append([simple(END)])):
        with pytest.raises(CorruptLogError) as caught:
            attempt()
        assert f"topics/orders/0 cannot be read at version {FILES}" in str(caught.value)
        assert "backup" in str(caught.value)
    path.write_bytes(whole)
    assert drain(table.reader()) == [*everything(), simple(END)]


def test_a_lost_checkpoint_of_a_cleaned_log_is_refused(table: Table) -> None:
    path = _checkpoint(table)
    for version in range(FILES):
        table.commit_path(version).unlink()
    path.unlink()
    with pytest.raises(CorruptLogError, match=f"version 0 is missing though version {FILES}"):
        table.reader()


# the registry


def test_a_foreign_write_to_the_registry_is_refused(table: Table) -> None:
    path = str(table.root / "__topics")
    rows = DeltaTable(path).to_pyarrow_table()
    write_deltalake(path, rows, mode="append")
    with (
        streamlog.connect(table.root) as log,
        pytest.raises(CorruptLogError, match=f"version 1 by {DELTA_RS}") as caught,
    ):
        log.topics()
    assert "only streamlog may write this table" in str(caught.value)


@pytest.mark.parametrize("broken_by", [append, add_column, spark_remove_of_a_file_that_is_not_live])
def test_a_broken_topic_can_be_deleted_and_made_again(table: Table, broken_by: Break) -> None:
    broken_by(table)
    writer = table.log()
    with streamlog.connect(table.root) as log:
        log.delete_topic("orders")
        assert list(table.path.glob("*.parquet")) == []
        assert log.topics() == []
        with pytest.raises(CorruptLogError):
            table.append([simple(END)], writer)
        log.create_topic("orders")
        with log.producer() as producer:
            assert producer.send("orders", b"new").result(timeout=10).offset == 0


def test_a_vacuum_of_the_registry_does_no_harm(table: Table) -> None:
    with streamlog.connect(table.root) as log:
        log.create_topic("second")
        registry = DeltaTable(str(table.root / "__topics"))
        gone = registry.vacuum(
            retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
        )
        assert len(gone) == 1
        registry.create_checkpoint()
        log.create_topic("third")
    with streamlog.connect(table.root) as later:
        assert [info.name for info in later.topics()] == ["orders", "second", "third"]

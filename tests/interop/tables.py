"""A partition that other engines can open: one streamlog log on disk, its tables, commits by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

import streamlog
from streamlog.batch import RecordColumns
from streamlog.clock import Runtime
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.partition import PartitionLog
from streamlog.log.reader import PartitionReader
from streamlog.log.topics import Topics
from streamlog.schema import RECORD_SCHEMA
from streamlog.storage.local import LocalObjects
from streamlog.storage.objects import Objects

T0 = 1_700_000_000_000

Row = dict[str, Any]


def rows_of(table: pa.Table) -> list[Row]:
    """Rows in offset order; times as microseconds, because datetime ends differ between engines."""
    times = table["timestamp"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    plain = table.select(RECORD_SCHEMA.names)
    plain = plain.set_column(RECORD_SCHEMA.names.index("timestamp"), "timestamp", times)
    return sorted(plain.to_pylist(), key=lambda entry: int(entry["offset"]))


def row(
    offset: int,
    key: bytes | None,
    value: bytes | None,
    timestamp_ms: int,
    headers: Sequence[tuple[str, bytes | None]] | None = None,
) -> Row:
    """The row that a record is on storage."""
    return {
        "offset": offset,
        "timestamp": timestamp_ms * 1000,
        "key": key,
        "value": value,
        "headers": (
            None if headers is None else [{"key": name, "value": data} for name, data in headers]
        ),
    }


def simple(offset: int) -> Row:
    """The record that `Table.fill` puts at an offset: ten milliseconds apart, keys of four kinds."""
    key = None if offset % 4 == 3 else b"key-%d" % (offset % 4)
    return row(offset, key, b"value-%d" % offset, T0 + 10 * offset)


def arrow(rows: Iterable[Row]) -> pa.Table:
    """Rows as a table of the partition's schema."""
    listed = list(rows)
    columns = {name: [entry[name] for entry in listed] for name in RECORD_SCHEMA.names}
    arrays = [
        pa.array(columns[name], pa.int64()).view(kind)
        if name == "timestamp"
        else pa.array(columns[name], kind)
        for name, kind in zip(RECORD_SCHEMA.names, RECORD_SCHEMA.types, strict=True)
    ]
    return pa.table(arrays, schema=RECORD_SCHEMA)


def drain(reader: PartitionReader, offset: int | None = None, *, step: int = 7) -> list[Row]:
    """What a reader hands out from an offset (the log start) to its end, in its order."""
    position = reader.start if offset is None else offset
    found: list[Row] = []
    while (batch := reader.read(position, max_records=step, max_bytes=1 << 30)) is not None:
        offsets = batch.column("offset").to_pylist()
        assert offsets == sorted(offsets), "in order"
        found += rows_of(pa.Table.from_batches([batch]))
        position = offsets[-1] + 1
    return found


@dataclass
class Table:
    """Partition 0 of topic "orders" under a root on disk."""

    root: Path
    objects: Objects = field(init=False)
    topics: Topics = field(init=False)

    def __post_init__(self) -> None:
        streamlog.connect(self.root).close()  # makes the root
        runtime = Runtime()
        self.objects = LocalObjects(str(self.root), runtime)
        self.checkpointer = Checkpointer(self.objects)
        self.topics = Topics(self.objects, runtime, self.checkpointer)
        self.info = self.topics.create("orders", if_not_exists=True)

    @property
    def path(self) -> Path:
        return self.root / "topics" / "orders" / "0"

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    @property
    def newest(self) -> int:
        """The highest version on disk."""
        return max(int(path.stem) for path in (self.path / "_delta_log").glob("*.json"))

    def commit_path(self, version: int) -> Path:
        return self.path / "_delta_log" / f"{version:020d}.json"

    def data_paths(self) -> list[Path]:
        """The live data files, by first offset."""
        return [self.path / segment.path for segment in self.reader().segments]

    def log(self) -> PartitionLog:
        """Another writer."""
        return self.topics.partition_log(self.info, 0)

    def reader(self) -> PartitionReader:
        """Another reader, opened now."""
        reader = self.topics.partition_reader(self.info, 0)
        reader.refresh()
        return reader

    def append(self, rows: Sequence[Row], log: PartitionLog | None = None) -> int:
        """One batch of these rows; the offset it got."""
        columns = RecordColumns.of(
            [entry["key"] for entry in rows],
            [entry["value"] for entry in rows],
            [entry["timestamp"] // 1000 for entry in rows],
            [entry["headers"] for entry in rows],
        )
        done = (log or self.log()).append(columns, durable=False, compression="zstd")
        assert done.base_offset is not None
        return done.base_offset

    def fill(self, files: int, records: int, log: PartitionLog | None = None) -> None:
        """So many files of so many `simple` records each, from the log's end on."""
        writer = log or self.log()
        writer.refresh()
        for _ in range(files):
            first = writer.end
            self.append([simple(first + number) for number in range(records)], writer)

    # commits by hand, as engines write them that are not here

    def write_file(
        self, name: str, rows: Iterable[Row] | pa.Table, **options: Any
    ) -> tuple[str, int]:
        """A Parquet file in the table's folder, named by nobody yet: its name and size."""
        table = rows if isinstance(rows, pa.Table) else arrow(rows)
        pq.write_table(table, self.path / name, **options)
        return name, (self.path / name).stat().st_size

    def commit(self, actions: Sequence[Mapping[str, Any]], version: int | None = None) -> int:
        """A commit of these actions, by default the next one; its version."""
        number = self.newest + 1 if version is None else version
        text = "".join(json.dumps(action) + "\n" for action in actions)
        self.commit_path(number).write_text(text)
        return number

    def remove_all(self, *, data_change: bool = False) -> list[dict[str, Any]]:
        """The removes of every live file."""
        return [remove(path.name, data_change=data_change) for path in self.data_paths()]


SPARK = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"


def spark_info(operation: str, **parameters: str) -> dict[str, Any]:
    """A commitInfo in the form that Spark writes."""
    return {
        "commitInfo": {
            "timestamp": T0,
            "operation": operation,
            "operationParameters": parameters,
            "readVersion": 0,
            "isolationLevel": "SnapshotIsolation",
            "isBlindAppend": False,
            "operationMetrics": {"numAddedFiles": "1"},
            "engineInfo": SPARK,
            "txnId": "7d9f4a50-0000-4000-8000-000000000000",
        }
    }


def add(
    file: tuple[str, int], stats: Mapping[str, Any] | None = None, *, data_change: bool = False
) -> dict[str, Any]:
    """An `add`, with statistics only where given."""
    action = {
        "path": file[0],
        "partitionValues": {},
        "size": file[1],
        "modificationTime": T0,
        "dataChange": data_change,
    }
    if stats is not None:
        action["stats"] = json.dumps(stats)
    return {"add": action}


def remove(path: str, *, data_change: bool = False) -> dict[str, Any]:
    """A `remove` as Spark writes it."""
    return {
        "remove": {
            "path": path,
            "deletionTimestamp": T0,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": 1,
        }
    }

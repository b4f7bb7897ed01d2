"""Reading one immutable data file: its footer, its row groups, its rows between two offsets.

A file of streamlog is in offset order, and a row group whose statistics lie outside the wanted range is
not decoded. A file that another engine rewrote may be in any order; it is filtered and sorted.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamlog.errors import CorruptLogError
from streamlog.log.commit import Segment
from streamlog.schema import RECORD_SCHEMA, TIMESTAMP_TYPE
from streamlog.storage.delta import LiveFile
from streamlog.storage.objects import Objects

# Not `empty_table()`: that imports pandas, which costs a program a third of its start.
_EMPTY = pa.Table.from_batches([], schema=RECORD_SCHEMA)


class FileMissingError(Exception):
    """The file is not there (any more): retention or compaction may have taken it."""


class DataFile:
    """An open data file."""

    def __init__(self, objects: Objects, table: str, path: str, size: int | None) -> None:
        self.name = f"{table}/{path}"
        try:
            source = objects.open(self.name, size)
            if source is None:
                raise FileMissingError(self.name)
            # Spark writes timestamps as INT96: read as nanoseconds they would end in the year 2262.
            self._file = pq.ParquetFile(
                source, page_checksum_verification=False, coerce_int96_timestamp_unit="us"
            )
            names = self._file.schema_arrow.names
        except (pa.ArrowException, OSError) as error:
            raise self._corrupt(error) from error
        if sorted(names) != sorted(RECORD_SCHEMA.names):
            raise CorruptLogError(
                f"{self.name} has the columns {', '.join(names)} instead of "
                f"{', '.join(RECORD_SCHEMA.names)}; restore it from a backup."
            )
        leaves = {
            self._file.schema.column(index).path: index for index in range(len(self._file.schema))
        }
        self._offset, self._timestamp = leaves["offset"], leaves["timestamp"]

    @property
    def records(self) -> int:
        """How many rows the file has."""
        return int(self._file.metadata.num_rows)

    @property
    def row_groups(self) -> int:
        """How many row groups the file has."""
        return int(self._file.num_row_groups)

    def offsets_of(self, group: int) -> tuple[int, int] | None:
        """First and last offset of a row group by its statistics, None where it has none."""
        return self._bounds(group, self._offset)

    def times_of(self, group: int) -> tuple[int, int] | None:
        """First and last microsecond of a row group by its statistics, None where it has none."""
        kind = self._file.schema_arrow.field("timestamp").type
        return self._bounds(group, self._timestamp) if kind == TIMESTAMP_TYPE else None

    def _bounds(self, group: int, column: int) -> tuple[int, int] | None:
        statistics = self._file.metadata.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_min_max or statistics.physical_type != "INT64":
            return None
        return int(statistics.min_raw), int(statistics.max_raw)

    @property
    def record_bytes(self) -> int:
        """About how many bytes a record of the fullest row group takes in memory."""
        groups = [self._file.metadata.row_group(group) for group in range(self.row_groups)]
        return max((g.total_byte_size // max(g.num_rows, 1) for g in groups), default=0) + 1

    def read(self, groups: list[int]) -> pa.Table:
        """All rows of these row groups."""
        try:
            # Without Arrow's threads: a short program that used them may abort at its end (pyarrow 26).
            table = self._file.read_row_groups(groups, use_threads=False)
            if table.schema.equals(RECORD_SCHEMA):
                return table
            return table.select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._corrupt(error) from error

    def columns(self, group: int, names: list[str]) -> pa.Table:
        """Some columns of a row group."""
        wanted = pa.schema([RECORD_SCHEMA.field(name) for name in names])
        try:
            found = self._file.read_row_groups([group], columns=names, use_threads=False)
            return found.select(names).cast(wanted)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._corrupt(error) from error

    def groups_between(self, low: int, high: int) -> list[int]:
        """The row groups that may hold offsets in [low, high)."""
        found = []
        for group in range(self.row_groups):
            bounds = self.offsets_of(group)
            if bounds is None or (bounds[1] >= low and bounds[0] < high):
                found.append(group)
        return found

    def rows_between(self, low: int, high: int) -> pa.Table:
        """The rows with offsets in [low, high), in no order; one row group in memory at a time."""
        import pyarrow.compute as pc

        parts = []
        for group in self.groups_between(low, high):
            rows = self.read([group])
            offsets = rows["offset"]
            wanted = pc.and_(pc.greater_equal(offsets, low), pc.less(offsets, high))
            parts.append(rows.filter(wanted))
        return pa.concat_tables(parts) if parts else _EMPTY

    def next_offset(self, low: int) -> int | None:
        """The smallest offset from `low` on; only offsets are decoded, and those only where needed."""
        import pyarrow.compute as pc

        found: int | None = None
        for group in range(self.row_groups):
            bounds = self.offsets_of(group)
            if bounds is not None and (
                bounds[1] < low or (found is not None and found < bounds[0])
            ):
                continue
            if bounds is not None and bounds[0] >= low:
                first: int | None = bounds[0]
            else:
                offsets = self._numbers([group], ["offset"])["offset"]
                first = pc.min(offsets.filter(pc.greater_equal(offsets, low))).as_py()
            if first is not None and (found is None or first < found):
                found = first
        return found

    def measure(self, size: int) -> Segment:
        """The file's index, from its footer or, failing that, from its rows."""
        groups = range(self.row_groups)
        offsets = [self.offsets_of(group) for group in groups]
        times = [self.times_of(group) for group in groups]
        if None in offsets or None in times:
            rows = self._numbers(list(groups), ["offset", "timestamp"])
            offsets, times = [_range(rows["offset"])], [_range(rows["timestamp"])]
        return Segment(
            self.name.rsplit("/", 1)[-1],
            size,
            self.records,
            *_union(offsets),
            *_union(times),
        )

    def _numbers(self, groups: list[int], columns: list[str]) -> pa.Table:
        """Offsets and times (in microseconds) as plain integers."""
        try:
            rows = self._file.read_row_groups(groups, columns=columns)
            arrays = [rows["offset"].cast(pa.int64())]
            if "timestamp" in columns:
                arrays.append(rows["timestamp"].cast(TIMESTAMP_TYPE).cast(pa.int64()))
            return pa.table(arrays, names=columns)
        except (pa.ArrowException, OSError) as error:
            raise self._corrupt(error) from error

    def _corrupt(self, error: Exception) -> CorruptLogError:
        return CorruptLogError(
            f"{self.name} is not a readable Parquet file ({error}). Restore it from a backup; nothing "
            "was read past it."
        )


def measure(objects: Objects, table: str, file: LiveFile) -> Segment:
    """The index of a file that another engine wrote without statistics; FileMissingError if gone."""
    found = DataFile(objects, table, file.path, file.size).measure(file.size)
    return replace(found, path=file.path)


def _range(numbers: pa.ChunkedArray) -> tuple[int, int] | None:
    import pyarrow.compute as pc

    bounds = pc.min_max(numbers).as_py()
    return None if bounds["min"] is None else (bounds["min"], bounds["max"])


def _union(bounds: list[tuple[int, int] | None]) -> tuple[int, int]:
    known = [pair for pair in bounds if pair is not None]
    return min((low for low, _ in known), default=0), max((high for _, high in known), default=-1)


def check_order(name: str, offsets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    """Offsets of rows that are handed out rise strictly."""
    if len(offsets) > 1 and not bool((np.diff(offsets) > 0).all()):
        raise CorruptLogError(
            f"{name}: offsets do not rise from row to row between {int(offsets[0])} and "
            f"{int(offsets[-1])}; two files claim the same offset or a file was altered. Look there with "
            "any Delta engine, and restore the file or the _delta_log of the time before from a backup."
        )

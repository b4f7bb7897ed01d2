"""Reading one partition at any offset or time, and tailing it.

R1  Records come in offset order, each once; a gap is skipped only where key compaction, erasure or a
    lawful delete made one.
R2  Offsets below the log start or beyond its end are an error, never silence.
R3  A file that vanished is looked up again in a fresh view (compaction replaces files under readers); one
    that the log still names is an error.
R4  Where another engine left unsorted or overlapping files, a window of offsets is gathered from all of
    them and sorted.

The position lives with the caller; one decoded row group is kept, so that small reads do not decode it
again. One thread at a time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streamlog.clock import Runtime
from streamlog.errors import (
    CorruptLogError,
    OutOfRangeError,
    TopicDeletedError,
    UnavailableError,
)
from streamlog.log.commit import Segment
from streamlog.log.files import DataFile, FileMissingError, check_order
from streamlog.log.versions import LOG_FLOOR_SECONDS, TableGoneError
from streamlog.log.view import PartitionView
from streamlog.schema import MAX_TIMESTAMP_MS
from streamlog.storage.objects import Objects

# Of files that overlap or are unsorted, so many records, and about so many bytes, are sorted at once.
_WINDOW = 65_536
_WINDOW_BYTES = 64 << 20
_LOOKS = 4
_OPEN_FILES = 16


class PartitionReader:
    """The reader's end of one partition. A partition that nobody wrote to yet is empty."""

    def __init__(
        self, objects: Objects, table: str, runtime: Runtime, floor: float = LOG_FLOOR_SECONDS
    ) -> None:
        self._objects = objects
        self.table = table
        self._view = PartitionView(objects, table, runtime, floor)
        self._rows: pa.RecordBatch | None = None
        self._offsets: np.ndarray[tuple[int], np.dtype[np.int64]] = np.empty(0, np.int64)
        # The next offset after the kept rows: below it nothing else is to be found.
        self._rows_until = 0
        self._rows_of = (self._view.state, 0)
        self._files: dict[str, DataFile] = {}

    @property
    def start(self) -> int:
        """The log start as of the last refresh."""
        return self._view.state.start

    @property
    def end(self) -> int:
        """The next offset to be written, as of the last refresh."""
        return self._view.state.end

    @property
    def version(self) -> int:
        """The table's version as of the last refresh; -1 while there is no table."""
        return self._view.versions.version

    @property
    def segments(self) -> list[Segment]:
        """The live files in offset order."""
        return self._view.state.segments

    def mark(self, name: str) -> int | None:
        """A transaction of the log, such as how far compaction by key got."""
        return self._view.state.txn(name)

    @property
    def records(self) -> int:
        """How many records there are from the log start on (exact unless a rewrite left gaps)."""
        count = 0
        for segment in self.segments:
            below = min(max(self.start - segment.first, 0), segment.records)
            count += segment.records - below
        return count

    def refresh(self) -> bool:
        """Applies what was committed since; True if the end moved. A miss is one GET."""
        before = self.end
        if self._view.is_open:
            self._view.catch_up()
        else:
            try:
                self._view.open()
            except TableGoneError:
                return False
        if self._view.state.sealed:
            raise TopicDeletedError(
                f"{self.table} belongs to a topic that was deleted; make it again, then subscribe again"
            )
        return self.end != before

    def read(self, offset: int, *, max_records: int, max_bytes: int) -> pa.RecordBatch | None:
        """Records from `offset` on, in order; None when there are none up to the end."""
        start, end = self.start, self.end
        if not start <= offset <= end:
            raise self._out_of_range(offset)
        while offset < end:
            if not self._covers(offset):
                self._load(offset)
                # A look for a vanished file may have found that the log was truncated (R2).
                if offset < self.start:
                    raise self._out_of_range(offset)
            rows = self._rows
            first = int(np.searchsorted(self._offsets, offset))
            if rows is not None and first < len(self._offsets):
                return _bounded(rows, first, max_records, max_bytes)
            offset = self._rows_until
        return None

    def release(self) -> None:
        """Lets go of decoded rows and open files; the position in the log stays."""
        self._keep(None, None)
        self._files.clear()

    def _out_of_range(self, offset: int) -> OutOfRangeError:
        return OutOfRangeError(
            f"offset {offset} of {self.table} is out of range: the log is [{self.start}, {self.end})"
        )

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """The first offset whose timestamp is at or after `timestamp_ms`, and that timestamp."""
        # Here and not above: the kernels take 30 ms to load, a tenth of what `topic list` takes.
        import pyarrow.compute as pc

        micros = min(timestamp_ms, MAX_TIMESTAMP_MS) * 1000
        position = self.start
        for segment in list(self._view.state.segments):
            if segment.max_timestamp_us < micros or segment.last < position:
                continue
            offset = self._skip_by_time(segment, max(position, segment.first), micros)
            while offset <= segment.last:
                rows = self.read(offset, max_records=_WINDOW, max_bytes=1 << 30)
                if rows is None:
                    return None
                times = rows.column("timestamp").view(pa.int64())
                hit = pc.index(pc.greater_equal(times, micros), True).as_py()
                if hit >= 0:
                    found = int(rows.column("offset")[hit].as_py())
                    return found, int(times[hit].as_py()) // 1000
                offset = int(rows.column("offset")[-1].as_py()) + 1
            position = max(position, offset)
        return None

    def _skip_by_time(self, segment: Segment, offset: int, micros: int) -> int:
        """Passes over row groups of a file that end before a time."""
        if not segment.sorted or self._group_at(segment.first) != [segment]:
            return offset
        try:
            file = self._open(segment)
        except FileMissingError:
            return offset  # reading looks it up again
        for group in range(file.row_groups):
            bounds, times = file.offsets_of(group), file.times_of(group)
            if bounds is None or times is None or times[1] >= micros:
                break
            offset = max(offset, bounds[1] + 1)
        return offset

    def _covers(self, offset: int) -> bool:
        state, rewrites = self._rows_of
        return (
            self._rows is not None
            and len(self._offsets) > 0
            and int(self._offsets[0]) <= offset < self._rows_until
            # Rows deleted meanwhile are not handed out.
            and state is self._view.state
            and rewrites == state.rewrites
        )

    def _load(self, offset: int) -> None:
        for _ in range(_LOOKS):
            try:
                self._load_once(offset)
                return
            except FileMissingError as missing:
                self._files.clear()
                if not self._view.catch_up():
                    raise CorruptLogError(
                        f"{missing} is named by version {self.version} of the log but is not there. "
                        "Restore it from a backup; nothing was read past it. If it is lost, FSCK REPAIR "
                        "TABLE of Delta (repair() of delta-rs) takes it out of the log."
                    ) from missing
        raise UnavailableError(
            f"the files of {self.table} at offset {offset} are replaced faster than they can be read; "
            "try again"
        )

    def _load_once(self, offset: int) -> None:
        group = self._group_at(offset)
        if not group:
            self._keep(None, self.end)
            return
        if len(group) == 1 and group[0].sorted:
            self._load_sorted(group[0], offset)
            return
        self._load_window(group, offset)

    def _load_window(self, group: list[Segment], offset: int) -> None:
        """R4: some records from `offset` on, gathered from all files of the group."""
        top = max(segment.last for segment in group) + 1
        low = max(offset, min(segment.first for segment in group))
        while True:
            window = _WINDOW
            near = [s for s in group if s.first < low + window and s.last >= low]
            files = [self._open(segment) for segment in near]
            if files:
                widest = max(file.record_bytes for file in files)
                window = max(1, min(window, _WINDOW_BYTES // widest))
            high = min(low + window, top)
            parts = [file.rows_between(low, high) for file in files]
            rows = pa.concat_tables(parts).sort_by("offset") if parts else None
            if rows is not None and rows.num_rows:
                self._keep(rows, high)
                return
            # A gap: on to the next record there is, however far.
            nexts = [self._open(s).next_offset(high) for s in group if s.last >= high]
            known = [number for number in nexts if number is not None]
            if not known:
                self._keep(None, top)
                return
            low = min(known)

    def _group_at(self, offset: int) -> list[Segment]:
        """The first file that reaches `offset`, with all that overlap it."""
        state = self._view.state
        group: list[Segment] = []
        reach = -1
        for index in range(state.first_reaching(offset), len(state.segments)):
            segment = state.segments[index]
            if group and segment.first > reach:
                break
            if segment.last >= offset:
                group.append(segment)
                reach = max(reach, segment.last)
        return group

    def _load_sorted(self, segment: Segment, offset: int) -> None:
        file = self._open(segment)
        for group in range(file.row_groups):
            bounds = file.offsets_of(group)
            if bounds is None or bounds[1] >= offset:
                rows = file.read([group])
                last = group == file.row_groups - 1
                self._keep(rows, segment.last + 1 if last else None, offset)
                if bounds is not None or (len(self._offsets) and self._offsets[-1] >= offset):
                    return
        self._keep(None, segment.last + 1)

    def _open(self, segment: Segment) -> DataFile:
        file = self._files.get(segment.path)
        if file is None:
            file = DataFile(self._objects, self.table, segment.path, segment.size)
            if segment.measured and file.records != segment.records:
                raise CorruptLogError(
                    f"{file.name} holds {file.records} records, but the log counts {segment.records} in "
                    "it: it was replaced or cut. Restore it from a backup; nothing was read past it."
                )
            if len(self._files) >= _OPEN_FILES:
                self._files.pop(next(iter(self._files)))
            self._files[segment.path] = file
        return file

    def _keep(self, rows: pa.Table | None, until: int | None, offset: int = 0) -> None:
        self._rows_of = (self._view.state, self._view.state.rewrites)
        if rows is None or rows.num_rows == 0:
            self._rows = None
            self._offsets = np.empty(0, np.int64)
            self._rows_until = until or self.end
            return
        # Arrow splits what is beyond 2 GB: the part that reaches `offset` is kept, the next one when its
        # turn comes.
        batches = rows.combine_chunks().to_batches()
        for number, part in enumerate(batches, 1):
            self._rows = part
            self._offsets = part.column("offset").to_numpy(zero_copy_only=False)
            check_order(self.table, self._offsets)
            last = int(self._offsets[-1])
            self._rows_until = last + 1 if until is None or number < len(batches) else until
            if last >= offset:
                return


def _bounded(rows: pa.RecordBatch, first: int, max_records: int, max_bytes: int) -> pa.RecordBatch:
    """At most so many records and bytes of keys and values, but at least one record."""
    count = min(rows.num_rows - first, max_records)
    if rows.nbytes > max_bytes:
        used = _ends(rows.column("key")) + _ends(rows.column("value"))
        before = int(used[first])
        fitting = int(np.searchsorted(used, before + max_bytes, side="right")) - 1 - first
        count = min(count, max(1, fitting))
    return rows.slice(first, count)


def _ends(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where each value begins in the data buffer, and where the last one ends."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    return offsets[column.offset : column.offset + len(column) + 1].astype(np.int64)

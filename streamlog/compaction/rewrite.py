"""Writing files anew: the same records in the same order, in fewer files, or some records less.

W1  Rows come out in offset order with the offsets they had; nothing is renumbered.
W2  A file is written under a name of its own and becomes visible only by a commit: a crash leaves orphans.
W3  One row group of input and one of output are in memory at a time, beside the compressed output, unless
    another engine left files that overlap or are unsorted: those are sorted in memory.

Runs wherever the work is sent: in this process, or in a task of Spark. Everything it needs is in the
`Job`, which can be pickled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streamlog import paths
from streamlog.batch import FILE_OPTIONS, ROW_GROUP_RECORDS
from streamlog.clock import Ids
from streamlog.compaction.plan import clusters
from streamlog.errors import StreamlogError
from streamlog.log.commit import Segment
from streamlog.log.files import DataFile, FileMissingError, check_order
from streamlog.schema import RECORD_SCHEMA
from streamlog.storage.objects import Objects

Offsets = NDArray[np.int64]

# A row group holds at most so many bytes: what a reader decodes to find one record.
_ROW_GROUP_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Job:
    """Files of one partition, side by side, to be written anew."""

    table: str
    files: tuple[Segment, ...]
    compression: str
    segment_bytes: int


@dataclass(frozen=True, slots=True)
class Thinning:
    """Which records of a job stay: those at or above `start` whose offset is in `survivors`.

    Records without a key always stay. Tombstones below `drop_below` go though they survived.
    """

    start: int
    drop_below: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What became of a job: these files are to be replaced by those."""

    gone: tuple[Segment, ...]
    new: tuple[Segment, ...]
    # Whether any tombstone below the limit of a thinning is left.
    tombstones: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job could not be done; `missing` if a file of it is gone, which another job's run explains."""

    why: str
    missing: bool


def try_merge(objects: Objects, ids: Ids, job: Job) -> Rewritten | Failure:
    """`merge`, with what went wrong as a result: one partition's trouble is not another's."""
    try:
        return merge(objects, ids, job)
    except FileMissingError as error:
        return Failure(f"{error} is gone: another job changed the files", missing=True)
    except StreamlogError as error:
        return Failure(str(error), missing=False)


def merge(objects: Objects, ids: Ids, job: Job) -> Rewritten:
    """All records of the files in as few files as the segment size allows."""
    output = _Output(objects, ids, job)
    for rows in read_rows(objects, job.table, job.files):
        output.write(rows)
    return Rewritten(job.files, output.finish())


def thin(objects: Objects, ids: Ids, job: Job, survivors: Offsets, rule: Thinning) -> Rewritten:
    """The records that stay; files that lose nothing are left as they are. `survivors` are sorted."""
    gone: list[Segment] = []
    new: list[Segment] = []
    tombstones = False
    output: _Output | None = None
    for part in clusters(job.files):
        lost = False
        for rows in read_rows(objects, job.table, part):
            stay, left = _staying(rows, survivors, rule)
            tombstones |= left
            lost |= not stay.all()
        if not lost:
            # Only files side by side may become one: this one stands between them.
            if output is not None:
                new += output.finish()
                output = None
            continue
        gone += part
        output = output or _Output(objects, ids, job)
        # Read again rather than kept: a file of many gigabytes does not fit.
        for rows in read_rows(objects, job.table, part):
            stay, _ = _staying(rows, survivors, rule)
            output.write(rows if stay.all() else rows.filter(pa.array(stay)))
    if output is not None:
        new += output.finish()
    return Rewritten(tuple(gone), tuple(new), tombstones)


def drop_key(objects: Objects, ids: Ids, job: Job, keys: pa.Array) -> Rewritten:
    """Files that hold one of the keys, without its records; nothing if none does."""
    files = (DataFile(objects, job.table, s.path, s.size) for s in job.files)
    if not any(holds(file, keys) for file in files):
        return Rewritten((), ())
    output = _Output(objects, ids, job)
    for rows in read_rows(objects, job.table, job.files):
        output.write(rows.filter(pc.invert(pc.is_in(rows["key"], keys))))
    return Rewritten(job.files, output.finish())


def last_offsets(
    objects: Objects, table: str, files: Sequence[Segment], start: int
) -> Iterator[pa.Table]:
    """Of each row group its keys with their last offset in it; records without a key are left out."""
    for segment in files:
        file = DataFile(objects, table, segment.path, segment.size)
        for group in range(file.row_groups):
            rows = file.columns(group, ["key", "offset"])
            rows = rows.filter(
                pc.and_(pc.is_valid(rows["key"]), pc.greater_equal(rows["offset"], start))
            )
            if rows.num_rows:
                yield newest(rows)


def newest(rows: pa.Table) -> pa.Table:
    """Each key with its highest offset."""
    found = rows.group_by("key", use_threads=False).aggregate([("offset", "max")])
    return found.rename_columns({"offset_max": "offset"}).select(["key", "offset"])


def read_rows(objects: Objects, table: str, files: Sequence[Segment]) -> Iterator[pa.Table]:
    """The rows of files in offset order, a row group at a time where the files allow it."""
    for part in clusters(files):
        if len(part) == 1 and part[0].sorted:
            file = DataFile(objects, table, part[0].path, part[0].size)
            for group in range(file.row_groups):
                rows = file.read([group])
                check_order(file.name, rows["offset"].to_numpy())
                yield rows
            continue
        opened = [DataFile(objects, table, segment.path, segment.size) for segment in part]
        whole = pa.concat_tables([file.read(list(range(file.row_groups))) for file in opened])
        whole = whole.sort_by("offset")
        check_order(table, whole["offset"].to_numpy())
        yield whole


def _staying(rows: pa.Table, survivors: Offsets, rule: Thinning) -> tuple[NDArray[np.bool_], bool]:
    offsets = rows["offset"].to_numpy()
    places = np.searchsorted(survivors, offsets)
    found = np.zeros(len(offsets), bool)
    inside = places < len(survivors)
    found[inside] = survivors[places[inside]] == offsets[inside]
    keyless = pc.is_null(rows["key"]).to_numpy(zero_copy_only=False)
    stay = (found | keyless) & (offsets >= rule.start)
    tombs = pc.is_null(rows["value"]).to_numpy(zero_copy_only=False) & ~keyless
    stay &= ~(tombs & (offsets < rule.drop_below))
    return stay, bool((tombs & stay).any())


def holds(file: DataFile, keys: pa.Array) -> bool:
    """Whether a file has a record of one of the keys."""
    return any(
        pc.any(pc.is_in(file.columns(group, ["key"])["key"], keys)).as_py()
        for group in range(file.row_groups)
    )


class _Output:
    """Data files of at most about the segment size, filled with rows in order."""

    def __init__(self, objects: Objects, ids: Ids, job: Job) -> None:
        self._objects = objects
        self._ids = ids
        self._job = job
        self._done: list[Segment] = []
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._sink: pa.BufferOutputStream | None = None
        self._writer: pq.ParquetWriter | None = None
        self._records = 0
        self._first = self._last = 0
        self._times: list[tuple[int, int]] = []

    def write(self, rows: pa.Table) -> None:
        for start in range(0, rows.num_rows, ROW_GROUP_RECORDS):
            part = rows.slice(start, ROW_GROUP_RECORDS)
            if self._pending_rows and (
                self._pending_rows + part.num_rows > ROW_GROUP_RECORDS
                or self._pending_bytes + part.nbytes > _ROW_GROUP_BYTES
            ):
                self._flush()
            self._pending.append(part)
            self._pending_rows += part.num_rows
            self._pending_bytes += part.nbytes

    def finish(self) -> tuple[Segment, ...]:
        self._flush()
        self._close()
        return tuple(self._done)

    def _flush(self) -> None:
        if not self._pending_rows:
            return
        rows = pa.concat_tables(self._pending).combine_chunks()
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        if self._writer is None:
            self._sink = pa.BufferOutputStream()
            self._writer = pq.ParquetWriter(
                self._sink,
                RECORD_SCHEMA,
                compression=self._job.compression,
                **FILE_OPTIONS,
            )
            self._first = int(rows["offset"][0].as_py())
        self._writer.write_table(rows, row_group_size=ROW_GROUP_RECORDS)
        self._records += rows.num_rows
        self._last = int(rows["offset"][-1].as_py())
        times = pc.min_max(rows["timestamp"].cast(pa.int64()))
        self._times.append((times["min"].as_py(), times["max"].as_py()))
        assert self._sink is not None
        if self._sink.tell() >= self._job.segment_bytes:
            self._close()

    def _close(self) -> None:
        if self._writer is None or self._sink is None:
            return
        self._writer.close()
        body = self._sink.getvalue()
        self._writer = self._sink = None
        name = paths.data_file(self._first, self._ids.new())
        self._objects.put_new(f"{self._job.table}/{name}", body, durable=True)
        self._done.append(
            Segment(
                name,
                body.size,
                self._records,
                self._first,
                self._last,
                min(low for low, _ in self._times),
                max(high for _, high in self._times),
            )
        )
        self._records = 0
        self._times = []

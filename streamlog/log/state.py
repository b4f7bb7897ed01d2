"""What a partition's log is at one version: its range, its live files, its producers' marks.

Built by applying commits in order, or from a snapshot. Pure but for `measure`, which looks into a file
that another engine wrote without statistics.

S1  `segments` is ordered by first offset. Files of streamlog do not overlap; another engine's may, and
    may reach over files of streamlog that its rewrite left alone.
S2  `end` and `start` come from the transactions `streamlog.end` and `streamlog.start`, never from files:
    they survive the deletion of all data.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import attrgetter

from streamlog.errors import CorruptLogError
from streamlog.log import invariants
from streamlog.log.commit import END, SEALED, START, Commit, Segment
from streamlog.log.files import FileMissingError
from streamlog.log.sequences import KAFKA_PREFIX, Sequences, readable
from streamlog.schema import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from streamlog.storage.delta import LiveFile, TableSnapshot

Measure = Callable[[LiveFile], Segment]

_by_first = attrgetter("first")
PRODUCER_PREFIX = "producer:"
_SEQUENCE_BITS = 32


def pack_mark(epoch: int, sequence: int) -> int:
    """A producer's epoch and sequence as one transaction version."""
    return epoch << _SEQUENCE_BITS | sequence


def unpack_mark(version: int) -> tuple[int, int]:
    """The epoch and the sequence of a transaction version."""
    return version >> _SEQUENCE_BITS, version & (1 << _SEQUENCE_BITS) - 1


class LogState:
    """The state of one partition at one version."""

    def __init__(self, table: str, measure: Measure) -> None:
        self.table = table
        self._measure = measure
        self.start = 0
        self.end = 0
        self.sealed = False
        self.segments: list[Segment] = []
        # How often files were taken out: what was read of them before may be deleted since.
        self.rewrites = 0
        self._paths: dict[str, Segment] = {}
        # The highest offset in all segments up to each one: it rises, so it can be searched.
        self._reach: list[int] = []
        self._txns: dict[str, int] = {}
        self._older_txns: Callable[[str], int | None] = lambda _: None
        self.sequences = Sequences(self._kafka_mark)

    @classmethod
    def from_snapshot(cls, table: str, snapshot: TableSnapshot, measure: Measure) -> LogState:
        """The state of a table that deltalake read."""
        version = snapshot.version
        state = cls(table, measure)
        protocol = {
            "minReaderVersion": snapshot.reader_version,
            "readerFeatures": list(snapshot.features),
        }
        fault = invariants.protocol_fault(protocol) or invariants.metadata_fault(
            snapshot.properties, snapshot.schema_json
        )
        if fault is not None:
            # The commit that did it is gone with the cleaned log, and with it the engine's name.
            raise CorruptLogError(
                f"{table}, at or before version {version}, by another engine: {fault}. Restore the "
                "table's _delta_log as it was before from a backup."
            )
        end = snapshot.transaction(END)
        if end is None:
            raise _headless(table, version)
        state.end = end
        state.start = snapshot.transaction(START) or 0
        state.sealed = snapshot.transaction(SEALED) is not None
        state._older_txns = snapshot.transaction
        state._add(sorted(state._segments(snapshot.files), key=_by_first))
        for segment in state.segments:
            if segment.last >= end:
                raise CorruptLogError(
                    f"{table}, at or before version {version}: {segment.path} holds offset "
                    f"{segment.last}, beyond the log's end {end}: another engine appended to the table. "
                    "Restore the table's _delta_log as it was before from a backup."
                )
        return state

    def txn(self, app_id: str) -> int | None:
        """The newest transaction version of an application."""
        found = self._txns.get(app_id)
        return self._older_txns(app_id) if found is None else found

    def producer(self, producer_id: str) -> tuple[int, int] | None:
        """The epoch and sequence that a producer reached here."""
        mark = self.txn(PRODUCER_PREFIX + producer_id)
        return None if mark is None else unpack_mark(mark)

    def _kafka_mark(self, producer_id: int) -> tuple[int, int] | None:
        mark = self.txn(f"{KAFKA_PREFIX}{producer_id}")
        return None if mark is None else unpack_mark(mark)

    def has_file(self, path: str) -> bool:
        """Whether a file is live."""
        return path in self._paths

    def file(self, path: str) -> Segment:
        """A live file by its path."""
        return self._paths[path]

    def apply(self, commit: Commit) -> None:
        """Moves to the next version, or refuses a commit that breaks the log."""
        table = self.table
        if commit.version == 0 and END not in commit.txns:
            raise _headless(table, 0)
        if self.sealed and commit.kind is not None:
            raise invariants.refuse(table, commit, "it follows the seal of a deleted topic")
        invariants.check_definition(table, commit)
        if commit.kind == "append":
            invariants.check_append(table, self.end, commit)
        elif commit.kind is None:
            invariants.check_foreign(table, commit)
        invariants.check_head(table, self.start, self.end, commit)
        if commit.kind == "append":
            self._add(self._segments(commit.adds))
        elif commit.adds or commit.removes:
            self._replace(commit)
        self._txns.update(commit.txns)
        batches = commit.details.get("batches")
        if batches and readable(batches):
            self.sequences.write(batches)
        self.end = commit.txns.get(END, self.end)
        self.start = commit.txns.get(START, self.start)
        self.sealed = self.sealed or SEALED in commit.txns

    def appended(
        self, segment: Segment | None, txns: dict[str, int], batches: Sequence[Sequence[int]] = ()
    ) -> None:
        """Takes up a commit of one's own, known to be lawful, without reading it back."""
        if segment is not None:
            self._append(segment)
        self.sequences.write(batches)
        self._txns.update(txns)
        self.end = txns.get(END, self.end)
        self.start = txns.get(START, self.start)
        self.sealed = self.sealed or SEALED in txns

    def first_reaching(self, offset: int) -> int:
        """The index of the first segment that holds this offset or a higher one."""
        return bisect_left(self._reach, offset)

    def _segment(self, file: LiveFile, low: int, high: int) -> Segment:
        if (
            file.records is not None
            and file.first_offset is not None
            and file.last_offset is not None
            and file.min_timestamp_us is not None
            and file.max_timestamp_us is not None
        ):
            return Segment(
                file.path,
                file.size,
                file.records,
                file.first_offset,
                file.last_offset,
                file.min_timestamp_us,
                file.max_timestamp_us,
            )
        try:
            found = self._measure(file)
            # A file without records is lawful Delta; it reaches nowhere.
            return found if found.records else replace(found, first=low, last=low - 1)
        except FileMissingError:
            # A later version may have replaced the file, and a vacuum taken it: no harm then. If it is
            # live in the end, the reader that opens it finds it missing.
            return Segment(
                file.path,
                file.size,
                file.records or 0,
                low,
                high,
                MIN_TIMESTAMP_MS * 1000,
                MAX_TIMESTAMP_MS * 1000,
                measured=False,
            )

    def _segments(self, files: Iterable[LiveFile], gone: Sequence[Segment] = ()) -> list[Segment]:
        low = min((segment.first for segment in gone), default=0)
        high = max((segment.last for segment in gone), default=self.end - 1)
        return [self._segment(file, low, high) for file in files]

    def _add(self, new: Iterable[Segment]) -> None:
        for segment in new:
            if self.segments and segment.first < self.segments[-1].first:
                insort(self.segments, segment, key=_by_first)
                self._paths[segment.path] = segment
                self._reach.clear()
            else:
                self._append(segment)
        if len(self._reach) != len(self.segments):
            self._reach = list(accumulate((segment.last for segment in self.segments), max))

    def _append(self, segment: Segment) -> None:
        reach = self._reach[-1] if self._reach else -1
        self._reach.append(max(reach, segment.last))
        self.segments.append(segment)
        self._paths[segment.path] = segment

    def _replace(self, commit: Commit) -> None:
        # All is checked before anything changes: a reader that met a commit it refuses still has the
        # state before it.
        for path in commit.removes:
            if path not in self._paths:
                raise invariants.refuse(self.table, commit, f"it removes {path}, which is not live")
        # Delta's rule: adding a path again (new statistics, for one) replaces its former entry.
        again = [file.path for file in commit.adds if file.path in self._paths]
        gone = [self._paths[path] for path in dict.fromkeys((*commit.removes, *again))]
        new = self._segments(commit.adds, gone)
        if commit.kind is None or new:
            self._check_rewrite(commit, gone, new)
        self.rewrites += 1
        for segment in gone:
            del self._paths[segment.path]
        self.segments = [segment for segment in self.segments if segment.path in self._paths]
        self._reach.clear()
        self._add(new)

    def _check_rewrite(
        self, commit: Commit, gone: Sequence[Segment], new: Sequence[Segment]
    ) -> None:
        if not all(segment.measured for segment in (*gone, *new)):
            # Files that are gone since: what replaced them is checked in their stead.
            return
        before = sum(segment.records for segment in gone)
        after = sum(segment.records for segment in new)
        exact = commit.kind is None and not commit.changes_data
        if after > before or (exact and after != before):
            raise invariants.refuse(
                self.table, commit, f"it turns {before} records into {after} by rewriting files"
            )
        if not new or not gone:
            return
        low, high = min(s.first for s in gone), max(s.last for s in gone)
        if any(segment.first < low or segment.last > high for segment in new):
            raise invariants.refuse(
                self.table, commit, f"it writes offsets outside [{low}, {high}], which it replaced"
            )


def _headless(table: str, version: int) -> CorruptLogError:
    return CorruptLogError(
        f"{table}, version {version}: the log's head ({END}) is missing; its offsets would start again "
        "at 0. This is not a table of streamlog, or its transactions were dropped. Restore an older "
        "version of the table."
    )

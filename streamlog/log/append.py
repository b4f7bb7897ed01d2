"""Appending to one partition: put the data file, then win the next version. The heart of streamlog.

P1  Offsets are dense: a batch is numbered from the head that the commit before it left, and encoded anew
    when another writer moved the head.
P2  One commit id serves all attempts of a batch, so that its own commit is recognised after a lost reply.
P3  An unclear put is settled at its version before anything else is tried (`VersionLog.try_commit`).
P4  When the log overtook a sleeping writer, a fresh snapshot decides: our file or our producer's mark in
    it means written, a mark below ours means not written, and anything else is reported as unknown.
P5  A data file is committed while it is young (a quarter of the vacuum floor), else put again; when the
    commit ended later than that, the file is looked for, and restored, before the batch is acknowledged.

One thread at a time. A crash before the commit leaves an orphan file that no reader can see; vacuum
removes it. A crash after the commit leaves a complete append.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from streamlog import batch, paths
from streamlog.batch import RecordColumns
from streamlog.errors import InvalidRequestError, UnavailableError, UnknownOutcomeError
from streamlog.log import commit as commits
from streamlog.log.backoff import Backoff
from streamlog.log.commit import END, Segment
from streamlog.log.sequences import KAFKA_PREFIX, BatchMark, rows_of
from streamlog.log.state import PRODUCER_PREFIX, pack_mark
from streamlog.log.versions import VACUUM_FLOOR_SECONDS, OvertakenError, TableGoneError

if TYPE_CHECKING:
    from streamlog.log.partition import PartitionLog


@dataclass(frozen=True, slots=True)
class ProducerMark:
    """A stable producer's epoch, and its sequence after the batch that carries the mark."""

    producer_id: str
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class AppMark:
    """A batch of an application that repeats itself: found in the log, it is written already.

    Unlike a producer's, the mark never expires (its name begins with `streamlog.`), and the same version
    always stands for the same records, whoever writes them.
    """

    app_id: str
    version: int


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch is. `base_offset` is None when only its producer's mark tells that it was written."""

    base_offset: int | None
    version: int


@dataclass(slots=True)
class _Attempt:
    """The data file of a batch as last put."""

    segment: Segment
    body: pa.Buffer
    put_at: float


class RegroupError(Exception):
    """Of the batches of Kafka's producers in an append, one is no longer the next of its producer.

    Nothing was written; judge them again (`PartitionLog.judge`) and append those that still are next.
    """


class Append:
    """One batch on its way into the log."""

    def __init__(
        self,
        log: PartitionLog,
        columns: RecordColumns,
        durable: bool,
        compression: str,
        producer: ProducerMark | None,
        app: AppMark | None,
        batches: Sequence[BatchMark],
        deadline: float | None,
    ) -> None:
        if len(columns) == 0:
            raise InvalidRequestError("a batch must hold at least one record")
        self._log = log
        self._view = log.view
        self._columns = columns
        self._durable = durable
        self._compression = compression
        self._producer = producer
        self._app = app
        self._batches = batches
        self._commit_id = log.runtime.ids.new()
        self._clock = log.runtime.clock
        self._pause = Backoff(log.runtime, deadline, f"a batch for {log.table}")
        self._times = columns.time_range_us()
        self._file: _Attempt | None = None
        self._tried = False

    def run(self) -> Appended:
        view = self._view
        if not view.is_open or view.versions.stale:
            self._persist(self._log.refresh)
        while True:
            done = self._already_written()
            if done is not None:
                return done
            try:
                attempt = self._put_data()
                if self._aged(attempt):
                    # The put itself took so long that a vacuum may have had the file: once more.
                    self._pause.after_loss()
                    continue
                data, txns = self._build(attempt)
                if self._durable:
                    self._log.make_earlier_durable()
            except UnavailableError as error:
                if not error.retriable:
                    raise
                self._pause.after_failure(error)
                continue
            try:
                won = self._win(data)
            except OvertakenError:
                self._persist(view.open)
                self._settle_by_snapshot()
                continue
            if won:
                return self._acknowledge(attempt, txns)
            self._log.lost_races += 1
            self._persist(view.catch_up)
            self._pause.after_loss()

    def _persist(self, look: Callable[[], object]) -> None:
        """A look at the log, again and again while the store does not answer."""
        while True:
            try:
                look()
                return
            except UnavailableError as error:
                if not error.retriable:
                    raise
                self._pause.after_failure(error)

    def _already_written(self) -> Appended | None:
        if self._tried and self._file and self._view.state.has_file(self._file.segment.path):
            return self._found()
        self._log.check_open()
        if any(verdict.judgement != "next" for verdict in self._log.judge(self._batches)):
            raise RegroupError
        if self._app is not None:
            reached = self._view.state.txn(self._app.app_id)
            if reached is not None and reached >= self._app.version:
                return self._found()
        mark = self._producer
        if mark is None:
            return None
        found = self._log.check_mark(mark)
        if found is None or found < (mark.epoch, mark.sequence):
            return None
        if not self._tried:
            raise InvalidRequestError(
                f"producer id {mark.producer_id!r} used sequence {mark.sequence} before; a sequence is "
                "never used twice"
            )
        return self._found()

    def _put_data(self) -> _Attempt:
        base = self._view.state.end
        last = self._file
        now = self._clock.monotonic()
        if last is not None and last.segment.first == base:
            if not self._aged(last):
                return last
            body = last.body
        else:
            body = batch.encode(self._columns, base, self._compression)
        name = paths.data_file(base, self._log.runtime.ids.new())
        self._log.objects.put_new(f"{self._log.table}/{name}", body, durable=self._durable)
        count = len(self._columns)
        segment = Segment(name, body.size, count, base, base + count - 1, *self._times)
        self._file = _Attempt(segment, body, now)
        return self._file

    def _aged(self, attempt: _Attempt) -> bool:
        return self._clock.monotonic() - attempt.put_at > VACUUM_FLOOR_SECONDS / 4

    def _build(self, attempt: _Attempt) -> tuple[bytes, dict[str, int]]:
        now_ms = self._clock.time_ms()
        txns = {END: attempt.segment.last + 1}
        if self._producer is not None:
            mark = pack_mark(self._producer.epoch, self._producer.sequence)
            txns[PRODUCER_PREFIX + self._producer.producer_id] = mark
        if self._app is not None:
            txns[self._app.app_id] = self._app.version
        for sent in self._batches:
            txns[f"{KAFKA_PREFIX}{sent.producer_id}"] = pack_mark(sent.epoch, sent.last)
        actions = [commits.txn_action(app, at, now_ms) for app, at in txns.items()]
        actions.append(commits.add_action(attempt.segment, now_ms, data_change=True))
        data = commits.build(
            "append",
            commit_id=self._commit_id,
            previous=self._view.versions.commit_id,
            now_ms=now_ms,
            actions=actions,
            details={"durable": self._durable}
            | ({"batches": self._rows(attempt)} if self._batches else {}),
        )
        return data, txns

    def _rows(self, attempt: _Attempt) -> list[list[int]]:
        return rows_of(self._batches, attempt.segment.first)

    def _win(self, data: bytes) -> bool:
        while True:
            try:
                self._tried = True
                return self._view.versions.try_commit(data, self._commit_id, durable=self._durable)
            except UnavailableError as error:
                if not error.retriable:
                    raise
                self._pause.after_failure(error, unclear=True)
            except TableGoneError as error:
                raise self._log.gone() from error

    def _settle_by_snapshot(self) -> None:
        """P4, right after a fresh open: returns if the batch is certainly not written or live."""
        if self._file is not None and self._view.state.has_file(self._file.segment.path):
            return
        if self._producer is not None or self._app is not None or self._all_marked():
            return
        raise UnknownOutcomeError(
            f"a batch for {self._log.table} was put while this process slept for so long that the log "
            "was cleaned meanwhile; nobody can tell whether it was written. Read the topic's end before "
            "sending it again, or use a stable producer_id, whose sequence decides this"
        )

    def _all_marked(self) -> bool:
        """Whether each record belongs to a batch of an idempotent producer, so that its mark decides."""
        marked = sum((mark.last - mark.first) % 2**31 + 1 for mark in self._batches)
        return marked == len(self._columns)

    def _found(self) -> Appended:
        path = self._file.segment.path if self._file is not None else ""
        state = self._view.state
        base = state.file(path).first if state.has_file(path) else None
        return Appended(base, self._view.versions.version)

    def _acknowledge(self, attempt: _Attempt, txns: dict[str, int]) -> Appended:
        log = self._log
        view = self._view
        view.state.appended(attempt.segment, txns, self._rows(attempt))
        view.all_durable = view.all_durable and self._durable
        if self._aged(attempt):
            path = f"{log.table}/{attempt.segment.path}"
            if log.objects.head(path) is None:
                log.objects.put_new(path, attempt.body, durable=self._durable)
        version = view.versions.version
        log.checkpointer.passed(log.table, version, len(view.state.segments))
        return Appended(attempt.segment.first, version)

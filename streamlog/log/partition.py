"""Appending to one partition: put the data file, then win the next version. The heart of streamlog.

P1  Offsets are dense: a batch is numbered from the head that the commit before it left, and encoded anew
    when another writer moved the head.
P2  One commit id serves all attempts of a batch, so that its own commit is recognised after a lost reply.
P3  An unclear put is settled at its version before anything else is tried (`VersionLog.try_commit`).
P4  When the log overtook a sleeping writer, a fresh snapshot decides: our file or our producer's mark in
    it means written, a mark below ours means not written, and anything else is reported as unknown.
P5  A data file is committed while it is young (a quarter of the vacuum floor), else put again; when the
    commit ended later than that, the file is looked for, and restored, before the batch is acknowledged.
P6  With `durable`, every earlier version is made durable first.
P8  Maintenance for a controller carries its epoch, and is refused where a later controller has been: the
    epoch is compared at every version tried, so one that slept through its own replacement commits nothing
    after the first commit of its successor.

One thread at a time. A crash before the commit leaves an orphan file that no reader can see; vacuum
removes it. A crash after the commit leaves a complete append.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streamlog import batch, paths
from streamlog.batch import RecordColumns
from streamlog.clock import Runtime
from streamlog.errors import (
    CorruptLogError,
    FencedError,
    InvalidRequestError,
    OutOfRangeError,
    TopicDeletedError,
    UnavailableError,
    UnknownOutcomeError,
)
from streamlog.log import commit as commits
from streamlog.log.backoff import Backoff
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.commit import CONTROLLER, END, SEALED, START, Segment
from streamlog.log.sequences import KAFKA_PREFIX, BatchMark, Verdict, rows_of
from streamlog.log.state import PRODUCER_PREFIX, pack_mark
from streamlog.log.versions import (
    LOG_FLOOR_SECONDS,
    VACUUM_FLOOR_SECONDS,
    OvertakenError,
    TableGoneError,
)
from streamlog.log.view import PartitionView
from streamlog.storage.objects import Objects


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


# What a commit holds besides its own description: actions, and marks by name. Asked for at every attempt.
_Actions = Callable[[], tuple[list[dict[str, Any]], dict[str, int]]]


class RegroupError(Exception):
    """Of the batches of Kafka's producers in an append, one is no longer the next of its producer.

    Nothing was written; judge them again (`PartitionLog.judge`) and append those that still are next.
    """


class _VoidError(Exception):
    """A rewrite whose files are not all live any more."""


class PartitionLog:
    """The writer's end of one partition."""

    def __init__(
        self,
        objects: Objects,
        table: str,
        runtime: Runtime,
        checkpointer: Checkpointer,
        create: Callable[[], None],
        floor: float = LOG_FLOOR_SECONDS,
    ) -> None:
        self._objects = objects
        self.table = table
        self._runtime = runtime
        self._clock = runtime.clock
        self._checkpointer = checkpointer
        self._create = create
        self._view = PartitionView(objects, table, runtime, floor)
        # How often another writer won the version that this one wanted.
        self.lost_races = 0

    @property
    def end(self) -> int:
        """The next offset, as of the last look."""
        return self._view.state.end

    @property
    def start(self) -> int:
        """The log start, as of the last look."""
        return self._view.state.start

    @property
    def rewrites(self) -> tuple[int, int]:
        """Changes whenever files were, or may have been, taken out of the log, as of the last look."""
        return self._view.opens, self._view.state.rewrites

    @property
    def is_open(self) -> bool:
        """Whether the log was looked at, and lately enough to trust its names."""
        return self._view.is_open and not self._view.versions.stale

    @property
    def version(self) -> int:
        """The table's version, as of the last look."""
        return self._view.versions.version

    def refresh(self) -> None:
        """Looks at the newest version; makes the table if nobody has."""
        if self._view.is_open:
            self._view.catch_up()
            return
        try:
            self._view.open()
        except TableGoneError:
            self._create()
            try:
                self._view.open()
            except TableGoneError as error:
                # S3's 409 with nothing there, or a deletion that finished meanwhile: ask again.
                raise UnavailableError(f"{self.table} could not be made: {error}") from error

    def producer_state(self, producer_id: str) -> tuple[int, int] | None:
        """The epoch and the sequence that a stable producer reached in this partition."""
        self.refresh()
        return self._view.state.producer(producer_id)

    def append(
        self,
        columns: RecordColumns,
        *,
        durable: bool,
        compression: str,
        producer: ProducerMark | None = None,
        app: AppMark | None = None,
        batches: Sequence[BatchMark] = (),
        deadline: float | None = None,
    ) -> Appended:
        """Commits a batch; it is visible (and, with `durable`, on stable storage) when this returns.

        `batches`: those of Kafka's idempotent producers in it; RegroupError if one of them is not the next
        of its producer by the version that the commit would follow.
        """
        return _Append(self, columns, durable, compression, producer, app, batches, deadline).run()

    def judge(self, batches: Sequence[BatchMark]) -> list[Verdict]:
        """What becomes of batches of Kafka's producers, as of the last look."""
        return self._view.state.sequences.judge(batches)

    def fence(self, mark: ProducerMark, deadline: float | None = None) -> None:
        """Commits a producer's epoch alone, so that older holders of its id can commit no more."""
        self._commit("fence", lambda: self._marks(mark), deadline=deadline)

    def truncate(
        self,
        before: int,
        deadline: float | None = None,
        *,
        controller_epoch: int | None = None,
    ) -> int:
        """Moves the log start to `before`; files wholly below it are removed. The new start."""
        now_ms = int(self._objects.store_time() * 1000)

        def actions() -> tuple[list[dict[str, Any]], dict[str, int]]:
            state = self._view.state
            if not 0 <= before <= state.end:
                raise OutOfRangeError(
                    f"cannot truncate {self.table} before offset {before}: the log is "
                    f"[{state.start}, {state.end}); give an offset in it, or {state.end} for all"
                )
            if before <= state.start:
                return [], {}
            gone = [segment for segment in state.segments if segment.last < before]
            return (
                [
                    commits.remove_action(segment.path, segment.size, now_ms, data_change=True)
                    for segment in gone
                ],
                {START: before},
            )

        self._commit("truncate", self._controlled(controller_epoch, actions), deadline=deadline)
        return self._view.state.start

    def rewrite(
        self,
        gone: Sequence[Segment],
        new: Sequence[Segment],
        *,
        read: Iterable[Segment] = (),
        marks: Mapping[str, int] | None = None,
        drops: bool = False,
        written_at: float | None = None,
        deadline: float | None = None,
        controller_epoch: int | None = None,
    ) -> bool:
        """Replaces files by others that hold the same records, or with `drops` fewer of them.

        P7  All files that the plan read, not only those it replaces, are live at the version before the
            commit; else the plan is void: False, and nothing was changed (rule 16). It is void too when
            the new files, written from `written_at` on, are no longer young (rule 8).
        """
        begun = self._clock.monotonic() if written_at is None else written_at
        old = begun + VACUUM_FLOOR_SECONDS / 4
        now_ms = int(self._objects.store_time() * 1000)
        needed = {segment.path for segment in (*gone, *read)}

        def actions() -> tuple[list[dict[str, Any]], dict[str, int]]:
            state = self._view.state
            if new and all(state.has_file(segment.path) for segment in new):
                return [], {}  # an answer was lost; a fresh view shows that it is done
            if not all(state.has_file(path) for path in needed) or self._clock.monotonic() > old:
                raise _VoidError
            rows = [
                commits.remove_action(segment.path, segment.size, now_ms, data_change=drops)
                for segment in gone
            ]
            # By Delta's words: every record of an added file was in a removed one.
            rows += [commits.add_action(segment, now_ms, data_change=False) for segment in new]
            return rows, dict(marks or {})

        try:
            self._commit("rewrite", self._controlled(controller_epoch, actions), deadline=deadline)
        except _VoidError:
            return False
        if self._clock.monotonic() > old:
            self._check_there(new, gone)
        return True

    def _controlled(self, epoch: int | None, actions: _Actions) -> _Actions:
        """P8: the actions with a controller's epoch, unless a later one has been here."""
        if epoch is None:
            return actions

        def checked() -> tuple[list[dict[str, Any]], dict[str, int]]:
            found = self._view.state.txn(CONTROLLER)
            if found is not None and found > epoch:
                raise FencedError(
                    f"maintenance of {self.table} for the controller of epoch {epoch} is refused: the "
                    f"controller of epoch {found} has been here. This one was replaced; nothing to do"
                )
            rows, txns = actions()
            return (rows, txns | {CONTROLLER: epoch}) if rows or txns else (rows, txns)

        return checked

    def _check_there(self, new: Sequence[Segment], gone: Sequence[Segment]) -> None:
        """P5 for a rewrite whose commit slept: what was replaced is still there to be put back."""
        for segment in new:
            if self._objects.head(f"{self.table}/{segment.path}") is None:
                raise CorruptLogError(
                    f"{self.table}: a vacuum took {segment.path} before version {self.version} named it. "
                    f"Nothing is lost yet: the {len(gone)} files it replaced stay for an hour. Stop "
                    f"maintenance and move version {self.version} and all above it out of _delta_log."
                )

    def seal(self, deadline: float | None = None) -> None:
        """The last commit of a deleted topic's partition; doing it again is fine."""
        self.refresh()
        if not self._view.state.sealed:
            try:
                self._commit("seal", lambda: ([], {SEALED: 1}), deadline=deadline)
            except TopicDeletedError:
                return

    def _marks(self, mark: ProducerMark) -> tuple[list[dict[str, Any]], dict[str, int]]:
        self.check_mark(mark)
        return [], {PRODUCER_PREFIX + mark.producer_id: pack_mark(mark.epoch, mark.sequence)}

    def check_mark(self, mark: ProducerMark) -> tuple[int, int] | None:
        """The producer's state here; FencedError when a newer holder of the id has been here."""
        found = self._view.state.producer(mark.producer_id)
        if found is not None and found[0] > mark.epoch:
            raise FencedError(
                f"producer id {mark.producer_id!r} is held by a newer producer (epoch {found[0]}; this "
                f"one has {mark.epoch}); stop this one, or give it an id of its own"
            )
        return found

    def check_open(self) -> None:
        """TopicDeletedError when the partition is sealed; the refusal when it is broken."""
        self._view.check_sound()
        if self._view.state.sealed:
            raise deleted(self.table)

    def _commit(
        self,
        kind: commits.Kind,
        actions: _Actions,
        deadline: float | None,
    ) -> None:
        """Commits actions without data, made anew for every version tried."""
        self.refresh()
        commit_id = self._runtime.ids.new()
        pause = Backoff(self._runtime, deadline, f"{kind} of {self.table}")
        settled = True
        data = b""
        txns: dict[str, int] = {}
        view = self._view
        while True:
            if settled:
                self.check_open()
                rows, txns = actions()
                if not rows and not txns:
                    return
                now_ms = self._clock.time_ms()
                rows += [commits.txn_action(app, at, now_ms) for app, at in txns.items()]
                data = commits.build(
                    kind,
                    commit_id=commit_id,
                    previous=view.versions.commit_id,
                    now_ms=now_ms,
                    actions=rows,
                    details={"durable": True},
                )
            try:
                self.make_earlier_durable()
                won = view.versions.try_commit(data, commit_id, durable=True)
                settled = True
            except UnavailableError as error:
                if not error.retriable:
                    raise
                settled = False
                pause.after_failure(error, unclear=True)
                continue
            except TableGoneError as error:
                raise deleted(self.table) from error
            except OvertakenError:
                view.open()
                settled = True
                continue
            if won:
                # Removes change the list of files: read one's own commit back like anybody's.
                view.adopt_own(data)
                return
            view.catch_up()
            pause.after_loss()

    def make_earlier_durable(self) -> None:
        """P6: all that was seen so far goes to stable storage."""
        if not self._view.all_durable:
            self._objects.sync_all()
            self._view.all_durable = True


def deleted(table: str) -> TopicDeletedError:
    """The error for a write to a topic that is gone."""
    return TopicDeletedError(
        f"{table} belongs to a topic that was deleted; nothing was written. Make the topic again to "
        "write to the new one"
    )


class _Append:
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
        self._view = log._view
        self._columns = columns
        self._durable = durable
        self._compression = compression
        self._producer = producer
        self._app = app
        self._batches = batches
        self._commit_id = log._runtime.ids.new()
        self._clock = log._clock
        self._pause = Backoff(log._runtime, deadline, f"a batch for {log.table}")
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
        name = paths.data_file(base, self._log._runtime.ids.new())
        self._log._objects.put_new(f"{self._log.table}/{name}", body, durable=self._durable)
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
                raise deleted(self._log.table) from error

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
            if log._objects.head(path) is None:
                log._objects.put_new(path, attempt.body, durable=self._durable)
        version = view.versions.version
        log._checkpointer.passed(log.table, version, len(view.state.segments))
        return Appended(attempt.segment.first, version)

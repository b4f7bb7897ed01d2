"""The writer's end of one partition: appends (`append` has their rules), and commits without data.

P6  With `durable`, every earlier version is made durable first.
P7  A rewrite commits only if all files that its plan read are live: see `rewrite`.
P8  Maintenance for a controller carries its epoch, and is refused where a later controller has been: the
    epoch is compared at every version tried, so one that slept through its own replacement commits nothing
    after the first commit of its successor.

One thread at a time. A crash leaves either nothing or a complete commit, and perhaps orphan files that no
reader can see; vacuum removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from streamlog.batch import RecordColumns
from streamlog.clock import Runtime
from streamlog.errors import (
    CorruptLogError,
    FencedError,
    OutOfRangeError,
    TopicDeletedError,
    UnavailableError,
)
from streamlog.log import commit as commits
from streamlog.log.append import Append, Appended, AppMark, ProducerMark, RegroupError
from streamlog.log.backoff import Backoff
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.commit import CONTROLLER, SEALED, START, Segment
from streamlog.log.sequences import BatchMark, Verdict
from streamlog.log.state import PRODUCER_PREFIX, pack_mark
from streamlog.log.versions import (
    LOG_FLOOR_SECONDS,
    VACUUM_FLOOR_SECONDS,
    OvertakenError,
    TableGoneError,
)
from streamlog.log.view import PartitionView
from streamlog.storage.objects import Objects

__all__ = [
    "AppMark",
    "Appended",
    "PartitionLog",
    "ProducerMark",
    "RegroupError",
    "deleted",
]


# What a commit holds besides its own description: actions, and marks by name. Asked for at every attempt.
_Actions = Callable[[], tuple[list[dict[str, Any]], dict[str, int]]]


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
        self.objects = objects
        self.table = table
        self.runtime = runtime
        self._clock = runtime.clock
        self.checkpointer = checkpointer
        self._create = create
        self.view = PartitionView(objects, table, runtime, floor)
        # How often another writer won the version that this one wanted.
        self.lost_races = 0

    @property
    def end(self) -> int:
        """The next offset, as of the last look."""
        return self.view.state.end

    @property
    def start(self) -> int:
        """The log start, as of the last look."""
        return self.view.state.start

    @property
    def rewrites(self) -> tuple[int, int]:
        """Changes whenever files were, or may have been, taken out of the log, as of the last look."""
        return self.view.opens, self.view.state.rewrites

    @property
    def is_open(self) -> bool:
        """Whether the log was looked at, and lately enough to trust its names."""
        return self.view.is_open and not self.view.versions.stale

    @property
    def version(self) -> int:
        """The table's version, as of the last look."""
        return self.view.versions.version

    def refresh(self) -> None:
        """Looks at the newest version; makes the table if nobody has."""
        if self.view.is_open:
            self.view.catch_up()
            return
        try:
            self.view.open()
        except TableGoneError:
            self._create()
            try:
                self.view.open()
            except TableGoneError as error:
                # S3's 409 with nothing there, or a deletion that finished meanwhile: ask again.
                raise UnavailableError(f"{self.table} could not be made: {error}") from error

    def producer_state(self, producer_id: str) -> tuple[int, int] | None:
        """The epoch and the sequence that a stable producer reached in this partition."""
        self.refresh()
        return self.view.state.producer(producer_id)

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
        return Append(self, columns, durable, compression, producer, app, batches, deadline).run()

    def judge(self, batches: Sequence[BatchMark]) -> list[Verdict]:
        """What becomes of batches of Kafka's producers, as of the last look."""
        return self.view.state.sequences.judge(batches)

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
        now_ms = int(self.objects.store_time() * 1000)

        def actions() -> tuple[list[dict[str, Any]], dict[str, int]]:
            state = self.view.state
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
        return self.view.state.start

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
        now_ms = int(self.objects.store_time() * 1000)
        needed = {segment.path for segment in (*gone, *read)}

        def actions() -> tuple[list[dict[str, Any]], dict[str, int]]:
            state = self.view.state
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
            found = self.view.state.txn(CONTROLLER)
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
            if self.objects.head(f"{self.table}/{segment.path}") is None:
                raise CorruptLogError(
                    f"{self.table}: a vacuum took {segment.path} before version {self.version} named it. "
                    f"Nothing is lost yet: the {len(gone)} files it replaced stay for an hour. Stop "
                    f"maintenance and move version {self.version} and all above it out of _delta_log."
                )

    def seal(self, deadline: float | None = None) -> None:
        """The last commit of a deleted topic's partition; doing it again is fine."""
        self.refresh()
        if not self.view.state.sealed:
            try:
                self._commit("seal", lambda: ([], {SEALED: 1}), deadline=deadline)
            except TopicDeletedError:
                return

    def _marks(self, mark: ProducerMark) -> tuple[list[dict[str, Any]], dict[str, int]]:
        self.check_mark(mark)
        return [], {PRODUCER_PREFIX + mark.producer_id: pack_mark(mark.epoch, mark.sequence)}

    def check_mark(self, mark: ProducerMark) -> tuple[int, int] | None:
        """The producer's state here; FencedError when a newer holder of the id has been here."""
        found = self.view.state.producer(mark.producer_id)
        if found is not None and found[0] > mark.epoch:
            raise FencedError(
                f"producer id {mark.producer_id!r} is held by a newer producer (epoch {found[0]}; this "
                f"one has {mark.epoch}); stop this one, or give it an id of its own"
            )
        return found

    def check_open(self) -> None:
        """TopicDeletedError when the partition is sealed; the refusal when it is broken."""
        self.view.check_sound()
        if self.view.state.sealed:
            raise deleted(self.table)

    def _commit(
        self,
        kind: commits.Kind,
        actions: _Actions,
        deadline: float | None,
    ) -> None:
        """Commits actions without data, made anew for every version tried."""
        self.refresh()
        commit_id = self.runtime.ids.new()
        pause = Backoff(self.runtime, deadline, f"{kind} of {self.table}")
        settled = True
        data = b""
        txns: dict[str, int] = {}
        view = self.view
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

    def gone(self) -> TopicDeletedError:
        """The error for a write to a topic that is gone."""
        return deleted(self.table)

    def make_earlier_durable(self) -> None:
        """P6: all that was seen so far goes to stable storage."""
        if not self.view.all_durable:
            self.objects.sync_all()
            self.view.all_durable = True


def deleted(table: str) -> TopicDeletedError:
    """The error for a write to a topic that is gone."""
    return TopicDeletedError(
        f"{table} belongs to a topic that was deleted; nothing was written. Make the topic again to "
        "write to the new one"
    )

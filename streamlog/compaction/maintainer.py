"""Maintenance of a root: plans for its topics, carried out by an engine, committed one by one.

M1  A plan names all it will do; a run does what the plan of that moment says, and reports each step.
M2  Each step is one commit, and steps do not depend on each other: killed anywhere, a run leaves orphans
    at worst, and the next one plans what is left.
M3  A step whose files another job changed meanwhile is void: nothing happens, the next run plans anew. So
    any number of jobs may run at once; what they can waste is work.
M4  For a controller, each commit carries its epoch and is refused where a later one has been (P8 of
    `log.partition`); other maintenance carries none.
M5  A partition that cannot be maintained is reported and does not stop the others.

Appends are never held up: a maintenance commit takes its turn for the next version like any writer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from streamlog.clock import Runtime
from streamlog.compaction.engine import Engine, KeyJob, LocalEngine, key_jobs
from streamlog.compaction.keys import CleanState, marks_after, plan_compaction
from streamlog.compaction.plan import (
    Action,
    Compact,
    Merge,
    Retain,
    Step,
    action_of,
    total_bytes,
    total_records,
)
from streamlog.compaction.retention import plan_retention, records_gone
from streamlog.compaction.rewrite import Failure, Job, Rewritten, Thinning
from streamlog.compaction.segments import plan_merges
from streamlog.errors import StreamlogError, TopicDeletedError
from streamlog.log.cleaner import Cleaner
from streamlog.log.commit import CLEAN, TOMBSTONES, TOMBSTONES_AT, Segment
from streamlog.log.files import FileMissingError
from streamlog.log.partition import PartitionLog
from streamlog.log.reader import PartitionReader
from streamlog.log.topics import TopicInfo, Topics

ALL: tuple[Action, ...] = ("retain", "compact", "merge")
Status = Literal["planned", "done", "void", "failed"]
Committed = Callable[[], Mapping[tuple[str, int], Mapping[str, int]]]
Progress = Callable[[int, int], None]

# Merges are sent to the engine so many at a time: what waits in a queue is not yet written (rule 8).
_WAVE = 64
_COMMIT_SECONDS = 60.0
_CHANGED = "another job changed the files; the next run plans anew"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One step, planned or carried out."""

    topic: str
    partition: int
    action: Action
    status: Status
    reason: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    records_dropped: int
    first: int
    last: int
    note: str = ""
    files: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What cleaning a partition's table took away."""

    topic: str
    partition: int
    checkpoint: int | None
    commits: int
    files: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Work:
    """The steps of a partition, in this order, with what is needed to carry them out."""

    info: TopicInfo
    partition: int
    steps: tuple[Step, ...]
    start: int
    clean: CleanState


class Maintainer:
    """Plans and carries out the maintenance of one root."""

    def __init__(
        self,
        topics: Topics,
        runtime: Runtime,
        engine: Engine | None = None,
        committed: Committed | None = None,
        controller_epoch: int | None = None,
    ) -> None:
        self._topics = topics
        self._controller_epoch = controller_epoch
        self._runtime = runtime
        self._engine = engine or LocalEngine(topics.objects, runtime)
        self._committed = committed or dict
        # Those of the run at work: opened once, though a partition may have hundreds of steps.
        self._logs: dict[str, PartitionLog] = {}

    def plan(self, names: Iterable[str] = (), actions: Sequence[Action] = ALL) -> list[Outcome]:
        """What a run would do now."""
        found: list[Outcome] = []
        for work in self._works(names, actions, found):
            found += [_planned(work, step) for step in work.steps]
        return found

    def run(
        self,
        names: Iterable[str] = (),
        actions: Sequence[Action] = ALL,
        progress: Progress | None = None,
    ) -> list[Outcome]:
        """Does what is due, and tells what was done."""
        self._logs = {}
        found: list[Outcome] = []
        works = self._works(names, actions, found)
        total = sum(_cost(step) for work in works for step in work.steps)
        done = 0

        def advance(outcome: Outcome, step: Step) -> None:
            nonlocal done
            found.append(outcome)
            done += _cost(step)
            if progress is not None:
                progress(done, total)

        steps = [(work, step) for work in works for step in work.steps]
        retains = [(work, step) for work, step in steps if isinstance(step, Retain)]
        found += self._topics.each(retains, lambda item: self._guarded(*item, self._retain))
        for work, step in steps:
            if isinstance(step, Compact):
                advance(self._guarded(work, step, self._compact), step)
        merges = [(work, step) for work, step in steps if isinstance(step, Merge)]
        for first in range(0, len(merges), _WAVE):
            for outcome, step in self._merge(merges[first : first + _WAVE]):
                advance(outcome, step)
        return sorted(found, key=lambda item: (item.topic, item.partition, item.first))

    def clean(self, names: Iterable[str] = (), progress: Progress | None = None) -> list[Cleaned]:
        """Checkpoints that are owed, commit files that expired, data files that no version needs."""
        cleaner = Cleaner(self._topics.objects, self._runtime)
        where = [(i, number) for i in self._topics.chosen(names) for number in range(i.partitions)]
        lock = threading.Lock()
        done = 0

        def clean(place: tuple[TopicInfo, int]) -> Cleaned:
            nonlocal done
            info, number = place
            table = self._topics.table(info, number)
            try:
                checkpoint = cleaner.checkpoint(table)
                commits, files = cleaner.clean_log(table), len(cleaner.vacuum(table))
                found = Cleaned(info.name, number, checkpoint, commits, files)
            except StreamlogError as error:
                found = Cleaned(info.name, number, None, 0, 0, str(error))
            with lock:
                done += 1
                if progress is not None:
                    progress(done, len(where))
            return found

        return list(self._topics.each(where, clean))

    def _works(
        self, names: Iterable[str], actions: Sequence[Action], failed: list[Outcome]
    ) -> list[_Work]:
        infos = self._topics.chosen(names)
        where = [(info, number) for info in infos for number in range(info.partitions)]
        committed: Mapping[tuple[str, int], Mapping[str, int]] = {}
        if "retain" in actions and any(
            info.config.retention_hold_groups != "none" for info in infos
        ):
            committed = self._committed()
        now_ms = int(self._topics.objects.store_time() * 1000)

        def look(place: tuple[TopicInfo, int]) -> _Work | Outcome | None:
            info, number = place
            try:
                reader = self._topics.partition_reader(info, number)
                reader.refresh()
                if reader.version < 0:
                    return None
                groups = committed.get((info.id, number), {})
                return _work(info, number, reader, actions, now_ms, groups)
            except TopicDeletedError:
                return None
            except StreamlogError as error:
                return _failed(info, number, actions[0], str(error))

        looks = self._topics.each(where, look)
        failed += [item for item in looks if isinstance(item, Outcome)]
        works = [item for item in looks if isinstance(item, _Work)]
        return [work for work in works if work.steps]

    def _guarded(self, work: _Work, step: Step, act: Callable[[_Work, Step], Outcome]) -> Outcome:
        try:
            return act(work, step)
        except FileMissingError:
            return replace(_planned(work, step), status="void", note=_CHANGED)
        except StreamlogError as error:
            return replace(_planned(work, step), status="failed", note=str(error))

    def _written_at(self, table: str, new: Sequence[Segment]) -> float:
        """Since when the oldest of new files is there, by the store's clock: tasks have their own."""
        objects = self._topics.objects
        modified = []
        for segment in new:
            info = objects.head(f"{table}/{segment.path}")
            if info is None:
                raise FileMissingError(f"{table}/{segment.path}")
            modified.append(info.modified)
        # Asked for once: the store's time costs a put.
        age = objects.store_time() - min(modified) if modified else 0.0
        return self._runtime.clock.monotonic() - max(age, 0.0)

    def _log_of(self, work: _Work) -> PartitionLog:
        """One thread a partition: retention is over before the rest begins, which commits one by one."""
        table = self._topics.table(work.info, work.partition)
        if table not in self._logs:
            self._logs[table] = self._topics.partition_log(work.info, work.partition)
        return self._logs[table]

    def _deadline(self) -> float:
        return self._runtime.clock.monotonic() + _COMMIT_SECONDS

    def _retain(self, work: _Work, step: Step) -> Outcome:
        assert isinstance(step, Retain)
        if step.files:
            log = self._log_of(work)
            log.truncate(step.before, self._deadline(), controller_epoch=self._controller_epoch)
        return replace(_planned(work, step), status="done")

    def _compact(self, work: _Work, step: Step) -> Outcome:
        assert isinstance(step, Compact)
        config = work.info.config
        log = self._log_of(work)
        jobs = key_jobs(log.table, step.files, config.compression_type, config.segment_bytes)
        results = self._engine.compact(KeyJob(jobs, Thinning(step.start, step.drop_below)))
        gone = [segment for result in results for segment in result.gone]
        new = [segment for result in results for segment in result.new]
        left = any(result.tombstones for result in results)
        now_ms = int(self._topics.objects.store_time() * 1000)
        kept = log.rewrite(
            gone,
            new,
            read=step.files,
            marks=marks_after(step, work.clean, left, now_ms),
            drops=True,
            written_at=self._written_at(log.table, new),
            deadline=self._deadline(),
            controller_epoch=self._controller_epoch,
        )
        dropped = total_records(gone) - total_records(new)
        return replace(
            _planned(work, step),
            status="done" if kept else "void",
            files_after=len(step.files) - len(gone) + len(new) if kept else len(step.files),
            bytes_after=total_bytes(step.files) - total_bytes(gone) + total_bytes(new),
            records_dropped=dropped if kept else 0,
            note="" if kept else _CHANGED,
        )

    def _merge(self, waiting: Sequence[tuple[_Work, Merge]]) -> Iterable[tuple[Outcome, Step]]:
        jobs = []
        for work, step in waiting:
            config = work.info.config
            table = self._topics.table(work.info, work.partition)
            jobs.append(Job(table, step.files, config.compression_type, config.segment_bytes))
        for index, result in self._engine.merge(jobs):
            work, step = waiting[index]
            if isinstance(result, Failure):
                status: Status = "void" if result.missing else "failed"
                yield replace(_planned(work, step), status=status, note=result.why), step
            else:
                act = partial(self._replace, result)
                yield self._guarded(work, step, act), step

    def _replace(self, result: Rewritten, work: _Work, step: Step) -> Outcome:
        log = self._log_of(work)
        kept = log.rewrite(
            result.gone,
            result.new,
            written_at=self._written_at(log.table, result.new),
            deadline=self._deadline(),
            controller_epoch=self._controller_epoch,
        )
        left = result.new if kept else result.gone
        return replace(
            _planned(work, step),
            status="done" if kept else "void",
            files_after=len(left),
            bytes_after=total_bytes(left),
            note="" if kept else _CHANGED,
        )


def _work(
    info: TopicInfo,
    number: int,
    reader: PartitionReader,
    actions: Sequence[Action],
    now_ms: int,
    groups: Mapping[str, int],
) -> _Work:
    """The steps of one partition: each file is in one of them at most."""
    segments = list(reader.segments)
    config = info.config
    start = reader.start
    clean = CleanState(
        reader.mark(CLEAN) or 0, reader.mark(TOMBSTONES) or 0, reader.mark(TOMBSTONES_AT) or 0
    )
    steps: list[Step] = []
    retain = (
        plan_retention(segments, start, config, now_ms, groups) if "retain" in actions else None
    )
    if retain is not None:
        steps.append(retain)
        gone = {segment.path for segment in retain.files}
        segments = [segment for segment in segments if segment.path not in gone]
        start = max(start, retain.before)
    compact = (
        plan_compaction(segments, start, clean, config, now_ms) if "compact" in actions else None
    )
    if compact is not None:
        steps.append(compact)
        read = {segment.path for segment in compact.files}
        segments = [segment for segment in segments if segment.path not in read]
    if "merge" in actions:
        steps += plan_merges(segments, config.segment_bytes)
    return _Work(info, number, tuple(steps), reader.start, clean)


def _cost(step: Step) -> int:
    return 0 if isinstance(step, Retain) else total_bytes(step.files)


def _planned(work: _Work, step: Step) -> Outcome:
    files = step.files
    size = total_bytes(files)
    stays = 0 if isinstance(step, Retain) else size
    return Outcome(
        topic=work.info.name,
        partition=work.partition,
        action=action_of(step),
        status="planned",
        reason=step.reason,
        files_before=len(files),
        files_after=0 if isinstance(step, Retain) else 1 if isinstance(step, Merge) else len(files),
        bytes_before=size,
        bytes_after=stays,
        records_dropped=records_gone(step, work.start) if isinstance(step, Retain) else 0,
        first=min((segment.first for segment in files), default=work.start),
        last=max((segment.last for segment in files), default=work.start - 1),
        note=step.note if isinstance(step, Retain) else "",
        files=tuple(segment.path for segment in files),
    )


def _failed(info: TopicInfo, number: int, action: Action, why: str) -> Outcome:
    return Outcome(info.name, number, action, "failed", "", 0, 0, 0, 0, 0, 0, 0, why)

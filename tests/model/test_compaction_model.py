"""Maintenance beside a plain list: whatever runs, dies or comes too late, only what may go is gone.

Batches with keys, without, and with tombstones are appended; time passes; retention, compaction by key
and merging run in any order: alone, beside a second maintainer that commits between the first one's plan
and its commit, over a storage that fails or loses answers, and in a process that dies at any operation.
The oracle is the list of all that was ever appended; what is missing of it must be missing lawfully.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamlog.batch import RecordColumns
from streamlog.clock import Runtime
from streamlog.compaction.engine import KeyJob, LocalEngine
from streamlog.compaction.maintainer import ALL, Maintainer, Outcome
from streamlog.compaction.plan import Action
from streamlog.compaction.rewrite import Failure, Job, Rewritten
from streamlog.errors import UnavailableError
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.commit import CLEAN, TOMBSTONES, Segment
from streamlog.log.reader import PartitionReader
from streamlog.log.topics import Topics
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects
from tests.fakes import FakeClock, SeededIds, fake_runtime
from tests.fault.faulty import AFTER, BEFORE, CONFLICT, Fault, FaultyObjects, Plan, Rule, Script
from tests.fault.faulty import commits as any_commit
from tests.partitions import Meanwhile

MINUTE = 60_000
RETENTION = 20 * MINUTE
RETENTION_BYTES = 20_000
TOMBSTONE_TIME = 7 * MINUTE
LAG = 3 * MINUTE
# Files of a few records have about 2 KB: six or so fill a segment.
SEGMENT_BYTES = 12_000

KEYS = st.sampled_from([None, b"a", b"b", b"c", b"d", b"e"])
VALUES = st.sampled_from([None, b"", b"x", b"some value"])
BATCHES = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)
ACTIONS = st.sampled_from([("retain",), ("compact",), ("merge",), ALL, ALL])
FAULTS = st.sampled_from([BEFORE, AFTER, CONFLICT])

ids = SeededIds(1)


@dataclass(frozen=True)
class Record:
    """All that a reader sees of a record."""

    offset: int
    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: tuple[tuple[str, bytes], ...]


class Timed(FaultyObjects):
    """A storage whose own clock is the test's."""

    def __init__(self, inner: Objects, plan: Plan, clock: FakeClock) -> None:
        super().__init__(inner, plan, clock)
        self._store_clock = clock

    def store_time(self) -> float:
        return self._run("store_time", "", lambda: self._store_clock.time_ms() / 1000)


class OneByOne:
    """The local engine, one merge at a time: the order of its operations repeats itself."""

    def __init__(self, objects: Objects, runtime: Runtime) -> None:
        self._engine = LocalEngine(objects, runtime, workers=1)

    def merge(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Rewritten | Failure]]:
        for index, job in enumerate(jobs):
            for _, result in self._engine.merge([job]):
                yield index, result

    def compact(self, job: KeyJob) -> list[Rewritten]:
        return self._engine.compact(job)


class DeadError(BaseException):
    """The process is gone."""


class Dying:
    """Dies at the n-th operation on the topic; whatever its threads try after that, they are dead too."""

    def __init__(self, left: int) -> None:
        self._left = left

    def next(self, operation: str, path: str) -> Fault | None:
        if in_topic(path) or operation == "store_time":
            if self._left <= 0:
                raise DeadError
            self._left -= 1
        return None


def in_topic(path: str) -> bool:
    return path.startswith("topics/t/")


def commits(path: str) -> bool:
    return in_topic(path) and any_commit(path)


def data_files(path: str) -> bool:
    return in_topic(path) and path.endswith(".parquet")


def read_records(reader: PartitionReader) -> list[Record]:
    found: list[Record] = []
    position = reader.start
    while (rows := reader.read(position, max_records=50, max_bytes=1 << 20)) is not None:
        for row in rows.to_pylist():
            headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
            moment = round(row["timestamp"].timestamp() * 1000)
            found.append(Record(row["offset"], row["key"], row["value"], moment, headers))
        position = found[-1].offset + 1
    return found


class MaintenanceMachine(RuleBasedStateMachine):
    """The machine; `self.all` is every record ever appended, by offset."""

    policy: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.objects = open_objects(f"memory://{ids.new()}", None, Runtime())
        self.seed = 0
        self.topics, self.runtime = self.client(Script())
        self.all: list[Record] = []
        self.seen: set[int] = set()
        self.start = 0
        # When each tombstone was first known to have nothing left to delete, at the earliest.
        self.clean_since: dict[int, int] = {}
        # The files before the last run, and the newest of them.
        self.live: list[Segment] = []
        self.newest: list[Segment] = []
        self.before_ms = self.clock.time_ms()
        self.ran: tuple[str, ...] = ()

    @initialize(
        ratio=st.sampled_from([0, 0.5]),
        lag=st.sampled_from([0, 0, LAG]),
        tombstone_time=st.sampled_from([0, TOMBSTONE_TIME]),
        limit=st.sampled_from([-1, RETENTION]),
        allowed=st.sampled_from([-1, RETENTION_BYTES]),
    )
    def make(self, ratio: float, lag: int, tombstone_time: int, limit: int, allowed: int) -> None:
        self.lag, self.tombstone_time = lag, tombstone_time
        self.limit, self.allowed = limit, allowed
        self.ratio = ratio
        self.info = self.topics.create(
            "t",
            config={
                "cleanup.policy": self.policy,
                "segment.bytes": SEGMENT_BYTES,
                "min.cleanable.dirty.ratio": ratio,
                "min.compaction.lag.ms": lag,
                "delete.retention.ms": tombstone_time,
                "retention.ms": limit,
                "retention.bytes": allowed,
            },
        )
        self.writer = self.topics.partition_log(self.info, 0)
        self.follower = self.topics.partition_reader(self.info, 0)

    def client(self, plan: Plan) -> tuple[Topics, Runtime]:
        """Another process."""
        self.seed += 1
        runtime = fake_runtime(self.seed, self.clock)
        objects = Timed(self.objects, plan, self.clock)
        return Topics(objects, runtime, Checkpointer(objects)), runtime

    def maintainer(self, plan: Plan | None = None) -> Maintainer:
        topics, runtime = self.client(plan or Script())
        return Maintainer(topics, runtime, OneByOne(topics.objects, runtime))

    def reader(self) -> PartitionReader:
        reader = self.topics.partition_reader(self.info, 0)
        reader.refresh()
        return reader

    # what happens

    def append(self, batch: list[tuple[bytes | None, bytes | None]]) -> None:
        now = self.clock.time_ms()
        new = [
            Record(
                len(self.all) + at,
                key,
                value,
                now - 10 * at,
                (("n", b"%d" % at),) if at % 3 == 0 else (),
            )
            for at, (key, value) in enumerate(batch)
        ]
        columns = RecordColumns.of(
            [record.key for record in new],
            [record.value for record in new],
            [record.time_ms for record in new],
            [
                [{"key": name, "value": value} for name, value in record.headers] or None
                for record in new
            ],
        )
        appended = self.writer.append(columns, durable=False, compression="snappy")
        assert appended.base_offset == len(self.all)
        self.all += new
        self.seen |= {record.offset for record in new}

    @rule(batches=st.lists(BATCHES, min_size=1, max_size=9))
    def append_batches(self, batches: list[list[tuple[bytes | None, bytes | None]]]) -> None:
        for batch in batches:
            self.append(batch)

    @rule(seconds=st.sampled_from([1, 30, 200, 500, 1000]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    def run(self, act: Callable[[], object], actions: Sequence[Action]) -> None:
        """Something that maintenance did; the invariant judges it by what was before."""
        self.before_ms = self.clock.time_ms()
        self.live = list(self.reader().segments)
        self.newest = self.live[-1:]
        self.ran = tuple(actions)
        act()

    @rule(actions=ACTIONS)
    def maintain(self, actions: tuple[Action, ...]) -> None:
        def act() -> None:
            planned = self.maintainer().plan(actions=actions)
            done = self.maintainer().run(actions=actions)
            assert [(o.action, o.files) for o in done] == [(o.action, o.files) for o in planned]
            assert {outcome.status for outcome in done} <= {"done"}

        self.run(act, actions)

    @rule(
        actions=ACTIONS,
        others=ACTIONS,
        at=st.sampled_from([("put_if_absent", commits), ("put_new", data_files)]),
        batch=st.none() | BATCHES,
    )
    def maintain_with_a_plan_that_is_stale(
        self,
        actions: tuple[Action, ...],
        others: tuple[Action, ...],
        at: tuple[str, Callable[[str], bool]],
        batch: list[tuple[bytes | None, bytes | None]] | None,
    ) -> None:
        """The other one runs in full between the first one's plan and its commit; so may an append."""
        first: list[Outcome] = []

        def meanwhile() -> None:
            live = {segment.path for segment in self.reader().segments}
            first.extend(self.maintainer().run(actions=others))
            self.changed = live - {segment.path for segment in self.reader().segments}
            if batch is not None:
                self.append(batch)

        def act() -> None:
            race = Meanwhile(at[0], at[1], meanwhile)
            second = self.maintainer(race).run(actions=actions)
            if not race.happened:
                return
            for outcome in second:
                assert outcome.status in ("done", "void")
                if outcome.action != "retain" and self.changed & set(outcome.files):
                    assert outcome.status == "void", "its files are not what it read any more"

        self.changed: set[str] = set()
        self.run(act, (*actions, *others))

    @rule(
        actions=ACTIONS,
        where=st.sampled_from(
            [
                ("put_if_absent", commits),
                ("put_if_absent", commits),
                ("get", commits),
                ("put_new", data_files),
                ("open", data_files),
                ("names", in_topic),
                ("store_time", lambda path: True),
            ]
        ),
        fault=FAULTS,
        skip=st.integers(0, 3),
        times=st.sampled_from([1, 2, 1000]),
    )
    def maintain_over_a_storage_that_fails(
        self,
        actions: tuple[Action, ...],
        where: tuple[str, Callable[[str], bool]],
        fault: Fault,
        skip: int,
        times: int,
    ) -> None:
        def act() -> None:
            script = Script(Rule(where[0], fault, where[1], times=times, skip=skip))
            try:
                found = self.maintainer(script).run(actions=actions)
            except UnavailableError:
                return  # the store does not even tell the time
            assert {outcome.status for outcome in found} <= {"done", "void", "failed"}

        self.run(act, actions)

    @rule(actions=ACTIONS, step=st.integers(0, 40))
    def maintain_and_die(self, actions: tuple[Action, ...], step: int) -> None:
        def act() -> None:
            try:
                self.maintainer(Dying(step)).run(actions=actions)
            except DeadError:
                pass

        self.run(act, actions)

    @precondition(lambda self: bool(self.all))
    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        before = self.start + int(part * part * (len(self.all) - self.start))
        self.topics.truncate("t", 0, before)
        self.start = max(self.start, before)

    @rule(actions=ACTIONS)
    def maintain_until_nothing_is_due(self, actions: tuple[Action, ...]) -> None:
        """It comes to an end, and then nothing is committed any more."""
        for _ in range(8):
            self.run(lambda: self.maintainer().run(actions=actions), actions)
            self.judge()
            if not self.maintainer().plan(actions=actions):
                break
        version, records = self.reader().version, read_records(self.reader())
        assert self.maintainer().run(actions=actions) == []
        assert (self.reader().version, read_records(self.reader())) == (version, records)

    @rule()
    def let_the_tombstones_go(self) -> None:
        """A tombstone goes at the end of the phase after the one it became clean in."""
        for _ in range(3):
            self.maintain_until_nothing_is_due(("compact",))
            self.clock.advance(self.tombstone_time / 1000)
        reader = self.reader()
        clean = reader.mark(CLEAN) or 0
        assert (reader.mark(TOMBSTONES) or 0) == 0
        inside = {record.offset for record in self.newest_records()}
        left = [
            record
            for record in read_records(reader)
            if record.key is not None and record.value is None
        ]
        assert all(record.offset >= clean or record.offset in inside for record in left)

    # what must hold

    def newest_records(self) -> list[Record]:
        return [
            record
            for segment in self.newest
            for record in self.all[segment.first : segment.last + 1]
            if record.offset in self.seen
        ]

    @invariant()
    def judge(self) -> None:
        if not self.all:
            return
        reader = self.reader()
        assert reader.end == len(self.all)
        self.judge_start(reader)
        found = read_records(reader)
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets)), "in order, each once"
        assert found == [self.all[offset] for offset in offsets], "as they were written"
        assert not set(offsets) - self.seen, "nothing comes back"
        dropped = {offset for offset in self.seen if offset >= self.start} - set(offsets)
        if "compact" in self.policy:
            self.judge_dropped(dropped, found)
        else:
            assert not dropped, "all of the log is there"
        self.seen = set(offsets)
        self.judge_clean(reader, found)
        # A reader that was there all the time sees what a fresh one sees.
        self.follower.refresh()
        assert read_records(self.follower) == found
        self.ran = ()

    def judge_start(self, reader: PartitionReader) -> None:
        """The log start moves by retention only, and only over what is past its time or room."""
        assert reader.start >= self.start
        if reader.start == self.start:
            return
        assert "retain" in self.ran
        assert "delete" in self.policy
        late = self.limit >= 0 and all(
            self.clock.time_ms() - record.time_ms > self.limit
            for record in self.all[self.start : reader.start]
            if record.offset in self.seen
        )
        # By the files that were there: a merge in the same run makes them smaller afterwards.
        room = sum(segment.size for segment in self.live if segment.last >= reader.start)
        full = self.allowed >= 0 and room >= self.allowed
        assert late or full
        assert all(record.offset >= reader.start for record in self.newest_records())
        self.start = reader.start

    def judge_dropped(self, dropped: set[int], found: list[Record]) -> None:
        if dropped:
            assert "compact" in self.ran
        young = self.clock.time_ms() - self.lag
        inside = {record.offset for record in self.newest_records()}
        # The last record a key below what can have been the horizon.
        horizon = self.newest[0].first if self.newest else 0
        last = {record.key: record.offset for record in self.all[:horizon]}
        for offset in dropped:
            record = self.all[offset]
            assert record.key is not None, "without a key nothing replaces it"
            assert offset not in inside, "the newest file is left alone"
            assert not self.lag or record.time_ms <= young, "too young to be compacted"
            if offset == last[record.key]:
                assert record.value is None, "the last record of its key"
                since = self.clean_since.get(offset)
                assert since is not None, "no pass had cleaned below this tombstone"
                assert self.clock.time_ms() - since >= self.tombstone_time
        # What a reader makes of it is what was written: no key is lost, and none comes back.
        assert as_table(found) == as_table(self.all[self.start :])

    def judge_clean(self, reader: PartitionReader, found: list[Record]) -> None:
        """Below `streamlog.clean` every key is there once; from then on its tombstones count."""
        clean = reader.mark(CLEAN) or 0
        keys = [record.key for record in found if record.offset < clean and record.key is not None]
        assert len(keys) == len(set(keys)), "a pass left a record that a later one replaces"
        for record in found:
            if record.offset < clean and record.value is None and record.key is not None:
                self.clean_since.setdefault(record.offset, self.before_ms)


def as_table(records: Sequence[Record]) -> dict[bytes, Record]:
    """The last record of each key, without deleted ones."""
    last = {record.key: record for record in records if record.key is not None}
    return {key: record for key, record in last.items() if record.value is not None}


class Deleting(MaintenanceMachine):
    policy = "delete"


class Compacting(MaintenanceMachine):
    policy = "compact"


class CompactingAndDeleting(MaintenanceMachine):
    policy = "compact,delete"


SETTINGS = settings(
    max_examples=30,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestDeleting = Deleting.TestCase
TestCompacting = Compacting.TestCase
TestCompactingAndDeleting = CompactingAndDeleting.TestCase
TestDeleting.settings = TestCompacting.settings = TestCompactingAndDeleting.settings = SETTINGS

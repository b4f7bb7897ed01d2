"""Rewriting files of a partition against a storage that fails, other jobs, sleep and cleaning."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.compaction import rewrite
from streamlog.compaction.rewrite import Job
from streamlog.errors import CorruptLogError, TopicDeletedError, UnknownOutcomeError
from streamlog.log.cleaner import Cleaner
from streamlog.log.commit import CLEAN, Segment
from streamlog.log.partition import PartitionLog
from streamlog.log.versions import LOG_FLOOR_SECONDS, VACUUM_FLOOR_SECONDS
from streamlog.storage.delta import write_checkpoint
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects
from tests.fakes import FakeClock, any_root, fake_runtime
from tests.fault.faulty import AFTER, BEFORE, CONFLICT, Fault, FaultyObjects, Kind, Rule, Script
from tests.fault.faulty import commits as any_commit
from tests.partitions import Meanwhile, Partition, append, numbered, read_all

TABLE = "topics/t/0"
FOUR = (b"a", b"b", b"c", b"d")
QUARTER = VACUUM_FLOOR_SECONDS / 4


def commits(path: str) -> bool:
    return path.startswith(TABLE) and any_commit(path)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "disk"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return open_objects(any_root(request, tmp_path), None, Runtime())


@pytest.fixture
def partition(objects: Objects, clock: FakeClock) -> Partition:
    return four_files(Partition(objects, fake_runtime(clock=clock)))


@pytest.fixture
def on_disk(tmp_path: Path, clock: FakeClock) -> Partition:
    """Checkpoints and vacuum need the deltalake library, which cannot read memory."""
    objects = open_objects(f"{tmp_path}/root", None, Runtime())
    return four_files(Partition(objects, fake_runtime(clock=clock)))


def four_files(partition: Partition) -> Partition:
    log = partition.log()
    for value in FOUR:
        append(log, value)
    return partition


def files_of(partition: Partition) -> list[Segment]:
    return list(partition.reader().segments)


def merged(partition: Partition, files: Sequence[Segment], seed: int = 50) -> tuple[Segment, ...]:
    """The records of files in one file that no commit names yet."""
    job = Job(TABLE, tuple(files), "none", 1 << 20)
    return rewrite.merge(partition.objects, fake_runtime(seed).ids, job).new


def merge_by(log: PartitionLog, partition: Partition, files: Sequence[Segment]) -> bool:
    return log.rewrite(files, merged(partition, files))


# what a rewrite does


def test_files_are_replaced_in_one_version_and_records_stay(partition: Partition) -> None:
    log = partition.log()
    files = files_of(partition)
    new = merged(partition, files[1:])
    assert log.rewrite(files[1:], new, marks={CLEAN: 3})
    reader = partition.reader()
    assert [s.path for s in reader.segments] == [files[0].path, new[0].path]
    assert (reader.version, reader.mark(CLEAN)) == (5, 3)
    assert read_all(reader) == numbered(*FOUR)
    assert append(log, b"next").base_offset == 4


def test_readers_of_changes_are_told_only_of_records_that_went(partition: Partition) -> None:
    """A merge is no change of data to Delta's streams; taking records away is."""
    files = files_of(partition)
    assert merge_by(partition.log(), partition, files[:2])
    data = partition.objects.get(paths.commit_file(TABLE, 5))
    assert data is not None
    assert b'"dataChange":true' not in data
    assert data.count(b'"dataChange":false') == 3
    assert partition.log().rewrite(files[2:3], (), drops=True)
    data = partition.objects.get(paths.commit_file(TABLE, 6))
    assert data is not None
    assert data.count(b'"dataChange":true') == 1
    assert partition.contents() == [(0, b"a"), (1, b"b"), (3, b"d")]


# rule 16


def test_a_plan_is_void_when_a_file_it_replaces_is_gone(partition: Partition) -> None:
    files = files_of(partition)
    first, second = partition.log(), partition.log()
    mine = merged(partition, files[:3], seed=1)
    assert first.rewrite(files[1:], merged(partition, files[1:], seed=2))
    live = [s.path for s in files_of(partition)]
    assert second.rewrite(files[:3], mine, marks={CLEAN: 3}) is False
    reader = partition.reader()
    assert [s.path for s in reader.segments] == live
    assert (reader.version, reader.mark(CLEAN)) == (5, None), "nothing was committed"
    assert read_all(reader) == numbered(*FOUR)


def test_a_plan_is_void_when_a_file_that_it_only_read_is_gone(partition: Partition) -> None:
    """Compaction drops a record because of another one: that one must be where it was read."""
    files = files_of(partition)
    log = partition.log()
    assert merge_by(partition.log(), partition, files[2:])
    assert log.rewrite(files[:1], (), read=files, drops=True) is False
    assert partition.contents() == numbered(*FOUR)
    assert log.rewrite(files[:1], (), read=files[:2], drops=True)
    assert partition.contents() == numbered(*FOUR)[1:]


def test_a_file_that_goes_while_the_commit_is_put_makes_it_void(
    partition: Partition, clock: FakeClock
) -> None:
    """The check is made again at every version that is passed, not only at the first."""
    files = files_of(partition)
    other = partition.log()
    race = Meanwhile(
        "put_if_absent", commits, lambda: merge_by(other, partition, files[2:]), fault=None
    )
    store = FaultyObjects(partition.objects, race)
    log = partition.over(store, fake_runtime(1, clock)).log()
    assert log.rewrite(files[:2], merged(partition, files[:2], 9), read=files) is False
    assert race.happened
    assert len(files_of(partition)) == 3, "only the other one's merge took place"
    assert partition.contents() == numbered(*FOUR)


def test_appends_do_not_make_a_plan_void(partition: Partition, clock: FakeClock) -> None:
    files = files_of(partition)
    other = partition.log()
    race = Meanwhile("put_if_absent", commits, lambda: append(other, b"e"))
    log = partition.over(FaultyObjects(partition.objects, race), fake_runtime(1, clock)).log()
    assert log.rewrite(files, merged(partition, files))
    assert race.happened
    assert len(files_of(partition)) == 2
    assert partition.contents() == numbered(*FOUR, b"e")


def test_the_same_rewrite_is_done_once(partition: Partition) -> None:
    files = files_of(partition)
    new = merged(partition, files)
    assert partition.log().rewrite(files, new)
    assert partition.log().rewrite(files, new), "the result is there, by whatever hand"
    assert partition.reader().version == 5


# rule 8


def test_a_plan_is_void_when_its_files_are_no_longer_young(
    partition: Partition, clock: FakeClock
) -> None:
    """A vacuum may have taken them: they are nobody's yet."""
    files = files_of(partition)
    log = partition.log()
    written_at = clock.monotonic()
    new = merged(partition, files)
    clock.advance(QUARTER + 1)
    assert log.rewrite(files, new, written_at=written_at) is False
    assert [s.path for s in files_of(partition)] == [s.path for s in files]


def test_up_to_a_quarter_of_the_floor_files_are_young(
    partition: Partition, clock: FakeClock
) -> None:
    files = files_of(partition)
    written_at = clock.monotonic()
    new = merged(partition, files)
    clock.advance(QUARTER)
    assert partition.log().rewrite(files, new, written_at=written_at)
    assert len(files_of(partition)) == 1


def test_files_that_age_while_others_win_make_the_plan_void(
    partition: Partition, clock: FakeClock
) -> None:
    files = files_of(partition)
    other = partition.log()

    def win_and_take_long() -> None:
        append(other, b"e")
        clock.advance(QUARTER + 1)

    race = Meanwhile("put_if_absent", commits, win_and_take_long)
    log = partition.over(FaultyObjects(partition.objects, race), fake_runtime(1, clock)).log()
    assert log.rewrite(files, merged(partition, files)) is False
    assert partition.contents() == numbered(*FOUR, b"e")
    assert len(files_of(partition)) == 5


@pytest.mark.parametrize("vacuumed", [False, True])
def test_after_a_commit_that_slept_the_new_files_are_looked_for(
    partition: Partition, clock: FakeClock, vacuumed: bool
) -> None:
    files = files_of(partition)
    new = merged(partition, files)
    late = Fault(stall_after=QUARTER + 1)
    store = FaultyObjects(partition.objects, Script(Rule("put_if_absent", late, commits)), clock)
    log = partition.over(store, fake_runtime(1, clock)).log()
    if not vacuumed:
        assert log.rewrite(files, new)
        assert partition.contents() == numbered(*FOUR)
        return
    partition.objects.delete([f"{TABLE}/{new[0].path}"])
    with pytest.raises(CorruptLogError, match="Nothing is lost yet"):
        log.rewrite(files, new)


# rule 3


@pytest.mark.parametrize("fault", [BEFORE, AFTER, CONFLICT])
@pytest.mark.parametrize("times", [1, 3])
def test_an_unclear_commit_is_settled_at_its_version(
    partition: Partition, clock: FakeClock, fault: Fault, times: int
) -> None:
    files = files_of(partition)
    script = Script(Rule("put_if_absent", fault, commits, times=times))
    log = partition.over(FaultyObjects(partition.objects, script), fake_runtime(1, clock)).log()
    assert log.rewrite(files, merged(partition, files)), "its own commit is recognised"
    assert fault is AFTER or script.exhausted
    assert log.version == partition.reader().version == 5
    assert partition.contents() == numbered(*FOUR)
    assert append(log, b"next").base_offset == 4


def test_a_commit_that_stays_unclear_is_reported_as_unknown(
    partition: Partition, clock: FakeClock
) -> None:
    files = files_of(partition)
    script = Script(Rule("put_if_absent", BEFORE, commits, times=10**6))
    log = partition.over(FaultyObjects(partition.objects, script), fake_runtime(1, clock)).log()
    with pytest.raises(UnknownOutcomeError, match="may or may not"):
        log.rewrite(files, merged(partition, files), deadline=clock.monotonic() + 30)
    assert partition.contents() == numbered(*FOUR)


# rule 6


def grown_old(partition: Partition, seconds: float) -> None:
    """All objects become older by the store's clock."""
    for info in list(partition.objects.list("topics")):
        old = info.modified - seconds
        os.utime(f"{partition.objects.uri}/{info.path}", (old, old))


@pytest.mark.parametrize("kind", [Kind.NONE, Kind.BEFORE, Kind.AFTER])
def test_overtaken_by_a_checkpoint_the_files_tell_what_became_of_it(
    on_disk: Partition, clock: FakeClock, kind: Kind
) -> None:
    """The put's answer comes when the log was cleaned beyond it: a name proves nothing then."""
    files = files_of(on_disk)
    new = merged(on_disk, files)
    other = on_disk.over(on_disk.objects, fake_runtime(2, clock)).log()

    class Sleep:
        """The put takes effect, or not; then others append, checkpoint and clean before it returns."""

        done = False

        def next(self, operation: str, path: str) -> Fault | None:
            if operation == "get" and commits(path) and self.put and not self.done:
                self.clean()
            if operation == "names" and self.put and not self.done:
                self.clean()
            if operation != "put_if_absent" or not commits(path) or self.put:
                return None
            self.put = True
            return Fault(kind, stall_after=LOG_FLOOR_SECONDS) if kind is not Kind.BEFORE else BEFORE

        put = False

        def clean(self) -> None:
            self.done = True
            other.refresh()
            for number in range(3):
                append(other, b"%d" % number)
            write_checkpoint(on_disk.objects, TABLE, other.version)
            grown_old(on_disk, 2 * LOG_FLOOR_SECONDS)
            clock.advance(LOG_FLOOR_SECONDS)
            Cleaner(on_disk.objects, Runtime(), keep=0).clean_log(TABLE)

    sleep = Sleep()
    log = on_disk.over(FaultyObjects(on_disk.objects, sleep, clock), fake_runtime(1, clock)).log()
    done = log.rewrite(files, new)
    assert sleep.done
    live = {segment.path for segment in files_of(on_disk)}
    assert done == (new[0].path in live)
    assert done == (kind is not Kind.BEFORE), (
        "what was put is found; what was not is too old by now"
    )
    assert done or all(segment.path in live for segment in files)
    assert on_disk.contents() == numbered(*FOUR, b"0", b"1", b"2")


# rule 15


def test_nothing_is_rewritten_in_a_deleted_topic(partition: Partition) -> None:
    files = files_of(partition)
    log = partition.log()
    log.refresh()
    new = merged(partition, files)
    partition.log().seal()
    with pytest.raises(TopicDeletedError):
        log.rewrite(files, new)
    assert partition.objects.get(paths.commit_file(TABLE, 6)) is None


def test_a_seal_that_comes_first_wins(partition: Partition, clock: FakeClock) -> None:
    files = files_of(partition)
    race = Meanwhile("put_if_absent", commits, partition.log().seal)
    log = partition.over(FaultyObjects(partition.objects, race), fake_runtime(1, clock)).log()
    with pytest.raises(TopicDeletedError):
        log.rewrite(files, merged(partition, files))
    assert partition.objects.get(paths.commit_file(TABLE, 6)) is None


# readers of an old snapshot


class Earlier(FaultyObjects):
    """A store whose clock shows how late it was `ago` seconds back."""

    def __init__(self, inner: Objects, ago: float) -> None:
        super().__init__(inner, Script())
        self._ago = ago

    def store_time(self) -> float:
        return self.inner.store_time() - self._ago


def test_a_reader_of_replaced_files_goes_on_until_they_are_vacuumed_and_then_finds_the_new_ones(
    on_disk: Partition, clock: FakeClock
) -> None:
    reader = on_disk.reader()
    first = reader.read(0, max_records=1, max_bytes=100)
    assert first is not None
    files = files_of(on_disk)
    # Replaced fifty minutes ago by the store's clock: within the floor.
    recent = on_disk.over(Earlier(on_disk.objects, 3000), fake_runtime(1, clock)).log()
    assert merge_by(recent, on_disk, files[:3])
    grown_old(on_disk, 3000)
    clock.advance(3000)
    cleaner = Cleaner(on_disk.objects, Runtime())
    assert cleaner.vacuum(TABLE) == []
    assert read_all(reader) == numbered(*FOUR), "the old files are still there for it"
    assert reader.version == 4, "and it looked at nothing newer"


def test_a_reader_whose_files_were_vacuumed_finds_the_new_ones(
    on_disk: Partition, clock: FakeClock
) -> None:
    reader = on_disk.reader()
    first = reader.read(0, max_records=1, max_bytes=100)
    assert first is not None
    files = files_of(on_disk)
    longer_ago = VACUUM_FLOOR_SECONDS + 600
    early = on_disk.over(Earlier(on_disk.objects, longer_ago), fake_runtime(1, clock)).log()
    assert merge_by(early, on_disk, files[:3])
    grown_old(on_disk, longer_ago)
    clock.advance(longer_ago)
    gone = Cleaner(on_disk.objects, Runtime()).vacuum(TABLE)
    assert sorted(gone) == [f"{TABLE}/{segment.path}" for segment in files[:3]]
    assert read_all(reader, 1) == numbered(*FOUR)[1:]
    assert reader.version == 5
    assert on_disk.contents() == numbered(*FOUR)


def test_files_of_a_void_rewrite_are_orphans_that_vacuum_takes(on_disk: Partition) -> None:
    files = files_of(on_disk)
    new = merged(on_disk, files)
    assert on_disk.log().rewrite(files, new, read=[*files, *new]) is False
    cleaner = Cleaner(on_disk.objects, Runtime())
    assert cleaner.vacuum(TABLE) == [], "young: it may still be committed"
    grown_old(on_disk, VACUUM_FLOOR_SECONDS + 60)
    assert cleaner.vacuum(TABLE) == [f"{TABLE}/{new[0].path}"]
    assert on_disk.contents() == numbered(*FOUR)

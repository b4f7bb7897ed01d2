"""Cleaning, and who slept (rules 5, 6 and 7): a real disk, real checkpoints, a clock moved by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from deltalake import DeltaTable

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.errors import CorruptLogError, TopicDeletedError, UnknownOutcomeError
from streamlog.log.cleaner import Cleaner
from streamlog.log.partition import ProducerMark
from streamlog.log.versions import LOG_FLOOR_SECONDS
from streamlog.storage.delta import write_checkpoint
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects
from tests.fakes import FakeClock, fake_runtime
from tests.fault.faulty import Fault, FaultyObjects, Kind, commits
from tests.partitions import Meanwhile, Partition, append, numbered, read_all

LONG = LOG_FLOOR_SECONDS + 1


def partition_commits(path: str) -> bool:
    return commits(path) and path.startswith("topics/t/")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects(str(tmp_path / "root"), None, Runtime())


@pytest.fixture
def partition(objects: Objects, clock: FakeClock) -> Partition:
    return Partition(objects, fake_runtime(clock=clock))


def age(objects: Objects, seconds: float) -> None:
    """Makes every file under the topics that much older, by the store's own clock."""
    for info in objects.list("topics"):
        full = f"{objects.uri}/{info.path}"
        os.utime(full, (info.modified - seconds, info.modified - seconds))


def move_on(partition: Partition, clock: FakeClock, *values: bytes) -> None:
    """Others append, time passes, a checkpoint is written, and the old commits are cleaned away."""
    log = partition.over(partition.objects, fake_runtime(99, clock)).log()
    for value in values:
        append(log, value)
    write_checkpoint(partition.objects, partition.table, log.version)
    age(partition.objects, LONG)
    cleaner = Cleaner(partition.objects, partition.runtime, keep=0)
    assert cleaner.clean_log(partition.table) > 0


def versions(objects: Objects) -> list[int]:
    names = objects.names("topics/t/0/_delta_log")
    return sorted(v for name in names if (v := paths.parse_commit(name)) is not None)


# rule 6: the recycled name


def test_a_sleeping_writer_does_not_win_a_recycled_name(
    partition: Partition, clock: FakeClock
) -> None:
    """Its put succeeds, at a version that was cleaned away: nobody would ever see the record."""
    append(partition.log(), b"before")
    nap = Meanwhile(
        "put_if_absent",
        partition_commits,
        lambda: move_on(partition, clock, b"x", b"y", b"z"),
        Fault(stall=LONG),
    )
    store = FaultyObjects(partition.objects, nap, clock)
    sleeper = partition.over(store, fake_runtime(1, clock)).log()
    with pytest.raises(UnknownOutcomeError, match="slept"):
        append(sleeper, b"mine")
    assert partition.contents() == numbered(b"before", b"x", b"y", b"z")
    assert append(sleeper, b"later").base_offset == 4
    assert partition.contents() == numbered(b"before", b"x", b"y", b"z", b"later")


def test_a_sleeping_writer_with_a_stable_id_learns_what_happened(
    partition: Partition, clock: FakeClock
) -> None:
    """Its mark is not in the snapshot, so the batch was not written, and is written now, once."""
    append(partition.log(), b"before")
    nap = Meanwhile(
        "put_if_absent",
        partition_commits,
        lambda: move_on(partition, clock, b"x", b"y"),
        Fault(stall=LONG),
    )
    sleeper = partition.over(
        FaultyObjects(partition.objects, nap, clock), fake_runtime(1, clock)
    ).log()
    assert append(sleeper, b"mine", mark=ProducerMark("p", 1, 1)).base_offset == 3
    assert partition.contents() == numbered(b"before", b"x", b"y", b"mine")


def test_a_commit_that_took_effect_before_the_sleep_is_found_in_the_snapshot(
    partition: Partition, clock: FakeClock
) -> None:
    append(partition.log(), b"before")
    store = FaultyObjects(partition.objects, Meanwhile("put", partition_commits, print), clock)
    client = partition.over(store, fake_runtime(1, clock))
    sleeper = client.log()
    sleeper.refresh()

    class AfterPut:
        """The put takes effect, then the writer sleeps while the world moves on."""

        step = 0

        def next(self, operation: str, path: str) -> Fault | None:
            if self.step == 0 and operation == "put_if_absent" and partition_commits(path):
                self.step = 1
                return Fault(Kind.AFTER)
            if self.step == 1 and operation == "get" and partition_commits(path):
                self.step = 2
                move_on(partition, clock, b"x", b"y")
                return Fault(stall=LONG)
            return None

    store.plan = AfterPut()
    assert append(sleeper, b"mine", mark=ProducerMark("p", 1, 1)).base_offset in (1, None)
    assert partition.contents() == numbered(b"before", b"mine", b"x", b"y")


def test_a_sleeping_reader_does_not_wait_for_a_name_that_is_gone(
    partition: Partition, clock: FakeClock
) -> None:
    append(partition.log(), b"before")
    reader = partition.reader()
    assert read_all(reader) == numbered(b"before")
    move_on(partition, clock, b"x", b"y")
    assert not reader.refresh(), "within the floor a missing name means: nothing new"
    clock.advance(LONG)
    assert reader.refresh()
    assert read_all(reader) == numbered(b"before", b"x", b"y")


def test_a_sleeper_whose_table_was_purged(partition: Partition, clock: FakeClock) -> None:
    """Won in an empty folder: the topic was deleted and every file of it is gone."""
    append(partition.log(), b"before")

    def vanish() -> None:
        partition.topics.delete("t")
        age(partition.objects, 3 * LONG)
        partition.objects.delete_tree("topics/t")

    nap = Meanwhile("put_if_absent", partition_commits, vanish, Fault(stall=LONG))
    sleeper = partition.over(
        FaultyObjects(partition.objects, nap, clock), fake_runtime(1, clock)
    ).log()
    with pytest.raises(TopicDeletedError, match="nothing was written"):
        append(sleeper, b"mine")
    reader_clock = fake_runtime(2, clock)
    partition.topics.create("t")
    fresh = Partition(partition.objects, reader_clock)
    assert fresh.info.path == "topics/t~2"
    assert fresh.contents() == []


def test_a_reader_of_a_purged_topic_is_told(partition: Partition, clock: FakeClock) -> None:
    append(partition.log(), b"before")
    reader = partition.reader()
    partition.objects.delete_tree("topics/t")
    clock.advance(LONG)
    with pytest.raises(TopicDeletedError, match="deleted"):
        reader.refresh()


# rule 7: cleaning


def test_cleaning_keeps_young_commits_the_newest_and_all_above_the_checkpoint(
    partition: Partition,
) -> None:
    log = partition.log()
    for number in range(20):
        append(log, b"%d" % number)
    cleaner = Cleaner(partition.objects, partition.runtime, keep=0)
    age(partition.objects, LONG)
    assert cleaner.clean_log(partition.table) == 0, "no checkpoint, no cleaning"
    write_checkpoint(partition.objects, partition.table, 10)
    cautious = Cleaner(partition.objects, partition.runtime, keep=15)
    assert cautious.clean_log(partition.table) == 5, "the newest 15 stay"
    assert versions(partition.objects) == list(range(5, 21))
    patient = Cleaner(partition.objects, partition.runtime, keep=0, log_floor=3 * LONG)
    assert patient.clean_log(partition.table) == 0, "what is younger than the floor stays"
    assert cleaner.clean_log(partition.table) == 5
    assert versions(partition.objects) == list(range(10, 21)), "nothing from the checkpoint on"
    assert partition.contents() == numbered(*(b"%d" % n for n in range(20)))
    assert DeltaTable(f"{partition.objects.uri}/{partition.table}").version() == 20


def test_old_checkpoints_go_and_the_last_one_stays(partition: Partition) -> None:
    log = partition.log()
    for number in range(6):
        append(log, b"%d" % number)
    for version in (2, 4):
        write_checkpoint(partition.objects, partition.table, version)
    age(partition.objects, LONG)
    Cleaner(partition.objects, partition.runtime, keep=0).clean_log(partition.table)
    names = partition.objects.names("topics/t/0/_delta_log")
    assert [n for n in names if paths.parse_checkpoint(n) is not None] == [
        f"{4:020d}.checkpoint.parquet"
    ]
    assert partition.contents() == numbered(*(b"%d" % n for n in range(6)))


def test_an_unreadable_checkpoint_is_no_licence_to_clean(partition: Partition) -> None:
    log = partition.log()
    for number in range(6):
        append(log, b"%d" % number)
    write_checkpoint(partition.objects, partition.table, 3)
    damaged = Path(partition.objects.uri, f"topics/t/0/_delta_log/{3:020d}.checkpoint.parquet")
    damaged.write_bytes(damaged.read_bytes()[:100])
    age(partition.objects, LONG)
    assert Cleaner(partition.objects, partition.runtime, keep=0).clean_log(partition.table) == 0
    assert partition.contents() == numbered(*(b"%d" % n for n in range(6)))


def test_an_interrupted_cleaning_never_looks_like_a_whole_log(
    partition: Partition, clock: FakeClock
) -> None:
    log = partition.log()
    for number in range(6):
        append(log, b"%d" % number)
    write_checkpoint(partition.objects, partition.table, 5)
    age(partition.objects, LONG)

    class Interrupt:
        left = 2

        def next(self, operation: str, path: str) -> Fault | None:
            if operation == "delete":
                if self.left == 0:
                    raise KeyboardInterrupt
                self.left -= 1
            return None

    store = FaultyObjects(partition.objects, Interrupt())
    with pytest.raises(KeyboardInterrupt):
        Cleaner(store, partition.runtime, keep=0).clean_log(partition.table)
    assert 0 not in versions(partition.objects)
    assert partition.contents() == numbered(*(b"%d" % n for n in range(6)))


def test_a_cleaned_log_is_read_appended_and_truncated(partition: Partition) -> None:
    log = partition.log()
    for number in range(12):
        append(log, b"%d" % number, mark=ProducerMark("p", 1, number + 1))
    write_checkpoint(partition.objects, partition.table, 9)
    age(partition.objects, LONG)
    Cleaner(partition.objects, partition.runtime, keep=0).clean_log(partition.table)
    fresh = partition.log()
    assert fresh.producer_state("p") == (1, 12)
    assert append(fresh, b"next").base_offset == 12
    assert fresh.truncate(5) == 5
    assert partition.contents() == numbered(*(b"%d" % n for n in range(5, 12)), b"next", start=5)


def test_a_hole_is_an_error_that_names_the_version(partition: Partition, clock: FakeClock) -> None:
    log = partition.log()
    for number in range(5):
        append(log, b"%d" % number)
    reader = partition.reader()
    partition.objects.delete([paths.commit_file(partition.table, 3)])
    with pytest.raises(CorruptLogError, match="version 3 is missing though version 5 exists"):
        partition.reader()
    with pytest.raises(CorruptLogError, match="version 3 is missing"):
        append(partition.log(), b"x")
    assert read_all(reader) == numbered(*(b"%d" % n for n in range(5))), (
        "who read it before goes on"
    )


def test_a_tailing_reader_finds_a_hole_when_it_lasts(
    partition: Partition, clock: FakeClock
) -> None:
    log = partition.log()
    append(log, b"0")
    reader = partition.reader()
    append(log, b"1")
    append(log, b"2")
    partition.objects.delete([paths.commit_file(partition.table, 2)])
    assert not reader.refresh()
    clock.advance(LONG)
    with pytest.raises(CorruptLogError, match="version 2 is missing though version 3 exists"):
        reader.refresh()


# vacuum


def test_vacuum_takes_old_orphans_and_removed_files_only(partition: Partition) -> None:
    log = partition.log()
    append(log, b"a", b"b")
    append(log, b"c")
    orphan = f"{partition.table}/{paths.data_file(3, '0' * 32)}"
    partition.objects.put_new(orphan, b"left by a crash", durable=False)
    cleaner = Cleaner(partition.objects, partition.runtime)
    assert cleaner.vacuum(partition.table) == [], "young: its writer may be about to commit it"
    age(partition.objects, LONG)
    assert cleaner.vacuum(partition.table) == [orphan]
    log.truncate(2)
    assert cleaner.vacuum(partition.table) == [], "removed just now: slow readers still use it"
    gone = f"{partition.table}/{partition.reader().segments[0].path}"
    assert partition.objects.head(gone) is not None
    assert partition.contents() == [(2, b"c")]
    assert versions(partition.objects) == [0, 1, 2, 3], "vacuum commits nothing"

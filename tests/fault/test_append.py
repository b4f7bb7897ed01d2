"""The append path against a storage that fails: each test would fail without the rule it is named by."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.errors import (
    CorruptLogError,
    DeliveryTimeoutError,
    FencedError,
    InvalidRequestError,
    OutOfRangeError,
    PermissionDeniedError,
    StorageFullError,
    UnavailableError,
    UnknownOutcomeError,
)
from streamlog.log.checkpoints import INTERVAL, Checkpointer, crosses_line
from streamlog.log.commit import END, NEVER_MS
from streamlog.log.partition import ProducerMark
from streamlog.log.versions import VACUUM_FLOOR_SECONDS
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects
from tests.fakes import FakeClock, any_root, fake_runtime
from tests.fault.faulty import (
    AFTER,
    BEFORE,
    CONFLICT,
    Chaos,
    Fault,
    FaultyObjects,
    Kind,
    Rule,
    Script,
    commits,
)
from tests.partitions import Meanwhile, Partition, append, columns, numbered, read_all


def parquet(path: str) -> bool:
    return path.endswith(".parquet") and path.startswith("topics/t/")


def partition_commits(path: str) -> bool:
    return commits(path) and path.startswith("topics/t/")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "disk"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return open_objects(any_root(request, tmp_path), None, Runtime())


@pytest.fixture
def partition(objects: Objects, clock: FakeClock) -> Partition:
    return Partition(objects, fake_runtime(clock=clock))


def faulty(partition: Partition, *rules: Rule, clock: FakeClock | None = None) -> FaultyObjects:
    return FaultyObjects(partition.objects, Script(*rules), clock)


def commit_actions(objects: Objects, version: int) -> list[dict[str, dict[str, object]]]:
    data = objects.get(paths.commit_file("topics/t/0", version))
    assert data is not None
    return [json.loads(line) for line in data.splitlines()]


# rules 1 and 2


def test_two_writers_number_densely_whoever_wins(partition: Partition, clock: FakeClock) -> None:
    first = partition.log()
    second = partition.over(partition.objects, fake_runtime(1, clock)).log()
    for number in range(10):
        append(first, b"a%d" % number)
        append(second, b"b%d" % number)
    wanted = [name + b"%d" % number for number in range(10) for name in (b"a", b"b")]
    assert partition.contents() == numbered(*wanted)


def test_who_loses_a_version_is_renumbered(partition: Partition, clock: FakeClock) -> None:
    other = partition.log()
    append(other, b"first")
    race = Meanwhile("put_if_absent", partition_commits, lambda: append(other, b"x", b"y"))
    loser = partition.over(FaultyObjects(partition.objects, race), fake_runtime(1, clock)).log()
    assert append(loser, b"mine").base_offset == 3
    assert race.happened
    assert partition.contents() == numbered(b"first", b"x", b"y", b"mine")


def test_offsets_go_on_when_everything_was_truncated(partition: Partition) -> None:
    log = partition.log()
    append(log, b"a", b"b")
    assert log.truncate(2) == 2
    assert append(log, b"c").base_offset == 2
    assert partition.contents() == [(2, b"c")]


# rule 3


@pytest.mark.parametrize("fault", [BEFORE, AFTER, CONFLICT])
@pytest.mark.parametrize("times", [1, 3])
def test_an_unclear_commit_is_settled_at_its_version(
    partition: Partition, fault: Fault, times: int
) -> None:
    append(partition.log(), b"before")
    store = faulty(partition, Rule("put_if_absent", fault, partition_commits, times=times))
    log = partition.over(store).log()
    assert append(log, b"mine").base_offset == 1
    assert append(log, b"next").base_offset == 2
    assert partition.contents() == numbered(b"before", b"mine", b"next")
    assert log.version == 3, "no version was used twice or left out"


def test_a_lost_answer_whose_look_up_fails_too(partition: Partition) -> None:
    log = partition.log()
    append(log, b"before")
    store = faulty(partition, Rule("put_if_absent", AFTER, partition_commits))
    log = partition.over(store).log()
    log.refresh()
    store.plan.add(Rule("get", BEFORE, partition_commits, times=2))  # type: ignore[attr-defined]
    append(log, b"mine")
    assert partition.contents() == numbered(b"before", b"mine")


def test_a_lost_answer_and_another_writer_in_the_version(
    partition: Partition, clock: FakeClock
) -> None:
    """The put failed before it took effect, and meanwhile another one won that version."""
    other = partition.log()
    append(other, b"first")
    race = Meanwhile("put_if_absent", partition_commits, lambda: append(other, b"x"), BEFORE)
    log = partition.over(FaultyObjects(partition.objects, race), fake_runtime(1, clock)).log()
    assert append(log, b"mine").base_offset == 2
    assert partition.contents() == numbered(b"first", b"x", b"mine")


@pytest.mark.parametrize("fault", [BEFORE, AFTER])
def test_a_data_file_is_put_again(partition: Partition, fault: Fault) -> None:
    store = faulty(partition, Rule("put_new", fault, parquet, times=2))
    append(partition.over(store).log(), b"mine")
    assert partition.contents() == numbered(b"mine")


def test_a_store_that_stays_silent_ends_in_a_timeout(
    partition: Partition, clock: FakeClock
) -> None:
    append(partition.log(), b"before")
    store = faulty(partition, Rule("put_new", BEFORE, parquet, times=10**6))
    log = partition.over(store).log()
    with pytest.raises(DeliveryTimeoutError, match="not written"):
        log.append(columns(b"x"), durable=True, compression="none", deadline=clock.monotonic() + 30)
    assert partition.contents() == numbered(b"before")


def test_a_commit_that_stays_unclear_is_reported_as_unknown(
    partition: Partition, clock: FakeClock
) -> None:
    append(partition.log(), b"before")
    store = faulty(partition, Rule("put_if_absent", BEFORE, partition_commits, times=10**6))
    log = partition.over(store).log()
    with pytest.raises(UnknownOutcomeError, match="may or may not have been written"):
        log.append(columns(b"x"), durable=True, compression="none", deadline=clock.monotonic() + 30)


@pytest.mark.parametrize("error", [StorageFullError, PermissionDeniedError])
def test_a_full_or_refusing_store_fails_at_once(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    log = partition.log()
    append(log, b"before")

    def refuse(*_: object, **__: object) -> None:
        raise error("no")

    monkeypatch.setattr(log.objects, "put_new", refuse)
    with pytest.raises(error):
        append(log, b"x")
    monkeypatch.undo()
    append(log, b"after")
    assert partition.contents() == numbered(b"before", b"after")


@pytest.mark.parametrize("seed", range(25))
def test_random_faults_neither_lose_nor_double_nor_reorder(
    partition: Partition, clock: FakeClock, seed: int
) -> None:
    rates = {Kind.BEFORE: 0.1, Kind.AFTER: 0.1, Kind.CONFLICT: 0.05}
    clients = []
    for index in range(2):
        chaos = Chaos(seed * 2 + index, rates, where=lambda path: path.startswith("topics/t/"))
        store = FaultyObjects(partition.objects, chaos)
        runtime = fake_runtime(seed * 2 + index, clock)
        clients.append(Partition(store, runtime).log())
    rng = random.Random(seed)
    sent: list[bytes] = []
    for number in range(40):
        values = [b"%d.%d" % (number, part) for part in range(rng.randrange(1, 4))]
        appended = None
        while appended is None:
            try:
                appended = append(rng.choice(clients), *values)
            except UnavailableError as error:
                # Only opening may give up here; a batch on its way is settled, without a deadline.
                if not error.retriable:
                    raise
        assert appended.base_offset == len(sent)
        sent += values
    assert partition.contents() == numbered(*sent)


# rule 8


def test_an_old_data_file_is_put_again_before_the_commit(
    partition: Partition, clock: FakeClock
) -> None:
    append(partition.log(), b"before")
    late = Fault(stall_after=VACUUM_FLOOR_SECONDS / 4 + 1)
    store = faulty(partition, Rule("put_new", late, parquet), clock=clock)
    log = partition.over(store).log()
    append(log, b"mine")
    names = [path for operation, path in store.calls if operation == "put_new"]
    assert len(names) == 2, "put once more, because a vacuum may have taken the first one"
    assert names[0] != names[1]
    live = [f"topics/t/0/{segment.path}" for segment in partition.reader().segments]
    assert names[1] in live
    assert names[0] not in live


def test_a_file_that_vanished_while_the_commit_took_long_is_restored(
    partition: Partition, clock: FakeClock
) -> None:
    append(partition.log(), b"before")
    store = FaultyObjects(partition.objects, Script(), clock)

    def vacuum_everything() -> None:
        mine = [path for operation, path in store.calls if operation == "put_new"]
        partition.objects.delete(mine)

    slow = Fault(stall_after=VACUUM_FLOOR_SECONDS / 4 + 1)
    store.plan = Meanwhile("put_if_absent", partition_commits, vacuum_everything, slow)
    assert append(partition.over(store).log(), b"mine").base_offset == 1
    assert partition.contents() == numbered(b"before", b"mine")


# rule 9


def test_a_crash_between_the_two_puts_leaves_an_invisible_file(partition: Partition) -> None:
    log = partition.log()
    append(log, b"before")

    def crash() -> None:
        raise KeyboardInterrupt

    dying = partition.over(
        FaultyObjects(partition.objects, Meanwhile("put_if_absent", partition_commits, crash))
    )
    with pytest.raises(KeyboardInterrupt):
        append(dying.log(), b"lost")
    files = [info.path for info in partition.objects.list("topics/t/0") if parquet(info.path)]
    assert len(files) == 2, "the orphan is there"
    assert partition.contents() == numbered(b"before")
    append(partition.log(), b"after")
    assert partition.contents() == numbered(b"before", b"after")


# rule 10


def test_who_crosses_the_line_writes_a_checkpoint(tmp_path: object) -> None:
    partition = Partition(open_objects(f"{tmp_path}/r", None, Runtime()), Runtime())
    log = partition.log()
    for number in range(INTERVAL + 5):
        log.append(columns(b"%d" % number), durable=False, compression="none")
    assert partition.checkpointer.drain(30)
    names = partition.objects.names("topics/t/0/_delta_log")
    assert f"{INTERVAL:020d}.checkpoint.parquet" in names
    assert partition.contents() == numbered(*(b"%d" % n for n in range(INTERVAL + 5)))


def test_the_line_moves_away_as_files_pile_up() -> None:
    assert [v for v in range(1, 1025) if crosses_line(v, 10)] == [256, 512, 768, 1024]
    assert [v for v in range(1, 1025) if crosses_line(v, 5_000)] == [1024]


def test_a_failing_checkpoint_fails_no_append(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no checkpoint today")

    monkeypatch.setattr("streamlog.log.checkpoints.write_checkpoint", fail)
    monkeypatch.setattr("streamlog.log.checkpoints.INTERVAL", 2)
    partition = Partition(open_objects(f"{tmp_path}/r", None, Runtime()), Runtime())
    log = partition.log()
    for number in range(5):
        append(log, b"%d" % number)
    assert partition.checkpointer.drain(10)
    assert "no checkpoint of topics/t/0" in caplog.text
    assert partition.contents() == numbered(*(b"%d" % n for n in range(5)))


def test_a_later_line_replaces_one_that_still_waits(tmp_path: object) -> None:
    checkpointer = Checkpointer(open_objects(f"{tmp_path}/r", None, Runtime()))
    checkpointer._busy = True  # as if a long checkpoint were under way: nothing is taken
    with checkpointer._wake:
        checkpointer._thread = checkpointer._thread or _never_started()
    checkpointer.passed("t", 256, 1)
    checkpointer.passed("t", 512, 1)
    assert [(due.table, due.version) for due in checkpointer._due] == [("t", 512)]


def _never_started() -> object:
    import threading

    return threading.Thread()


# rule 11


def test_the_head_never_expires_and_a_producers_mark_does(
    partition: Partition, clock: FakeClock
) -> None:
    append(partition.log(), b"a", mark=ProducerMark("p", 1, 1))
    updated = {
        str(action["txn"]["appId"]): action["txn"]["lastUpdated"]
        for action in commit_actions(partition.objects, 1)
        if "txn" in action
    }
    assert updated == {END: NEVER_MS, "producer:p": clock.time_ms()}


def test_random_producers_write_no_mark(partition: Partition) -> None:
    append(partition.log(), b"a")
    apps = [a["txn"]["appId"] for a in commit_actions(partition.objects, 1) if "txn" in a]
    assert apps == [END]


def test_a_table_without_a_head_is_refused(tmp_path: object) -> None:
    from deltalake import write_deltalake

    from streamlog.schema import RECORD_SCHEMA

    partition = Partition(open_objects(f"{tmp_path}/r", None, Runtime()), Runtime())
    write_deltalake(f"{tmp_path}/r/topics/t/0", RECORD_SCHEMA.empty_table())
    with pytest.raises(CorruptLogError, match="head"):
        partition.reader()
    with pytest.raises(CorruptLogError, match="head"):
        append(partition.log(), b"x")


# rule 12


def test_an_older_holder_is_fenced_never_taken_for_a_duplicate(partition: Partition) -> None:
    old, new = partition.log(), partition.log()
    append(old, b"a", mark=ProducerMark("p", 1, 1))
    new.fence(ProducerMark("p", 2, 1))
    with pytest.raises(FencedError, match="newer producer"):
        append(old, b"b", mark=ProducerMark("p", 1, 2))
    append(new, b"c", mark=ProducerMark("p", 2, 2))
    assert partition.contents() == numbered(b"a", b"c")


def test_fenced_in_the_middle_of_an_append(partition: Partition, clock: FakeClock) -> None:
    new = partition.log()
    append(new, b"a", mark=ProducerMark("p", 1, 1))
    takeover = Meanwhile(
        "put_if_absent", partition_commits, lambda: new.fence(ProducerMark("p", 2, 1))
    )
    old = partition.over(FaultyObjects(partition.objects, takeover), fake_runtime(1, clock)).log()
    with pytest.raises(FencedError):
        append(old, b"b", mark=ProducerMark("p", 1, 2))
    assert partition.contents() == numbered(b"a")


def test_a_sequence_is_never_used_twice(partition: Partition) -> None:
    log = partition.log()
    append(log, b"a", mark=ProducerMark("p", 1, 5))
    with pytest.raises(InvalidRequestError, match="never used twice"):
        append(log, b"b", mark=ProducerMark("p", 1, 5))
    assert log.producer_state("p") == (1, 5)


# rule 13


def test_acks_all_makes_every_earlier_version_durable(partition: Partition) -> None:
    store = FaultyObjects(partition.objects, Script())
    log = partition.over(store).log()
    log.append(columns(b"a"), durable=False, compression="none")
    append(log, b"b")
    order = [operation for operation, _ in store.calls if operation in ("put_new", "sync_all")]
    assert order == ["put_new", "put_new", "sync_all"], "the weak append below is synced first"
    store.calls.clear()
    append(log, b"c")
    assert "sync_all" not in [operation for operation, _ in store.calls], "and only once"
    other = partition.log()
    other.append(columns(b"d"), durable=False, compression="none")
    store.calls.clear()
    append(log, b"e")
    assert "sync_all" in [operation for operation, _ in store.calls], "another client's counts too"


# truncating


def test_truncate_removes_whole_files_and_moves_the_start(partition: Partition) -> None:
    log = partition.log()
    append(log, b"a", b"b")
    append(log, b"c", b"d")
    assert log.truncate(3) == 3
    reader = partition.reader()
    assert (reader.start, reader.end, reader.records, len(reader.segments)) == (3, 4, 1, 1)
    assert read_all(reader) == [(3, b"d")]
    assert log.truncate(1) == 3, "the start never goes back"
    with pytest.raises(OutOfRangeError, match=r"\[3, 4\)"):
        log.truncate(5)
    with pytest.raises(OutOfRangeError, match="cannot truncate"):
        log.truncate(-1)


@pytest.mark.parametrize("fault", [BEFORE, AFTER, CONFLICT])
def test_truncate_survives_lost_answers(partition: Partition, fault: Fault) -> None:
    append(partition.log(), b"a", b"b")
    store = faulty(partition, Rule("put_if_absent", fault, partition_commits))
    assert partition.over(store).log().truncate(1) == 1
    assert partition.contents() == [(1, b"b")]


def test_truncate_racing_an_append_is_planned_anew(partition: Partition, clock: FakeClock) -> None:
    other = partition.log()
    append(other, b"a", b"b")
    race = Meanwhile("put_if_absent", partition_commits, lambda: append(other, b"c"))
    log = partition.over(FaultyObjects(partition.objects, race), fake_runtime(1, clock)).log()
    assert log.truncate(2) == 2
    assert partition.contents() == [(2, b"c")]


# opening


def test_opening_while_files_vanish_looks_again(partition: Partition) -> None:
    append(partition.log(), b"a")

    def log_folder(path: str) -> bool:
        return path == "topics/t/0/_delta_log"

    store = faulty(partition, Rule("names", BEFORE, log_folder, times=2))
    assert partition.over(store).contents() == numbered(b"a")
    store = faulty(partition, Rule("names", BEFORE, log_folder, times=50))
    with pytest.raises(UnavailableError):
        partition.over(store).contents()


def test_an_empty_batch_is_refused(partition: Partition) -> None:
    with pytest.raises(InvalidRequestError, match="at least one record"):
        append(partition.log())


@pytest.mark.parametrize("call", ["fence", "truncate", "seal"])
def test_commits_without_data_settle_lost_answers(partition: Partition, call: str) -> None:
    append(partition.log(), b"a", b"b")
    store = faulty(partition, Rule("put_if_absent", AFTER, partition_commits))
    log = partition.over(store).log()
    actions: dict[str, Callable[[], object]] = {
        "fence": lambda: log.fence(ProducerMark("p", 1, 0)),
        "truncate": lambda: log.truncate(1),
        "seal": log.seal,
    }
    actions[call]()
    assert log.version == 2
    assert partition.objects.get(paths.commit_file("topics/t/0", 3)) is None

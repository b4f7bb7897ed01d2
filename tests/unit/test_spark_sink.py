"""The Spark sink without Spark: staging, the driver's commit, and what a crash at any point leaves."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from streamlog.clock import Runtime
from streamlog.errors import (
    InvalidRequestError,
    PartitionNotFoundError,
    RecordTooLargeError,
    StreamlogError,
    TopicDeletedError,
    TopicNotFoundError,
)
from streamlog.hashing import partition_for
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.topics import Topics
from streamlog.schema import HEADERS_TYPE
from streamlog.spark import sink
from streamlog.spark.options import SinkOptions
from streamlog.spark.sink import (
    BatchCommit,
    BatchWriter,
    Staged,
    StreamWriter,
    clean,
    manifest_path,
    staging,
)
from streamlog.storage.objects import Objects
from streamlog.storage.open import open_objects
from tests.fakes import FakeClock, fake_runtime
from tests.fault.faulty import AFTER, BEFORE, CONFLICT, Fault, FaultyObjects, Rule, Script
from tests.partitions import read_all

T = TypeVar("T")
QUERY = "11111111-2222-3333-4444-555555555555"
SCHEMA = StructType().add("key", "binary").add("value", "binary")

Row = tuple[bytes | None, bytes | None]


def rows(first: int, count: int) -> list[Row]:
    return [(b"k%d" % (n % 5), b"v%d" % n) for n in range(first, first + count)]


def batch(records: Sequence[Row]) -> pa.RecordBatch:
    keys = pa.array([key for key, _ in records], pa.binary())
    values = pa.array([value for _, value in records], pa.binary())
    return pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])


class World:
    """A root on disk with topic `t`, and everything a driver and its tasks do with it."""

    def __init__(self, root: Path, partitions: int = 3) -> None:
        self.options = SinkOptions(root=str(root), topic="t", acks="1")
        self.objects = open_objects(str(root), None, Runtime())
        from streamlog.client import check_root

        check_root(self.objects, Runtime(), create=True)
        self.topics = self.over(self.objects)
        self.topics.create("t", partitions)

    def over(self, objects: Objects, runtime: Runtime | None = None) -> Topics:
        return Topics(objects, runtime or Runtime(), Checkpointer(objects))

    def stage(self, *tasks: Sequence[Row], number: int = 0, query: str = QUERY) -> list[Staged]:
        """What tasks with these records leave; an empty one leaves nothing."""
        writer = StreamWriter(self.options, SCHEMA)
        found = []
        for task, records in enumerate(tasks):
            message = writer.stage(iter([batch(records)]), query, number)
            found.append(replace(message, task=task))
        return found

    def commit(self, staged: Sequence[Staged], number: int = 0, **options: object) -> None:
        chosen = replace(self.options, **options)  # type: ignore[arg-type]
        BatchCommit(self.topics, chosen, staged, number).run()

    def values(self, topic: str = "t") -> list[bytes | None]:
        return [value for part in self.by_partition(topic) for value in part]

    def by_partition(self, topic: str = "t") -> list[list[bytes | None]]:
        info = self.topics.get(topic, refresh=True)
        found = []
        for number in range(info.partitions):
            reader = self.topics.partition_reader(info, number)
            reader.refresh()
            found.append([value for _, value in read_all(reader)])
        return found

    def staged_files(self) -> list[str]:
        return [o.path for o in self.objects.list("__spark") if o.path.endswith(".arrow")]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "root")


def expected(*parts: Sequence[Row]) -> Counter[bytes | None]:
    return Counter(value for part in parts for _, value in part)


# the way of a batch


def test_a_batch_is_written_once_in_the_order_of_its_tasks(world: World) -> None:
    staged = world.stage(rows(0, 20), rows(20, 20))
    world.commit(list(reversed(staged)))
    found = world.by_partition()
    for number, part in enumerate(found):
        wanted = [v for k, v in rows(0, 40) if k is not None and partition_for(k, 3) == number]
        assert part == wanted
    assert sum(map(len, found)) == 40


def test_nothing_is_visible_before_the_commit(world: World) -> None:
    assert [len(item.files) for item in world.stage(rows(0, 5), [], rows(5, 5))] == [1, 0, 1]
    assert world.values() == []


def test_staged_files_are_gone_after_the_commit_manifests_stay_for_a_while(world: World) -> None:
    for number in range(14):
        world.stage(rows(0, 1), number=number)  # a failed attempt, or a slow twin of a task
        world.commit(world.stage(rows(number, 1), number=number), number)
        assert world.staged_files() == []
    kept = sorted(world.objects.names(staging(QUERY)))
    wanted = [f"{n:010d}.json{end}" for n in range(3, 14) for end in ("", ".done")]
    assert kept == wanted


def test_a_batch_without_rows_leaves_nothing(world: World) -> None:
    world.commit(world.stage([], []))
    assert world.objects.names(staging(QUERY)) == []


def test_a_later_batch_follows(world: World) -> None:
    world.commit(world.stage(rows(0, 10)))
    world.commit(world.stage(rows(10, 10), number=1), 1)
    assert Counter(world.values()) == expected(rows(0, 20))


def test_large_batches_go_in_pieces_of_bounded_size(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "_STAGE_BYTES", 1000)
    monkeypatch.setattr(sink, "_PIECE_BYTES", 7000)
    writer = StreamWriter(world.options, SCHEMA)
    records = rows(0, 400)
    parts = [batch(records[at : at + 10]) for at in range(0, 400, 10)]
    message = writer.stage(iter(parts), QUERY, 0)
    assert len(message.files) > 8
    pieces = sink._pieces(message.files)
    assert [path for piece in pieces for path in piece] == [path for path, _ in message.files]
    assert 1 < len(pieces) < len(message.files)
    crash(world, [message], at=34)
    world.commit([message])
    found = world.by_partition()
    for number, part in enumerate(found):
        assert part == [v for k, v in records if k is not None and partition_for(k, 3) == number]


# replays


@pytest.mark.parametrize("cut", [(40,), (20, 20), (1, 39), (10, 10, 10, 10)])
def test_a_replayed_batch_writes_nothing_however_it_is_cut(
    world: World, cut: tuple[int, ...]
) -> None:
    world.commit(world.stage(rows(0, 20), rows(20, 20)))
    before = world.by_partition()
    tasks, at = [], 0
    for count in cut:
        tasks.append(rows(at, count))
        at += count
    world.topics.add_partitions("t", 7)
    world.commit(world.stage(*tasks))
    assert world.by_partition() == before + [[]] * 4
    assert world.staged_files() == []


def test_a_replay_with_other_options_finishes_the_first_attempt(world: World) -> None:
    """The partitioner of the manifest counts: another one would double some records and lose others."""
    staged = world.stage(rows(0, 30))
    crash(world, staged, at=_first_append(world, staged) + 1)
    world.commit(world.stage(rows(0, 15), rows(15, 15)), partitioner="roundrobin")
    assert Counter(world.values()) == expected(rows(0, 30))


def test_a_record_without_key_stays_where_the_first_attempt_put_it(world: World) -> None:
    records: list[Row] = [(None, b"v%d" % n) for n in range(60)]
    world.commit(world.stage(records))
    found = world.by_partition()
    assert all(len(part) > 5 for part in found)
    assert Counter(world.values()) == expected(records)


class Crashed(BaseException):
    """The driver died."""


class Mortal(FaultyObjects):
    """Lets its client die at the n-th operation, before or after it took effect."""

    def __init__(self, inner: Objects, at: int, *, after: bool) -> None:
        super().__init__(inner, Script())
        self._at, self._after = at, after

    def _run(
        self,
        operation: str,
        path: str,
        act: Callable[[], T],
        on_conflict: Callable[[], T] | None = None,
    ) -> T:
        self.calls.append((operation, path))
        if len(self.calls) - 1 == self._at:
            if self._after:
                act()
            raise Crashed(f"{operation} {path}")
        return act()


def crash(world: World, staged: Sequence[Staged], at: int, *, after: bool = False) -> None:
    topics = world.over(Mortal(world.objects, at, after=after))
    with pytest.raises(Crashed):
        BatchCommit(topics, world.options, staged, 0).run()


def _operations(tmp_path: Path) -> list[tuple[str, str]]:
    other = World(tmp_path / "count")
    other.commit(other.stage(rows(100, 4)), 0)
    staged = other.stage(rows(0, 20), rows(20, 20), number=1)
    store = Mortal(other.objects, -1, after=False)
    BatchCommit(other.over(store), other.options, staged, 1).run()
    return store.calls


def _first_append(world: World, staged: Sequence[Staged]) -> int:
    """The operation that makes the first partition's records visible."""
    twin = World(Path(str(world.options.root) + "-twin"))
    store = Mortal(twin.objects, -1, after=False)
    BatchCommit(twin.over(store), twin.options, twin.stage(rows(0, 30)), 0).run()
    commits = [
        n
        for n, (op, p) in enumerate(store.calls)
        if op == "put_if_absent" and "t/" in p and "_delta_log" in p
    ]
    return next(n for n in commits if not store.calls[n][1].endswith("0" * 20 + ".json"))


CHANGES = ("put", "put_new", "put_if_absent", "delete", "delete_tree")


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_driver_that_dies_anywhere_leaves_each_record_once_after_the_replay(
    tmp_path: Path, after: bool
) -> None:
    """Batch 1 after a batch 0: dies at every single operation, is replayed cut otherwise, topic grown."""
    operations = _operations(tmp_path)
    assert len(operations) > 15
    for at, (operation, _) in enumerate(operations):
        if after and operation not in CHANGES:
            continue  # dying after a look is dying before what comes next
        world = World(tmp_path / f"root-{at}")
        world.commit(world.stage(rows(100, 4)), 0)
        staged = world.stage(rows(0, 20), rows(20, 20), number=1)
        topics = world.over(Mortal(world.objects, at, after=after))
        with pytest.raises(Crashed):
            BatchCommit(topics, world.options, staged, 1).run()
        StreamWriter(world.options, SCHEMA).abort(list(staged), 1)
        if at % 2:
            world.topics.add_partitions("t", 5)
        world.commit(world.stage(rows(0, 7), rows(7, 1), rows(8, 32), number=1), 1)
        story = (at, operations[at])
        assert Counter(world.values()) == expected(rows(100, 4), rows(0, 40)), story
        assert world.staged_files() == [], story


@pytest.mark.slow
@pytest.mark.parametrize("fault", [BEFORE, AFTER, CONFLICT], ids=["before", "after", "conflict"])
def test_a_store_that_fails_once_anywhere_doubles_and_loses_nothing(
    tmp_path: Path, fault: Fault
) -> None:
    """The commit goes on by itself, or fails; then the replay finishes it."""
    operations = _operations(tmp_path)
    failed = 0
    for at, (operation, path) in enumerate(operations):
        if fault is AFTER and operation not in CHANGES:
            continue
        if fault is CONFLICT and operation != "put_if_absent":
            continue
        world = World(tmp_path / f"root-{at}")
        world.commit(world.stage(rows(100, 4)), 0)
        staged = world.stage(rows(0, 20), rows(20, 20), number=1)
        nth = sum(1 for op, _ in operations[:at] if op == operation)
        script = Script(Rule(operation, fault, skip=nth))
        runtime = fake_runtime(at)
        topics = world.over(FaultyObjects(world.objects, script, FakeClock()), runtime)
        try:
            BatchCommit(topics, world.options, staged, 1, runtime).run()
        except StreamlogError:
            failed += 1
            StreamWriter(world.options, SCHEMA).abort(list(staged), 1)
            world.commit(world.stage(rows(0, 40), number=1), 1)
        assert script.exhausted, (at, operation, path)
        story = (at, operation, path)
        assert Counter(world.values()) == expected(rows(100, 4), rows(0, 40)), story
    # Puts are persisted with; a failing look at the registry or the like may stop the batch.
    assert failed == 0 or fault is BEFORE


def test_two_drivers_racing_for_one_batch_write_it_once(tmp_path: Path) -> None:
    for turn in range(10):
        world = World(tmp_path / f"root-{turn}")
        attempts = [world.stage(rows(0, 40)), world.stage(rows(0, 11), rows(11, 29))]
        gate = threading.Barrier(2)

        def drive(
            staged: list[Staged], world: World = world, gate: threading.Barrier = gate
        ) -> None:
            topics = world.over(world.objects)
            gate.wait()
            BatchCommit(topics, world.options, staged, 0).run()

        with ThreadPoolExecutor(2) as pool:
            for driver in [pool.submit(drive, staged) for staged in attempts]:
                driver.result()
        assert Counter(world.values()) == expected(rows(0, 40))


def test_a_driver_that_finds_the_files_gone_and_the_batch_done_is_content(world: World) -> None:
    staged = world.stage(rows(0, 30))

    class Overtaken(FaultyObjects):
        def get(self, path: str) -> bytes | None:
            if path.endswith(".arrow") and world.staged_files():
                world.commit(staged)
            return super().get(path)

    topics = world.over(Overtaken(world.objects, Script()))
    BatchCommit(topics, world.options, staged, 0).run()
    assert Counter(world.values()) == expected(rows(0, 30))


def test_staged_files_removed_by_hand_are_an_error_not_silence(world: World) -> None:
    staged = world.stage(rows(0, 30))
    crash(world, staged, at=_first_append(world, staged))
    world.objects.delete(world.staged_files())
    with pytest.raises(InvalidRequestError, match="staged for batch 0, is gone"):
        world.commit(world.stage(rows(0, 30)))


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_deleted_between_attempts_is_said(world: World, again: bool) -> None:
    staged = world.stage(rows(0, 30))
    crash(world, staged, at=_first_append(world, staged) + 1)
    world.topics.delete("t")
    if again:
        world.topics.create("t", 3)
    word = "deleted and made again" if again else "deleted"
    with pytest.raises(TopicDeletedError, match=f"'t' was {word} while batch 0 was written"):
        world.commit(staged)
    if again:
        assert world.values() == []


# cleaning


def test_clean_removes_what_silent_queries_left_and_nothing_else(world: World) -> None:
    world.stage(rows(0, 5), query="dead")
    world.stage(rows(0, 5), query="alive")
    for info in list(world.objects.list(staging("dead"))):
        old = info.modified - 8 * 86_400
        os.utime(Path(world.options.root) / info.path, (old, old))
    assert clean(world.topics) == ["dead"]
    assert {path.split("/")[1] for path in world.staged_files()} == {"alive"}
    assert clean(world.topics, older_than=-60) == ["alive"]
    assert clean(world.topics, older_than=-60) == []


def test_the_first_batch_of_a_query_cleans_up_after_dead_ones(world: World) -> None:
    world.stage(rows(0, 5), query="dead")
    for info in list(world.objects.list(staging("dead"))):
        old = info.modified - 8 * 86_400
        os.utime(Path(world.options.root) / info.path, (old, old))
    world.commit(world.stage(rows(0, 5)))
    assert world.staged_files() == []


def test_a_failing_clean_up_does_not_fail_the_batch(world: World) -> None:
    script = Script(Rule("list", BEFORE, lambda path: path.startswith("__spark")))
    staged = world.stage(rows(0, 5))
    BatchCommit(world.over(FaultyObjects(world.objects, script)), world.options, staged, 0).run()
    assert script.exhausted
    assert Counter(world.values()) == expected(rows(0, 5))
    assert len(world.staged_files()) == 1
    world.commit(staged)
    assert world.staged_files() == []


def test_a_manifest_names_what_every_replay_needs(world: World) -> None:
    staged = world.stage(rows(0, 5))
    world.commit(staged)
    data = world.objects.get(manifest_path(QUERY, 0))
    assert data is not None
    info = world.topics.get("t")
    assert json.loads(data) == {
        "pieces": [[path for path, _ in staged[0].files]],
        "topics": {"t": {"id": info.id, "partitions": 3}},
        "partitioner": "murmur2",
    }


# a batch job


def test_a_batch_job_leaves_no_staging(world: World) -> None:
    writer = BatchWriter(world.options, SCHEMA)
    messages = [writer.write(iter([batch(rows(0, 9))])), None]
    writer.commit(messages)
    assert Counter(world.values()) == expected(rows(0, 9))
    writer = BatchWriter(world.options, SCHEMA)
    writer.write(iter([batch(rows(0, 9))]))
    writer.abort([None])
    assert list(world.objects.list("__spark")) == []
    assert len(world.values()) == 9


def test_at_least_once_appends_in_the_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_STAGE_BYTES", 500)
    options = replace(world.options, exactly_once=False)
    writer = StreamWriter(options, SCHEMA)
    parts = [batch(rows(at, 10)) for at in range(0, 100, 10)]
    message = writer.write(iter(parts))
    assert Counter(world.values()) == expected(rows(0, 100))
    writer.commit([message], 0)
    assert len(world.values()) == 100
    assert list(world.objects.list("__spark")) == []


def test_exactly_once_needs_the_querys_id(world: World) -> None:
    with pytest.raises(InvalidRequestError, match="does not tell its tasks the query's id"):
        StreamWriter(world.options, SCHEMA).write(iter([batch(rows(0, 1))]))


# rows that cannot be written


def table(**columns: pa.Array) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))])


def writer_without_topic(world: World) -> StreamWriter:
    options = replace(world.options, topic=None)
    return StreamWriter(options, StructType().add("topic", "string").add("value", "binary"))


def test_each_topic_has_its_own_limits(world: World) -> None:
    """What one topic of a batch may not have, another one may."""
    world.topics.create("wide", 9, {"max.message.bytes": 5_000_000})
    world.topics.create("keyed", 1, {"cleanup.policy": "compact"})
    staged = writer_without_topic(world).stage(
        table(
            topic=pa.array(["wide", "t", "keyed"]),
            partition=pa.array([8, 2, None], pa.int32()),
            key=pa.array([None, None, b"k"], pa.binary()),
            value=pa.array([b"x" * 3_000_000, b"y", b"z"], pa.binary()),
        ),
        QUERY,
        0,
    )
    world.commit([staged], topic=None)
    assert [len(part) for part in world.by_partition("wide")] == [0] * 8 + [1]
    assert world.by_partition("t") == [[], [], [b"y"]]
    assert world.values("keyed") == [b"z"]


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"topic": pa.array([None, "t"])}, InvalidRequestError, "a row has a null topic"),
        ({"topic": pa.array(["t", "nope"])}, TopicNotFoundError, "nope"),
        (
            {"topic": pa.array(["t", "t"]), "partition": pa.array([0, 3], pa.int32())},
            PartitionNotFoundError,
            "a row names partition 3 of topic 't', which has 0 to 2",
        ),
        (
            {"topic": pa.array(["t", "t"]), "partition": pa.array([0, -1], pa.int32())},
            PartitionNotFoundError,
            "a row names partition -1",
        ),
        (
            {"topic": pa.array(["t", "t"]), "key": pa.array([b"x" * 1_048_588, b""])},
            RecordTooLargeError,
            "has 1048589 bytes; its max.message.bytes is 1048588",
        ),
        (
            {
                "topic": pa.array(["t", "t"]),
                "headers": pa.array([None, [("h", b"x" * 1_048_588)]], HEADERS_TYPE),
            },
            RecordTooLargeError,
            "has 1048590 bytes",
        ),
        (
            {"topic": pa.array(["t", "t"]), "headers": pa.array([[(None, b"")], []], HEADERS_TYPE)},
            InvalidRequestError,
            "a header without a key",
        ),
        ({"topic": pa.array(["t", "keyed"])}, InvalidRequestError, "'keyed' is compacted"),
        (
            {
                "topic": pa.array(["t", "t"]),
                "timestamp": pa.array([-1, 0], pa.timestamp("us", tz="UTC")),
            },
            InvalidRequestError,
            "timestamp is before 1970",
        ),
    ],
)
def test_a_bad_row_fails_its_task_before_anything_is_written(
    world: World, columns: dict[str, pa.Array], error: type[StreamlogError], message: str
) -> None:
    world.topics.create("keyed", 1, {"cleanup.policy": "compact"})
    given = {"value": pa.array([b"a", b"b"], pa.binary())} | columns
    with pytest.raises(error) as caught:
        writer_without_topic(world).stage(table(**given), QUERY, 0)
    assert message in str(caught.value)
    assert world.values() == []
    assert world.staged_files() == []


def test_limits_are_reached_exactly(world: World) -> None:
    staged = world.stage([(b"k" * 88, b"v" * 1_048_500)])
    world.commit(staged)
    assert len(world.values()) == 1


# columns that cannot be written


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([("value", "binary"), ("valu", "binary")], "the sink has no column 'valu'"),
        ([("key", "binary")], "the rows have no column 'value'"),
        ([("value", "integer")], "column 'value' is int; it must be string or binary"),
        ([("value", "string"), ("key", "long")], "column 'key' is bigint"),
        (
            [("value", "string"), ("partition", "long")],
            "column 'partition' is bigint; it must be int",
        ),
        ([("value", "string"), ("timestamp", "string")], "it must be timestamp"),
        ([("value", "string"), ("topic", "binary")], "column 'topic' is binary; it must be string"),
        ([("value", "string"), ("VALUE", "string")], "two columns have the same name"),
        (
            [("value", "string"), ("headers", "string")],
            "column 'headers' is string; it must be array<struct",
        ),
    ],
)
def test_columns_are_checked_on_the_driver(
    world: World, schema: list[tuple[str, str]], message: str
) -> None:
    columns = StructType()
    for name, kind in schema:
        columns = columns.add(name, kind)
    with pytest.raises(InvalidRequestError) as caught:
        StreamWriter(world.options, columns)
    assert message in str(caught.value)


def test_rows_need_a_topic(world: World) -> None:
    with pytest.raises(InvalidRequestError, match="no topic: give a column 'topic'"):
        StreamWriter(replace(world.options, topic=None), SCHEMA)

"""The consumer over a stand-in log: who gets which records, in what order, and what is refused.

The stand-in keeps each partition as a list of rows and moves a clock by hand, so that waits and
turns are exact.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from streamlog.clock import Runtime
from streamlog.consumer import Consumer, ConsumerSettings
from streamlog.consumer.records import ARROW_SCHEMA, to_records
from streamlog.errors import (
    ClosedError,
    InvalidRequestError,
    OutOfRangeError,
    PartitionNotFoundError,
    TopicDeletedError,
    TopicNotFoundError,
    UnavailableError,
)
from streamlog.model import OffsetAndTimestamp, Record, TopicPartition
from streamlog.schema import RECORD_SCHEMA

TP = TopicPartition
T0 = 1_700_000_000_000


@dataclass
class ManualClock:
    """Time that passes only by sleeping; `during` runs at each sleep, as the rest of the world."""

    now: float = 1000.0
    sleeps: list[float] = field(default_factory=list)
    during: Any = None

    def time_ms(self) -> int:
        return T0 + int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps.append(seconds)
        if self.during is not None:
            self.during()


@dataclass
class Info:
    """What the consumer needs of a topic."""

    name: str
    id: str
    partitions: int


@dataclass
class Part:
    """One partition's true content."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    start: int = 0
    end: int = 0
    deleted: bool = False
    broken: Exception | None = None


class Reader:
    """The reading side as `PartitionReader` promises it: a view that only `refresh` moves."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self.start, self.end = part.start, part.end
        self.refreshes = 0

    def refresh(self) -> bool:
        self.refreshes += 1
        if self._part.broken is not None:
            raise self._part.broken
        if self._part.deleted:
            raise TopicDeletedError("the topic was deleted")
        moved = self.end != self._part.end
        self.start, self.end = self._part.start, self._part.end
        return moved

    def read(self, offset: int, *, max_records: int, max_bytes: int) -> pa.RecordBatch | None:
        if not self.start <= offset <= self.end:
            raise OutOfRangeError(f"{offset} not in {self.start}..{self.end}")
        rows = [r for r in self._part.rows if offset <= r["offset"] < self.end][:max_records]
        while len(rows) > 1 and sum(len(r["value"] or b"") for r in rows) > max_bytes:
            rows.pop()
        return batch(rows) if rows else None

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        for row in self._part.rows:
            if row["timestamp"] // 1000 >= timestamp_ms and row["offset"] >= self.start:
                return row["offset"], row["timestamp"] // 1000
        return None


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA)


class World:
    """Topics with their partitions, and consumers on them."""

    def __init__(self, local: bool = True) -> None:
        self.clock = ManualClock()
        self.objects = SimpleNamespace(local=local)
        self.infos: dict[str, Info] = {}
        self.parts: dict[tuple[str, int], Part] = {}
        self.readers: list[Reader] = []
        self.made = 0

    def create(self, name: str, partitions: int = 1) -> None:
        self.made += 1
        self.infos[name] = Info(name, f"id-{self.made}", 0)
        self.grow(name, partitions)

    def grow(self, name: str, partitions: int) -> None:
        info = self.infos[name]
        for number in range(info.partitions, partitions):
            self.parts[info.id, number] = Part()
        self.infos[name] = replace(info, partitions=partitions)

    def drop(self, name: str) -> None:
        info = self.infos.pop(name)
        for number in range(info.partitions):
            self.parts[info.id, number].deleted = True

    def part(self, name: str, partition: int = 0) -> Part:
        return self.parts[self.infos[name].id, partition]

    def write(self, name: str, partition: int, *values: bytes) -> None:
        part = self.part(name, partition)
        for value in values:
            row = {"offset": part.end, "timestamp": (T0 + part.end) * 1000, "value": value}
            part.rows.append({"key": None, "headers": None} | row)
            part.end += 1

    def cut(self, name: str, partition: int, start: int) -> None:
        part = self.part(name, partition)
        part.rows = [row for row in part.rows if row["offset"] >= start]
        part.start = start

    def get(self, name: str, refresh: bool = False) -> Info:
        if name not in self.infos:
            raise TopicNotFoundError(f"there is no topic {name!r}")
        return self.infos[name]

    def list(self, internal: bool = False) -> list[Info]:
        return list(self.infos.values())

    def partition_reader(self, info: Info, partition: int) -> Reader:
        self.readers.append(Reader(self.parts[info.id, partition]))
        return self.readers[-1]

    def consumer(self, *topics: str, **settings: Any) -> Consumer:
        settings = {"auto_offset_reset": "earliest"} | settings
        made = Consumer(
            self,  # type: ignore[arg-type]
            ConsumerSettings.from_kwargs(settings),
            Runtime(clock=self.clock),
        )
        if topics:
            made.subscribe(topics)
        return made


@pytest.fixture(params=["local", "remote"])
def world(request: pytest.FixtureRequest) -> World:
    return World(local=request.param == "local")


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def drain(consumer: Consumer) -> list[bytes | None]:
    found: list[bytes | None] = []
    while records := consumer.poll():
        found += values(records)
    return found


def test_a_record_carries_everything_that_was_stored(world: World) -> None:
    world.create("t")
    part = world.part("t")
    part.rows.append(
        {
            "offset": 0,
            "timestamp": T0 * 1000 + 999,
            "key": b"k",
            "value": None,
            "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        }
    )
    part.end = 1
    world.write("t", 0, b"v")
    headers = (("a", b"1"), ("b", None))
    assert world.consumer("t").poll() == [
        Record("t", 0, 0, T0, b"k", None, headers),
        Record("t", 0, 1, T0 + 1, None, b"v", ()),
    ]


def test_headers_are_kept_apart_in_slices_and_behind_nulls() -> None:
    lists = [None, [("a", b"1")], [], [("b", b"2"), ("c", None)], None]
    rows = [
        {
            "offset": n,
            "timestamp": 0,
            "key": None,
            "value": None,
            "headers": None if pairs is None else [{"key": k, "value": v} for k, v in pairs],
        }
        for n, pairs in enumerate(lists)
    ]
    whole = batch(rows)
    for start in range(len(lists)):
        records = to_records(TP("t", 0), whole.slice(start))
        assert [r.headers for r in records] == [tuple(pairs or ()) for pairs in lists[start:]]
        assert [r.offset for r in records] == list(range(start, len(lists)))


def test_order_is_kept_within_a_partition_over_many_small_polls(world: World) -> None:
    world.create("t")
    sent = [b"%d" % n for n in range(100)]
    world.write("t", 0, *sent)
    assert drain(world.consumer("t", max_poll_records=7)) == sent


def test_a_busy_partition_does_not_starve_the_others(world: World) -> None:
    world.create("t", 3)
    for partition in range(3):
        world.write("t", partition, *[b"x"] * 100)
    consumer = world.consumer("t", max_poll_records=10)
    consumer.poll()
    time.sleep(0.05)  # remote answers come when they come; by now all have
    got = [record.partition for _ in range(12) for record in consumer.poll()]
    assert all(got.count(partition) >= 30 for partition in range(3))


def test_poll_returns_at_most_max_records(world: World) -> None:
    world.create("t", 2)
    world.write("t", 0, *[b"a"] * 4)
    world.write("t", 1, *[b"b"] * 4)
    consumer = world.consumer("t", max_poll_records=5)
    assert len(consumer.poll(max_records=3)) == 3
    rest = [len(consumer.poll()) for _ in range(3)]
    assert max(rest) <= 5
    assert sum(rest) == 5


def test_latest_begins_at_the_end_of_the_moment_of_subscribing(world: World) -> None:
    world.create("t")
    world.write("t", 0, b"old")
    consumer = world.consumer("t", auto_offset_reset="latest")
    world.write("t", 0, b"new")
    assert drain(consumer) == [b"new"]


def test_poll_waits_for_what_is_not_written_yet_and_no_longer(world: World) -> None:
    world.create("t")
    consumer = world.consumer("t")
    world.clock.during = lambda: world.write("t", 0, b"x") if world.clock.now > 1000.02 else None
    assert consumer.poll(timeout_ms=1000)
    assert world.clock.now < 1000.2
    world.clock.during = None
    drain(consumer)
    before = world.clock.now
    assert consumer.poll(timeout_ms=300) == []
    assert world.clock.now - before == pytest.approx(0.3)


def test_waits_double_while_nothing_comes_and_start_short_after_records() -> None:
    world = World()
    world.create("t")
    consumer = world.consumer("t")
    consumer.poll(timeout_ms=1000)
    assert world.clock.sleeps[:6] == pytest.approx([0.001, 0.002, 0.004, 0.008, 0.016, 0.032])
    assert max(world.clock.sleeps) == pytest.approx(0.05)
    assert len(world.clock.sleeps) < 30
    world.write("t", 0, b"x")
    assert consumer.poll()
    world.clock.sleeps.clear()
    consumer.poll(timeout_ms=10)
    assert world.clock.sleeps[0] == pytest.approx(0.001)


def test_fetch_min_bytes_gathers_until_there_is_enough(world: World) -> None:
    world.create("t", 2)
    world.write("t", 0, b"x" * 100)
    consumer = world.consumer("t", fetch_min_bytes=2000, fetch_max_wait_ms=500)

    def write_more() -> None:
        if world.clock.now < 1000.5:
            world.write("t", 1, b"y" * 900)
            world.write("t", 0, b"z" * 900)

    world.clock.during = write_more
    records = consumer.poll(timeout_ms=10_000)
    assert sum(len(r.value or b"") for r in records) >= 1800
    assert world.clock.now < 1000.5


def test_fetch_max_wait_hands_out_what_there_is(world: World) -> None:
    world.create("t")
    world.write("t", 0, b"x")
    consumer = world.consumer("t", fetch_min_bytes=100_000, fetch_max_wait_ms=200)
    assert values(consumer.poll(timeout_ms=10_000)) == [b"x"]
    assert world.clock.now == pytest.approx(1000.2, abs=0.01)
    world.write("t", 0, b"y")
    assert values(consumer.poll(timeout_ms=0)) == [b"y"]


def test_a_fetch_is_bounded_a_partition_and_in_all(world: World) -> None:
    world.create("t", 4)
    for partition in range(4):
        world.write("t", partition, *[b"x" * 1000] * 20)
    one = world.consumer("t", max_partition_fetch_bytes=5_000)
    one.pause(TP("t", 1), TP("t", 2), TP("t", 3))
    assert one.poll_arrow(timeout_ms=100).num_rows == 5
    everything = world.consumer("t", max_partition_fetch_bytes=5_000, fetch_max_bytes=8_000)
    assert everything.poll_arrow(timeout_ms=100).num_rows <= 15
    assert len(drain(everything)) >= 65


def test_iteration_ends_after_consumer_timeout_and_can_go_on(world: World) -> None:
    world.create("t")
    world.write("t", 0, b"a", b"b")
    consumer = world.consumer("t", consumer_timeout_ms=50)
    assert values(list(consumer)) == [b"a", b"b"]
    world.write("t", 0, b"c")
    assert next(consumer).value == b"c"
    with pytest.raises(StopIteration):
        next(consumer)
    world.write("t", 0, b"d")
    assert next(consumer).value == b"d"


def test_leaving_a_loop_loses_nothing(world: World) -> None:
    world.create("t")
    sent = [b"%d" % n for n in range(2000)]
    world.write("t", 0, *sent)
    consumer = world.consumer("t", consumer_timeout_ms=0)
    got = []
    for record in consumer:
        got.append(record.value)
        if len(got) == 700:
            break
    assert consumer.position(TP("t", 0)) == 700
    got += values(consumer.poll(max_records=3))
    got += [next(consumer).value]
    got += values(list(consumer))
    assert got == sent


def test_position_is_the_next_record_within_an_iteration_too(world: World) -> None:
    world.create("t")
    world.write("t", 0, *[b"x"] * 10)
    consumer = world.consumer("t", consumer_timeout_ms=0)
    assert consumer.position(TP("t", 0)) == 0
    for record in consumer:
        assert consumer.position(TP("t", 0)) == record.offset + 1
        assert consumer.lag() == {TP("t", 0): 9 - record.offset}


def test_a_seek_in_a_loop_takes_effect_at_once(world: World) -> None:
    world.create("t")
    world.write("t", 0, *[b"%d" % n for n in range(10)])
    consumer = world.consumer("t", consumer_timeout_ms=0)
    got = []
    for record in consumer:
        got.append(record.offset)
        if record.offset == 2:
            consumer.seek(TP("t", 0), 8)
    assert got == [0, 1, 2, 8, 9]


def test_nothing_fetched_before_a_seek_comes_after_it(world: World) -> None:
    world.create("t")
    world.write("t", 0, *[b"%d" % n for n in range(10)])
    consumer = world.consumer("t")
    consumer.poll(max_records=2)
    consumer.seek(TP("t", 0), 0)
    assert drain(consumer) == [b"%d" % n for n in range(10)]
    consumer.seek_to_end()
    assert consumer.poll() == []
    consumer.seek_to_beginning(TP("t", 0))
    assert consumer.position(TP("t", 0)) == 0
    consumer.seek_to_time(T0 + 7)
    assert drain(consumer) == [b"7", b"8", b"9"]
    consumer.seek_to_time(datetime.fromtimestamp(T0 / 1000, UTC), TP("t", 0))
    assert consumer.position(TP("t", 0)) == 0
    consumer.seek_to_time(T0 + 1000)
    assert consumer.position(TP("t", 0)) == 10


def test_pause_holds_a_partition_back_and_resume_loses_nothing(world: World) -> None:
    world.create("t", 2)
    world.write("t", 0, b"a", b"b")
    world.write("t", 1, b"c", b"d")
    consumer = world.consumer("t", consumer_timeout_ms=0)
    first = next(consumer)
    held = TP("t", first.partition)
    consumer.pause(held)
    assert consumer.paused() == {held}
    others = {record.partition for record in consumer}
    assert others == {1 - held.partition}
    consumer.resume(held)
    assert [(r.partition, r.offset) for r in consumer] == [(held.partition, 1)]


def test_offsets_are_answered_for_any_partition(world: World) -> None:
    world.create("t", 2)
    world.write("t", 0, *[b"x"] * 5)
    world.cut("t", 0, 2)
    consumer = world.consumer()
    tps = [TP("t", 0), TP("t", 1)]
    assert consumer.beginning_offsets(tps) == {TP("t", 0): 2, TP("t", 1): 0}
    assert consumer.end_offsets(tps) == {TP("t", 0): 5, TP("t", 1): 0}
    world.write("t", 1, b"x")
    assert consumer.end_offsets([TP("t", 1)]) == {TP("t", 1): 1}
    assert consumer.offsets_for_times({TP("t", 0): T0 + 3, TP("t", 1): T0 + 3}) == {
        TP("t", 0): OffsetAndTimestamp(3, T0 + 3),
        TP("t", 1): None,
    }


def test_out_of_range_follows_the_reset_policy(world: World) -> None:
    world.create("t")
    world.write("t", 0, *[b"%d" % n for n in range(10)])
    for policy, expected in (("earliest", 4), ("latest", 10)):
        consumer = world.consumer("t", auto_offset_reset=policy)
        consumer.seek(TP("t", 0), 2)
        world.cut("t", 0, 4)
        consumer.poll(max_records=1)
        assert consumer.position(TP("t", 0)) in (expected, expected + 1)
    consumer = world.consumer("t", auto_offset_reset="none")
    consumer.seek(TP("t", 0), 99)
    with pytest.raises(OutOfRangeError, match=r"t-0: position 99 .* offsets 4 to 10"):
        consumer.poll()
    consumer.seek(TP("t", 0), 9)
    assert drain(consumer) == [b"9"]


def test_without_a_policy_the_first_position_must_be_given(world: World) -> None:
    world.create("t")
    consumer = world.consumer("t", auto_offset_reset="none")
    with pytest.raises(OutOfRangeError, match=r"t-0: there is no position .* seek first"):
        consumer.poll()
    with pytest.raises(InvalidRequestError, match="seek first"):
        consumer.position(TP("t", 0))


def test_a_seek_right_behind_a_write_of_others_is_in_range(world: World) -> None:
    world.create("t")
    consumer = world.consumer("t", auto_offset_reset="none")
    consumer.seek(TP("t", 0), 0)
    assert consumer.poll() == []
    world.write("t", 0, b"a", b"b", b"c")
    consumer.seek(TP("t", 0), 2)
    assert drain(consumer) == [b"c"]


def test_gaps_are_passed(world: World) -> None:
    world.create("t")
    world.write("t", 0, *[b"%d" % n for n in range(10)])
    part = world.part("t")
    part.rows = [row for row in part.rows if row["offset"] in (3, 4, 7)]
    consumer = world.consumer("t")
    assert drain(consumer) == [b"3", b"4", b"7"]
    assert consumer.position(TP("t", 0)) == 10
    assert consumer.lag() == {TP("t", 0): 0}


def test_new_partitions_are_read_from_their_beginning_even_with_latest(world: World) -> None:
    world.create("t")
    consumer = world.consumer("t", auto_offset_reset="latest", metadata_max_age_ms=100)
    world.grow("t", 2)
    world.write("t", 1, b"early")
    assert consumer.poll() == []
    world.clock.now += 1
    assert drain(consumer) == [b"early"]
    assert consumer.assignment() == {TP("t", 0), TP("t", 1)}


def test_a_pattern_takes_up_topics_made_later_and_drops_deleted_ones(world: World) -> None:
    world.create("orders-eu")
    world.create("other")
    consumer = world.consumer(auto_offset_reset="latest", metadata_max_age_ms=100)
    consumer.subscribe(pattern=r"orders-.*")
    assert consumer.subscription() == {"orders-eu"}
    world.create("orders-us")
    world.write("orders-us", 0, b"first")
    world.clock.now += 1
    assert drain(consumer) == [b"first"]
    world.drop("orders-eu")
    assert consumer.poll() == []
    assert consumer.subscription() == {"orders-us"}
    world.write("orders-us", 0, b"second")
    assert drain(consumer) == [b"second"]


def test_a_deleted_topic_is_an_error_of_poll(world: World) -> None:
    world.create("t")
    consumer = world.consumer("t")
    assert consumer.poll() == []
    world.drop("t")
    for _ in range(2):
        with pytest.raises(TopicDeletedError):
            consumer.poll()


def test_an_assigned_partition_of_a_deleted_topic_is_an_error_of_poll(world: World) -> None:
    world.create("t")
    consumer = world.consumer(metadata_max_age_ms=100)
    consumer.assign([TP("t", 0)])
    assert consumer.poll() == []
    world.infos.pop("t")  # all files are gone: only the registry can tell
    world.clock.now += 1
    with pytest.raises(TopicDeletedError, match="'t' was deleted"):
        consumer.poll()


def test_a_topic_made_again_is_not_read_at_the_old_position(world: World) -> None:
    world.create("t")
    world.write("t", 0, b"a", b"b")
    consumer = world.consumer("t", metadata_max_age_ms=0)
    assert drain(consumer) == [b"a", b"b"]
    info = world.infos.pop("t")
    assert world.parts[info.id, 0].deleted is False  # not sealed yet: only the registry knows
    world.create("t")
    world.write("t", 0, b"x", b"y", b"z")
    with pytest.raises(TopicDeletedError, match="another topic of this name"):
        consumer.poll()
    consumer.unsubscribe()
    consumer.subscribe("t")
    assert drain(consumer) == [b"x", b"y", b"z"]


def test_an_error_of_one_partition_does_not_hold_others_back(world: World) -> None:
    world.create("t", 2)
    world.write("t", 0, b"a")
    consumer = world.consumer("t")
    world.part("t", 1).broken = UnavailableError("the store does not answer")
    got: list[bytes | None] = []

    def polls() -> int:
        failures = 0
        for _ in range(6):
            try:
                got.extend(values(consumer.poll()))
            except UnavailableError:
                failures += 1
        return failures

    assert polls() >= 2
    assert got == [b"a"]
    world.part("t", 1).broken = None
    world.write("t", 1, b"b")
    assert polls() <= 1
    assert got == [b"a", b"b"]


def test_poll_arrow_has_the_records_columns(world: World) -> None:
    world.create("t", 2)
    world.create("u")
    consumer = world.consumer("t", "u")
    empty = consumer.poll_arrow()
    assert empty.schema == ARROW_SCHEMA
    assert empty.num_rows == 0
    world.write("t", 0, b"a", b"b")
    world.write("t", 1, b"c")
    world.write("u", 0, b"d")
    rows = []
    while (table := consumer.poll_arrow()).num_rows:
        assert table.schema == ARROW_SCHEMA
        rows += table.to_pylist()
    names = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert table.column_names == names
    found = {(row["topic"], row["partition"], row["offset"], row["value"]) for row in rows}
    assert found == {("t", 0, 0, b"a"), ("t", 0, 1, b"b"), ("t", 1, 0, b"c"), ("u", 0, 0, b"d")}


def test_wakeup_ends_a_waiting_poll_and_an_iteration(world: World) -> None:
    world.create("t")
    consumer = world.consumer("t")
    world.clock.during = consumer.wakeup
    assert consumer.poll(timeout_ms=60_000) == []
    assert list(consumer) == []
    assert world.clock.now < 1001
    world.clock.during = None
    before = world.clock.now
    assert consumer.poll(timeout_ms=100) == []
    assert world.clock.now - before == pytest.approx(0.1)


def test_a_stalled_partition_does_not_stall_a_remote_poll() -> None:
    world = World(local=False)
    world.create("t", 2)
    world.write("t", 0, b"a")
    release = threading.Event()
    slow = world.part("t", 1)
    readers = world.partition_reader

    def stalling(info: Info, partition: int) -> Reader:
        if partition == 1:
            release.wait(30)
        return readers(info, partition)

    world.partition_reader = stalling  # type: ignore[method-assign]
    consumer = world.consumer("t")
    try:
        assert values(consumer.poll()) == [b"a"]
    finally:
        release.set()
    assert slow.end == 0
    world.write("t", 1, b"b")
    assert drain(consumer) == [b"b"]


def test_a_paused_or_silent_partition_is_not_asked_between_full_polls() -> None:
    world = World()
    world.create("t", 16)
    world.write("t", 0, *[b"x"] * 1000)
    consumer = world.consumer("t", max_poll_records=10)
    consumer.poll()
    before = sum(reader.refreshes for reader in world.readers)
    for _ in range(50):
        assert len(consumer.poll()) == 10
    assert sum(reader.refreshes for reader in world.readers) - before <= 32


def test_subscribing_again_keeps_positions_and_assigning_replaces(world: World) -> None:
    world.create("t", 2)
    world.create("u")
    world.write("t", 0, b"a")
    consumer = world.consumer("t")
    assert drain(consumer) == [b"a"]
    consumer.subscribe(["t", "u"])
    assert drain(consumer) == []
    consumer.unsubscribe()
    assert consumer.assignment() == set()
    consumer.assign([TP("t", 0)])
    assert drain(consumer) == [b"a"]
    consumer.assign([TP("t", 0), TP("t", 1)])
    assert drain(consumer) == []


def _cases() -> Iterator[tuple[str, Any, str]]:
    t0 = TP("t", 0)
    yield "seek unassigned", lambda c: c.seek(TP("t", 7), 0), r"t-7 is not assigned.*t-0"
    yield "seek negative", lambda c: c.seek(t0, -1), "offset -1 of t-0.*from 0"
    yield "seek text", lambda c: c.seek(t0, "5"), "offset '5'"
    yield "no partition", lambda c: c.seek("t", 5), "'t' is not a TopicPartition"
    yield "time negative", lambda c: c.seek_to_time(-1), "timestamp -1 is out of range"
    yield "time seconds", lambda c: c.seek_to_time(10**18), "out of range.*milliseconds"
    yield "time naive", lambda c: c.seek_to_time(datetime(2026, 1, 1)), "no time zone"  # noqa: DTZ001
    yield "time text", lambda c: c.offsets_for_times({t0: "now"}), "is not a time"
    yield (
        "unknown partition",
        lambda c: c.end_offsets([TP("t", 9)]),
        "no partition 9; allowed: 0 to 0",
    )
    yield "assign subscribed", lambda c: c.assign([t0]), r"uses subscribe\(\)"
    yield "both", lambda c: c.subscribe(["t"], pattern="t"), "either topics or a pattern"
    yield "empty list", lambda c: c.subscribe([]), "empty"
    yield "bad pattern", lambda c: c.subscribe(pattern="("), "not a regular expression"
    yield "poll negative", lambda c: c.poll(timeout_ms=-1), "timeout_ms is -1"
    yield "poll none", lambda c: c.poll(max_records=0), "max_records is 0"


@pytest.mark.parametrize(("call", "words"), [pytest.param(c, w, id=n) for n, c, w in _cases()])
def test_wrong_calls_are_refused_in_clear_words(call: Any, words: str) -> None:
    world = World()
    world.create("t")
    with pytest.raises(InvalidRequestError, match=words):
        call(world.consumer("t"))


def test_reading_or_seeking_without_an_assignment_is_refused() -> None:
    world = World()
    world.create("t")
    consumer = world.consumer()
    with pytest.raises(InvalidRequestError, match="subscribe or assign first"):
        consumer.poll()
    with pytest.raises(InvalidRequestError, match="subscribe or assign first"):
        consumer.seek(TP("t", 0), 0)
    with pytest.raises(InvalidRequestError, match="subscribe or assign first"):
        consumer.seek_to_end()
    with pytest.raises(TopicNotFoundError):
        consumer.subscribe("nowhere")
    with pytest.raises(PartitionNotFoundError, match="no partition 3"):
        consumer.assign([TP("t", 3)])
    consumer.assign([TP("t", 0)])


def test_a_closed_consumer_refuses_and_its_loop_ends(world: World) -> None:
    world.create("t")
    world.write("t", 0, b"a", b"b")
    with world.consumer("t") as consumer:
        for record in consumer:
            assert record.value == b"a"
            consumer.close()
    consumer.close()
    for call in (consumer.poll, consumer.lag, lambda: consumer.seek(TP("t", 0), 0)):
        with pytest.raises(ClosedError, match="closed"):
            call()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"auto_offset_rest": "latest"}, "did you mean 'auto_offset_reset'"),
        ({"zzz": 1}, "known: auto_offset_reset"),
        ({"auto_offset_reset": "newest"}, "allowed: earliest, latest, none"),
        ({"max_poll_records": 0}, "at least 1"),
        ({"fetch_max_wait_ms": "500"}, "fetch_max_wait_ms is '500'"),
        ({"consumer_timeout_ms": True}, "whole number"),
        ({"poll_interval_min_ms": 5, "poll_interval_max_ms": 2}, "above poll_interval_max_ms"),
        ({"poll_interval_max_ms": 0}, "above 0"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(words)):
        ConsumerSettings.from_kwargs(settings)

"""Consumers in a group, over real logs: who reads what, from where, and who may commit."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import streamlog
from streamlog import Consumer, TopicPartition, paths
from streamlog.consumer.group.session import OffsetAndMetadata
from streamlog.errors import (
    FencedInstanceError,
    GroupActiveError,
    IllegalGenerationError,
    InvalidRequestError,
    OutOfRangeError,
    PartitionNotFoundError,
    StreamlogError,
    TopicNotFoundError,
    UnavailableError,
)
from tests.fault.faulty import BEFORE, FaultyObjects, Rule, Script
from tests.groups import (
    FAST,
    Listener,
    fill,
    kill,
    membership,
    open_consumer,
    parts,
    share,
    until,
    values,
)

TP = TopicPartition


@pytest.fixture(params=["disk", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[streamlog.Log]:
    """A log with topic t of 4 partitions and 40 records."""
    root = tmp_path / "root" if request.param == "disk" else f"memory://{uuid4().hex}"
    with streamlog.connect(root) as made:
        made.create_topic("t", partitions=4)
        fill(made, "t", 40, 4)
        yield made


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[streamlog.Log]:
    """The same, on disk only."""
    with streamlog.connect(tmp_path / "root") as made:
        made.create_topic("t", partitions=4)
        fill(made, "t", 40, 4)
        yield made


def faulty(log: streamlog.Log) -> tuple[streamlog.Log, FaultyObjects]:
    """The same log through a storage that fails on demand."""
    store = FaultyObjects(log._topics.objects, Script())
    return streamlog.Log(store, log._runtime, log.cluster_id), store


def is_group(path: str) -> bool:
    return path.startswith((paths.OFFSETS_DIR, paths.GROUPS_DIR))


def version(log: streamlog.Log, group: str = "g") -> int:
    """The version of a group's table."""
    store = log.group(group)._store
    store.read()
    return store.version


# sharing


def test_members_of_one_group_share_the_partitions(log: streamlog.Log) -> None:
    with open_consumer(log, "t") as one:
        got = until(lambda: len(one.assignment()) == 4, [one])
        with open_consumer(log, "t") as two, open_consumer(log, "t") as three:
            got += share(one, two, three, of=4)
            assert sorted(len(c.assignment()) for c in (one, two, three)) == [1, 1, 2]
            fill(log, "t", 40, 4, first=40)
            deadline = time.monotonic() + 30
            while len(got) < 80 and time.monotonic() < deadline:
                got += [r for c in (one, two, three) for r in c.poll(5)]
            assert values(got) == list(range(80)), "a queue: each record to one of them"
            assert one.generation == two.generation == three.generation


def test_different_groups_each_get_everything(log: streamlog.Log) -> None:
    for group in ("a", "b"):
        with open_consumer(log, "t", group=group) as consumer:
            got: list[streamlog.Record] = []
            until(lambda c=consumer, g=got: g.extend(c.poll(5)) or len(g) == 40)  # type: ignore[misc]
            assert values(got) == list(range(40))


def test_more_members_than_partitions_idle_and_take_over(disk: streamlog.Log) -> None:
    disk.create_topic("one")
    consumers = [open_consumer(disk, "one") for _ in range(3)]
    try:
        until(lambda: sorted(len(c.assignment()) for c in consumers) == [0, 0, 1], consumers)
        owner = next(c for c in consumers if c.assignment())
        rest = [c for c in consumers if c is not owner]
        started = time.monotonic()
        owner.close()
        until(lambda: sum(len(c.assignment()) for c in rest) == 1, rest)
        assert time.monotonic() - started < 0.5, "a member that leaves is gone at once"
    finally:
        for consumer in consumers:
            consumer.close()


def test_eight_members_that_join_at_once_settle(disk: streamlog.Log) -> None:
    disk.create_topic("wide", partitions=16)
    ready = threading.Barrier(8)
    done = threading.Event()
    sizes: dict[int, int] = {}
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            ready.wait()
            with open_consumer(disk, "wide", session_timeout_ms=10_000) as consumer:
                while not done.is_set():
                    consumer.poll(5)
                    sizes[number] = len(consumer.assignment())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: failures or list(sizes.values()) == [2] * 8)
    finally:
        done.set()
        for thread in threads:
            thread.join(30)
    assert not failures
    assert disk.group("g").state() == "empty"


def test_a_killed_member_is_replaced_after_its_session_timeout(log: streamlog.Log) -> None:
    one, two = open_consumer(log, "t"), open_consumer(log, "t")
    try:
        share(one, two, of=4)
        lost = two.assignment()
        kill(two)
        started = time.monotonic()
        until(lambda: one.assignment() >= lost, [one])
        assert 0.4 < time.monotonic() - started < 0.6 + 2
        with pytest.raises(IllegalGenerationError, match="went on without this member"):
            two.commit()
        beats = [info.path for info in log._topics.objects.list(paths.member_dir("g"))]
        assert len(beats) == 1, "the dead one's heartbeat is gone"
    finally:
        two.close()
        one.close()
    assert log.group("g").state() == "empty"


def test_partitions_that_stay_are_not_touched_by_a_rebalance(log: streamlog.Log) -> None:
    listener = Listener()
    one = open_consumer(log, group="g")
    one.subscribe("t", listener=listener)
    with one:
        assert len(one.poll(2000, max_records=1)) == 1
        before = {state.tp: state for state in one._subscription.states}
        with open_consumer(log, "t") as two:
            share(one, two, of=4)
            kept = one.assignment()
            assert len(kept) == 2
            for tp in kept:
                assert one._subscription.get(tp, "test") is before[tp], "position and buffer kept"
            given = set(before) - kept
            assert listener.calls[1:] == [("revoked", given)]
            assert two.assignment() == given


def test_an_iteration_hands_over_in_the_middle_of_a_chunk(disk: streamlog.Log) -> None:
    disk.create_topic("two", partitions=2)
    fill(disk, "two", 2000, 2)
    with open_consumer(disk, "two") as one:
        got = []
        two: Consumer | None = None
        try:
            for record in one:
                got.append(record)
                if len(got) == 3:
                    two = open_consumer(disk, "two")
                if two is not None and len(one.assignment()) == 1:
                    break
                time.sleep(0.002)
            assert two is not None
            assert len(got) < 500, "not after the chunk, and not after the whole buffer"
            moved = (parts("two", 0, 1) - one.assignment()).pop()
            assert two.poll(2000, max_records=1)
            seen = [r.offset for r in got if (r.topic, r.partition) == moved]
            assert two.committed([moved])[moved] is not None
            first = two.committed([moved])[moved]
            assert first is not None
            assert first.offset == (seen[-1] + 1 if seen else 0), "exactly where the other stopped"
        finally:
            if two is not None:
                two.close()


# liveness


def test_a_consumer_that_does_not_poll_loses_its_partitions_and_rejoins(
    disk: streamlog.Log,
) -> None:
    listener = Listener()
    slow = open_consumer(disk, max_poll_interval_ms=300)
    slow.subscribe("t", listener=listener)
    with slow, open_consumer(disk, "t") as quick:
        share(slow, quick, of=4)
        former, held = slow.member_id, slow.assignment()
        until(lambda: len(quick.assignment()) == 4, [quick])
        with pytest.raises(IllegalGenerationError, match="poll again to rejoin"):
            slow.commit(dict.fromkeys(held, 0))
        share(slow, quick, of=4)
        assert ("lost", held) in listener.calls
        assert listener.names().count("revoked") <= 1, "what is lost is not revoked"
        assert slow.member_id != former


def test_a_slow_iteration_that_still_takes_records_lives(disk: streamlog.Log) -> None:
    with (
        open_consumer(disk, "t", max_poll_interval_ms=400) as slow,
        open_consumer(disk, "t") as other,
    ):
        share(slow, other, of=4)
        fill(disk, "t", 40, 4, first=40)
        member = slow.member_id
        stream = iter(slow)
        for _ in range(12):
            next(stream)
            other.poll(0)
            time.sleep(0.15)
        assert slow.member_id == member
        assert member in disk.group("g")._store.state().members


def test_leaving_and_closing_after_removal_is_quiet(disk: streamlog.Log) -> None:
    one, two = open_consumer(disk, "t"), open_consumer(disk)
    listener = Listener()
    two.subscribe("t", listener=listener)
    share(one, two, of=4)
    held = two.assignment()
    kill(two)
    until(lambda: len(one.assignment()) == 4, [one])
    two.close()
    two.close()
    assert listener.calls[-1] == ("lost", held)
    one.close()


def test_close_does_not_wait_for_a_silent_store(disk: streamlog.Log) -> None:
    broken, store = faulty(disk)
    consumer = open_consumer(broken, "t", session_timeout_ms=1000)
    assert until(consumer.assignment, [consumer])
    store.plan = Script(
        *(
            Rule(op, BEFORE, is_group, times=1 << 30)
            for op in ("get", "put", "put_if_absent", "list")
        )
    )
    keeper = membership(consumer)._thread
    assert keeper is not None
    started = time.monotonic()
    consumer.close()
    assert time.monotonic() - started < 5
    assert not keeper.is_alive()


def test_the_keeper_survives_a_store_that_is_silent_for_a_while(disk: streamlog.Log) -> None:
    broken, store = faulty(disk)
    with open_consumer(broken, "t", session_timeout_ms=2000) as consumer:
        until(lambda: len(consumer.assignment()) == 4, [consumer])
        member = consumer.member_id
        store.plan = Script(*(Rule(op, BEFORE, is_group, times=3) for op in ("get", "put", "list")))
        until(lambda: store.plan.exhausted)  # type: ignore[attr-defined]
        beats = membership(consumer)._beats
        until(lambda: membership(consumer)._beats > beats + 2)
        consumer.commit()
        assert consumer.member_id == member


def test_a_take_over_that_failed_is_done_at_the_next_poll(disk: streamlog.Log) -> None:
    broken, store = faulty(disk)
    with open_consumer(broken, "t") as consumer:
        membership(consumer).stop()
        store.plan = Script(Rule("get", BEFORE, is_group))
        with pytest.raises(UnavailableError, match="injected"):
            consumer.poll(0)
        assert consumer.assignment() == set()
        assert consumer.poll(2000)
        assert len(consumer.assignment()) == 4


def test_a_heartbeat_deleted_by_hand_does_no_harm(disk: streamlog.Log) -> None:
    with open_consumer(disk, "t") as one, open_consumer(disk, "t") as two:
        share(one, two, of=4)
        before = membership(one)._beats
        members = {one.member_id, two.member_id}
        for member in members:
            disk._topics.objects.delete([paths.member_beat("g", str(member))])
        until(lambda: membership(one)._beats > before + 10, [one, two])
        assert {one.member_id, two.member_id} == members
        assert disk.group("g").state() == "stable"


def test_heartbeats_of_nobody_are_swept(disk: streamlog.Log) -> None:
    objects = disk._topics.objects
    objects.put(paths.member_beat("g", "ghost"), b"{}")
    with open_consumer(disk, "t", session_timeout_ms=200) as consumer:
        until(lambda: objects.head(paths.member_beat("g", "ghost")) is None, [consumer])
        assert list(disk.group("g")._store.state().members) == [consumer.member_id]


def test_no_thread_is_left_behind(disk: streamlog.Log) -> None:
    def keepers() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "streamlog-group-leak"]

    with open_consumer(disk, "t", group="leak"):
        assert len(keepers()) == 1
    assert keepers() == []
    forgotten = open_consumer(disk, group="leak")
    listener = Listener()
    listener.during = lambda _, consumer=forgotten: consumer  # type: ignore[misc]
    forgotten.subscribe("t", listener=listener)
    assert len(keepers()) == 1
    del forgotten, listener
    gc.collect()
    until(lambda: not keepers())


def test_client_ids_may_have_dots(disk: streamlog.Log) -> None:
    with open_consumer(disk, "t", client_id="host.example.org") as one:
        with open_consumer(disk, "t", client_id="..x") as two:
            share(one, two, of=4)
            before = membership(one)._beats
            until(lambda: membership(one)._beats > before + 8, [one, two])
            assert len(disk.group("g")._store.state().members) == 2, "found by the other's looks"
        assert str(one.member_id).startswith("host.example.org-")


# static membership


def test_a_static_member_restarts_without_a_rebalance(log: streamlog.Log) -> None:
    listener = Listener()
    other = open_consumer(log)
    other.subscribe("t", listener=listener)
    first = open_consumer(log, "t", group_instance_id="i1", session_timeout_ms=5000)
    with other:
        share(other, first, of=4)
        held, calls = first.assignment(), list(listener.calls)
        first.close()
        with open_consumer(log, "t", group_instance_id="i1", session_timeout_ms=5000) as second:
            until(second.assignment, [second, other])
            assert second.assignment() == held
            assert listener.calls == calls, "the other one noticed nothing"
    assert other.assignment() == set()


def test_two_live_holders_of_an_instance_id_fence_the_older(disk: streamlog.Log) -> None:
    first = open_consumer(disk, "t", group_instance_id="i1")
    until(lambda: len(first.assignment()) == 4, [first])
    with open_consumer(disk, "t", group_instance_id="i1") as second:
        until(lambda: len(second.assignment()) == 4, [second])
        with pytest.raises(FencedInstanceError, match=r"group_instance_id 'i1' took this one's"):
            until(lambda: False, [first])
        with pytest.raises(IllegalGenerationError, match="was replaced"):
            first.commit()
        first.close()
        second.poll(0)
        assert len(second.assignment()) == 4


def test_a_static_member_that_stays_away_is_removed(disk: streamlog.Log) -> None:
    first = open_consumer(disk, "t", group_instance_id="i1")
    with open_consumer(disk, "t") as other:
        share(first, other, of=4)
        first.close()
        assert len(disk.group("g")._store.state().members) == 2
        until(lambda: len(other.assignment()) == 4, [other])


# offsets


def test_commit_in_on_revoked_is_where_the_successor_begins(log: streamlog.Log) -> None:
    listener = Listener()
    one = open_consumer(log, enable_auto_commit=False)
    one.subscribe("t", listener=listener)
    listener.during = lambda tps: one.commit({tp: OffsetAndMetadata(3, "mine") for tp in tps})
    with one:
        until(lambda: len(one.assignment()) == 4, [one])
        with open_consumer(log, "t", enable_auto_commit=False) as two:
            got = share(one, two, of=4)
            moved = two.assignment()
            got += until(lambda: all(two.position(tp) >= 10 for tp in moved), [two])
            for tp in moved:
                assert min(r.offset for r in got if (r.topic, r.partition) == tp) in (0, 3)
                item = two.committed([tp])[tp]
                assert item is not None
                assert (item.offset, item.metadata) == (3, "mine")
            assert one.committed(one.assignment()) == dict.fromkeys(one.assignment())
            listener.during = lambda _: None


def test_auto_commit_at_intervals_on_close_and_not_for_nothing(disk: streamlog.Log) -> None:
    with open_consumer(disk, "t", auto_commit_interval_ms=50) as consumer:
        until(
            lambda: all(
                item is not None for item in consumer.committed(parts("t", 0, 1, 2, 3)).values()
            ),
            [consumer],
        )
        until(lambda: sum(i.offset for i in consumer.committed().values() if i) == 40, [consumer])
        before = version(disk)
        started = time.monotonic()
        until(lambda: time.monotonic() - started > 0.3, [consumer])
        assert version(disk) == before, "nothing moved: nothing is written"
    with open_consumer(disk, "t", group="closing") as consumer:
        records = consumer.poll(2000, max_records=7)
        assert version(disk, "closing") == 0
    committed = disk.group("closing").offsets()["offset"].to_pylist()
    assert sum(committed) == len(records) == 7


def test_without_auto_commit_nothing_is_committed(disk: streamlog.Log) -> None:
    with open_consumer(disk, "t", enable_auto_commit=False, auto_commit_interval_ms=0) as consumer:
        assert consumer.poll(2000)
        consumer.poll(50)
    assert disk.group("g").offsets().num_rows == 0


def test_a_group_goes_on_where_it_committed(log: streamlog.Log) -> None:
    with open_consumer(log, "t") as consumer:
        first = consumer.poll(2000, max_records=13)
    with open_consumer(log, "t") as consumer:
        rest: list[streamlog.Record] = []
        until(lambda: rest.extend(consumer.poll(5)) or len(rest) + len(first) >= 40)  # type: ignore[func-returns-value]
        assert values([*first, *rest]) == list(range(40))


def test_commits_with_maps_and_metadata(disk: streamlog.Log) -> None:
    with open_consumer(disk, "t", enable_auto_commit=False) as consumer:
        until(lambda: len(consumer.assignment()) == 4, [consumer])
        consumer.commit({TP("t", 0): 4, TP("t", 1): OffsetAndMetadata(5, "five")})
        consumer.commit({("t", 2): 6})  # type: ignore[dict-item]
        known = consumer.committed()
        assert {tp.partition: item and item.offset for tp, item in known.items()} == {
            0: 4,
            1: 5,
            2: 6,
            3: None,
        }
        assert known[TP("t", 1)].metadata == "five"  # type: ignore[union-attr]
        assert known[TP("t", 1)].member == consumer.member_id  # type: ignore[union-attr]
        consumer.seek(TP("t", 3), 9)
        consumer.commit()
        assert consumer.committed([TP("t", 3)])[TP("t", 3)].offset == 9  # type: ignore[union-attr]
        consumer.commit({TP("t", 3): 2})
        assert consumer.committed([TP("t", 3)])[TP("t", 3)].offset == 2  # type: ignore[union-attr]


def test_asynchronous_commits_are_made_once_with_the_newest_map(disk: streamlog.Log) -> None:
    heard: list[tuple[str, dict[Any, Any], StreamlogError | None]] = []
    with open_consumer(disk, "t", enable_auto_commit=False) as consumer:
        until(lambda: len(consumer.assignment()) == 4, [consumer])
        before = version(disk)
        for name, offset in (("a", 2), ("b", 5), ("c", 3)):
            consumer.commit_async(
                {TP("t", 0): offset},
                lambda given, error, n=name: heard.append((n, dict(given), error)),
            )
        assert heard == []
        assert version(disk) == before
        consumer.poll(0)
        assert [(name, error) for name, _, error in heard] == [
            ("a", None),
            ("b", None),
            ("c", None),
        ]
        assert heard[1][1] == {TP("t", 0): OffsetAndMetadata(5)}
        assert consumer.committed([TP("t", 0)])[TP("t", 0)].offset == 3  # type: ignore[union-attr]
        assert version(disk) == before + 1
        # One that waits is older than a commit made now, and does not come after it.
        consumer.commit_async({TP("t", 0): 4})
        consumer.commit({TP("t", 0): 8})
        consumer.poll(0)
        assert consumer.committed([TP("t", 0)])[TP("t", 0)].offset == 8  # type: ignore[union-attr]
        consumer.commit_async({TP("t", 0): 99}, lambda _, error: heard.append(("d", {}, error)))
        consumer.poll(0)
        assert isinstance(heard[-1][2], OutOfRangeError)
        consumer.commit_async({TP("t", 0): 9})
    assert disk.group("g").offsets().to_pylist()[0]["offset"] == 9, "closing commits what waits"


def test_latest_begins_at_the_end_but_reads_added_partitions_from_zero(
    disk: streamlog.Log,
) -> None:
    with open_consumer(disk, "t", auto_offset_reset="latest", metadata_max_age_ms=50) as consumer:
        assert consumer.poll(100) == []
        assert len(consumer.assignment()) == 4
        disk.add_partitions("t", 5)
        with disk.producer() as producer:
            for number in range(3):
                producer.send("t", b"%d" % number, partition=4)
        got: list[streamlog.Record] = []
        until(lambda: got.extend(consumer.poll(5)) or len(got) >= 3)  # type: ignore[func-returns-value]
        assert [(r.partition, r.offset) for r in got] == [(4, 0), (4, 1), (4, 2)]


def test_no_reset_rule_and_nothing_committed_is_an_error(disk: streamlog.Log) -> None:
    with open_consumer(disk, "t", auto_offset_reset="none") as consumer:
        with pytest.raises(OutOfRangeError, match="auto_offset_reset is 'none'"):
            until(lambda: False, [consumer])
        consumer.seek_to_beginning()
        assert consumer.poll(1000)


# topics that come and go


def test_a_pattern_takes_up_topics_that_match(disk: streamlog.Log) -> None:
    disk.create_topic("log-a")
    consumer = open_consumer(disk, metadata_max_age_ms=50)
    consumer.subscribe(pattern="log-.*")
    with consumer:
        until(lambda: consumer.assignment() == parts("log-a", 0), [consumer])
        disk.create_topic("log-b", partitions=2)
        disk.create_topic("other")
        expected = parts("log-a", 0) | parts("log-b", 0, 1)
        until(lambda: consumer.assignment() == expected, [consumer])
        disk.delete_topic("log-a")
        until(lambda: consumer.assignment() == parts("log-b", 0, 1), [consumer])
        assert consumer.subscription() == {"log-b"}


def test_a_topic_made_again_is_read_from_its_beginning(disk: streamlog.Log) -> None:
    disk.create_topic("gone", partitions=2)
    fill(disk, "gone", 10, 2)
    listener = Listener()
    consumer = open_consumer(
        disk, metadata_max_age_ms=50, auto_commit_interval_ms=50, auto_offset_reset="latest"
    )
    consumer.subscribe(["t", "gone"], listener=listener)
    with consumer:
        until(lambda: consumer.committed([TP("gone", 0)])[TP("gone", 0)], [consumer])
        disk.delete_topic("gone")
        disk.create_topic("gone", partitions=2)
        fill(disk, "gone", 4, 2, first=100)
        got: list[streamlog.Record] = []
        until(lambda: got.extend(consumer.poll(5)) or len(got) >= 4)  # type: ignore[func-returns-value]
        assert values(got) == [100, 101, 102, 103]
        # By whom the deletion was noticed first decides what it is called.
        assert {"lost", "revoked"} & set(listener.names())
        disk.delete_topic("gone")
        until(lambda: consumer.assignment() == parts("t", 0, 1, 2, 3), [consumer])


def test_members_with_views_of_different_age_do_not_undo_each_other(disk: streamlog.Log) -> None:
    other = streamlog.connect(disk.root)
    with (
        open_consumer(disk, "t", metadata_max_age_ms=50) as quick,
        open_consumer(other, "t", metadata_max_age_ms=60_000) as slow,
    ):
        share(quick, slow, of=4)
        streamlog.connect(disk.root).add_partitions("t", 6)
        share(quick, slow, of=6)
        generation = quick.generation
        beats = membership(slow)._beats
        until(lambda: membership(slow)._beats > beats + 5, [quick, slow])
        assert quick.generation == generation


# without membership


def test_assign_with_a_group_commits_without_joining(log: streamlog.Log) -> None:
    with open_consumer(log, auto_commit_interval_ms=50) as consumer:
        consumer.assign([TP("t", 1)])
        assert consumer.member_id is None
        until(lambda: consumer.committed()[TP("t", 1)], [consumer])
        assert consumer.committed()[TP("t", 1)].offset == 10  # type: ignore[union-attr]
        assert log.group("g").state() == "empty"
    fill(log, "t", 4, 4, first=40)
    with open_consumer(log) as consumer:
        consumer.assign([TP("t", 1)])
        assert values(consumer.poll(2000)) == [41]


def test_standalone_commits_are_refused_while_the_group_is_active(disk: streamlog.Log) -> None:
    alone = open_consumer(disk)
    alone.assign([TP("t", 0)])
    assert alone.poll(1000)
    with open_consumer(disk, "t") as member:
        with pytest.raises(
            GroupActiveError, match=r"has members at work \(1\), so only they commit"
        ):
            alone.commit()
        kill(member)
        # Nobody is left to remove it: whoever wants to commit looks for as long as it may be silent.
        alone.commit()
        assert alone.committed()[TP("t", 0)].offset == 10  # type: ignore[union-attr]
    alone.close()


# strategies


class Greedy:
    """All to the first by client id."""

    name = "greedy"
    cooperative = True

    def assign(self, members: Any, partitions: Any) -> dict[str, list[TopicPartition]]:
        order = sorted(member.id for member in members)
        everything = [TP(t, n) for t in sorted(partitions) for n in range(partitions[t])]
        return {member: everything if member == order[0] else [] for member in order}


def test_a_strategy_of_the_users_own(disk: streamlog.Log) -> None:
    with (
        open_consumer(disk, "t", client_id="b", partition_assignment_strategy=Greedy()) as two,
        open_consumer(disk, "t", client_id="a", partition_assignment_strategy=[Greedy()]) as one,
    ):
        until(lambda: len(one.assignment()) == 4, [one, two])
        assert two.assignment() == set()
        assert disk.group("g").describe().strategy == "greedy"


def test_a_strategy_that_fails_is_told_to_who_polls(disk: streamlog.Log) -> None:
    class Moody(Greedy):
        name = "moody"
        broken = False

        def assign(self, members: Any, partitions: Any) -> dict[str, list[TopicPartition]]:
            if self.broken:
                raise KeyError("mood")
            return super().assign(members, partitions)

    moody = Moody()
    with open_consumer(
        disk, "t", partition_assignment_strategy=moody, metadata_max_age_ms=50
    ) as consumer:
        until(lambda: len(consumer.assignment()) == 4, [consumer])
        moody.broken = True
        disk.add_partitions("t", 5)
        with pytest.raises(InvalidRequestError, match=r"'moody' failed: KeyError\('mood'\)"):
            until(lambda: False, [consumer])
        moody.broken = False
        until(lambda: membership(consumer)._failure is None)
        deadline = time.monotonic() + 30
        while len(consumer.assignment()) < 5 and time.monotonic() < deadline:
            try:
                consumer.poll(5)
            except InvalidRequestError:
                continue
        assert len(consumer.assignment()) == 5


def test_no_common_strategy_is_the_joiners_problem(disk: streamlog.Log) -> None:
    with open_consumer(disk, "t", partition_assignment_strategy="range") as member:
        until(lambda: len(member.assignment()) == 4, [member])
        before = version(disk)
        with pytest.raises(InvalidRequestError, match="no assignment strategy in common"):
            open_consumer(disk, "t", partition_assignment_strategy="roundrobin")
        assert version(disk) == before
        assert len(list(disk._topics.objects.list(paths.member_dir("g")))) == 1
        stranger = open_consumer(disk, partition_assignment_strategy="sticky")
        with pytest.raises(InvalidRequestError, match="no assignment strategy in common"):
            stranger.subscribe("t")
        with pytest.raises(InvalidRequestError, match="subscribe or assign first"):
            stranger.poll(0)
        stranger.close()
        member.poll(0)
        member.commit()


# bad input


@pytest.mark.parametrize(
    ("offsets", "error", "message"),
    [
        (
            {TP("t", 0): 11},
            OutOfRangeError,
            r"offset 11 of t-0 is not in the log, which is \[2, 10\)",
        ),
        ({TP("t", 0): 1}, OutOfRangeError, "allowed are 2 to 10"),
        ({TP("t", 0): -1}, OutOfRangeError, "offset -1 of t-0"),
        ({TP("t", 0): True}, InvalidRequestError, "offset True of t-0 is not a whole number"),
        ({TP("t", 0): "5"}, InvalidRequestError, "offset '5' of t-0 is not a whole number"),
        ({TP("t", 9): 0}, PartitionNotFoundError, "topic 't' has no partition 9; allowed: 0 to 3"),
        ({TP("tt", 0): 0}, TopicNotFoundError, "did you mean 't'"),
        ({"t": 0}, InvalidRequestError, "commit: 't' is not a TopicPartition"),
        ([TP("t", 0)], InvalidRequestError, "is not a map of TopicPartition"),
        ({TP("t", 0): OffsetAndMetadata(3, "x" * 5000)}, InvalidRequestError, "at most 4096"),
    ],
)
def test_wrong_commits_are_refused(
    disk: streamlog.Log, offsets: Any, error: type[Exception], message: str
) -> None:
    disk.truncate("t", 0, 2)
    with open_consumer(disk, "t", enable_auto_commit=False) as consumer:
        until(lambda: len(consumer.assignment()) == 4, [consumer])
        before = version(disk)
        with pytest.raises(error, match=message):
            consumer.commit(offsets)
        assert version(disk) == before


def test_a_commit_of_anothers_partition_is_refused(disk: streamlog.Log) -> None:
    manual = {"enable_auto_commit": False}
    with open_consumer(disk, "t", **manual) as one, open_consumer(disk, "t", **manual) as two:
        share(one, two, of=4)
        theirs = min(two.assignment())
        mine = min(one.assignment())
        with pytest.raises(
            IllegalGenerationError, match=f"{theirs} is not this member's .*owns it"
        ):
            one.commit({mine: 1, theirs: 1})
        assert two.committed([mine, theirs]) == {mine: None, theirs: None}, "none of both"


def test_a_listener_may_not_close_and_may_fail(disk: streamlog.Log) -> None:
    listener = Listener()
    one = open_consumer(disk)
    one.subscribe("t", listener=listener)
    listener.during = lambda _: one.close()
    until(lambda: len(one.assignment()) == 4, [one])
    with open_consumer(disk, "t") as two:
        with pytest.raises(InvalidRequestError, match="callback cannot unsubscribe or close"):
            until(lambda: False, [one, two])
        listener.during = lambda _: None
        share(one, two, of=4)
        assert listener.names().count("revoked") == 1, "told once, and released all the same"
    one.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_id": "a/b"}, "'a/b' cannot be the name of a consumer group: it contains '/'"),
        ({"group_id": ""}, "it is empty"),
        ({"group_id": 7}, "it is int, not str"),
        ({"group_id": None, "group_instance_id": "i"}, "group_instance_id needs a group_id"),
        ({"group_instance_id": "i i"}, "it contains ' '"),
        ({"heartbeat_interval_ms": 400}, "at most half of session_timeout_ms"),
        ({"session_timeout_ms": 1}, "session_timeout_ms is 1"),
        ({"enable_auto_commit": "no"}, "enable_auto_commit is 'no'"),
        ({"partition_assignment_strategy": "stiky"}, "did you mean 'sticky'"),
    ],
)
def test_wrong_settings_are_refused(
    disk: streamlog.Log, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        disk.consumer("t", **(FAST | {"group_id": "g"} | settings))


def test_calls_that_need_a_group_say_so(disk: streamlog.Log) -> None:
    with disk.consumer("t") as consumer:
        for call in (consumer.commit, consumer.commit_async, consumer.committed):
            with pytest.raises(InvalidRequestError, match="this consumer has no group"):
                call()
    with open_consumer(disk, "t") as consumer:
        with pytest.raises(TopicNotFoundError, match="there is no topic 'nope'"):
            consumer.subscribe("nope")
        with pytest.raises(InvalidRequestError, match="it cannot use assign"):
            consumer.assign([TP("t", 0)])
        until(lambda: len(consumer.assignment()) == 4, [consumer])


def test_who_leaves_before_it_fetched_commits_where_it_stood() -> None:
    """Else a successor with another reset policy would skip what the group was about to read."""
    log = streamlog.connect("memory://unfetched")
    log.create_topic("orders", partitions=4)
    with log.producer() as producer:
        for number in range(40):
            producer.send("orders", b"%d" % number, partition=number % 4)
    with log.consumer("orders", group_id="b", auto_offset_reset="earliest") as first:
        taken = len(first.poll(timeout_ms=1000, max_records=5))
    assert taken == 5
    with log.consumer("orders", group_id="b", auto_offset_reset="latest") as second:
        rest = 0
        deadline = time.monotonic() + 20
        while rest < 35 and time.monotonic() < deadline:
            rest += len(second.poll(timeout_ms=200))
    assert rest == 35

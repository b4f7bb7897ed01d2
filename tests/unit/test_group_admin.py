"""Groups from outside: listing, lag, history, resets, deletion, and what broken tables say."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import streamlog
from streamlog import TopicPartition, paths
from streamlog.consumer.group.admin import Move
from streamlog.errors import (
    CorruptLogError,
    GroupActiveError,
    GroupNotFoundError,
    InvalidRequestError,
    OutOfRangeError,
    PartitionNotFoundError,
    TopicNotFoundError,
)
from tests.groups import Listener, fill, kill, membership, open_consumer, parts, until

TP = TopicPartition


@pytest.fixture
def log(tmp_path: Path) -> Iterator[streamlog.Log]:
    """A log with topic t of 2 partitions, 10 records in each."""
    with streamlog.connect(tmp_path / "root") as made:
        made.create_topic("t", partitions=2)
        fill(made, "t", 20, 2)
        yield made


def commit(log: streamlog.Log, *offsets: int | None, group: str = "g", topic: str = "t") -> None:
    """Puts the group at these offsets, one a partition, from outside."""
    with open_consumer(log, group=group, enable_auto_commit=False) as consumer:
        given = {TP(topic, n): o for n, o in enumerate(offsets) if o is not None}
        consumer.assign(list(given))
        consumer.commit(given)


def places(log: streamlog.Log, group: str = "g") -> dict[int, int]:
    rows = log.group(group).offsets().to_pylist()
    return {row["partition"]: row["offset"] for row in rows}


def plan(moves: list[Move]) -> list[tuple[int, int | None, int]]:
    return [(move.partition, move.before, move.after) for move in moves]


# looking


def test_groups_are_listed_with_their_states(log: streamlog.Log) -> None:
    assert log.groups() == []
    commit(log, 1, group="later")
    with open_consumer(log, "t", group="busy") as consumer:
        until(lambda: len(consumer.assignment()) == 2, [consumer])
        found = log.groups()
        assert [(g.name, g.state, g.members) for g in found] == [
            ("busy", "stable", 1),
            ("later", "empty", 0),
        ]
        assert found.to_arrow().column_names == ["group", "state", "members", "generation"]
        assert "busy" in found._repr_html_()
        with open_consumer(log, "t", group="busy"):
            assert log.group("busy").state() == "rebalancing"
    assert log.group("busy").state() == "empty"


def test_describe_tells_members_partitions_and_lag(log: streamlog.Log) -> None:
    with open_consumer(log, "t", client_id="web", enable_auto_commit=False) as consumer:
        until(lambda: len(consumer.assignment()) == 2, [consumer])
        consumer.commit({TP("t", 0): 4})
        found = log.group("g").describe()
        assert (found.name, found.state, found.strategy) == ("g", "stable", "cooperative-sticky")
        assert found.generation == consumer.generation
        [member] = found.members
        assert (member.id, member.client_id, member.topics) == (consumer.member_id, "web", ("t",))
        assert member.partitions == (TP("t", 0), TP("t", 1))
        assert member.host
        assert member.last_heartbeat is not None
        rows = [(p.partition, p.committed, p.end, p.lag, p.owner) for p in found.partitions]
        assert rows == [(0, 4, 10, 6, member.id), (1, None, 10, None, member.id)]
        assert found.partitions[0].committed_at is not None
        assert found.lag == 6
        table = log.group("g").lag()
        assert table.to_pylist() == found.to_arrow().to_pylist()
        assert table["lag"].to_pylist() == [6, None]
        assert "web" in found._repr_html_()
        assert "t" in log.group("g")._repr_html_()
        assert repr(log.group("g")) == "<Group g>"


def test_lag_is_what_can_still_be_read(log: streamlog.Log) -> None:
    commit(log, 2, 10)
    log.truncate("t", 0, 7)
    assert [p.lag for p in log.group("g").describe().partitions] == [3, 0]


def test_offsets_of_a_topic_made_again_do_not_count(log: streamlog.Log) -> None:
    commit(log, 5, 5)
    log.delete_topic("t")
    assert log.group("g").describe().partitions == ()
    log.create_topic("t", partitions=1)
    [row] = log.group("g").describe().partitions
    assert (row.committed, row.lag, row.end) == (None, None, 0)


def test_history_is_kept(log: streamlog.Log) -> None:
    commit(log, 1, 1)
    time.sleep(0.01)
    between = datetime.now(UTC)
    time.sleep(0.01)
    commit(log, 6, 7)
    group = log.group("g")
    assert group.offsets(as_of=between)["offset"].to_pylist() == [1, 1]
    assert group.offsets(as_of=int(between.timestamp() * 1000))["offset"].to_pylist() == [1, 1]
    assert group.offsets()["offset"].to_pylist() == [6, 7]
    assert group.offsets(as_of=between - timedelta(days=1)).num_rows == 0
    for wrong, message in (
        (between.replace(tzinfo=None), "no time zone"),
        ("yesterday", "'yesterday' is not a time"),
        (True, "True is not a time"),
        (-5, "-5 is not a time"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            group.offsets(as_of=wrong)  # type: ignore[arg-type]


# resets


def test_resets_to_places(log: streamlog.Log) -> None:
    commit(log, 4, 5)
    log.truncate("t", 0, 2)
    group = log.group("g")
    assert plan(group.reset("earliest")) == [(0, 4, 2), (1, 5, 0)]
    assert places(log) == {0: 2, 1: 0}
    assert plan(group.reset("latest")) == [(0, 2, 10), (1, 0, 10)]
    assert places(log) == {0: 10, 1: 10}
    assert plan(group.reset(7, partitions=[TP("t", 1)])) == [(1, 10, 7)]
    assert places(log) == {0: 10, 1: 7}


def test_a_reset_leaves_other_offsets_as_they_were(log: streamlog.Log) -> None:
    with open_consumer(log, "t", enable_auto_commit=False) as consumer:
        until(lambda: len(consumer.assignment()) == 2, [consumer])
        consumer.commit({TP("t", 0): 3, TP("t", 1): 4})
    before = log.group("g").offsets().to_pylist()[1]
    log.group("g").reset("earliest", partitions=[TP("t", 0)])
    assert log.group("g").offsets().to_pylist()[1] == before


def test_resets_to_a_time(log: streamlog.Log) -> None:
    log.create_topic("timed")
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with log.producer() as producer:
        for hour in range(5):
            at = int((start + timedelta(hours=hour)).timestamp() * 1000)
            producer.send("timed", b"x", timestamp=at)
    commit(log, 5, topic="timed")
    group = log.group("g")
    assert plan(group.reset(start + timedelta(hours=2, minutes=30))) == [(0, 5, 3)]
    assert plan(group.reset(start + timedelta(days=9), dry_run=True)) == [(0, 3, 5)]
    with pytest.raises(InvalidRequestError, match="no time zone"):
        group.reset(datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_reset_puts_the_group_back_where_it_was(log: streamlog.Log) -> None:
    commit(log, 3, 1)
    time.sleep(0.01)
    then = datetime.now(UTC)
    time.sleep(0.01)
    commit(log, 9, 9)
    log.truncate("t", 1, 6)
    group = log.group("g")
    assert plan(group.reset(as_of=then, dry_run=True)) == [(0, 9, 3), (1, 9, 6)]
    assert places(log) == {0: 9, 1: 9}, "a dry run changes nothing"
    assert plan(group.reset(as_of=then)) == [(0, 9, 3), (1, 9, 6)], "not below the log start"
    assert places(log) == {0: 3, 1: 6}
    with pytest.raises(InvalidRequestError, match="had committed nothing of these topics"):
        group.reset(as_of=then - timedelta(days=1))


def test_a_reset_names_topics_that_have_no_offsets_yet(log: streamlog.Log) -> None:
    commit(log, 4, 5)
    log.create_topic("fresh", partitions=1)
    assert plan(log.group("g").reset("earliest", topics="fresh")) == [(0, None, 0)]
    assert log.group("g").offsets()["topic"].to_pylist() == ["fresh", "t", "t"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, InvalidRequestError, "give either to="),
        ({"to": "earliest", "as_of": 1}, InvalidRequestError, "give either to="),
        ({"to": "erliest"}, InvalidRequestError, "'erliest' is not a place"),
        ({"to": True}, InvalidRequestError, "True is not a place"),
        ({"to": 1.5}, InvalidRequestError, "1.5 is not a place"),
        ({"to": 11}, OutOfRangeError, r"offset 11 is not in .*\[0, 10\); nothing was changed"),
        ({"to": -1}, OutOfRangeError, "offset -1 is not in"),
        ({"to": 1, "topics": ["tt"]}, TopicNotFoundError, "did you mean 't'"),
        ({"to": 1, "partitions": [TP("t", 5)]}, PartitionNotFoundError, "no partition 5"),
        ({"to": 1, "partitions": ["t"]}, InvalidRequestError, "'t' is not a TopicPartition"),
    ],
)
def test_wrong_resets_change_nothing(
    log: streamlog.Log, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    commit(log, 4, 5)
    before = log.group("g").offsets().to_pylist()
    with pytest.raises(error, match=message):
        log.group("g").reset(**arguments)
    assert log.group("g").offsets().to_pylist() == before


def test_a_reset_of_a_group_without_offsets_needs_topics(log: streamlog.Log) -> None:
    with open_consumer(log, "t", enable_auto_commit=False):
        pass
    with pytest.raises(InvalidRequestError, match="has no offsets yet; name the topics"):
        log.group("g").reset("earliest")
    log.group("g").reset("latest", topics=["t"])
    assert places(log) == {0: 10, 1: 10}


def test_a_reset_is_refused_while_members_work_unless_forced(log: streamlog.Log) -> None:
    listener = Listener()
    consumer = open_consumer(log, enable_auto_commit=False)
    consumer.subscribe("t", listener=listener)
    with consumer:
        until(lambda: len(consumer.assignment()) == 2, [consumer])
        consumer.commit({TP("t", 0): 8, TP("t", 1): 8})
        with pytest.raises(GroupActiveError, match=r"reset: group 'g' has members at work \(1\)"):
            log.group("g").reset("earliest")
        with pytest.raises(GroupActiveError, match="delete: group 'g' has members at work"):
            log.group("g").delete()
        former, generation = consumer.member_id, consumer.generation
        log.group("g").reset(2, force=True)
        got: list[streamlog.Record] = []
        until(lambda: got.extend(consumer.poll(5)) or len(got) >= 16)  # type: ignore[func-returns-value]
        assert {record.offset for record in got} == set(range(2, 10))
        assert ("lost", parts("t", 0, 1)) in listener.calls
        assert consumer.member_id != former
        assert consumer.generation > generation


def test_a_group_whose_members_were_all_killed_can_be_reset(log: streamlog.Log) -> None:
    consumer = open_consumer(log, "t", enable_auto_commit=False)
    until(lambda: len(consumer.assignment()) == 2, [consumer])
    consumer.commit({TP("t", 0): 8})
    kill(consumer)
    log.group("g").reset("earliest")
    assert places(log) == {0: 0, 1: 0}
    consumer.close()
    assert log.group("g").state() == "empty"


# the end of groups


def test_delete_forgets_a_group(log: streamlog.Log) -> None:
    commit(log, 4, 5)
    log.group("g").delete()
    assert log.groups() == []
    with pytest.raises(GroupNotFoundError, match="no consumer group 'g'"):
        log.group("g")
    log.add_partitions("t", 3)
    fill(log, "t", 3, 3, first=20)
    with open_consumer(log, "t", auto_offset_reset="latest") as consumer:
        assert consumer.poll(200) == [], "a new group of that name knows nothing of the old one"
        assert len(consumer.assignment()) == 3
        assert [g.name for g in log.groups()] == ["g"]


def test_a_forced_delete_fences_and_who_goes_on_begins_anew(log: streamlog.Log) -> None:
    with open_consumer(log, "t") as consumer:
        until(lambda: len(consumer.assignment()) == 2, [consumer])
        former = consumer.member_id
        log.group("g").delete(force=True)
        until(lambda: consumer.member_id != former and consumer.assignment(), [consumer])
        assert [(g.name, g.state) for g in log.groups()] == [("g", "stable")]


def test_old_groups_expire(log: streamlog.Log) -> None:
    commit(log, 1, group="old")
    killed = open_consumer(log, "t", group="killed")
    until(lambda: len(killed.assignment()) == 2, [killed])
    kill(killed)
    with open_consumer(log, "t", group="busy") as consumer:
        until(lambda: len(consumer.assignment()) == 2, [consumer])
        assert log.expire_groups() == []
        time.sleep(0.15)
        assert log.expire_groups(100, dry_run=True)[-2:] == ["killed", "old"]
        assert len(log.groups()) == 3
        beats = membership(consumer)._beats
        assert log.expire_groups(100) == ["killed", "old"]
        assert membership(consumer)._beats > beats
    assert [g.name for g in log.groups()] == ["busy"]
    killed.close()


# bad input


def test_an_unknown_group_is_answered_with_the_nearest(log: streamlog.Log) -> None:
    with pytest.raises(GroupNotFoundError, match="a group begins with its first consumer"):
        log.group("billing")
    commit(log, 1, group="billing")
    with pytest.raises(GroupNotFoundError, match="did you mean 'billing'"):
        log.group("biling")
    with pytest.raises(InvalidRequestError, match=r"'a/b' cannot be the name of a consumer group"):
        log.group("a/b")


def newest(log: streamlog.Log) -> Path:
    return max(Path(log.root, paths.log_dir(paths.group_table("g"))).glob("*.json"))


def change_note(log: streamlog.Log, note: object) -> None:
    """Puts something else where the newest commit has the group's state."""
    path = newest(log)
    first, *rest = path.read_text().splitlines()
    info = json.loads(first)
    info["commitInfo"]["streamlog"]["note"] = note
    path.write_text("\n".join([json.dumps(info), *rest]) + "\n")


@pytest.mark.parametrize(
    ("note", "message"),
    [
        ("garbage", "its note is 'garbage', not a map"),
        ({"generation": 1}, r"version \d+: the group's state in the newest commit is not readable"),
        ({"generation": "x"}, "the group's state in the newest commit is not readable"),
    ],
)
def test_a_broken_state_is_named_and_can_be_repaired(
    log: streamlog.Log, note: object, message: str
) -> None:
    with open_consumer(log, "t", enable_auto_commit=False) as consumer:
        until(lambda: len(consumer.assignment()) == 2, [consumer])
        consumer.commit({TP("t", 0): 4})
    change_note(log, note)
    fresh = streamlog.connect(log.root)
    for call in (fresh.group("g").describe, fresh.groups, fresh.group("g").state):
        with pytest.raises(CorruptLogError, match=f"__consumer_offsets/g.*{message}"):
            call()
    with pytest.raises(CorruptLogError, match=message):
        open_consumer(fresh, "t")
    newest(log).unlink()
    again = streamlog.connect(log.root)
    assert places(again) == {0: 4}
    with open_consumer(again, "t") as consumer:
        until(lambda: len(consumer.assignment()) == 2, [consumer])


def test_a_broken_commit_is_named_to_who_looks_and_to_who_polls(log: streamlog.Log) -> None:
    consumer = open_consumer(log, "t", enable_auto_commit=False)
    until(lambda: len(consumer.assignment()) == 2, [consumer])
    version = int(newest(log).stem) + 1
    path = newest(log).with_name(f"{version:020d}.json")
    path.write_text("{garbage")
    message = f"the commit of __consumer_offsets/g, version {version} is not valid Delta JSON"
    with pytest.raises(CorruptLogError, match=message):
        streamlog.connect(log.root).group("g").describe()
    with pytest.raises(CorruptLogError, match=message):
        until(lambda: False, [consumer])
    path.unlink()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            consumer.poll(100)
            consumer.commit({TP("t", 0): 4})
            break
        except CorruptLogError:
            continue
    assert places(log) == {0: 4}
    consumer.close()


def test_a_broken_marker_is_named(log: streamlog.Log) -> None:
    commit(log, 1)
    log._topics.objects.put(paths.group_marker("g"), b"garbage")
    with pytest.raises(CorruptLogError, match=r"__groups/g/group.json is not readable"):
        log.groups()


def test_a_garbled_heartbeat_is_put_right_by_the_next(log: streamlog.Log) -> None:
    with open_consumer(log, "t") as one, open_consumer(log, "t") as two:
        log._topics.objects.put(paths.member_beat("g", str(one.member_id)), b"\xff garbage")
        until(lambda: len(one.assignment()) == len(two.assignment()) == 1, [one, two])

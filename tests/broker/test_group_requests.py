"""Group requests as bytes: every version of each, errors, fencing between coordinators, embedded members."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import streamlog
from streamlog import TopicPartition
from streamlog.broker import apis
from streamlog.broker.groups.changes import Offset
from streamlog.broker.groups.protocol import assignment, subscription
from streamlog.broker.kafka_errors import Code
from streamlog.errors import GroupActiveError
from tests.broker.harness import RunningBroker, running_broker
from tests.broker.raw import ask, request
from tests.groups import fill, open_consumer, until

FAST: dict[str, Any] = {
    "group_initial_rebalance_seconds": 0.0,
    "group_min_session_seconds": 0.5,
    "group_beat_seconds": 0.2,
}
TP = TopicPartition


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with streamlog.connect(tmp_path / "root") as log:
        log.create_topic("t", partitions=2)
        fill(log, "t", 20, 2)
    return tmp_path / "root"


@pytest.fixture
def broker(root: Path) -> Iterator[RunningBroker]:
    with running_broker(root, **FAST) as found:
        yield found


class Member:
    """A member that speaks one version of each request."""

    def __init__(self, address: str, group: str = "g", newest: bool = True, **join: Any) -> None:
        self.address = address
        self.group = group
        self.newest = newest
        self.given = join
        self.id = ""
        self.generation = -1

    def ask(self, api: int, version: int | None = None, **fields: Any) -> Any:
        served = apis.APIS[api]
        if version is None:
            version = served.last if self.newest else served.first
        return ask(self.address, api, version, request(api, version, **fields))

    def join(self, version: int | None = None, **more: Any) -> Any:
        fields = {
            "group_id": self.group,
            "session_timeout": timedelta(seconds=10),
            "member_id": self.id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription(["t"])}],
            **self.given,
            **more,
        }
        if version is None:
            version = 9 if self.newest else 0
        if version >= 1:
            fields.setdefault("rebalance_timeout", timedelta(seconds=10))
        answer = self.ask(apis.JOIN_GROUP, version, **fields)
        self.id = answer.member_id
        if answer.error_code == Code.MEMBER_ID_REQUIRED:
            return self.join(version, **more)
        self.generation = answer.generation_id
        return answer

    def sync(self, parts: dict[str, bytes] | None = None, version: int | None = None) -> Any:
        given = {self.id: assignment([TP("t", 0), TP("t", 1)])} if parts is None else parts
        return self.ask(
            apis.SYNC_GROUP,
            version,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            assignments=[{"member_id": m, "assignment": a} for m, a in given.items()],
        )

    def enter(self) -> None:
        assert self.join().error_code == 0
        assert self.sync().error_code == 0

    def beat(self, version: int | None = None) -> int:
        answer = self.ask(
            apis.HEARTBEAT,
            version,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
        )
        return int(answer.error_code)

    def commit(
        self, *offsets: int, version: int | None = None, topic: str = "t", **more: Any
    ) -> Any:
        answer = self.ask(
            apis.OFFSET_COMMIT,
            version,
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.id,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": n, "committed_offset": o, "committed_metadata": "m"}
                        | more
                        for n, o in enumerate(offsets)
                    ],
                }
            ],
            **({"retention_time": timedelta(milliseconds=-1)} if version in (2, 3, 4) else {}),
        )
        return [int(part.error_code) for part in answer.topics[0].partitions]

    def leave(self, version: int | None = None) -> Any:
        version = apis.APIS[apis.LEAVE_GROUP].last if version is None else version
        who = {"members": [{"member_id": self.id}]} if version >= 3 else {"member_id": self.id}
        return self.ask(apis.LEAVE_GROUP, version, group_id=self.group, **who)

    def places(self, version: int | None = None) -> dict[int, int]:
        version = apis.APIS[apis.OFFSET_FETCH].last if version is None else version
        topics = [{"name": "t", "partition_indexes": [0, 1]}]
        if version >= 8:
            groups = [{"group_id": self.group, "topics": topics}]
            found = self.ask(apis.OFFSET_FETCH, version, groups=groups).groups[0]
        else:
            found = self.ask(apis.OFFSET_FETCH, version, group_id=self.group, topics=topics)
        return {p.partition_index: p.committed_offset for p in found.topics[0].partitions}


def versions(api: int) -> range:
    served = apis.APIS[api]
    return range(served.first, served.last + 1)


def test_every_version_of_each_request_is_served(broker: RunningBroker) -> None:
    member = Member(broker.address)
    for version in versions(apis.FIND_COORDINATOR):
        key = {"coordinator_keys": ("g", "h")} if version >= 4 else {"key": "g"}
        found = member.ask(apis.FIND_COORDINATOR, version, **key)
        for one in getattr(found, "coordinators", [found]):
            assert (one.error_code, one.node_id) == (0, broker.broker.cluster.me.node_id)
    for version in versions(apis.JOIN_GROUP):
        joined = member.join(version)
        assert joined.error_code == 0
        assert joined.protocol_name == "range"
        assert [m.member_id for m in joined.members] == [member.id] == [joined.leader]
        synced = member.sync(version=min(version, 5))
        assert synced.error_code == 0
        assert synced.assignment == assignment([TP("t", 0), TP("t", 1)])
    for version in versions(apis.HEARTBEAT):
        assert member.beat(version) == 0
    for version in versions(apis.OFFSET_COMMIT):
        assert member.commit(version, version + 1, version=version) == [0, 0]
        for fetch in versions(apis.OFFSET_FETCH):
            assert member.places(fetch) == {0: version, 1: version + 1}
    for version in versions(apis.DESCRIBE_GROUPS):
        asked = {"include_authorized_operations": True} if version >= 3 else {}
        (group,) = member.ask(apis.DESCRIBE_GROUPS, version, groups=("g",), **asked).groups
        assert (group.group_state, group.protocol_data) == ("Stable", "range")
        assert [m.member_id for m in group.members] == [member.id]
    for version in versions(apis.LIST_GROUPS):
        (listed,) = member.ask(apis.LIST_GROUPS, version).groups
        assert (listed.group_id, listed.protocol_type) == ("g", "consumer")
    for version in versions(apis.DELETE_GROUPS):
        (refused,) = member.ask(apis.DELETE_GROUPS, version, groups_names=("g",)).results
        assert refused.error_code == Code.NON_EMPTY_GROUP
    for version in versions(apis.LEAVE_GROUP):
        assert member.leave(version).error_code == 0
        assert member.beat() == Code.UNKNOWN_MEMBER_ID
        member.id = ""
        member.enter()
    member.leave()
    (deleted,) = member.ask(apis.DELETE_GROUPS, groups_names=("g",)).results
    assert deleted.error_code == 0
    (group,) = member.ask(apis.DESCRIBE_GROUPS, 2, groups=("g",)).groups
    assert group.group_state == "Dead"


def test_offsets_are_refused_one_by_one(broker: RunningBroker) -> None:
    simple = Member(broker.address, "simple")
    assert simple.commit(3, 4, 5) == [0, 0, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert simple.commit(1, topic="none") == [Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert simple.commit(1, committed_metadata="x" * 4097) == [Code.OFFSET_METADATA_TOO_LARGE]
    assert simple.commit(-5) == [Code.INVALID_REQUEST]
    assert simple.places() == {0: 3, 1: 4}
    every = simple.ask(apis.OFFSET_FETCH, groups=[{"group_id": "simple", "topics": None}]).groups[0]
    assert {p.partition_index for t in every.topics for p in t.partitions} == {0, 1}
    # A topic that is made anew has no offsets of its namesake.
    broker.broker.topics.delete("t")
    broker.broker.topics.create("t", 2)
    assert simple.places() == {0: -1, 1: -1}


def test_only_members_of_the_generation_commit(broker: RunningBroker) -> None:
    member = Member(broker.address)
    member.enter()
    assert Member(broker.address).commit(1) == [Code.UNKNOWN_MEMBER_ID]
    member.generation += 1
    assert member.commit(1) == [Code.ILLEGAL_GENERATION]
    member.generation -= 1
    assert member.commit(1) == [0]


def test_offsets_are_deleted_unless_somebody_subscribes(broker: RunningBroker) -> None:
    member = Member(broker.address)
    member.enter()
    member.commit(5, 6)
    topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    found = member.ask(apis.OFFSET_DELETE, group_id="g", topics=topics)
    assert found.topics[0].partitions[0].error_code == Code.GROUP_SUBSCRIBED_TO_TOPIC
    member.leave()
    found = member.ask(apis.OFFSET_DELETE, group_id="g", topics=topics)
    assert found.topics[0].partitions[0].error_code == 0
    assert member.places() == {0: -1, 1: 6}
    none = member.ask(apis.OFFSET_DELETE, group_id="never", topics=topics)
    assert none.error_code == Code.GROUP_ID_NOT_FOUND


def test_what_is_wrong_gets_its_code(broker: RunningBroker) -> None:
    member = Member(broker.address)
    short = member.join(session_timeout=timedelta(milliseconds=100))
    assert short.error_code == Code.INVALID_SESSION_TIMEOUT
    assert Member(broker.address, group="").join().error_code == Code.INVALID_GROUP_ID
    assert Member(broker.address, group="x" * 300).join().error_code == Code.INVALID_GROUP_ID
    ghost = Member(broker.address)
    ghost.id = "ghost"
    assert ghost.beat() == Code.UNKNOWN_MEMBER_ID
    assert ghost.join().error_code == Code.UNKNOWN_MEMBER_ID
    found = member.ask(apis.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=("tx",))
    (transactions,) = found.coordinators
    assert transactions.error_code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert "transactions" in transactions.error_message
    # None of this made a group.
    assert member.ask(apis.LIST_GROUPS, states_filter=()).groups == ()


def test_groups_are_listed_by_state(broker: RunningBroker) -> None:
    Member(broker.address, "busy").enter()
    Member(broker.address, "simple").commit(1)
    ask_ = Member(broker.address).ask

    def listed(*states: str) -> list[tuple[str, str]]:
        found = ask_(apis.LIST_GROUPS, states_filter=states).groups
        return [(group.group_id, group.group_state) for group in found]

    assert listed() == [("busy", "Stable"), ("simple", "Empty")]
    assert listed("stable") == [("busy", "Stable")]
    assert listed("Empty") == [("simple", "Empty")]


def test_a_replaced_coordinator_commits_nothing(root: Path) -> None:
    """Two brokers that both believe to be the coordinator: the table knows better."""
    with running_broker(root, **FAST) as one, running_broker(root, **FAST) as two:
        both = [patch.object(b.broker.groups, "is_mine", return_value=True) for b in (one, two)]
        with both[0], both[1]:
            old = Member(one.address)
            old.enter()
            assert old.commit(1, 1) == [0, 0]
            new = Member(two.address)
            new.id, new.generation = old.id, old.generation
            # It is the same member, at its new coordinator, in the same generation.
            assert new.beat() == 0
            assert new.commit(2, 2) == [0, 0]
            # If the former noticed by itself, it loads the group anew and goes on; never both at once.
            assert old.commit(9, 9)[0] in (Code.NOT_COORDINATOR, 0)
            assert old.places() in ({0: 2, 1: 2}, {0: 9, 1: 9})


def test_requests_to_another_broker_are_sent_away(root: Path) -> None:
    with running_broker(root, **FAST) as one:
        member = Member(one.address)
        member.enter()
        with patch.object(one.broker.groups, "is_mine", return_value=False):
            assert member.beat() == Code.NOT_COORDINATOR
            assert member.commit(1) == [Code.NOT_COORDINATOR]
            (group,) = member.ask(apis.DESCRIBE_GROUPS, 2, groups=("g",)).groups
            assert group.error_code == Code.NOT_COORDINATOR
        assert one.broker.groups.loaded == []
        # Back again: it is loaded with its members.
        assert member.beat() == 0
        assert member.commit(7, 7) == [0, 0]


def test_a_stopping_broker_sends_its_members_away_and_another_goes_on(root: Path) -> None:
    with running_broker(root, **FAST) as one:
        member = Member(one.address)
        member.enter()
        member.commit(4, 5)
    with running_broker(root, **FAST) as two:
        member.address = two.address
        assert member.beat() == 0
        assert member.places() == {0: 4, 1: 5}
        assert member.commit(6, 6) == [0, 0]
        # The next rebalance has a number that nobody was told before.
        before = member.generation
        assert member.join().generation_id > before + 1


# embedded members and the command line


def test_embedded_consumers_are_kept_out_while_kafka_members_live(
    root: Path, broker: RunningBroker
) -> None:
    member = Member(broker.address, session_timeout=timedelta(seconds=2))
    member.enter()
    member.commit(4, 5)
    with streamlog.connect(root) as log:
        with pytest.raises(GroupActiveError, match="served by brokers"):
            open_consumer(log, "t")
        assert member.beat() == 0
        description = log.group("g").describe()
        assert (description.state, description.strategy, description.lag) == ("stable", "range", 11)
        assert [m.partitions for m in description.members] == [(TP("t", 0), TP("t", 1))]
        member.leave()
        # Empty: the embedded consumer takes it, at the same offsets.
        with open_consumer(log, "t", enable_auto_commit=False) as consumer:
            records = until(lambda: len(consumer.assignment()) == 2, [consumer])
            records += until(lambda: consumer.position(TP("t", 1)) == 10, [consumer])
            assert min(r.offset for r in records if r.partition == 0) == 4
            consumer.commit()
            again = Member(broker.address)
            refused = again.join()
            assert refused.error_code == Code.INCONSISTENT_GROUP_PROTOCOL
            assert Member(broker.address).commit(0) == [Code.UNKNOWN_MEMBER_ID]
            (shown,) = again.ask(apis.DESCRIBE_GROUPS, 2, groups=("g",)).groups
            assert (shown.group_state, len(shown.members)) == ("Stable", 1)
            assert shown.members[0].member_assignment == assignment([TP("t", 0), TP("t", 1)])
    # Gone again, and the brokers have it back.
    last = Member(broker.address)
    until(lambda: last.join().error_code == 0)
    assert last.sync().error_code == 0
    assert last.places()[1] == 10


def test_a_reset_is_refused_while_members_live_and_fences_them_by_force(
    root: Path, broker: RunningBroker
) -> None:
    member = Member(broker.address)
    member.enter()
    member.commit(4, 5)
    with streamlog.connect(root) as log:
        with pytest.raises(GroupActiveError, match="members at work"):
            log.group("g").reset("earliest")
        with pytest.raises(GroupActiveError, match="members at work"):
            log.group("g").delete()
        log.group("g").reset("earliest", force=True)
    assert member.commit(9, 9)[0] in (Code.NOT_COORDINATOR, Code.UNKNOWN_MEMBER_ID)
    until(lambda: member.beat() == Code.UNKNOWN_MEMBER_ID)
    assert member.places() == {0: 0, 1: 0}
    before = member.generation
    member.id = ""
    member.enter()
    assert member.generation > before


def test_a_coordinator_that_lost_its_group_notices_without_a_commit(
    root: Path, broker: RunningBroker
) -> None:
    member = Member(broker.address)
    member.enter()
    with streamlog.connect(root) as log:
        log.group("g").reset("earliest", topics=["t"], force=True)
    until(lambda: broker.broker.groups.loaded == [])


def test_members_of_a_broker_that_is_gone_are_buried_in_time(root: Path) -> None:
    with running_broker(root, **FAST) as one:
        Member(one.address, session_timeout=timedelta(seconds=1)).enter()
    with streamlog.connect(root) as log, open_consumer(log, "t") as consumer:
        until(lambda: len(consumer.assignment()) == 2, [consumer])


def test_a_group_may_have_any_name(root: Path, broker: RunningBroker) -> None:
    member = Member(broker.address, "my group/ö:1")
    member.enter()
    member.commit(1, 2)
    with streamlog.connect(root) as log:
        assert [group.name for group in log.groups()] == ["my group/ö:1"]
        assert log.group("my group/ö:1").describe().lag == 17


def test_commits_that_wait_go_together_in_their_order(root: Path, broker: RunningBroker) -> None:
    groups = broker.broker.groups

    async def many() -> list[list[Code]]:
        group = await groups.get("many", create=True)
        assert group is not None
        return await asyncio.gather(
            *(group.commit("", None, -1, [Offset("t", n % 2, n, "")]) for n in range(100))
        )

    codes = asyncio.run_coroutine_threadsafe(many(), broker.loop).result(60)
    assert {code for answer in codes for code in answer} == {Code.NONE}
    assert Member(broker.address, "many").places() == {0: 98, 1: 99}
    # One to take the group over, one of the first commit, one or two of all others.
    versions = list((root / "__consumer_offsets" / "many" / "_delta_log").glob("*.json"))
    assert len(versions) <= 5

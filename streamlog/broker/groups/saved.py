"""A coordinator's group in the words of the group's table, and back. Pure.

Beside what only Kafka's members understand, the table gets what every group has there (members, their
topics, who owns which partition), so that people and embedded clients see all groups alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from streamlog.broker.groups.members import SavedMember, Snapshot
from streamlog.broker.groups.protocol import CONSUMER, partitions_of, topics_of
from streamlog.consumer.group.kafka import KafkaMember, KafkaPart
from streamlog.consumer.group.state import GroupState, MemberInfo, Owned, counts_of


def taken_over(state: GroupState, node: int, mark: str) -> GroupState:
    """The group under a new coordinator (K1 of `consumer.group.kafka`)."""
    part = KafkaPart(node=node, mark=mark)
    if state.kafka is not None:
        part = replace(state.kafka, node=node, mark=mark)
    return replace(state, epoch=state.epoch + 1, kafka=part, deleted=False)


def snapshot_of(state: GroupState) -> Snapshot:
    """The group as its last coordinator left it."""
    part = state.kafka
    if part is None or not state.members:
        return Snapshot(generation=state.generation)
    return Snapshot(
        generation=state.generation,
        protocol_type=part.protocol_type,
        protocol=part.protocol,
        leader=part.leader,
        members=tuple(
            SavedMember(
                id=info.id,
                instance=info.instance,
                client_id=info.client_id,
                host=info.host,
                session=info.session_ms / 1000,
                rebalance=info.release_ms / 1000,
                strategies=info.strategies,
                joined_ms=info.joined_ms,
                metadata=part.members.get(info.id, KafkaMember()).metadata,
                assignment=part.members.get(info.id, KafkaMember()).assignment,
            )
            for info in state.members.values()
        ),
    )


def with_snapshot(state: GroupState, snapshot: Snapshot, counts: Mapping[str, int]) -> GroupState:
    """The group after a rebalance; `counts` are the partitions of all topics there are."""
    assert state.kafka is not None
    consumers = snapshot.protocol_type == CONSUMER
    members: dict[str, MemberInfo] = {}
    owned: dict[str, Owned] = {}
    for member in snapshot.members:
        topics = topics_of(member.metadata) if consumers else None
        members[member.id] = MemberInfo(
            id=member.id,
            topics=tuple(sorted(topics or ())),
            strategies=member.strategies,
            instance=member.instance,
            client_id=member.client_id,
            host=member.host,
            joined_ms=member.joined_ms,
            session_ms=round(member.session * 1000),
            release_ms=round(member.rebalance * 1000),
        )
        parts = partitions_of(member.assignment) if consumers else None
        before = state.owned.get(member.id, {})
        owned[member.id] = {tp: before.get(tp, snapshot.generation) for tp in sorted(parts or ())}
    part = replace(
        state.kafka,
        protocol_type=snapshot.protocol_type,
        protocol=snapshot.protocol,
        leader=snapshot.leader,
        members={m.id: KafkaMember(m.metadata, m.assignment) for m in snapshot.members},
    )
    new = replace(
        state,
        generation=snapshot.generation,
        epoch=state.epoch + 1,
        strategy=snapshot.protocol or "",
        members=members,
        owned=owned,
        target=None,
        kafka=part,
        deleted=False,
    )
    wanted = counts_of(new, counts)
    first = {topic: state.first_counts.get(topic, count) for topic, count in wanted.items()}
    return replace(new, counts=wanted, first_counts=state.first_counts | first)

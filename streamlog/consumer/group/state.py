"""The state of a group and what may follow it: pure, so that every interleaving can be tried.

A group is a sequence of *generations*. In each of them every partition of the subscribed topics has at
most one owner. Going to the next generation takes one or two commits to the group's table:

    stable, generation 7 ── join, leave, death, new partitions ──▶ preparing (still generation 7)
    preparing ── every owner that must give something up has done so, or is gone ──▶ stable, 8

The new assignment (`target`) is computed when the preparation begins, so an owner gives up only what moves,
and goes on reading and committing the rest. If nobody has to give up anything, the first commit is already
the next generation.

M1  An offset is committed by the member that owns the partition in the state which the commit follows,
    and has owned it without a break since a generation that the member knew: `may_commit`.
M2  A partition changes its owner only by a new generation, and only after the former owner released it
    (it said so for this very `epoch`) or was removed from the group.
M3  `generation` and `epoch` never go back; every change of the state raises `epoch`.
M4  Nobody is trusted to have left: a member is in the group if, and only if, it is in `members`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from streamlog.consumer.assignors import Assignment, Member
from streamlog.consumer.group.kafka import KafkaPart
from streamlog.errors import CorruptLogError
from streamlog.model import TopicPartition

Owned = dict[TopicPartition, int]
Assign = Callable[[str, list[Member], Mapping[str, int]], Assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """A member as the group's table has it."""

    id: str
    topics: tuple[str, ...]
    strategies: tuple[str, ...]
    instance: str | None = None
    client_id: str = ""
    host: str = ""
    joined_ms: int = 0
    session_ms: int = 10_000
    release_ms: int = 300_000

    def to_json(self) -> dict[str, Any]:
        """For the table."""
        return {
            "topics": list(self.topics),
            "strategies": list(self.strategies),
            "instance": self.instance,
            "client": self.client_id,
            "host": self.host,
            "joined": self.joined_ms,
            "session": self.session_ms,
            "release": self.release_ms,
        }

    @staticmethod
    def from_json(member_id: str, data: Mapping[str, Any]) -> MemberInfo:
        """From the table."""
        return MemberInfo(
            id=member_id,
            topics=tuple(data["topics"]),
            strategies=tuple(data["strategies"]),
            instance=data["instance"],
            client_id=data["client"],
            host=data["host"],
            joined_ms=int(data["joined"]),
            session_ms=int(data["session"]),
            release_ms=int(data["release"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A group between two commits."""

    generation: int = 0
    epoch: int = 0
    strategy: str = ""
    members: dict[str, MemberInfo] = field(default_factory=dict)
    # Owner -> its partitions, each with the generation since which it owns it without a break.
    owned: dict[str, Owned] = field(default_factory=dict)
    target: dict[str, frozenset[TopicPartition]] | None = None
    # Partitions a topic: as of the last assignment, and when the group first saw the topic.
    counts: dict[str, int] = field(default_factory=dict)
    first_counts: dict[str, int] = field(default_factory=dict)
    deleted: bool = False
    # What brokers keep for Kafka's clients; None while no broker serves the group.
    kafka: KafkaPart | None = None

    @property
    def phase(self) -> Literal["empty", "preparing", "stable"]:
        """What the group is about."""
        if not self.members:
            return "empty"
        return "stable" if self.target is None else "preparing"

    def owner(self, tp: TopicPartition) -> str | None:
        """Who owns a partition."""
        return next((member for member, owned in self.owned.items() if tp in owned), None)

    def to_release(self, member: str) -> frozenset[TopicPartition]:
        """What a member has to give up before the next generation can begin."""
        if self.target is None:
            return frozenset()
        return frozenset(self.owned.get(member, {})) - self.target.get(member, frozenset())

    def awaited(self) -> set[str]:
        """The members that have something to release."""
        return {member for member in self.owned if self.to_release(member)}

    def is_new_partition(self, tp: TopicPartition) -> bool:
        """Whether a partition was added to a topic that the group had known before."""
        first = self.first_counts.get(tp.topic)
        return first is not None and tp.partition >= first

    def to_json(self) -> dict[str, Any]:
        """For the note of a commit."""
        data: dict[str, Any] = {
            "generation": self.generation,
            "epoch": self.epoch,
            "strategy": self.strategy,
            "members": {key: member.to_json() for key, member in self.members.items()},
            "owned": {key: _owned_json(owned) for key, owned in self.owned.items()},
            "target": None
            if self.target is None
            else {key: _tps_json(tps) for key, tps in self.target.items()},
            "counts": self.counts,
            "first_counts": self.first_counts,
            "deleted": self.deleted,
        }
        if self.kafka is not None:
            data["kafka"] = self.kafka.to_json()
        return data

    @staticmethod
    def from_json(table: str, data: Mapping[str, Any]) -> GroupState:
        """From the note of a commit; empty for a table that has none yet."""
        if not data:
            return GroupState()
        try:
            target = data["target"]
            return GroupState(
                generation=int(data["generation"]),
                epoch=int(data["epoch"]),
                strategy=str(data["strategy"]),
                members={k: MemberInfo.from_json(k, v) for k, v in data["members"].items()},
                owned={
                    key: {
                        TopicPartition(topic, int(number)): int(since)
                        for topic, pairs in topics.items()
                        for number, since in pairs
                    }
                    for key, topics in data["owned"].items()
                },
                target=None
                if target is None
                else {
                    key: frozenset(
                        TopicPartition(topic, int(number))
                        for topic, numbers in topics.items()
                        for number in numbers
                    )
                    for key, topics in target.items()
                },
                counts=dict(data["counts"]),
                first_counts=dict(data["first_counts"]),
                deleted=bool(data["deleted"]),
                kafka=KafkaPart.from_json(data.get("kafka")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptLogError(
                f"{table}: the group's state in the newest commit is not readable ({error!r}). While all "
                "of the group's consumers are stopped, move that commit out of the table's _delta_log: "
                "the version before it then holds"
            ) from error


def may_commit(state: GroupState, member: str, generation: int, tp: TopicPartition) -> bool:
    """M1: whether a member that last saw `generation` may commit an offset of a partition."""
    since = state.owned.get(member, {}).get(tp)
    return member in state.members and since is not None and since <= generation


def join(
    state: GroupState, member: MemberInfo, counts: Mapping[str, int], assign: Assign
) -> GroupState:
    """A member comes in, or changes what it subscribes to."""
    # An embedded member comes only into a group that brokers left empty, and takes it from them.
    state = replace(state, kafka=None)
    members = dict(state.members)
    owned = dict(state.owned)
    former = next(
        (m for m in members.values() if member.instance and m.instance == member.instance), None
    )
    if former is not None and former.id != member.id:
        # A static member comes back under a new id: it takes over what its former self owned.
        del members[former.id]
        members[member.id] = member
        taken = owned.pop(former.id, {})
        generation = state.generation + 1
        owned[member.id] = dict.fromkeys(taken, generation)
        heir = replace(
            state, generation=generation, epoch=state.epoch + 1, members=members, owned=owned
        )
        same = (former.topics, former.strategies) == (member.topics, member.strategies)
        if same and state.target is None and counts_of(heir, counts) == state.counts:
            return replace(heir, deleted=False)
        return prepare(heir, counts, assign)
    members[member.id] = member
    return prepare(replace(state, members=members, deleted=False), counts, assign)


def leave(
    state: GroupState, gone: Collection[str], counts: Mapping[str, int], assign: Assign
) -> GroupState | None:
    """Members go, or are found dead; None if none of them is in the group."""
    if not any(member in state.members for member in gone):
        return None
    members = {key: member for key, member in state.members.items() if key not in gone}
    owned = {key: tps for key, tps in state.owned.items() if key not in gone}
    return prepare(replace(state, members=members, owned=owned), counts, assign)


def prepare(state: GroupState, counts: Mapping[str, int], assign: Assign) -> GroupState:
    """A new assignment for the members there are; at once the next generation if nobody must wait."""
    wanted = counts_of(state, counts)
    first = {topic: state.first_counts.get(topic, count) for topic, count in wanted.items()}
    base = replace(
        state,
        epoch=state.epoch + 1,
        counts=wanted,
        first_counts=state.first_counts | first,
        kafka=None,
    )
    if not state.members:
        return replace(base, generation=state.generation + 1, owned={}, target=None, strategy="")
    members = [
        Member(
            id=member.id,
            topics=frozenset(member.topics),
            owned=frozenset(state.owned.get(member.id, {})),
            instance=member.instance,
        )
        for member in state.members.values()
    ]
    strategy = choose_strategy(state.members)
    assignment = assign(strategy, members, wanted)
    target = {member: frozenset(tps) for member, tps in assignment.items()}
    preparing = replace(base, strategy=strategy, target=target)
    return complete(preparing, preparing.members) if not preparing.awaited() else preparing


def complete(state: GroupState, released: Collection[str]) -> GroupState:
    """The next generation, once all that had to release something have."""
    missing = state.awaited() - set(released)
    if state.target is None or missing:
        raise ValueError(f"the generation cannot begin: {sorted(missing)} have not released")
    generation = state.generation + 1
    owned: dict[str, Owned] = {}
    for member in state.members:
        before = state.owned.get(member, {})
        owned[member] = {
            tp: before.get(tp, generation) for tp in sorted(state.target.get(member, frozenset()))
        }
    return replace(state, generation=generation, epoch=state.epoch + 1, owned=owned, target=None)


def choose_strategy(members: Mapping[str, MemberInfo]) -> str:
    """The strategy that all members have and most prefer."""
    from streamlog.consumer.assignors import choose

    ordered = [members[key] for key in sorted(members)]
    return choose([member.strategies for member in ordered])


def counts_of(state: GroupState, counts: Mapping[str, int]) -> dict[str, int]:
    """Partitions a topic, of the topics that the members subscribe to and that exist."""
    topics = {topic for member in state.members.values() for topic in member.topics}
    return {topic: counts[topic] for topic in sorted(topics) if topic in counts}


def _owned_json(owned: Owned) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {}
    for tp, since in owned.items():
        found.setdefault(tp.topic, []).append([tp.partition, since])
    return found


def _tps_json(tps: Collection[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for tp in sorted(tps):
        found.setdefault(tp.topic, []).append(tp.partition)
    return found

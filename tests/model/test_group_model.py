"""A consumer group beside its own history: whatever its members do, the table tells one true story.

Several real consumers share topics over one root. Their keepers do not run by themselves: the machine
calls them, so that a member can be slow, dead or asleep at any moment, and it can act between another
one's decision and its commit. After every step the machine reads each version that was written since the
step before, and judges every transition on its own.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamlog import TopicPartition, paths
from streamlog.clock import Runtime
from streamlog.consumer import Consumer, ConsumerSettings
from streamlog.consumer.group.admin import Group
from streamlog.consumer.group.membership import Membership
from streamlog.consumer.group.state import GroupState
from streamlog.consumer.group.store import SCHEMA, Committed, GroupStore, OffsetToCommit, offsets_of
from streamlog.errors import FencedInstanceError, GroupActiveError, IllegalGenerationError
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.table import read_content
from streamlog.log.topics import Topics
from streamlog.log.versions import VersionLog
from streamlog.storage.open import open_objects
from tests.fakes import FakeClock, fake_runtime
from tests.fault.faulty import AFTER, BEFORE, CONFLICT, Fault, FaultyObjects, Rule, Script, commits
from tests.partitions import Meanwhile, append

GROUP = "g"
BEAT_S = 1.0
SESSION_S = 4.0
MOST = 4
PARTITIONS = 6
actors = st.integers(0, MOST - 1)


def in_group(path: str) -> bool:
    return path.startswith(paths.group_table(GROUP)) and commits(path)


@dataclass
class Actor:
    """One consumer, what it was given, and whether anybody still runs it."""

    consumer: Consumer
    store: FaultyObjects
    auto: bool
    instance: str | None
    awake: bool = True
    # Offsets handed out since a partition was assigned: they only go up.
    last: dict[TopicPartition, int] = field(default_factory=dict)
    # How often each member id gave a partition up.
    given_up: Counter[tuple[str, TopicPartition]] = field(default_factory=Counter)

    @property
    def membership(self) -> Membership:
        group = self.consumer._group
        assert group is not None
        assert group._membership is not None
        return group._membership

    def on_assigned(self, partitions: set[TopicPartition]) -> None:
        for tp in partitions:
            self.last.pop(tp, None)

    def on_revoked(self, partitions: set[TopicPartition]) -> None:
        """Whoever is told to give up may still commit."""
        self.given_up.update((str(self.consumer.member_id), tp) for tp in partitions)
        if not self.auto:
            try:
                self.consumer.commit({tp: self.consumer.position(tp) for tp in partitions})
            except IllegalGenerationError:
                assert self.is_out(), "an owner that is told to give up may commit"

    def is_out(self) -> bool:
        """Whether the group went on without this one, unnoticed so far."""
        return self.consumer.member_id not in self.membership.store.state().members

    def on_lost(self, partitions: set[TopicPartition]) -> None:
        pass


class GroupMachine(RuleBasedStateMachine):
    """The machine; `self.processed` is what the consumers were handed out."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="streamlog-model-")
        self.keepers = patch.object(Membership, "_run", lambda self: None)
        self.keepers.start()
        self.clock = FakeClock(time_ms=time.time_ns() // 1_000_000)
        self.objects = open_objects(f"{self.folder}/root", None, Runtime())
        self.seed = 0
        self.topics = self.make_topics(self.objects)
        self.versions = VersionLog(self.objects, paths.group_table(GROUP), self.runtime())
        self.actors: dict[int, Actor] = {}
        self.processed: dict[TopicPartition, set[int]] = defaultdict(set)
        self.ends: dict[TopicPartition, int] = defaultdict(int)
        self.moved: Counter[tuple[str, TopicPartition]] = Counter()
        self.judged = -1
        self.state = GroupState()
        self.offsets: dict[TopicPartition, Committed] = {}
        self.backwards: set[TopicPartition] = set()
        self.resetting = False

    def teardown(self) -> None:
        self.keepers.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def runtime(self) -> Runtime:
        self.seed += 1
        return fake_runtime(self.seed, self.clock)

    def make_topics(self, objects: object) -> Topics:
        return Topics(objects, self.runtime(), Checkpointer(self.objects))  # type: ignore[arg-type]

    @initialize()
    def begin(self) -> None:
        self.topics.create("t", 3)
        for number in range(3):
            self.write(number, 4)

    def write(self, partition: int, count: int) -> None:
        log = self.topics.partition_log(self.topics.get("t", refresh=True), partition)
        append(log, *(b"x" for _ in range(count)))
        self.ends[TopicPartition("t", partition)] += count

    # members come and go

    def enter(self, number: int, auto: bool, instance: str | None) -> None:
        store = FaultyObjects(self.objects, Script(), self.clock)
        consumer = Consumer(
            self.make_topics(store),
            ConsumerSettings(
                group_id=GROUP,
                group_instance_id=instance,
                auto_offset_reset="earliest",
                enable_auto_commit=auto,
                auto_commit_interval_ms=1500,
                session_timeout_ms=int(SESSION_S * 1000),
                heartbeat_interval_ms=int(BEAT_S * 1000),
                max_poll_interval_ms=20_000,
                metadata_max_age_ms=0,
            ),
            self.runtime(),
        )
        actor = Actor(consumer, store, auto, instance)
        self.actors[number] = actor
        consumer.subscribe("t", listener=actor)

    @precondition(lambda self: len(self.actors) < MOST)
    @rule(auto=st.booleans(), static=st.booleans())
    def join(self, auto: bool, static: bool) -> None:
        number = next(n for n in range(MOST) if n not in self.actors)
        self.enter(number, auto, f"i{number}" if static else None)

    @rule(number=actors)
    def leave(self, number: int) -> None:
        actor = self.actors.pop(number, None)
        if actor is None:
            return
        member = actor.consumer.member_id
        actor.consumer.close()
        if actor.instance is None:
            assert member not in self.observe()[0].members, "a member that leaves is gone at once"

    @rule(number=actors)
    def restart(self, number: int) -> None:
        """A static member's process ends and starts again: nobody else notices."""
        actor = self.actors.get(number)
        if actor is None or actor.instance is None:
            return
        before, _ = self.observe()
        former = actor.consumer.member_id
        actor.consumer.close()
        self.enter(number, actor.auto, actor.instance)
        after, _ = self.observe()
        if former in before.members and before.target is None and before.counts == after.counts:
            member = self.actors[number].consumer.member_id
            assert after.target is None, "no rebalance"
            owners = {tp: member if o == former else o for tp, o in owners_of(before).items()}
            assert owners_of(after) == owners

    @rule(number=actors)
    def fall_asleep(self, number: int) -> None:
        if number in self.actors:
            self.actors[number].awake = False

    @rule(number=actors)
    def wake_up(self, number: int) -> None:
        if number in self.actors:
            self.actors[number].awake = True

    # members at work

    @rule(number=actors, count=st.integers(1, 5))
    def poll(self, number: int, count: int) -> None:
        actor = self.actors.get(number)
        if actor is None or not actor.awake:
            return
        try:
            for record in actor.consumer.poll(0, max_records=count):
                tp = TopicPartition(record.topic, record.partition)
                assert record.offset > actor.last.get(tp, -1), "never twice within one ownership"
                actor.last[tp] = record.offset
                self.processed[tp].add(record.offset)
        except FencedInstanceError:
            raise AssertionError("instances are not shared here") from None
        self.observe()

    @rule(number=actors)
    def keep(self, number: int) -> None:
        actor = self.actors.get(number)
        if actor is not None and actor.awake:
            actor.membership._keep()

    @rule(seconds=st.sampled_from([0.3, 1.0, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def session_timeout_passes(self) -> None:
        """Long enough for those awake to notice who is not."""
        for _ in range(int(SESSION_S / BEAT_S) + 2):
            self.clock.advance(BEAT_S)
            for number in list(self.actors):
                self.poll(number, 1)
                self.keep(number)

    @rule(number=actors, data=st.data())
    def commit(self, number: int, data: st.DataObject) -> None:
        """By whom it may concern, current or not: the table alone decides."""
        actor = self.actors.get(number)
        if actor is None:
            return
        positions = {
            state.tp: state.position
            for state in actor.consumer._subscription.states
            if state.position is not None
        }
        if not positions:
            return
        chosen = data.draw(st.sets(st.sampled_from(sorted(positions)), min_size=1))
        back = data.draw(st.booleans())
        given = {tp: max(0, positions[tp] - 2) if back else positions[tp] for tp in chosen}
        self.try_commit(actor, given)

    @rule(number=actors, partition=st.integers(0, PARTITIONS - 1))
    def commit_of_a_stranger(self, number: int, partition: int) -> None:
        tp = TopicPartition("t", partition)
        actor = self.actors.get(number)
        if actor is not None and tp in self.ends and tp not in actor.consumer.assignment():
            self.try_commit(actor, {tp: 0})

    def try_commit(self, actor: Actor, given: dict[TopicPartition, int]) -> None:
        state, _ = self.observe()
        member, generation = actor.consumer.member_id, actor.consumer.generation
        owned = state.owned.get(str(member), {})
        if member in state.members and all(owned.get(tp, 1 << 60) <= generation for tp in given):
            self.backwards |= set(given)
            actor.consumer.commit(dict(given))
            _, offsets = self.observe()
            assert {tp: offsets[tp].offset for tp in given} == given
        else:
            version = self.judged
            with pytest.raises(IllegalGenerationError, match=r"(?i)nothing was committed"):
                actor.consumer.commit(dict(given))
            self.observe()
            assert self.judged == version, "a refused commit leaves no trace"

    # from outside

    @precondition(lambda self: self.offsets)
    @rule(offset=st.sampled_from(["earliest", 1]))
    def reset(self, offset: str | int) -> None:
        self.resetting = True
        info = self.topics.get("t", refresh=True)
        tps = [tp for tp, item in self.offsets.items() if offset == "earliest" or item.offset > 1]
        if tps:
            assert all(tp.partition < info.partitions for tp in tps)
            Group(GROUP, self.topics, self.runtime()).reset(offset, partitions=tps, force=True)
        self.observe()
        self.resetting = False

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def commit_from_outside(self, partition: int) -> None:
        info = self.topics.get("t", refresh=True)
        if partition >= info.partitions:
            return
        tp = TopicPartition("t", partition)
        offset = max(self.offsets[tp].offset if tp in self.offsets else 0, 0)
        store = GroupStore(GROUP, self.objects, self.runtime(), Checkpointer(self.objects))
        item = OffsetToCommit(info, partition, offset)
        if self.observe()[0].members:
            with pytest.raises(GroupActiveError, match="at work"):
                store.commit([item], None, -1)
        else:
            store.commit([item], None, -1)

    @precondition(lambda self: len(self.ends) < PARTITIONS)
    @rule()
    def grow(self) -> None:
        info = self.topics.get("t", refresh=True)
        self.topics.add_partitions("t", info.partitions + 1)
        self.write(info.partitions, 2)

    @rule(partition=st.integers(0, 2), count=st.integers(1, 4))
    def produce(self, partition: int, count: int) -> None:
        self.write(partition, count)

    # trouble

    @rule(number=actors, fault=st.sampled_from([BEFORE, AFTER, CONFLICT]))
    def the_next_commit_meets_a_fault(self, number: int, fault: Fault) -> None:
        if number in self.actors:
            self.actors[number].store.plan = Script(Rule("put_if_absent", fault, in_group))

    @rule(number=actors, other=actors, what=st.sampled_from(["poll", "keep", "leave", "sleep"]))
    def the_next_commit_meets_another(self, number: int, other: int, what: str) -> None:
        """Just before one member's commit lands, another one acts."""
        if number not in self.actors or other not in self.actors or number == other:
            return
        acts: dict[str, Callable[[], object]] = {
            "poll": lambda: self.poll(other, 2),
            "keep": lambda: self.keep(other),
            "leave": lambda: self.leave(other),
            "sleep": lambda: self.fall_asleep(other),
        }
        self.actors[number].store.plan = Meanwhile("put_if_absent", in_group, acts[what])

    @rule()
    def settle(self) -> None:
        """Whatever happened: once all are awake, the group is stable and reads everything."""
        for actor in self.actors.values():
            actor.awake = True
            actor.store.plan = Script()
        for _ in range(30):
            self.clock.advance(BEAT_S)
            for number in list(self.actors):
                self.keep(number)
                self.poll(number, 100)
        state, _ = self.observe()
        alive = {actor.consumer.member_id for actor in self.actors.values()}
        assert set(state.members) == alive or not self.actors
        if not self.actors:
            return
        assert state.target is None
        held = [tp for actor in self.actors.values() for tp in actor.consumer.assignment()]
        assert sorted(held) == sorted(self.ends), "every partition has exactly one reader"
        for actor in self.actors.values():
            mine = state.owned[str(actor.consumer.member_id)]
            assert actor.consumer.assignment() == set(mine)
        for tp, end in self.ends.items():
            assert self.processed[tp] == set(range(end)), "at least once, also what was added"

    # the judge

    def observe(self) -> tuple[GroupState, dict[TopicPartition, Committed]]:
        """Judges every version since the last look; returns the newest."""
        table = paths.group_table(GROUP)
        while (commit := self.versions.read(self.judged + 1)) is not None:
            content = read_content(self.objects, table, commit, SCHEMA)
            assert content is not None
            state = GroupState.from_json(table, content.note)
            self.judge(state, offsets_of(content.rows))
            self.judged += 1
        return self.state, self.offsets

    def judge(self, state: GroupState, offsets: dict[TopicPartition, Committed]) -> None:
        before, known = self.state, self.offsets
        assert state.generation >= before.generation
        assert state.epoch == before.epoch if state == before else state.epoch > before.epoch
        assert set(state.owned) <= set(state.members)
        owners = [tp for owned in state.owned.values() for tp in owned]
        assert len(owners) == len(set(owners)), "two owners of one partition"
        if state.members and state.target is None:
            wanted = {
                TopicPartition(t, n) for t, count in state.counts.items() for n in range(count)
            }
            assert set(owners) == wanted, "stable, and a partition without an owner"
        for tp, owner in owners_of(before).items():
            if owners_of(state).get(tp) not in (owner, None):
                assert state.generation > before.generation
            if owner in state.members and owners_of(state).get(tp) != owner:
                self.moved[owner, tp] += 1
                holder = self.actor_of(owner)
                assert (
                    holder is None
                    or tp not in holder.consumer.assignment()
                    or holder.given_up[owner, tp] >= self.moved[owner, tp]
                ), "not released"
        for tp in known.keys() | offsets.keys():
            self.judge_offset(tp, known.get(tp), offsets.get(tp), state)
        self.state, self.offsets = state, offsets

    def judge_offset(
        self, tp: TopicPartition, old: Committed | None, new: Committed | None, state: GroupState
    ) -> None:
        assert new is not None, "a commit of others takes nothing away"
        if new == old:
            return
        assert state == self.state or self.resetting, (
            "offsets and members do not change in one commit"
        )
        if new.member is None:
            assert self.resetting or not self.state.members
        else:
            assert owners_of(self.state).get(tp) == new.member, "not the owner's commit"
        if old is not None and new.offset < old.offset:
            assert self.resetting or tp in self.backwards, "an offset went back unasked"
        assert set(range(new.offset)) <= self.processed[tp], "committed, and nobody got it"

    def actor_of(self, member: str) -> Actor | None:
        found = (a for a in self.actors.values() if a.consumer.member_id == member)
        return next(found, None)

    @invariant()
    def the_story_is_true(self) -> None:
        state, _ = self.observe()
        self.backwards = set()
        held: dict[TopicPartition, str] = {}
        for actor in self.actors.values():
            member = actor.consumer.member_id
            if member not in state.members:
                continue
            for tp in actor.consumer.assignment():
                assert held.setdefault(tp, member) == member, "two members read one partition"


def owners_of(state: GroupState) -> dict[TopicPartition, str]:
    return {tp: member for member, owned in state.owned.items() for tp in owned}


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

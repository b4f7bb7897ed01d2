"""Kafka's groups beside their own history: whatever members, brokers and the store do, one true story.

Two brokers coordinate one group, each believing in itself when it is asked. The table is the real one's
words (drafts, marks, saves) without storage; members are simulated clients that keep Kafka's rules but may
fall silent, answer late, or talk to the wrong broker. The machine decides when a broker's changes reach the
table, whether they fail, and when brokers die.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from streamlog import TopicPartition
from streamlog.broker import wire
from streamlog.broker.groups import changes
from streamlog.broker.groups.changes import Offset
from streamlog.broker.groups.journal import LostGroupError, apply
from streamlog.broker.groups.machine import Machine
from streamlog.broker.groups.members import Answer, Join, Joined, Limits, Phase, Save, Synced
from streamlog.broker.groups.protocol import subscription
from streamlog.broker.groups.saved import snapshot_of, taken_over
from streamlog.broker.kafka_errors import Code
from streamlog.config import TopicConfig
from streamlog.consumer.group.admin import _emptied
from streamlog.consumer.group.state import GroupState
from streamlog.consumer.group.store import Draft
from streamlog.errors import StreamlogError, UnavailableError
from streamlog.log.table import Row
from streamlog.log.topics import TopicInfo, Topics
from streamlog.model import to_datetime

TOPIC = "t"
PARTITIONS = 4
CLIENTS = 5
BROKERS = 2
SESSION = 10.0
REBALANCE = 20.0
clients = st.integers(0, CLIENTS - 1)
erring = st.sampled_from([False, False, False, False, False, True])


class OneTopic:
    """As much of the topics as the changes ask for."""

    info = TopicInfo(TOPIC, "id", 1, PARTITIONS, TopicConfig(), to_datetime(0))

    def list(self, refresh: bool = False) -> list[TopicInfo]:
        return [self.info]

    def get(self, name: str, refresh: bool = False) -> TopicInfo:
        return self.info


@dataclass
class Coordinator:
    """A broker's memory of the group, and its changes on their way to the table."""

    mark: str
    machine: Machine
    waiting: list[tuple[Callable[[Draft], Any], Callable[[Any], None]]] = field(
        default_factory=list
    )


@dataclass
class Client:
    """A member as a Kafka client would be one."""

    number: int
    instance: str | None
    member: str = ""
    generation: int = -1
    # Which leader's sync its assignment comes from, and what it says.
    parts: frozenset[TopicPartition] = frozenset()
    wants_join: bool = True
    wants_sync: list[str] | None = None
    waits: bool = False
    asked: int = 0


class Group(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = GroupState()
        self.rows: tuple[Row, ...] = ()
        self.now = 0.0
        self.ids = 0
        self.brokers: list[Coordinator | None] = [None] * BROKERS
        self.clients = [Client(n, f"i{n}" if n % 2 else None) for n in range(CLIENTS)]
        self.open: dict[int, Client] = {}
        # Generation -> the sync that its assignments came from; never a second one.
        self.sources: dict[int, bytes] = {}
        self.committed: dict[int, int] = {}
        self.saved_generations: set[int] = set()
        # The broker that everybody thinks is the coordinator; now and then somebody errs.
        self.favourite = 0
        self.topics = cast(Topics, OneTopic())

    # the table

    def write(self, mark: str | None, step: Callable[[Draft], Any]) -> Any:
        """One commit; a change by a coordinator needs its mark in the version before."""
        before = self.state
        draft = Draft(self.state, self.rows, int(self.now * 1000))
        result = step(draft)
        if draft.changed:
            if mark is not None:
                assert before.kafka is not None
                assert before.kafka.mark == mark
            content = draft.content()
            # Through JSON, as on storage.
            self.state = GroupState.from_json("t", json.loads(json.dumps(content.note)))
            self.rows = content.rows
            self.saved_generations.add(self.state.generation)
            assert self.state.generation >= before.generation
            assert self.state.epoch >= before.epoch
            if self.state.members != before.members and before.members and self.state.members:
                changed = self.state.generation > before.generation
                # Only a static member's return changes the members within a generation.
                instances = {m.instance for m in self.state.members.values()}
                assert changed or instances == {m.instance for m in before.members.values()}
        return result

    @invariant()
    def one_member_an_instance(self) -> None:
        static = [m.instance for m in self.state.members.values() if m.instance is not None]
        assert len(static) == len(set(static))

    @invariant()
    def one_owner_a_partition(self) -> None:
        seen: set[TopicPartition] = set()
        for owned in self.state.owned.values():
            assert not seen & set(owned)
            seen |= set(owned)

    # brokers

    def at(self, broker: int) -> Coordinator:
        """The group at a broker; whoever is asked believes that it is the one (the worst case)."""
        found = self.brokers[broker]
        if found is None:
            self.ids += 1
            mark = f"mark-{self.ids}"

            def step(draft: Draft) -> None:
                draft.state = taken_over(draft.state, broker, mark)

            self.write(None, step)
            machine = Machine(Limits(initial_delay=1.0), snapshot_of(self.state), self.now)
            found = self.brokers[broker] = Coordinator(mark, machine)
        return found

    def act(self, broker: int) -> None:
        coordinator = self.brokers[broker]
        assert coordinator is not None
        for effect in coordinator.machine.drain():
            if isinstance(effect, Save):
                change = partial(changes.save, self.topics, effect.snapshot)
                done = partial(self.saved, broker, coordinator, effect.number)
                coordinator.waiting.append((change, done))
            else:
                assert isinstance(effect, Answer)
                client = self.open.pop(cast(int, effect.ticket))
                self.answered(client, effect.reply)

    def saved(self, broker: int, coordinator: Coordinator, number: int, result: Any) -> None:
        if self.brokers[broker] is not coordinator:
            return
        if isinstance(result, StreamlogError):
            coordinator.machine.not_saved(self.now, number, Code.COORDINATOR_NOT_AVAILABLE)
        else:
            coordinator.machine.saved(self.now, number)
        self.act(broker)

    @rule(broker=st.integers(0, BROKERS - 1), fails=st.integers(0, 5))
    def flush(self, broker: int, fails: int) -> None:
        """What a broker has to write is written, or the store does not answer."""
        coordinator = self.brokers[broker]
        if coordinator is None or not coordinator.waiting:
            return
        batch, coordinator.waiting = coordinator.waiting, []
        if fails == 0:
            for _, done in batch:
                done(UnavailableError("no answer"))
            return
        step = partial(apply, "g", coordinator.mark, [change for change, _ in batch])
        before = (self.state, self.rows)
        try:
            results = self.write(coordinator.mark, step)
        except LostGroupError as error:
            # A fenced coordinator changes nothing, and drops its memory.
            assert (self.state, self.rows) == before
            self.end(broker, Code.NOT_COORDINATOR)
            for _, done in batch:
                done(error)
            return
        for (_, done), result in zip(batch, results, strict=True):
            done(result)

    def end(self, broker: int, code: Code) -> None:
        coordinator = self.brokers[broker]
        assert coordinator is not None
        coordinator.machine.fail(code)
        self.act(broker)
        self.brokers[broker] = None

    @rule(broker=st.integers(0, BROKERS - 1))
    def kill(self, broker: int) -> None:
        """A broker dies; those who waited notice that their connection is gone."""
        if self.brokers[broker] is not None:
            self.end(broker, Code.NOT_COORDINATOR)

    @rule(seconds=st.sampled_from([0.5, 1.5, 5.0, 11.0, 25.0]))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        for number, coordinator in enumerate(self.brokers):
            if coordinator is None:
                continue
            now = self.now
            while (due := coordinator.machine.next_deadline()) is not None and due <= until:
                now = max(now, due)
                coordinator.machine.tick(now)
                self.act(number)
        self.now = until

    @rule()
    def reset(self) -> None:
        """The command line, by force."""

        def step(draft: Draft) -> None:
            draft.state = _emptied(draft.state, deleted=False)

        self.write(None, step)

    @rule(broker=st.integers(0, BROKERS - 1))
    def elect(self, broker: int) -> None:
        self.favourite = broker

    def ask(self, errs: bool) -> int:
        return 1 - self.favourite if errs else self.favourite

    # members

    @rule(rounds=st.integers(1, 6), fails=st.integers(0, 9))
    def go_on(self, rounds: int, fails: int) -> None:
        """Everybody does the next thing that a client would do."""
        for _ in range(rounds):
            for number, client in enumerate(self.clients):
                if client.waits:
                    continue
                if client.wants_sync is not None:
                    self.sync(number, False)
                elif self.is_settled(client):
                    self.beat(number, False)
                else:
                    self.join(number, False)
            self.flush(self.favourite, fails)
            self.wait(1.5)

    def is_settled(self, client: Client) -> bool:
        machine = self.at(self.favourite).machine
        return (
            client.member in machine.members
            and machine.phase is Phase.STABLE
            and machine.generation == client.generation
        )

    def ticket(self, client: Client) -> int:
        self.ids += 1
        self.open[self.ids] = client
        client.waits = True
        client.asked = self.ids
        return self.ids

    @rule(number=clients, errs=erring)
    def join(self, number: int, errs: bool) -> None:
        client = self.clients[number]
        if client.waits:
            return
        broker = self.ask(errs)
        coordinator = self.at(broker)
        self.ids += 1
        wish = Join(
            member=client.member,
            new_id=f"m{self.ids}",
            instance=client.instance,
            session=SESSION,
            rebalance=REBALANCE,
            protocols=(("range", subscription([TOPIC])),),
            id_first=True,
        )
        coordinator.machine.join(self.now, wish, self.ticket(client))
        self.act(broker)

    @rule(number=clients, errs=erring)
    def sync(self, number: int, errs: bool) -> None:
        client = self.clients[number]
        if client.waits or client.wants_sync is None:
            return
        broker = self.ask(errs)
        coordinator = self.at(broker)
        members, client.wants_sync = client.wants_sync, None
        self.ids += 1
        coordinator.machine.sync(
            self.now,
            self.ticket(client),
            member=client.member,
            instance=client.instance,
            generation=client.generation,
            assignments=split(members, b"%d" % self.ids),
        )
        self.act(broker)

    def answered(self, client: Client, reply: Joined | Synced) -> None:
        client.waits = False
        if isinstance(reply, Joined):
            if reply.code is Code.NONE:
                client.member, client.generation = reply.member, reply.generation
                # Whoever joins again gives everything up first (the eager way).
                client.parts = frozenset()
                client.wants_sync = [member for member, _, _ in reply.members]
            elif reply.code is Code.MEMBER_ID_REQUIRED:
                client.member = reply.member
            else:
                self.forget(client, reply.code)
            return
        if reply.code is not Code.NONE:
            self.forget(client, reply.code)
            return
        if not reply.assignment:
            # It came into the generation without being known to its leader.
            client.parts = frozenset()
            return
        assert client.generation in self.saved_generations, "handed out before it was saved"
        body = wire.parse_data("consumer_protocol_assignment", 0, reply.assignment[2:])
        source = self.sources.setdefault(client.generation, body.user_data)
        assert source == body.user_data, "two leaders of one generation"
        client.parts = frozenset(
            TopicPartition(TOPIC, int(p)) for t in body.assigned_partitions for p in t.partitions
        )
        for other in self.clients:
            if other is not client and other.generation == client.generation:
                same = other.instance is not None and other.instance == client.instance
                assert same or not other.parts & client.parts

    def forget(self, client: Client, code: Code) -> None:
        if code in (Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID):
            client.member, client.generation = "", -1
        if code in (Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID, Code.ILLEGAL_GENERATION):
            client.parts = frozenset()

    @rule(number=clients, errs=erring)
    def beat(self, number: int, errs: bool) -> None:
        client = self.clients[number]
        if not client.member or client.waits:
            return
        broker = self.ask(errs)
        machine = self.at(broker).machine
        code = machine.heartbeat(self.now, client.member, client.instance, client.generation)
        self.forget(client, code)

    @rule(number=clients, errs=erring)
    def leave(self, number: int, errs: bool) -> None:
        client = self.clients[number]
        if not client.member or client.waits:
            return
        broker = self.ask(errs)
        machine = self.at(broker).machine
        machine.leave(self.now, client.member, client.instance)
        self.act(broker)
        self.forget(client, Code.UNKNOWN_MEMBER_ID)

    @rule(number=clients)
    def restart(self, number: int) -> None:
        """A client's process dies and starts anew; it knows its instance id and nothing else."""
        client = self.clients[number]
        if not client.waits:
            self.forget(client, Code.UNKNOWN_MEMBER_ID)
            client.wants_sync = None

    @precondition(lambda self: any(client.parts for client in self.clients))
    @rule(number=clients, errs=erring)
    def commit(self, number: int, errs: bool) -> None:
        """A member commits; it reaches the table only in its own generation."""
        client = self.clients[number]
        if not client.parts or client.waits:
            return
        broker = self.ask(errs)
        coordinator = self.at(broker)
        member, generation = client.member, client.generation
        code = coordinator.machine.check_commit(self.now, member, client.instance, generation)
        if code is not Code.NONE:
            return
        self.ids += 1
        number_now = self.ids
        tp = min(client.parts)
        offsets = [Offset(tp.topic, tp.partition, number_now, "")]

        def change(draft: Draft) -> list[Code]:
            found = changes.commit(self.topics, member, generation, offsets, draft)
            assert draft.state.generation == generation
            assert member in draft.state.members
            return found

        def done(result: Any) -> None:
            if isinstance(result, list):
                # J1: in the order of the requests; a later one is never overtaken.
                assert self.committed.get(tp.partition, 0) < number_now
                self.committed[tp.partition] = number_now
                assert self.offset(tp) >= number_now

        coordinator.waiting.append((change, done))

    def offset(self, tp: TopicPartition) -> int:
        return next(row["offset"] for row in self.rows if row["partition"] == tp.partition)

    @invariant()
    def nobody_waits_for_a_broker_that_is_gone(self) -> None:
        parked = set()
        for coordinator in self.brokers:
            if coordinator is not None:
                machine = coordinator.machine
                for member in machine.members.values():
                    parked |= {t for t in (member.joining, member.syncing) if t is not None}
                for waiting in machine._after_save.values():
                    parked |= {ticket for ticket, _ in waiting}
        assert parked == set(self.open)

    @rule()
    def calm(self) -> None:
        """Once the world is quiet, one broker brings the group together."""
        self.kill(0)
        self.kill(1)
        assert not self.open
        self.go_on(40, 1)
        machine = self.at(self.favourite).machine
        assert machine.phase is Phase.STABLE
        assert len(self.state.members) == CLIENTS
        owned = [tp for parts in self.state.owned.values() for tp in parts]
        assert sorted(owned) == [TopicPartition(TOPIC, n) for n in range(PARTITIONS)]


def split(members: list[str], source: bytes) -> dict[str, bytes]:
    """A leader's assignment: the partitions in turn, with a mark of its sync."""
    found = {}
    for index, member in enumerate(members):
        numbers = list(range(PARTITIONS))[index :: len(members)]
        body = {
            "assigned_partitions": [{"topic": TOPIC, "partitions": numbers}],
            "user_data": source,
        }
        found[member] = b"\0\0" + wire.write_data("consumer_protocol_assignment", 0, body)
    return found


Group.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestGroup = Group.TestCase

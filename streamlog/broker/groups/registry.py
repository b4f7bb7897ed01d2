"""The groups that a broker coordinates: loaded from their tables when somebody asks, given up when lost.

G1  A group is loaded by a commit with a mark of its own to its table, so the former coordinator can write
    nothing from then on; then its members, generation and assignments are those of the table.
G2  A group with embedded members at work is not loaded: Kafka's clients get an error until they are gone.
G3  Requests of one connection reach a loaded group in their order: nothing is waited for in between.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from streamlog import paths
from streamlog.broker.groups.coordinator import Coordinator
from streamlog.broker.groups.journal import LostGroupError
from streamlog.broker.groups.machine import Machine
from streamlog.broker.groups.members import Limits, Snapshot
from streamlog.broker.groups.saved import snapshot_of, taken_over
from streamlog.broker.kafka_errors import Code, KafkaError
from streamlog.consumer.group.state import GroupState
from streamlog.consumer.group.store import Draft, GroupStore

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

_log = logging.getLogger(__name__)

# How long an answer about embedded members holds: each look watches their heartbeats.
_EMBEDDED_SECONDS = 2.0


class EmbeddedGroupError(KafkaError):
    """The group is at work without brokers."""

    def __init__(self, group: str, count: int) -> None:
        super().__init__(
            Code.INCONSISTENT_GROUP_PROTOCOL,
            f"group {group!r} has {count} embedded members (streamlog consumers that need no broker), so "
            "Kafka clients cannot join it or commit to it; stop those first, or use another group.id",
        )


class Groups:
    """The coordinator's side of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._open: dict[str, asyncio.Task[Coordinator | None]] = {}
        self._refused: dict[str, tuple[float, EmbeddedGroupError]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._stopping = False
        broker.cluster.on_change(self._follow)

    @property
    def loaded(self) -> list[Coordinator]:
        """The groups that are served now."""
        found = []
        for task in self._open.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                coordinator = task.result()
                if coordinator is not None:
                    found.append(coordinator)
        return found

    def is_mine(self, name: str) -> bool:
        """Whether this broker is the one to coordinate a group."""
        cluster = self._broker.cluster
        return not self._stopping and cluster.coordinator_of(name).node_id == cluster.me.node_id

    def check(self, name: str) -> None:
        """Refuses what is no name, and groups of other brokers."""
        if not paths.fits(name):
            raise KafkaError(Code.INVALID_GROUP_ID)
        if not self.is_mine(name):
            coordinator = self.peek(name)
            if coordinator is not None:
                coordinator.end("another broker serves it now")
            raise KafkaError(Code.NOT_COORDINATOR)

    def peek(self, name: str) -> Coordinator | None:
        """A group that is loaded."""
        task = self._open.get(name)
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    async def get(self, name: str, *, create: bool, verify: bool = False) -> Coordinator | None:
        """A group, loaded if need be; None if there are no members of it and it is not to be made.

        `verify`: an empty group is looked at first, for embedded members may have taken it meanwhile.
        """
        while True:
            self.check(name)
            task = self._open.get(name)
            mine = task is None
            if task is None:
                task = asyncio.create_task(self._load(name, create))
                self._open[name] = task
            coordinator = await asyncio.shield(task)
            if coordinator is not None and not coordinator.ended:
                if verify and coordinator.machine.idle:
                    with suppress(LostGroupError):
                        await coordinator.verify()
                    if coordinator.ended:
                        continue
                return coordinator
            if mine and coordinator is None:
                return None

    async def _load(self, name: str, create: bool) -> Coordinator | None:
        made: Coordinator | None = None
        try:
            loop = asyncio.get_running_loop()
            refused = self._refused.pop(name, None)
            if refused is not None and loop.time() < refused[0]:
                self._refused[name] = refused
                raise refused[1]
            runtime, topics = self._broker.runtime, self._broker.topics
            store = GroupStore(name, topics.objects, runtime, topics.checkpointer)
            mark = runtime.ids.new()
            try:
                snapshot = await self._broker.run(self._take_over, store, mark, create)
            except EmbeddedGroupError as error:
                _log.warning("%s", error)
                self._refused[name] = (loop.time() + _EMBEDDED_SECONDS, error)
                raise
            if snapshot is None:
                return None
            settings = self._broker.settings
            limits = Limits(
                initial_delay=settings.group_initial_rebalance_seconds,
                max_members=settings.group_max_members,
            )
            machine = Machine(limits, snapshot, loop.time())
            made = Coordinator(self._broker, store, mark, machine, self._ended)
            return made
        finally:
            if made is None:
                self._open.pop(name, None)

    def _take_over(self, store: GroupStore, mark: str, create: bool) -> Snapshot | None:
        """G1 and G2, on a thread."""
        seen = store.state()
        if not create and not (seen.members and seen.kafka is not None):
            return None
        if _is_embedded(seen) and store.is_alive(seen):
            raise EmbeddedGroupError(store.group, len(seen.members))
        node = self._broker.cluster.me.node_id
        snapshot = Snapshot()

        def step(draft: Draft) -> None:
            nonlocal snapshot
            state = draft.state
            if _is_embedded(state):
                if state.epoch != seen.epoch:
                    raise EmbeddedGroupError(store.group, len(state.members))
                # They were all killed at once, so nobody removed them.
                state = replace(
                    state,
                    generation=state.generation + 1,
                    members={},
                    owned={},
                    target=None,
                    strategy="",
                )
            draft.state = taken_over(state, node, mark)
            snapshot = snapshot_of(draft.state)

        store.edit(step, self._broker.settings.commit_seconds)
        # Afterwards: a deletion under way at the same time looks for members once it is through.
        store.announce()
        _log.info(
            "group %s: taken over with %d members in generation %d",
            store.group,
            len(snapshot.members),
            snapshot.generation,
        )
        return snapshot

    def _follow(self) -> None:
        """Brokers came or went: groups that are others' now are given up."""
        for coordinator in self.loaded:
            if not self.is_mine(coordinator.name):
                coordinator.end("another broker serves it now")

    def _ended(self, coordinator: Coordinator) -> None:
        if self.peek(coordinator.name) is coordinator:
            del self._open[coordinator.name]
        task = asyncio.create_task(coordinator.settle())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def stop(self) -> None:
        """Members are told to look elsewhere; what is being written is finished."""
        self._stopping = True
        patience = max(self._broker.settings.drain_seconds, 1.0)
        loading = list(self._open.values())
        if loading:
            await asyncio.wait(loading, timeout=patience)
        for coordinator in self.loaded:
            coordinator.end("this broker stops")
        if self._ending:
            await asyncio.wait(list(self._ending), timeout=patience)


def _is_embedded(state: GroupState) -> bool:
    return bool(state.members) and state.kafka is None

"""One group at its coordinator: the machine, its clock, its way into the table, and a sign of life.

The machine decides, on the event loop; what it wants saved goes through the journal, in order with the
members' offset commits, and its answers leave when that is durable.

Q1  A coordinator that lost its group (another broker's mark, a reset, an embedded member) answers
    NOT_COORDINATOR to all that wait, and is never used again. It notices at its next commit, and without
    one at its next look, a few seconds later.
Q2  While the group has members the coordinator overwrites one small object every few seconds: embedded
    clients and the command line see by it that the group is at work.
Q3  A coordinator that was itself suspended gives its members the time back: nobody could beat meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from streamlog.broker.groups.changes import Offset, commit, forget, group_code, save
from streamlog.broker.groups.journal import Journal, LostGroupError
from streamlog.broker.groups.machine import Machine
from streamlog.broker.groups.members import Answer, Join, Joined, Phase, Save, Snapshot, Synced
from streamlog.broker.groups.protocol import CONSUMER, topics_of
from streamlog.broker.kafka_errors import Code, KafkaError
from streamlog.consumer.group.kafka import COORDINATOR_BEAT
from streamlog.consumer.group.store import Beat, Committed, GroupStore
from streamlog.errors import StreamlogError
from streamlog.model import TopicPartition

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

_log = logging.getLogger(__name__)

# A timer that comes later than this was not held up by other work: the process slept.
_SLEPT_SECONDS = 1.0


class Coordinator:
    """One group; belongs to the event loop."""

    def __init__(
        self,
        broker: Broker,
        store: GroupStore,
        mark: str,
        machine: Machine,
        on_end: Callable[[Coordinator], None],
    ) -> None:
        self.name = store.group
        self.machine = machine
        self._broker = broker
        self._store = store
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._journal = Journal(store, mark, broker.run, self._lost, broker.settings.commit_seconds)
        self._timer: asyncio.TimerHandle | None = None
        self._last_save: asyncio.Future[None] | None = None
        self._unsaved = False
        self._beats = 0
        self.used_at = self._loop.time()
        self.ended = False
        self._keeper = asyncio.create_task(self._keep())
        self._schedule()

    # members

    async def join(self, wish: Join) -> Joined:
        """Parks the member until the round is over."""
        answer: asyncio.Future[Joined] = self._loop.create_future()
        self.machine.join(self._now(), wish, answer)
        self._act()
        return await answer

    async def sync(
        self,
        *,
        member: str,
        instance: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Mapping[str, bytes],
    ) -> Synced:
        """Parks the member until the leader's assignment is saved."""
        answer: asyncio.Future[Synced] = self._loop.create_future()
        self.machine.sync(
            self._now(),
            answer,
            member=member,
            instance=instance,
            generation=generation,
            protocol_type=protocol_type,
            protocol=protocol,
            assignments=assignments,
        )
        self._act()
        return await answer

    def heartbeat(self, member: str, instance: str | None, generation: int) -> Code:
        """A member lives."""
        # Deadlines only move away by this, so the timer may stay as it is.
        return self.machine.heartbeat(self._now(), member, instance, generation)

    async def leave(self, members: Sequence[tuple[str, str | None]]) -> list[Code]:
        """Members go. When they were the last, that is saved before they are answered."""
        now = self._now()
        codes = [self.machine.leave(now, member, instance) for member, instance in members]
        self._act()
        if self.machine.phase is Phase.EMPTY and self._last_save is not None:
            # If it fails the keeper tries again.
            await asyncio.wait([self._last_save])
        return codes

    # offsets

    async def commit(
        self, member: str, instance: str | None, generation: int, offsets: Sequence[Offset]
    ) -> list[Code]:
        """Commits offsets; one code each."""
        code = self.machine.check_commit(self._now(), member, instance, generation)
        if code is not Code.NONE:
            return [code] * len(offsets)
        change = partial(commit, self._broker.topics, member, generation, tuple(offsets))
        return await self._journal.submit(change)

    async def offsets(self) -> dict[TopicPartition, Committed]:
        """All committed offsets, by a fresh look."""
        self.used_at = self._now()
        return await self._journal.submit(lambda draft: draft.offsets)

    async def forget(self, tps: Sequence[TopicPartition]) -> list[Code]:
        """Forgets offsets, unless members subscribe to their topics; one code each."""
        self.used_at = self._now()
        members = list(self.machine.members.values())
        if members and self.machine.protocol_type != CONSUMER:
            raise KafkaError(Code.NON_EMPTY_GROUP)
        subscribed: set[str] = set()
        for member in members:
            for _, metadata in member.protocols:
                subscribed |= topics_of(metadata) or set()
        return await self._journal.submit(partial(forget, frozenset(subscribed), tuple(tps)))

    async def verify(self) -> None:
        """Looks whether the group is still this coordinator's; LostGroupError if it is not."""
        await self._journal.submit(lambda _: None)

    # the inside

    def _now(self) -> float:
        self.used_at = self._loop.time()
        return self.used_at

    def _act(self) -> None:
        """Does what the machine wants done."""
        for effect in self.machine.drain():
            match effect:
                case Answer(ticket, reply):
                    assert isinstance(ticket, asyncio.Future)
                    # The connection of who asked may be gone.
                    if not ticket.done():
                        ticket.set_result(reply)
                case Save(number, snapshot):
                    self._save(number, snapshot)
        self._schedule()

    def _save(self, number: int, snapshot: Snapshot) -> None:
        _log.info(
            "group %s: generation %d of %d members (%s)",
            self.name,
            snapshot.generation,
            len(snapshot.members),
            snapshot.protocol,
        )
        saving = self._journal.submit(partial(save, self._broker.topics, snapshot))
        self._last_save = saving
        saving.add_done_callback(partial(self._saved, number))

    def _saved(self, number: int, saving: asyncio.Future[None]) -> None:
        error = saving.exception()
        self._unsaved = error is not None
        if error is None:
            self.machine.saved(self._loop.time(), number)
        else:
            _log.warning("group %s: not saved: %s", self.name, error)
            self.machine.not_saved(self._loop.time(), number, group_code(error))
        self._act()

    def _schedule(self) -> None:
        when = None if self.ended else self.machine.next_deadline()
        if when is None:
            return
        if self._timer is not None:
            if self._timer.when() <= when and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._tick, when)

    def _tick(self, due: float) -> None:
        self._timer = None
        now = self._loop.time()
        if now - due > _SLEPT_SECONDS:
            self.machine.delay(now - due)
        self.machine.tick(now)
        self._act()

    async def _keep(self) -> None:
        """Q1 and Q2."""
        while True:
            sessions = [member.session for member in self.machine.members.values()]
            interval = min([self._broker.settings.group_beat_seconds, *(s / 3 for s in sessions)])
            await asyncio.sleep(interval)
            try:
                if not self._broker.groups.is_mine(self.name):
                    self.end("another broker serves it now")
                    return
                if self._unsaved and self.machine.phase is Phase.EMPTY:
                    self.machine.resave()
                    self._act()
                if self.machine.members:
                    self._beats += 1
                    await self.verify()
                    await self._broker.run(
                        self._store.beat, COORDINATOR_BEAT, Beat(self._beats, -1)
                    )
                elif self._beats:
                    self._beats = 0
                    await self._broker.run(self._store.forget, [COORDINATOR_BEAT])
                elif self._is_unused():
                    self.end("nobody uses it")
                    return
            except StreamlogError as error:
                _log.warning("group %s: %s", self.name, error)

    def _is_unused(self) -> bool:
        age = self._loop.time() - self.used_at
        return self.machine.idle and age > self._broker.settings.group_idle_seconds

    def _lost(self, error: LostGroupError) -> None:
        self.end(str(error))

    def end(self, why: str) -> None:
        """Gives the group up: whoever waits is told to look for the coordinator again."""
        if self.ended:
            return
        self.ended = True
        _log.info("group %s: given up: %s", self.name, why)
        self._on_end(self)
        self.machine.fail(Code.NOT_COORDINATOR)
        self._journal.close(KafkaError(Code.NOT_COORDINATOR, why))
        self._act()
        if self._timer is not None:
            self._timer.cancel()
        self._keeper.cancel()

    async def settle(self) -> None:
        """Until nothing of it is under way any more; after `end`."""
        await self._journal.settle()
        with suppress(asyncio.CancelledError):
            await self._keeper

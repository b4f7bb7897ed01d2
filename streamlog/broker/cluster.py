"""The brokers of a root: who lives, who leads which partition, who coordinates which group.

C1  All answers come from the newest numbered view (`members`); the epoch of all partitions is its number.
C2  Once a beat a broker overwrites its heartbeat, looks at the others' and at the views, and proposes the
    next view when one of them stopped (`liveness`). Two requests a beat, and one more when something changed.
C3  Leadership is thrift, not safety: any broker may write to any partition, and put-if-absent decides.
C4  The heart beats in the event loop's own time: a broker whose loop hangs loses its place.
C5  Of two brokers with one node id the later one stays; the former ends as soon as it notices.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from streamlog.broker.liveness import Liveness
from streamlog.broker.members import Member, View, without_dead
from streamlog.broker.rendezvous import Spread, pick
from streamlog.broker.roster import Key, Look, Roster
from streamlog.broker.settings import BrokerSettings
from streamlog.clock import Runtime
from streamlog.errors import (
    FencedError,
    InvalidRequestError,
    StreamlogError,
    UnavailableError,
)
from streamlog.storage.objects import Objects

_log = logging.getLogger(__name__)
T = TypeVar("T")

_JOIN_ATTEMPTS = 50
_LEAVE_ATTEMPTS = 5
# A heartbeat that may still come is waited for so many times its interval before its node id is taken.
_BEATS_TO_SEE = 2.5
_ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A live broker as clients are told of it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class _Layout:
    """What follows from one view; several threads."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.infos = {m.node: BrokerInfo(m.node, m.host, m.port, m.rack) for m in view.members}
        self._nodes = sorted(self.infos)
        self._lock = threading.Lock()
        self._spreads: dict[tuple[str | None, str], Spread] = {}

    def leader(self, topic_id: str, partition: int) -> BrokerInfo:
        return self._one(None, self._nodes, topic_id, partition)

    def near(self, rack: str, topic_id: str, partition: int) -> BrokerInfo:
        there = [node for node in self._nodes if self.infos[node].rack == rack]
        leader = self.leader(topic_id, partition)
        if not there or leader.rack == rack:
            return leader
        return self._one(rack, there, topic_id, partition)

    def coordinator(self, group: str) -> BrokerInfo:
        return self.infos[pick(f"group/{group}", self._nodes)]

    def _one(self, rack: str | None, nodes: list[int], topic_id: str, partition: int) -> BrokerInfo:
        with self._lock:
            spread = self._spreads.get((rack, topic_id))
            if spread is None:
                spread = self._spreads[rack, topic_id] = Spread(topic_id, nodes)
            return self.infos[spread.node(partition)]


class Cluster:
    """The live brokers, as of the last look. Questions may come from any thread."""

    def __init__(self, settings: BrokerSettings, objects: Objects, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime
        self._roster = Roster(objects)
        self._liveness: Liveness[Key] = Liveness(settings.missed_heartbeats)
        self._incarnation = runtime.ids.new()
        self._member = Member(settings.node_id or 1, 0, settings.host, settings.port, settings.rack)
        self._beats = 0
        self._layout = _Layout(View(0, (self._member,), self._member.node))
        self._beating: asyncio.Task[None] | None = None
        self._changed: list[Callable[[], None]] = []
        # One thread of its own: a heartbeat must not wait behind a broker's commits.
        self._thread = ThreadPoolExecutor(1, "streamlog-cluster")
        # When the storage last answered a heartbeat, by the clock of `runtime`.
        self.answered_at: float | None = None
        # Set when another broker took this one's node id: it must end.
        self.lost: asyncio.Event = asyncio.Event()

    @property
    def me(self) -> BrokerInfo:
        """This broker."""
        member = self._member
        return BrokerInfo(member.node, member.host, member.port, member.rack)

    @property
    def epoch(self) -> int:
        """Rises whenever a broker comes or goes: the leader epoch of all partitions."""
        return self._layout.view.epoch

    @property
    def controller(self) -> BrokerInfo:
        """Who runs maintenance."""
        layout = self._layout
        node = layout.view.controller
        return self.me if node is None else layout.infos[node]

    @property
    def controller_epoch(self) -> int | None:
        """The epoch of this broker as controller; None while it is not."""
        view = self._layout.view
        return view.epoch if view.controller == self._member.node else None

    def brokers(self) -> list[BrokerInfo]:
        """The live brokers by id."""
        return list(self._layout.infos.values())

    def leader_of(self, topic_id: str, partition: int) -> BrokerInfo:
        """Who serves a partition."""
        return self._layout.leader(topic_id, partition)

    def near(self, rack: str | None, topic_id: str, partition: int) -> BrokerInfo:
        """Who serves a partition to a client in a rack: one of that rack if there is one, else the leader."""
        if not rack:
            return self.leader_of(topic_id, partition)
        return self._layout.near(rack, topic_id, partition)

    def leads(self, topic_id: str, partition: int) -> bool:
        """Whether this broker serves a partition."""
        return self.leader_of(topic_id, partition).node_id == self.me.node_id

    def coordinator_of(self, group: str) -> BrokerInfo:
        """Who serves a group."""
        return self._layout.coordinator(group)

    def on_change(self, action: Callable[[], None]) -> None:
        """Calls `action` in the event loop after each change of the brokers."""
        self._changed.append(action)

    async def start(self, port: int) -> None:
        """Registers this broker, which listens at `port`."""
        settings = self._settings
        host = settings.advertised_host or settings.host
        if host in _ANY_ADDRESS:
            host = socket.gethostname()
            _log.warning("no address to advertise was given; clients are told %s", host)
        node, claim = await self._do(self._claim)
        self._member = Member(
            node,
            claim,
            host,
            settings.advertised_port or port,
            settings.rack,
            settings.maintain,
        )
        self._adopt(await self._do(self._join))
        self._beating = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        """Leaves: the others take over at once."""
        if self._beating is not None:
            self._beating.cancel()
            with suppress(asyncio.CancelledError):
                await self._beating
            self._beating = None
            try:
                async with asyncio.timeout(max(self._settings.drain_seconds, 1.0)):
                    await self._do(self._leave)
            except (StreamlogError, TimeoutError) as error:
                _log.warning("the others are not told that this broker leaves: %s", error)
        self._thread.shutdown(wait=False)

    async def _do(self, action: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, action)

    async def _beat(self) -> None:
        failing = False
        clock = self._runtime.clock
        due = clock.monotonic()
        while True:
            # A late beat does not make the next ones come faster.
            due = max(due + self._settings.heartbeat_seconds, clock.monotonic())
            await asyncio.sleep(due - clock.monotonic())
            try:
                self._adopt(await self._do(self._turn))
                if failing:
                    _log.info("the storage answers again")
                failing = False
            except FencedError as error:
                _log.error("%s", error)
                self.lost.set()
                return
            except StreamlogError as error:
                if not failing:
                    _log.warning("no heartbeat: %s", error)
                failing = True

    def _adopt(self, view: View) -> None:
        self.answered_at = self._runtime.clock.monotonic()
        # Without any broker in it: this one was taken for dead, and enters again at its next beat.
        if view == self._layout.view or not view.members:
            return
        self._layout = _Layout(view)
        _log.info(
            "epoch %d: brokers %s, controller %s",
            view.epoch,
            ", ".join(str(member.node) for member in view.members),
            view.controller,
        )
        for action in self._changed:
            action()

    # what follows runs on the cluster's thread

    def _claim(self) -> Key:
        node = self._settings.node_id
        if node is None:
            return self._roster.claim_new(self._incarnation)
        last = max(self._roster.claims(node), default=0)
        if last:
            self._check_free((node, last))
        if not self._roster.claim(node, last + 1, self._incarnation):
            raise InvalidRequestError(
                f"node_id {node} is being taken by another broker at this moment; give each broker its own"
            )
        return node, last + 1

    def _check_free(self, key: Key) -> None:
        before = self._roster.sign(key)
        if before is None:
            return
        holder = self._roster.holder(key)
        every = max(self._settings.heartbeat_seconds, holder[1] if holder else 0.0)
        until = self._runtime.clock.monotonic() + _BEATS_TO_SEE * every
        while self._runtime.clock.monotonic() < until:
            self._runtime.clock.sleep(every / 4)
            now = self._roster.sign(key)
            if now is None:
                return
            if now != before:
                where = f" at {holder[0].host}:{holder[0].port}" if holder else ""
                raise InvalidRequestError(
                    f"node_id {key[0]} is held by a broker that lives{where}; give this one another, or "
                    "none at all"
                )

    def _join(self) -> View:
        """Enters the view. Who was at this very address before is gone, for we listen there now."""
        self._show()
        me = self._member
        for _ in range(_JOIN_ATTEMPTS):
            view = self._newest(self._roster.look())
            gone = {m.key for m in view.members if (m.host, m.port) == (me.host, me.port)}
            following = without_dead(view, me, gone)
            if following is None:
                return view
            if self._roster.propose(following):
                return following
        raise UnavailableError(
            f"the brokers change so fast that this one found no place in {_JOIN_ATTEMPTS} attempts; start "
            "it again"
        )

    def _turn(self) -> View:
        """One heartbeat."""
        self._show()
        look = self._roster.look()
        view = self._newest(look)
        me = self._member
        self._check_not_fenced(look, view)
        others = {key: sign for key, sign in look.beats.items() if key != me.key}
        expected = {member.key for member in view.members if member.key != me.key}
        self._liveness.look(others, expected)
        dead = self._liveness.dead()
        following = without_dead(view, me, dead)
        if following is not None and self._roster.propose(following):
            for gone in {*view.members} - {*following.members}:
                _log.warning("broker %d at %s:%d is gone", gone.node, gone.host, gone.port)
            view = following
        stay = {member.key for member in view.members}
        forgotten = [key for key in dead if key in look.beats and key not in stay]
        if forgotten:
            self._roster.forget(forgotten)
        if look.old:
            self._roster.forget_views(look.old)
        return view

    def _leave(self) -> None:
        me = self._member
        for _ in range(_LEAVE_ATTEMPTS):
            look = self._roster.look()
            view = self._newest(look)
            rest = [member for member in view.members if member.key != me.key]
            if len(rest) == len(view.members) or self._roster.propose(view.next(rest)):
                # The last one to go leaves no long row of views behind.
                self._roster.forget_views(look.old)
                break
        self._roster.forget([me.key])

    def _show(self) -> None:
        self._beats += 1
        every = self._settings.heartbeat_seconds
        self._roster.beat(self._member, self._beats, self._incarnation, every)

    def _newest(self, look: Look) -> View:
        """The view to go by: never an older one than before."""
        known = self._layout.view
        while look.epoch > known.epoch or known.epoch == 0:
            view = self._roster.view(look.epoch)
            if view is not None:
                return view
            # Deleted between the listing and now: there are newer ones.
            look = self._roster.look()
        return known

    def _check_not_fenced(self, look: Look, view: View) -> None:
        node, claim = self._member.key
        held = [key[1] for key in (*look.beats, *(m.key for m in view.members)) if key[0] == node]
        if max(held, default=0) > claim:
            raise FencedError(
                f"another broker took node_id {node}; this one ends. Give each broker its own node_id, or "
                "none at all"
            )

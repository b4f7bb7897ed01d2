"""One consumer's place in its group: it joins, beats, watches the others, and hands over partitions.

Two threads work here. The *keeper* (one a consumer) beats, follows the group's table, counts the others'
heartbeats, and moves the group on: removes the dead, begins the next generation when all have released.
Any member may do any of that; whoever commits first wins, so the death of one who computes stops nobody.
The *consumer's thread* gives up and takes over partitions, inside `poll`, because that is where the user's
callbacks run: `pending` tells what is to be done, and `released` and `adopt` that it was done.

H1  A member that was removed from the group never notices by itself too late: its commits are refused by
    the table, and `pending` says `lost`.
H2  A member is taken for dead when its heartbeat was the same in `tolerance` looks of one's own in a row,
    a heartbeat interval apart. A watcher that was suspended itself begins to count anew.
H3  The keeper stops beating when `poll` is overdue: a consumer that hangs loses its partitions.
H4  A member that does not release in time (its `max_poll_interval_ms`) is removed.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.consumer.assignors import Assignment, Assignor, Member, validate
from streamlog.consumer.group import state as steps
from streamlog.consumer.group.kafka import COORDINATOR_BEAT
from streamlog.consumer.group.state import GroupState, MemberInfo
from streamlog.consumer.group.store import Beat, GroupStore
from streamlog.errors import (
    FencedInstanceError,
    GroupActiveError,
    InvalidRequestError,
    StreamlogError,
    UnavailableError,
)
from streamlog.model import TopicPartition

_log = logging.getLogger(__name__)

_LEAST_TOLERANCE = 2
# Heartbeats of nobody are removed after so many times the tolerance.
_STRANGE = 3
_EXIT_SECONDS = 1.0
# How often the table is looked at: it is the news of the group. Local looks cost microseconds.
_LOCAL_TICK = 0.05
_REMOTE_TICK = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipSettings:
    """Timings of a member, in seconds."""

    session_timeout: float
    heartbeat_interval: float
    max_poll_interval: float
    assignors: tuple[Assignor, ...]


@dataclass(frozen=True, slots=True)
class Pending:
    """What the consumer's thread has to do next."""

    lost: bool = False
    release: frozenset[TopicPartition] = frozenset()
    state: GroupState = field(default_factory=GroupState)


class _Watch:
    """How often in a row a heartbeat was unchanged."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str | None, int]] = {}

    def look(self, beats: Mapping[str, str | None]) -> None:
        """One look: name of a heartbeat -> its etag now, None if there is none."""
        seen: dict[str, tuple[str | None, int]] = {}
        for name, etag in beats.items():
            before = self._seen.get(name)
            same = before is not None and before[0] == etag
            seen[name] = (etag, before[1] + 1 if same and before is not None else 0)
        self._seen = seen

    def unchanged(self, name: str) -> int:
        """Looks in a row at which the heartbeat was the same as at the look before."""
        return self._seen.get(name, (None, 0))[1]

    def reset(self) -> None:
        """Begins to count anew."""
        self._seen = {}


class Counts(Protocol):
    """Partitions a topic: as lately seen, or `fresh`."""

    def __call__(self, *, fresh: bool) -> Mapping[str, int]: ...


class Membership:
    """A member of a group. The consumer's thread calls everything but `_run`."""

    def __init__(
        self,
        store: GroupStore,
        info: MemberInfo,
        settings: MembershipSettings,
        counts: Counts,
        runtime: Runtime,
    ) -> None:
        self.store = store
        self.info = info
        self._settings = settings
        self._assignors = {assignor.name: assignor for assignor in settings.assignors}
        self._counts = counts
        self._clock = runtime.clock
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._beating = threading.Lock()
        self._state = GroupState()
        self._joined = False
        self._replaced = False
        self._failure: StreamlogError | None = None
        self._released_epoch = -1
        self._beats = 0
        self._last_poll = self._clock.monotonic()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._watch = _Watch()
        self._round_at = float("-inf")
        self._epoch_seen = (-1, 0.0)
        tick = _LOCAL_TICK if store.objects.local else _REMOTE_TICK
        self._tick = min(tick, settings.heartbeat_interval)
        self._tolerance = max(
            _LEAST_TOLERANCE, round(settings.session_timeout / settings.heartbeat_interval)
        )

    # the consumer's thread

    @property
    def generation(self) -> int:
        """The generation last seen."""
        with self._lock:
            return self._state.generation

    @property
    def member_id(self) -> str:
        """The id under which the group knows this consumer."""
        return self.info.id

    @property
    def lost(self) -> bool:
        """Whether the group went on without this member, as far as is known."""
        with self._lock:
            return self._joined and self.info.id not in self._state.members

    def join(self, info: MemberInfo) -> None:
        """Enters the group, or tells it of a changed subscription; an error leaves all as it was."""

        def step(state: GroupState) -> GroupState | None:
            if state.members.get(info.id) == info:
                return None
            if state.kafka is not None and state.members:
                raise served_by_brokers(self.store.group, state)
            return steps.join(state, info, self._counts(fresh=True), self._assign)

        former = self.info.id if self._joined else None
        try:
            # The beat comes first: whoever finds the new member in the table also finds it alive.
            self._beat(info.id)
            try:
                state = self.store.change(step)
            except GroupActiveError:
                self._bury()
                state = self.store.change(step)
        except StreamlogError:
            if info.id != former:
                self._forget(info.id)
            raise
        with self._lock:
            self.info = info
            self._state = state
            self._joined = True
            self._replaced = False
            self._last_poll = self._clock.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"streamlog-group-{self.store.group}", daemon=True
                )
                self._thread.start()
                _live.add(self)
        # After the join: a deletion under way at the same time looks for members once it is through.
        self.store.announce()
        if former is not None and former != info.id:
            self._forget(former)

    def _bury(self) -> None:
        """Removes Kafka's members that no broker serves any more; refuses if one does."""
        seen = self.store.state()
        if self.store.is_alive(seen):
            raise served_by_brokers(self.store.group, seen)

        def step(state: GroupState) -> GroupState | None:
            if state.epoch != seen.epoch:
                return None
            return steps.leave(state, list(state.members), {}, self._assign)

        self.store.change(step)
        self.store.forget([COORDINATOR_BEAT])

    def pending(self) -> Pending:
        """What is to be done, as of the keeper's last look; also tells that the consumer lives."""
        with self._lock:
            self._last_poll = self._clock.monotonic()
            if self._replaced:
                raise FencedInstanceError(
                    f"group {self.store.group!r}: another consumer with group_instance_id "
                    f"{self.info.instance!r} took this one's place; one live consumer an instance id"
                )
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            state = self._state
            if self._joined and self.info.id not in state.members:
                return Pending(lost=True, state=state)
            return Pending(release=state.to_release(self.info.id), state=state)

    def is_news(self, epoch: int) -> bool:
        """Whether the group went on since `epoch`; also tells that the consumer lives.

        Asked after every record of an iteration: no lock, for either answer is true at some moment.
        """
        self._last_poll = self._clock.monotonic()
        return self._state.epoch != epoch or self._failure is not None

    def released(self, state: GroupState) -> None:
        """The partitions that the next generation takes away are given up, offsets committed."""
        with self._lock:
            self._released_epoch = state.epoch
        self._beat()
        self._advance(eager=True)

    def leave(self, timeout: float) -> None:
        """Leaves the group at once (a static member stays, and has the session timeout to return).

        If the store does not answer, the others notice after the session timeout.
        """
        until = self._clock.monotonic() + timeout
        self.stop(timeout)
        if not self._joined:
            return
        self._joined = False
        if self.info.instance is not None:
            return

        def step(state: GroupState) -> GroupState | None:
            return steps.leave(state, [self.info.id], self._counts(fresh=True), self._assign)

        try:
            self.store.change(step, until - self._clock.monotonic())
        except StreamlogError as error:
            _log.warning(
                "group %s: not left, the others notice after the session timeout: %s",
                self.store.group,
                error,
            )
            return
        self._forget(self.info.id)

    def stop(self, timeout: float | None = None) -> None:
        """Ends the keeper; waits for it, at most the session timeout."""
        with self._lock:
            self._stopping = True
            self._wake.notify_all()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._settings.session_timeout if timeout is None else max(timeout, 0.0))
        _live.discard(self)

    def abandon(self) -> None:
        """Lets the keeper end by itself: for a consumer that nobody closed. Takes no lock."""
        self._stopping = True

    def refresh(self) -> None:
        """Looks at the group's table now instead of at the keeper's next tick."""
        self._take(self.store.state())

    # the keeper

    def _run(self) -> None:
        failing = False
        while True:
            with self._lock:
                if self._stopping:
                    return
                # A round is due to the moment; whoever fails, or is no member, looks at every tick.
                due = self._round_at + self._settings.heartbeat_interval - self._clock.monotonic()
                self._wake.wait(min(self._tick, due) if not failing and due > 0 else self._tick)
                if self._stopping:
                    return
            try:
                self._keep()
                failing = False
            except StreamlogError as error:
                if not failing:
                    _log.warning("group %s: %s", self.store.group, error)
                failing = True
                if not isinstance(error, UnavailableError):
                    # A broken table, or a strategy that fails: the consumer's next poll says so.
                    with self._lock:
                        self._failure = error

    def _keep(self) -> None:
        now = self._clock.monotonic()
        settings = self._settings
        with self._lock:
            overdue = now - self._last_poll > settings.max_poll_interval
            alive = self._joined and self.info.id in self._state.members and not overdue
        due = now - self._round_at >= settings.heartbeat_interval
        if alive and due:
            self._beat()
        self._take(self.store.state())
        with self._lock:
            alive = alive and self.info.id in self._state.members
        if not alive:
            return
        if due:
            # Suspended for long: what was counted before says nothing about the others now.
            gap = max(settings.session_timeout, 2 * settings.heartbeat_interval + self._tick)
            if now - self._round_at > gap:
                self._watch.reset()
            self._round_at = now
            self._look()
            self._follow_topics()
        self._advance()

    def _beat(self, member: str | None = None) -> None:
        # One at a time, or an older beat could take back what a newer one said to have released.
        with self._beating:
            with self._lock:
                self._beats += 1
                beat = Beat(self._beats, self._released_epoch)
            self.store.beat(member or self.info.id, beat)

    def _forget(self, member: str) -> None:
        """Removes a heartbeat that nobody needs any more."""
        try:
            self.store.forget([member])
        except StreamlogError as error:
            # The others remove what belongs to no member.
            _log.debug("group %s: heartbeat of %s left behind: %s", self.store.group, member, error)

    def _take(self, state: GroupState) -> None:
        with self._lock:
            if state.epoch < self._state.epoch:
                return
            self._state = state
            me = self.info
            if self._joined and me.instance is not None and me.id not in state.members:
                self._replaced = any(m.instance == me.instance for m in state.members.values())

    def _look(self) -> None:
        """H2: one look at everybody's heartbeat; who was silent for too long is removed."""
        etags = self.store.etags()
        with self._lock:
            names = {paths.encode(member): member for member in self._state.members}
        others = [name for name, member in names.items() if member != self.info.id]
        strangers = [name for name in etags if name not in names]
        self._watch.look({name: etags.get(name) for name in (*others, *strangers)})
        dead = [names[n] for n in others if self._watch.unchanged(n) >= self._tolerance]
        if dead:
            self._remove(dead, "no heartbeat")
        # A beat that came after its member was removed; a joiner's is on the move.
        left = [n for n in strangers if self._watch.unchanged(n) >= _STRANGE * self._tolerance]
        if left:
            self.store.forget_beats(left)

    def _follow_topics(self) -> None:
        """New partitions, or a topic that came or went: the group needs another assignment."""
        with self._lock:
            state = self._state
        if steps.counts_of(state, self._counts(fresh=False)) == state.counts:
            return

        def step(state: GroupState) -> GroupState | None:
            # Fresh, or members with views of different age would undo each other's work.
            counts = self._counts(fresh=True)
            if steps.counts_of(state, counts) == state.counts or self.info.id not in state.members:
                return None
            return steps.prepare(state, counts, self._assign)

        self._take(self.store.change(step, self._settings.session_timeout))

    def _advance(self, *, eager: bool = False) -> None:
        """Begins the next generation, if all that had to release something have (or are overdue)."""
        with self._lock:
            state = self._state
        if state.target is None:
            return
        now = self._clock.monotonic()
        if self._epoch_seen[0] != state.epoch:
            self._epoch_seen = (state.epoch, now)
        waited = now - self._epoch_seen[1]
        # One after the other, so that not all members ask for the same heartbeats at once.
        rank = sorted(state.members).index(self.info.id) if self.info.id in state.members else 0
        if not eager and waited < min(rank, 10) * self._tick:
            return
        missing = [m for m in state.awaited() if self.store.released(m) != state.epoch]
        late = [m for m in missing if waited > state.members[m].release_ms / 1000]
        if late:
            self._remove(late, "did not release its partitions in time")
            return
        if missing:
            return
        epoch = state.epoch

        def step(current: GroupState) -> GroupState | None:
            if current.epoch != epoch:
                return None
            return steps.complete(current, current.members)

        self._take(self.store.change(step, self._settings.session_timeout))

    def _remove(self, members: list[str], why: str) -> None:
        with self._lock:
            known = {m: self._state.members.get(m) for m in members}

        def step(state: GroupState) -> GroupState | None:
            # Only the very member that was found dead: one that rejoined meanwhile lives.
            gone = [
                m for m, info in known.items() if info is not None and state.members.get(m) == info
            ]
            return steps.leave(state, gone, self._counts(fresh=True), self._assign)

        _log.info("group %s: removing %s: %s", self.store.group, ", ".join(members), why)
        state = self.store.change(step, self._settings.session_timeout)
        self._take(state)
        self.store.forget([member for member in members if member not in state.members])

    def _assign(
        self, strategy: str, members: list[Member], counts: Mapping[str, int]
    ) -> Assignment:
        assignor = self._assignors.get(strategy)
        if assignor is None:
            raise InvalidRequestError(
                f"group {self.store.group!r} uses the strategy {strategy!r}, which this member lacks; "
                "give all members one strategy in common"
            )
        try:
            assignment = assignor.assign(members, counts)
        except StreamlogError:
            raise
        except Exception as error:
            raise InvalidRequestError(
                f"group {self.store.group!r}: the assignment strategy {strategy!r} failed: {error!r}"
            ) from error
        validate(assignment, members, counts)
        return assignment


def served_by_brokers(group: str, state: GroupState) -> GroupActiveError:
    """Why an embedded consumer cannot come in."""
    return GroupActiveError(
        f"group {group!r} is served by brokers, to {len(state.members)} members that are Kafka clients, so "
        "embedded consumers cannot join it. Stop those clients first (the group keeps its offsets), "
        "connect to the brokers with a Kafka client, or use another group_id"
    )


def renamed(info: MemberInfo, member_id: str, joined_ms: int) -> MemberInfo:
    """The same member under a new id: what was removed from a group comes back as somebody else."""
    return replace(info, id=member_id, joined_ms=joined_ms)


_live: weakref.WeakSet[Membership] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A thread inside Arrow's code while the interpreter goes away can abort the process."""
    for membership in list(_live):
        membership.stop(_EXIT_SECONDS)

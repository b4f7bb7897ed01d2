"""A consumer in a group: takes over and gives up partitions inside `poll`, and commits offsets.

The order of a handover, all in the consumer's thread: positions of what goes are committed (if auto-commit
is on), `on_revoked` runs and may commit too, the partitions are forgotten, and only then the group is told
that they are released. A partition that comes begins at its committed offset, or where `auto_offset_reset`
says, or at 0 if it was added to a topic that the group knew before.

L1  What was lost (the group went on without this member) is never committed: `on_lost` instead of
    `on_revoked`, and the consumer joins again as a new member.
L2  Offsets are committed from the consumer's thread only, one commit at a time, so that an older map can
    never overtake a newer one.
"""

from __future__ import annotations

import logging
import re
import socket
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from streamlog.clock import Clock, Runtime
from streamlog.consumer.assignors import Assignment, resolve
from streamlog.consumer.fetcher import Fetcher
from streamlog.consumer.group.membership import Membership, MembershipSettings, Pending, renamed
from streamlog.consumer.group.state import GroupState, MemberInfo, leave
from streamlog.consumer.group.store import Committed, GroupStore, OffsetToCommit
from streamlog.consumer.settings import ConsumerSettings
from streamlog.consumer.subscription import PartitionState, Subscription, check_partition
from streamlog.errors import (
    GroupActiveError,
    IllegalGenerationError,
    InvalidRequestError,
    OutOfRangeError,
    StreamlogError,
    UnavailableError,
)
from streamlog.log.reader import PartitionReader
from streamlog.log.topics import TopicInfo, Topics
from streamlog.model import TopicPartition

_log = logging.getLogger(__name__)

_COMMIT_SECONDS = 60.0
# An automatic commit comes again soon, and nobody asked for this one.
_AUTO_COMMIT_SECONDS = 5.0
_CLOSE_SECONDS = 30.0
_LEAVE_SECONDS = 1.0
_METADATA_MAX = 4096


class OffsetAndMetadata(NamedTuple):
    """An offset to commit, with a word of the user's own."""

    offset: int
    metadata: str = ""


class RebalanceListener(Protocol):
    """What a user may want to do when partitions come and go; called inside `poll`."""

    def on_assigned(self, partitions: set[TopicPartition]) -> None: ...

    def on_revoked(self, partitions: set[TopicPartition]) -> None: ...

    def on_lost(self, partitions: set[TopicPartition]) -> None: ...


Callback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], StreamlogError | None], None]


class GroupSession:
    """The group's side of one consumer; belongs to its thread."""

    def __init__(
        self,
        topics: Topics,
        settings: ConsumerSettings,
        runtime: Runtime,
        subscription: Subscription,
        fetcher: Fetcher,
    ) -> None:
        assert settings.group_id is not None
        self.group = settings.group_id
        self._topics = topics
        self._settings = settings
        self._runtime = runtime
        self._clock = runtime.clock
        self._subscription = subscription
        self._fetcher = fetcher
        self._store = GroupStore(self.group, topics.objects, runtime, topics.checkpointer)
        self._assignors = tuple(resolve(settings.partition_assignment_strategy))
        self._membership: Membership | None = None
        self._listener: RebalanceListener | None = None
        self._names: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._handled = (-1, -1)
        self._committed_at = self._followed_at = self._clock.monotonic()
        # What the table is known to hold: an automatic commit has nothing to say about these.
        self._saved: dict[TopicPartition, int] = {}
        self._announced = False
        self._in_callback = False

    # membership

    @property
    def member_id(self) -> str | None:
        """The id under which the group knows this consumer; None outside of it."""
        return None if self._membership is None else self._membership.member_id

    @property
    def generation(self) -> int:
        """The generation this consumer last took part in."""
        return self._handled[1] if self._membership is not None else -1

    def subscribe(
        self,
        names: Iterable[str],
        pattern: re.Pattern[str] | None,
        listener: RebalanceListener | None,
    ) -> None:
        """Joins the group, or changes what it reads for it; an error leaves all as it was."""
        names = tuple(names)
        for name in names:
            self._topics.get(name)
        before = (self._names, self._pattern, self._listener)
        self._names, self._pattern, self._listener = names, pattern, listener
        try:
            self._enter()
        except BaseException:
            self._names, self._pattern, self._listener = before
            raise
        self._subscription.manage(self._names, pattern)

    def _enter(self) -> None:
        if self._membership is not None:
            self._membership.join(self._member(self._membership.member_id))
            return
        info = self._member(self._new_id())
        counts = _Counts(self._topics, self._clock, self._settings.metadata_max_age_ms / 1000)
        membership = Membership(self._store, info, self._timings(), counts, self._runtime)
        membership.join(info)
        self._membership = membership
        # A consumer that is forgotten without `close` must not be kept alive by its keeper.
        weakref.finalize(self, membership.abandon).atexit = False

    def unsubscribe(self) -> None:
        """Leaves the group; offsets are committed first if that is automatic."""
        membership = self._membership
        if membership is None:
            return
        self.check_outside()
        until = self._clock.monotonic() + min(_CLOSE_SECONDS, self._timings().session_timeout)
        held = set(self._held())
        try:
            try:
                membership.refresh()
            except StreamlogError as error:
                _log.warning("group %s: leaving without a last look: %s", self.group, error)
            if held and membership.lost:
                self._lose(held)
            elif held:
                self._hand_over(held, until - self._clock.monotonic())
        finally:
            self._membership = None
            self._handled = (-1, -1)
            membership.leave(max(_LEAVE_SECONDS, until - self._clock.monotonic()))

    def check_outside(self) -> None:
        """Refuses what a listener must not do."""
        if self._in_callback:
            raise InvalidRequestError(
                "a rebalance callback cannot unsubscribe or close its consumer; do it after poll"
            )

    def close(self) -> None:
        """Leaves the group."""
        self.unsubscribe()

    def turn(self) -> bool:
        """What the group asks for, done inside `poll`; True if the partitions changed."""
        membership = self._membership
        if membership is None or self._in_callback:
            return False
        pending = membership.pending()
        changed = False
        if pending.lost:
            changed = self._rejoin(membership)
            pending = membership.pending()
        if (pending.state.epoch, pending.state.generation) != self._handled:
            changed = self._follow(membership, pending) or changed
        if self._is_due():
            changed = self.follow_topics() or changed
            self._follow_pattern(membership)
        self.auto_commit()
        return changed

    @property
    def restless(self) -> bool:
        """Whether `turn` has something to do: an iteration should come to an end soon."""
        membership = self._membership
        return membership is not None and membership.is_news(self._handled[0])

    def _follow(self, membership: Membership, pending: Pending) -> bool:
        state = pending.state
        held = set(self._held())
        gone = held & pending.release
        if gone:
            self._hand_over(gone)
        if state.target is not None:
            if state.to_release(membership.member_id):
                membership.released(state)
                # The next generation may have begun by that: look again at once.
                self._handled = (state.epoch, state.generation)
                again = membership.pending()
                if again.state.epoch != state.epoch:
                    return self._follow(membership, again) or bool(gone)
            self._handled = (state.epoch, state.generation)
            return bool(gone)
        owned = set(state.owned.get(membership.member_id, {}))
        stolen = held - owned - gone
        if stolen:
            self._lose(stolen)
        new = owned - (held - stolen)
        # What may fail comes first: only a turn that got through counts as done.
        starts = self._find_starts(new, state) if new else {}
        self._handled = (state.epoch, state.generation)
        if new:
            self._take_over(new, starts)
        return bool(gone or stolen or new)

    def _hand_over(self, gone: set[TopicPartition], timeout: float | None = None) -> None:
        if self._settings.enable_auto_commit:
            self._commit_positions(gone, timeout)
        try:
            self._call("on_revoked", gone)
        finally:
            self._drop(gone)

    def _lose(self, gone: set[TopicPartition]) -> None:
        self._drop(gone)
        self._call("on_lost", gone)

    def _rejoin(self, membership: Membership) -> bool:
        held = set(self._held())
        if held:
            self._lose(held)
        _log.info("group %s: joining again, the group went on without this member", self.group)
        membership.join(self._member(self._new_id()))
        return bool(held)

    def _find_starts(
        self, new: set[TopicPartition], state: GroupState
    ) -> dict[TopicPartition, _Start]:
        """Where to begin with partitions that come; those of topics that are gone are left out."""
        _, committed = self._store.read()
        live = {info.name: info for info in self._topics.list(refresh=True)}
        starts: dict[TopicPartition, _Start] = {}
        for tp in new:
            info = live.get(tp.topic)
            if info is None or tp.partition >= info.partitions:
                continue
            known = committed.get(tp)
            if known is not None and known.topic_id == info.id:
                starts[tp] = _Start(info, known.offset, known.offset)
            elif known is not None or state.is_new_partition(tp):
                # The topic was made again, or the partition was added: all it holds is new.
                starts[tp] = _Start(info, reset="earliest")
            else:
                starts[tp] = _Start(info)
        # Now, and not at the first fetch: "latest" means the end as of now, and a member that leaves
        # before it fetched must commit where it stood, or its successor would begin elsewhere.
        open_ = [tp for tp, start in starts.items() if start.offset is None]
        where = [(starts[tp].info, tp.partition) for tp in open_]
        for tp, (first, end) in zip(open_, self._fetcher.ask(where, _span), strict=True):
            policy = starts[tp].reset or self._settings.auto_offset_reset
            if policy != "none":
                starts[tp] = starts[tp]._replace(offset=first if policy == "earliest" else end)
        return starts

    def _take_over(self, new: set[TopicPartition], starts: dict[TopicPartition, _Start]) -> None:
        kept = {state.tp: state.info for state in self._subscription.states}
        for partition in self._subscription.own(
            kept | {tp: start.info for tp, start in starts.items()}
        ):
            start = starts[partition.tp]
            if start.offset is not None:
                partition.seek(start.offset)
            if start.reset:
                partition.reset = start.reset
            if start.saved is not None:
                self._saved[partition.tp] = start.saved
        self._fetcher.retain(self._subscription.states)
        self._call("on_assigned", new)

    def follow_topics(self) -> bool:
        """Drops partitions of topics that were deleted; one made again is taken up as the new one."""
        self._followed_at = self._clock.monotonic()
        live = {info.name: info for info in self._topics.list(refresh=True)}
        gone = {
            state.tp
            for state in self._subscription.states
            if state.tp.topic not in live or live[state.tp.topic].id != state.info.id
        }
        if gone:
            self._lose(gone)
        membership = self._membership
        again: set[TopicPartition] = set()
        if membership is not None:
            state = membership.pending().state
            # Owned and not read: the topic was gone for a moment. (What is new comes by `_follow`.)
            if state.target is None and self._handled == (state.epoch, state.generation):
                again = set(state.owned.get(membership.member_id, {})) - set(self._held())
            starts = self._find_starts(again, state) if again else {}
            again = set(starts)
            if again:
                self._take_over(again, starts)
        return bool(gone or again)

    def _is_due(self) -> bool:
        age = self._clock.monotonic() - self._followed_at
        return age * 1000 >= self._settings.metadata_max_age_ms

    def _drop(self, gone: set[TopicPartition]) -> None:
        kept = {s.tp: s.info for s in self._subscription.states if s.tp not in gone}
        self._subscription.own(kept)
        self._fetcher.retain(self._subscription.states)
        for tp in gone:
            self._saved.pop(tp, None)

    def _call(self, name: str, partitions: set[TopicPartition]) -> None:
        if self._listener is None:
            return
        method = getattr(self._listener, name, None)
        if method is None:
            # Whoever has no `on_lost` wants to know of losses all the same.
            method = getattr(self._listener, "on_revoked", None) if name == "on_lost" else None
        if method is None:
            return
        self._in_callback = True
        try:
            method(set(partitions))
        finally:
            self._in_callback = False

    def _follow_pattern(self, membership: Membership) -> None:
        if self._pattern is None:
            return
        info = self._member(membership.member_id)
        if info.topics != membership.info.topics:
            membership.join(info)

    # offsets

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout: float | None = None,
    ) -> None:
        """Commits offsets of owned (or, outside of the group, assigned) partitions."""
        if not offsets:
            return
        items = []
        infos = {state.tp: state.info for state in self._subscription.states}
        for tp, item in offsets.items():
            info = infos.get(tp) or self._info(tp)
            items.append(OffsetToCommit(info, tp.partition, item.offset, item.metadata))
        patience = _COMMIT_SECONDS if timeout is None else max(timeout, 0.0)
        if self._membership is None:
            self._commit_alone(items, patience)
        else:
            self._store.commit(items, self._membership.member_id, self.generation, patience)
        self._committed_at = self._clock.monotonic()
        self._saved |= {tp: item.offset for tp, item in offsets.items() if tp in infos}

    def _commit_alone(self, items: list[OffsetToCommit], patience: float) -> None:
        """Standalone use: refused while the group has members, unless none of them lives any more."""
        if not self._announced:
            self._store.announce()
            self._announced = True
        try:
            self._store.commit(items, None, -1, patience)
        except GroupActiveError:
            state = self._store.state()
            if self._store.is_alive(state):
                raise

            def bury(current: GroupState) -> GroupState | None:
                same = current.epoch == state.epoch
                return leave(current, list(current.members), {}, _assign_nobody) if same else None

            self._store.change(bury)
            self._store.forget(list(state.members))
            self._store.commit(items, None, -1, patience)

    def check(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Refuses offsets that a user gives and that are not in the log."""
        where = []
        for tp, item in offsets.items():
            if isinstance(item.offset, bool) or not isinstance(item.offset, int):
                raise InvalidRequestError(
                    f"commit: offset {item.offset!r} of {tp} is not a whole number"
                )
            if not isinstance(item.metadata, str) or len(item.metadata) > _METADATA_MAX:
                raise InvalidRequestError(
                    f"commit: the metadata of {tp} is not a text of at most {_METADATA_MAX} characters"
                )
            info = self._info(tp)
            where.append((info, tp.partition))
        ranges = self._fetcher.ask(where, lambda reader: (reader.start, reader.end))
        for (tp, item), (start, end) in zip(offsets.items(), ranges, strict=True):
            if not start <= item.offset <= end:
                raise OutOfRangeError(
                    f"commit: offset {item.offset} of {tp} is not in the log, which is [{start}, {end}); "
                    f"allowed are {start} to {end} (the next record to read); nothing was committed"
                )

    def committed(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        """What the group has committed, by a fresh look."""
        _, found = self._store.read()
        answer: dict[TopicPartition, Committed | None] = {}
        for tp in tps:
            info = self._info(tp)
            known = found.get(tp)
            answer[tp] = known if known is not None and known.topic_id == info.id else None
        return answer

    def _info(self, tp: TopicPartition) -> TopicInfo:
        """The topic of a partition, looked at again if the partition may have been added since."""
        info = self._topics.get(tp.topic)
        if isinstance(tp.partition, int) and tp.partition >= info.partitions:
            info = self._topics.get(tp.topic, refresh=True)
        check_partition(tp, info)
        return info

    def start_from_committed(self, states: Iterable[PartitionState]) -> None:
        """Standalone use (`assign` with a group id): begin where the group stopped."""
        states = list(states)
        known = self.committed([state.tp for state in states])
        for state in states:
            found = known[state.tp]
            if found is not None:
                state.seek(found.offset)
                self._saved[state.tp] = found.offset

    def auto_commit(self) -> None:
        """Commits the positions that moved, if that is automatic and due."""
        settings = self._settings
        if not settings.enable_auto_commit or self._in_callback:
            return
        if (self._clock.monotonic() - self._committed_at) * 1000 < settings.auto_commit_interval_ms:
            return
        self._committed_at = self._clock.monotonic()
        self._commit_positions(self._held(), _AUTO_COMMIT_SECONDS)

    def commit_on_close(self) -> None:
        """Standalone use: the last positions, if committing is automatic."""
        if self._membership is None and self._settings.enable_auto_commit:
            self._commit_positions(self._held(), _CLOSE_SECONDS)

    def _commit_positions(self, tps: Iterable[TopicPartition], timeout: float | None) -> None:
        """An automatic commit: a refusal or a silent store costs no more than reading again."""
        moved = {
            tp: OffsetAndMetadata(offset)
            for tp, offset in self._positions(tps).items()
            if self._saved.get(tp) != offset
        }
        try:
            self.commit(moved, timeout)
        except (IllegalGenerationError, GroupActiveError, UnavailableError) as error:
            _log.warning("group %s: not committed: %s", self.group, error)

    def _positions(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = set(tps)
        return {
            state.tp: state.position
            for state in self._subscription.states
            if state.tp in wanted and state.position is not None
        }

    def _held(self) -> list[TopicPartition]:
        return [state.tp for state in self._subscription.states]

    # about this member

    def _member(self, member_id: str) -> MemberInfo:
        names = set(self._names)
        if self._pattern is not None:
            names |= {i.name for i in self._topics.list() if self._pattern.fullmatch(i.name)}
        settings = self._settings
        current = None if self._membership is None else self._membership.info
        joined = self._clock.time_ms()
        info = MemberInfo(
            id=member_id,
            topics=tuple(sorted(names)),
            strategies=tuple(assignor.name for assignor in self._assignors),
            instance=settings.group_instance_id,
            client_id=settings.client_id,
            host=socket.gethostname(),
            joined_ms=joined,
            session_ms=settings.session_timeout_ms,
            release_ms=settings.max_poll_interval_ms,
        )
        if current is not None and current.id == member_id:
            return renamed(info, member_id, current.joined_ms)
        return info

    def _new_id(self) -> str:
        return f"{self._settings.client_id}-{self._runtime.ids.new()[:12]}"

    def _timings(self) -> MembershipSettings:
        settings = self._settings
        interval = settings.heartbeat_interval_s(local=self._topics.objects.local)
        return MembershipSettings(
            session_timeout=settings.session_timeout_ms / 1000,
            heartbeat_interval=interval,
            max_poll_interval=settings.max_poll_interval_ms / 1000,
            assignors=self._assignors,
        )


class _Start(NamedTuple):
    """Where to begin with a partition: at an offset, or by a rule (None: the consumer's own)."""

    info: TopicInfo
    offset: int | None = None
    saved: int | None = None
    reset: str | None = None


class _Counts:
    """Partitions a topic; belongs to the keeper, so it knows nothing of the consumer."""

    def __init__(self, topics: Topics, clock: Clock, max_age: float) -> None:
        self._topics = topics
        self._clock = clock
        self._max_age = max_age
        self._looked_at = float("-inf")

    def __call__(self, *, fresh: bool) -> Mapping[str, int]:
        now = self._clock.monotonic()
        refresh = fresh or now - self._looked_at >= self._max_age
        found = self._topics.list(refresh=refresh)
        if refresh:
            self._looked_at = now
        return {info.name: info.partitions for info in found}


def _span(reader: PartitionReader) -> tuple[int, int]:
    return reader.start, reader.end


def _assign_nobody(*_: object) -> Assignment:
    return {}

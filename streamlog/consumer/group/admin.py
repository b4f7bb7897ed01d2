"""Groups from outside: which there are, who is in them, how far they are, and putting them elsewhere.

A group is *stable* or *rebalancing* while it has members, *empty* when it has offsets only, *dead* when it
was deleted. Members that were all killed at once are nobody's to remove, so whoever wants to change an
active group's offsets watches the heartbeats first, for as long as the members' own session timeouts.

A reset or a deletion raises the generation in the same commit: whoever was at work is fenced by it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.config import validate_group_name
from streamlog.consumer.group.kafka import COORDINATOR_BEAT
from streamlog.consumer.group.state import GroupState
from streamlog.consumer.group.store import Committed, GroupStore, OffsetToCommit
from streamlog.consumer.positions import to_tp
from streamlog.errors import (
    CorruptLogError,
    GroupActiveError,
    GroupNotFoundError,
    InvalidRequestError,
    OutOfRangeError,
    TopicNotFoundError,
)
from streamlog.log.reader import PartitionReader
from streamlog.log.topics import TopicInfo, Topics
from streamlog.model import TopicPartition, to_datetime
from streamlog.schema import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, TIMESTAMP_TYPE


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member as the group's table has it, and when its heartbeat was last written."""

    id: str
    instance: str | None
    client_id: str
    host: str
    joined_at: datetime
    last_heartbeat: datetime | None
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """One partition of a group: what is committed and what is left. `lag` is None if nothing is."""

    topic: str
    partition: int
    committed: int | None
    end: int
    lag: int | None
    owner: str | None
    committed_at: datetime | None
    metadata: str


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as it is now."""

    name: str
    state: str
    generation: int
    strategy: str
    members: tuple[GroupMember, ...]
    partitions: tuple[GroupPartition, ...]

    @property
    def lag(self) -> int:
        """Records left to read, over the partitions that have a committed offset."""
        return sum(part.lag or 0 for part in self.partitions)

    def to_arrow(self) -> pa.Table:
        """One row a partition, ready for a DataFrame."""
        return lag_table(self.partitions)

    def _repr_html_(self) -> str:
        from streamlog import display

        return display.group_html(self)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One line about a group."""

    name: str
    state: str
    members: int
    generation: int


@dataclass(frozen=True, slots=True)
class Move:
    """One partition of a reset: from where to where."""

    topic: str
    partition: int
    before: int | None
    after: int


class Group:
    """One consumer group."""

    def __init__(self, name: str, topics: Topics, runtime: Runtime) -> None:
        self.name = name
        self._topics = topics
        self._runtime = runtime
        self._store = GroupStore(name, topics.objects, runtime, topics.checkpointer)

    def state(self) -> str:
        """stable, rebalancing, empty or dead."""
        return state_name(self._store.state())

    def summary(self) -> GroupSummary:
        """One line about the group."""
        state = self._store.state()
        return GroupSummary(self.name, state_name(state), len(state.members), state.generation)

    def read(self) -> tuple[GroupState, dict[TopicPartition, Committed]]:
        """The group's state and its committed offsets."""
        return self._store.read()

    def describe(self) -> GroupDescription:
        """Everything: members with their partitions, and a row a partition with its lag."""
        state, offsets = self._store.read()
        return GroupDescription(
            name=self.name,
            state=state_name(state),
            generation=state.generation,
            strategy=state.strategy,
            members=tuple(self._members(state)),
            partitions=tuple(self._partitions(state, offsets)),
        )

    def lag(self) -> pa.Table:
        """A row a partition: topic, partition, committed, end, lag, owner, committed_at, metadata."""
        return self.describe().to_arrow()

    def offsets(self, as_of: int | datetime | None = None) -> pa.Table:
        """The committed offsets, now or as they were at a time (milliseconds or an aware datetime)."""
        found = self._store.read()[1] if as_of is None else self._store.as_of(to_ms(as_of))
        rows = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "offset": item.offset,
                "metadata": item.metadata,
                "member": item.member,
                "generation": item.generation,
                "committed_at": item.committed_at,
            }
            for tp, item in sorted(found.items())
        ]
        schema = pa.schema(
            [
                ("topic", pa.string()),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("metadata", pa.string()),
                ("member", pa.string()),
                ("generation", pa.int32()),
                ("committed_at", TIMESTAMP_TYPE),
            ]
        )
        return pa.Table.from_pylist(rows, schema=schema)

    def reset(
        self,
        to: str | int | datetime | None = None,
        *,
        as_of: int | datetime | None = None,
        topics: Iterable[str] | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[Move]:
        """Puts the group elsewhere, and returns the plan (which `dry_run` only shows).

        `to` is "earliest", "latest", an offset, or a time (a datetime: the first record at or after
        it); `as_of` is where the group itself was at a time. All topics that the group has offsets
        of, unless some are named. Refused while members are at work, unless `force`: they are then
        fenced, and join again.
        """
        if (to is None) == (as_of is None):
            raise InvalidRequestError(
                "reset: give either to= ('earliest', 'latest', an offset or a datetime) or as_of="
            )
        state, offsets = self._store.read()
        if not force:
            self._refuse_active(state, "reset")
        wanted = self._wanted(offsets, topics, partitions)
        if as_of is not None:
            targets = self._former(wanted, to_ms(as_of))
        else:
            targets = self._targets(wanted, to)
        known = {
            tp: item.offset
            for tp, item in offsets.items()
            if tp in wanted and item.topic_id == wanted[tp].id
        }
        plan = [Move(tp.topic, tp.partition, known.get(tp), targets[tp]) for tp in sorted(targets)]
        if not dry_run:
            items = [
                OffsetToCommit(wanted[tp], tp.partition, offset) for tp, offset in targets.items()
            ]
            self._store.announce()
            self._move(state, items, force)
        return plan

    def delete(self, *, force: bool = False) -> None:
        """Forgets the group: its offsets and, with `force`, its members, which are fenced."""
        state = self._store.state()
        if not force:
            self._refuse_active(state, "delete")

        def step(
            current: GroupState, _: dict[TopicPartition, Committed]
        ) -> tuple[GroupState, None]:
            self._check_unchanged(state, current, force)
            return _emptied(current, deleted=True), None

        self._store.replace(step)
        self._store.forget([*state.members, COORDINATOR_BEAT])
        self._topics.objects.delete([paths.group_marker(self.name)])
        if self._store.state().members:
            # Somebody joined meanwhile: the group is there again, and is to be listed.
            self._store.announce()

    def last_activity(self) -> float:
        """When the group was last heard of (made, a commit, a heartbeat); milliseconds since 1970."""
        objects = self._topics.objects
        marker = objects.head(paths.group_marker(self.name))
        times = [info.modified for info in objects.list(paths.member_dir(self.name))]
        times += [] if marker is None else [marker.modified]
        _, offsets = self._store.read()
        times += [item.committed_at.timestamp() for item in offsets.values() if item.committed_at]
        return max(times, default=0.0) * 1000

    # inside

    def _move(self, seen: GroupState, items: Sequence[OffsetToCommit], force: bool) -> None:
        def step(
            current: GroupState, _: dict[TopicPartition, Committed]
        ) -> tuple[GroupState, Sequence[OffsetToCommit]]:
            self._check_unchanged(seen, current, force)
            return _emptied(current, deleted=False), items

        self._store.replace(step)
        self._store.forget([*seen.members, COORDINATOR_BEAT])

    def _check_unchanged(self, seen: GroupState, current: GroupState, force: bool) -> None:
        if not force and current.epoch != seen.epoch and current.members:
            raise GroupActiveError(
                f"group {self.name!r}: a member joined meanwhile; stop it, or use force"
            )

    def _refuse_active(self, state: GroupState, doing: str) -> None:
        """Waits, as long as the members may be silent, to see whether one of them lives."""
        if self._store.is_alive(state):
            raise GroupActiveError(
                f"{doing}: group {self.name!r} has members at work ({len(state.members)}); stop "
                "them first, or use force to fence them (they then join again)"
            )

    def _members(self, state: GroupState) -> Iterable[GroupMember]:
        beats = {
            info.path.rsplit("/", 1)[-1]: info.modified
            for info in self._topics.objects.list(paths.member_dir(self.name))
        }
        for key in sorted(state.members):
            member = state.members[key]
            # Kafka's members beat to their broker, which beats for all of them.
            name = key if state.kafka is None else COORDINATOR_BEAT
            beat = beats.get(paths.encode(name))
            yield GroupMember(
                id=key,
                instance=member.instance,
                client_id=member.client_id,
                host=member.host,
                joined_at=to_datetime(member.joined_ms),
                last_heartbeat=None if beat is None else to_datetime(int(beat * 1000)),
                topics=member.topics,
                partitions=tuple(sorted(state.owned.get(key, {}))),
            )

    def _partitions(
        self, state: GroupState, offsets: dict[TopicPartition, Committed]
    ) -> list[GroupPartition]:
        live = {info.name: info for info in self._topics.list(refresh=True)}
        names = {tp.topic for tp in offsets} | set(state.counts)
        tps = [
            TopicPartition(name, number)
            for name in sorted(names)
            if name in live
            for number in range(live[name].partitions)
        ]
        ends = self._topics.ask(
            [(live[tp.topic], tp.partition) for tp in tps], lambda r: (r.start, r.end)
        )
        rows = []
        for tp, (start, end) in zip(tps, ends, strict=True):
            item = offsets.get(tp)
            if item is not None and item.topic_id != live[tp.topic].id:
                item = None
            committed = None if item is None else item.offset
            rows.append(
                GroupPartition(
                    topic=tp.topic,
                    partition=tp.partition,
                    committed=committed,
                    end=end,
                    lag=None if committed is None else max(0, end - max(committed, start)),
                    owner=state.owner(tp),
                    committed_at=None if item is None else item.committed_at,
                    metadata="" if item is None else item.metadata,
                )
            )
        return rows

    def _wanted(
        self,
        offsets: dict[TopicPartition, Committed],
        topics: Iterable[str] | None,
        partitions: Iterable[TopicPartition] | None,
    ) -> dict[TopicPartition, TopicInfo]:
        if partitions is not None:
            chosen = [to_tp(tp, "reset") for tp in partitions]
            infos = {tp: self._topics.get(tp.topic) for tp in chosen}
            for tp, info in infos.items():
                self._topics.partition_reader(info, tp.partition)
            return infos
        if topics is not None:
            names = [topics] if isinstance(topics, str) else list(topics)
        else:
            names = sorted({tp.topic for tp in offsets})
        if not names:
            raise InvalidRequestError(
                f"reset: group {self.name!r} has no offsets yet; name the topics"
            )
        found: dict[TopicPartition, TopicInfo] = {}
        for name in names:
            try:
                info = self._topics.get(name, refresh=True)
            except TopicNotFoundError:
                if topics is not None:
                    raise
                continue
            found |= {TopicPartition(name, number): info for number in range(info.partitions)}
        return found

    def _former(
        self, wanted: dict[TopicPartition, TopicInfo], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Where the group was at a time; at the log start where that is gone since."""
        former = self._store.as_of(timestamp_ms)
        tps = [tp for tp, info in wanted.items() if tp in former and former[tp].topic_id == info.id]
        if not tps:
            raise InvalidRequestError(
                f"reset: group {self.name!r} had committed nothing of these topics at that time"
            )
        starts = self._topics.ask([(wanted[tp], tp.partition) for tp in tps], lambda r: r.start)
        return {tp: max(former[tp].offset, start) for tp, start in zip(tps, starts, strict=True)}

    def _targets(
        self, wanted: dict[TopicPartition, TopicInfo], to: str | int | datetime | None
    ) -> dict[TopicPartition, int]:
        if isinstance(to, str) and to not in ("earliest", "latest"):
            raise InvalidRequestError(
                f"reset: {to!r} is not a place; allowed: 'earliest', 'latest', an offset, a datetime"
            )
        if isinstance(to, bool) or not isinstance(to, str | int | datetime):
            raise InvalidRequestError(
                f"reset: {to!r} is not a place; allowed: 'earliest', 'latest', an offset, a datetime"
            )
        timestamp = to_ms(to) if isinstance(to, datetime) else 0

        def target(reader: PartitionReader) -> int:
            if isinstance(to, datetime):
                found = reader.offset_for_time(timestamp)
                return reader.end if found is None else found[0]
            if isinstance(to, int):
                if not reader.start <= to <= reader.end:
                    raise OutOfRangeError(
                        f"reset: offset {to} is not in {reader.table}, which is "
                        f"[{reader.start}, {reader.end}); nothing was changed"
                    )
                return to
            return reader.start if to == "earliest" else reader.end

        tps = list(wanted)
        found = self._topics.ask([(wanted[tp], tp.partition) for tp in tps], target)
        return dict(zip(tps, found, strict=True))

    def __repr__(self) -> str:
        return f"<Group {self.name}>"

    def _repr_html_(self) -> str:
        return self.describe()._repr_html_()


class Groups:
    """The groups of one root."""

    def __init__(self, topics: Topics, runtime: Runtime) -> None:
        self._topics = topics
        self._runtime = runtime

    def names(self) -> list[str]:
        """All groups, by name."""
        objects = self._topics.objects
        found = []
        for info in objects.list(paths.GROUPS_DIR):
            if info.path.endswith("/group.json") and (data := objects.get(info.path)) is not None:
                try:
                    found.append(str(json.loads(data)["group"]))
                except (ValueError, KeyError, TypeError) as error:
                    raise CorruptLogError(
                        f"{info.path} is not readable ({error}); it should hold "
                        '{"group": "<name>"}: put it right, or delete it'
                    ) from error
        return sorted(found)

    def list(self) -> Sequence[GroupSummary]:
        """One line a group."""
        return [Group(name, self._topics, self._runtime).summary() for name in self.names()]

    def get(self, name: str) -> Group:
        """A group by its name."""
        if not isinstance(name, str) or not paths.fits(name):
            validate_group_name(name)
        if self._topics.objects.head(paths.group_marker(name)) is None:
            # Only now: Kafka's clients name their groups as they like.
            validate_group_name(name)
            near = difflib.get_close_matches(name, self.names(), n=1)
            hint = (
                f"did you mean {near[0]!r}?" if near else "a group begins with its first consumer"
            )
            raise GroupNotFoundError(f"there is no consumer group {name!r}; {hint}")
        return Group(name, self._topics, self._runtime)

    def committed(self) -> dict[tuple[str, int], dict[str, int]]:
        """By topic id and partition: the next offset of each group that has one."""
        found: dict[tuple[str, int], dict[str, int]] = {}
        for name in self.names():
            state, offsets = Group(name, self._topics, self._runtime).read()
            if state.deleted:
                continue
            for tp, item in offsets.items():
                found.setdefault((item.topic_id, tp.partition), {})[name] = item.offset
        return found

    def expire(self, retention_ms: int, *, dry_run: bool = False) -> Sequence[str]:
        """Deletes groups that committed nothing and had no heartbeat for longer; their names."""
        limit = self._topics.objects.store_time() * 1000 - retention_ms
        old = []
        for name in self.names():
            group = Group(name, self._topics, self._runtime)
            if group.last_activity() < limit:
                try:
                    if not dry_run:
                        group.delete()
                except GroupActiveError:
                    continue
                old.append(name)
        return old


def state_name(state: GroupState) -> str:
    """What a group is about, in Kafka's words."""
    if state.deleted:
        return "dead"
    return {"preparing": "rebalancing"}.get(state.phase, state.phase)


def lag_table(rows: Sequence[GroupPartition]) -> pa.Table:
    """Partitions of a group as an Arrow table."""
    return pa.table(
        {
            "topic": pa.array([row.topic for row in rows], pa.string()),
            "partition": pa.array([row.partition for row in rows], pa.int32()),
            "committed": pa.array([row.committed for row in rows], pa.int64()),
            "end": pa.array([row.end for row in rows], pa.int64()),
            "lag": pa.array([row.lag for row in rows], pa.int64()),
            "owner": pa.array([row.owner for row in rows], pa.string()),
            "committed_at": pa.array([row.committed_at for row in rows], TIMESTAMP_TYPE),
            "metadata": pa.array([row.metadata for row in rows], pa.string()),
        }
    )


def to_ms(moment: object) -> int:
    """A time as milliseconds since 1970."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidRequestError(f"{moment!r} has no time zone; give one, e.g. tzinfo=UTC")
        moment = round(moment.timestamp() * 1000)
    if (
        isinstance(moment, bool)
        or not isinstance(moment, int)
        or not MIN_TIMESTAMP_MS <= moment <= MAX_TIMESTAMP_MS
    ):
        raise InvalidRequestError(
            f"{moment!r} is not a time; give an aware datetime, or milliseconds since 1970 from "
            f"{MIN_TIMESTAMP_MS} to {MAX_TIMESTAMP_MS}"
        )
    return moment


def _emptied(state: GroupState, *, deleted: bool) -> GroupState:
    """The state without members, one generation on: whoever was at work is fenced."""
    return replace(
        state,
        generation=state.generation + 1,
        epoch=state.epoch + 1,
        members={},
        owned={},
        target=None,
        strategy="",
        counts={},
        # A group of this name that begins anew has seen no topic before.
        first_counts={} if deleted else state.first_counts,
        deleted=deleted,
        # A broker that served it finds its mark gone, and its members join again.
        kafka=None,
    )

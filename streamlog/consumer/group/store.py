"""A group on storage: its table (offsets and state in one commit) and its members' heartbeats.

The table's rows are the committed offsets, always the current ones; its note is the `GroupState`. An offset
commit and a rebalance are both commits to this table, so they race for the same version and each is
computed from what the other left: a member of an old generation is refused by construction.

A heartbeat is an object that its member overwrites; it also says which epoch's partitions the member has
released. Nobody's clock matters: who looks counts how often in a row an object was unchanged.

Safe for several threads (the table is locked).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.consumer.group.kafka import COORDINATOR_BEAT
from streamlog.consumer.group.state import GroupState, may_commit
from streamlog.errors import GroupActiveError, IllegalGenerationError, UnavailableError
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.table import Content, Row, SmallTable
from streamlog.log.topics import TopicInfo
from streamlog.model import TopicPartition, to_datetime
from streamlog.schema import TIMESTAMP_TYPE
from streamlog.storage.objects import Objects

# How far back `offsets(as_of=…)` and a reset to "as of" reach; older versions are cleaned away.
HISTORY_SECONDS = 86_400.0

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("metadata", pa.string()),
        pa.field("member", pa.string()),
        pa.field("generation", pa.int32(), nullable=False),
        pa.field("committed_at", TIMESTAMP_TYPE, nullable=False),
        pa.field("topic_id", pa.string(), nullable=False),
    ]
)

_PATIENCE = 60.0
_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset: the next record to read."""

    offset: int
    metadata: str = ""
    member: str | None = None
    generation: int = 0
    committed_at: datetime | None = None
    topic_id: str = ""


class OffsetToCommit(NamedTuple):
    """An offset on its way into the table."""

    info: TopicInfo
    partition: int
    offset: int
    metadata: str = ""


class Beat(NamedTuple):
    """What a heartbeat says beside that its member lives: the epoch whose partitions are released."""

    number: int
    released_epoch: int


class Draft:
    """State and offsets on their way to the next version; a change works on one of its own."""

    def __init__(self, state: GroupState, rows: Sequence[Row], now_ms: int) -> None:
        self._before = state
        self.state = state
        self._rows = {TopicPartition(row["topic"], row["partition"]): row for row in rows}
        self._now_ms = now_ms
        self._moved = False

    @property
    def offsets(self) -> dict[TopicPartition, Committed]:
        """The offsets as they stand in the draft."""
        return offsets_of(list(self._rows.values()))

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return self._moved or self.state is not self._before

    def put(self, item: OffsetToCommit, member: str | None) -> None:
        """Sets an offset."""
        tp = TopicPartition(item.info.name, item.partition)
        self._rows[tp] = _row(item, member, self.state.generation, self._now_ms)
        self._moved = True

    def drop(self, tp: TopicPartition) -> bool:
        """Forgets an offset; False if there was none."""
        if self._rows.pop(tp, None) is None:
            return False
        self._moved = True
        return True

    def content(self) -> Content:
        """What is written."""
        rows = tuple(self._rows[tp] for tp in sorted(self._rows))
        return Content(rows, self.state.to_json())


class GroupStore:
    """One group of one root."""

    def __init__(
        self, group: str, objects: Objects, runtime: Runtime, checkpointer: Checkpointer
    ) -> None:
        self.group = group
        self.objects = objects
        self._clock = runtime.clock
        self._lock = threading.RLock()
        self._known: tuple[object, GroupState] = (None, GroupState())
        self._table = SmallTable(
            objects,
            paths.group_table(group),
            SCHEMA,
            runtime,
            checkpointer,
            history=HISTORY_SECONDS,
        )

    # the table

    @property
    def version(self) -> int:
        """The version last read; -1 while nothing was ever written."""
        return self._table.version

    def read(self) -> tuple[GroupState, dict[TopicPartition, Committed]]:
        """State and offsets as they are now."""
        with self._locked():
            content = self._table.read()
            return self._state(content), offsets_of(content.rows)

    def state(self) -> GroupState:
        """The state as it is now; a miss is one GET."""
        with self._locked():
            return self._state(self._table.read())

    def change(
        self, step: Callable[[GroupState], GroupState | None], timeout: float = _PATIENCE
    ) -> GroupState:
        """Moves the group's state by a pure step; offsets stay as they are."""

        def change(content: Content) -> Content | None:
            new = step(self._state(content))
            return None if new is None else Content(content.rows, new.to_json())

        with self._locked(timeout):
            return self._state(self._table.update(change, timeout))

    def replace(
        self,
        step: Callable[
            [GroupState, dict[TopicPartition, Committed]],
            tuple[GroupState, Sequence[OffsetToCommit] | None],
        ],
    ) -> GroupState:
        """Moves the state, and some offsets or (None) forgets all of them: resets and deletions."""

        def change(content: Content) -> Content:
            state, offsets = step(self._state(content), offsets_of(content.rows))
            rows: tuple[Row, ...] = ()
            if offsets is not None:
                rows = self._merged(content.rows, offsets, None, state.generation)
            return Content(rows, state.to_json())

        with self._locked():
            return self._state(self._table.update(change))

    def edit(self, step: Callable[[Draft], None], timeout: float = _PATIENCE) -> None:
        """Several changes in one commit, or none if `step` changes nothing; it may run several times."""

        def change(content: Content) -> Content | None:
            draft = Draft(self._state(content), content.rows, self._clock.time_ms())
            step(draft)
            return draft.content() if draft.changed else None

        with self._locked(timeout):
            self._table.update(change, timeout)

    def commit(
        self,
        offsets: Sequence[OffsetToCommit],
        member: str | None,
        generation: int,
        timeout: float = _PATIENCE,
    ) -> None:
        """Merges offsets into the table, as a member that last saw `generation`, or (None) from outside."""

        def change(content: Content) -> Content:
            state = self._state(content)
            self._check(state, offsets, member, generation)
            rows = self._merged(content.rows, offsets, member, state.generation)
            return Content(rows, content.note)

        with self._locked(timeout):
            self._table.update(change, timeout)

    def _merged(
        self,
        rows: Sequence[Row],
        offsets: Sequence[OffsetToCommit],
        member: str | None,
        generation: int,
    ) -> tuple[Row, ...]:
        merged = {TopicPartition(row["topic"], row["partition"]): row for row in rows}
        for item in offsets:
            tp = TopicPartition(item.info.name, item.partition)
            merged[tp] = _row(item, member, generation, self._clock.time_ms())
        return tuple(merged[tp] for tp in sorted(merged))

    @contextmanager
    def _locked(self, timeout: float = _PATIENCE) -> Iterator[None]:
        """The table for oneself: whoever waits for a silent store must not hold up all others."""
        if not self._lock.acquire(timeout=max(timeout, 0.0)):
            raise UnavailableError(
                f"group {self.group!r}: its table did not answer another thread for {timeout:.1f} s"
            )
        try:
            yield
        finally:
            self._lock.release()

    def _check(
        self,
        state: GroupState,
        offsets: Sequence[OffsetToCommit],
        member: str | None,
        generation: int,
    ) -> None:
        if member is None:
            if state.members:
                raise GroupActiveError(
                    f"group {self.group!r} has members at work ({len(state.members)}), so only they "
                    "commit its offsets; stop them first, or use another group"
                )
            return
        if member not in state.members:
            raise IllegalGenerationError(
                f"group {self.group!r} went on without this member (generation {state.generation}, this "
                f"one had {generation}): it was silent for too long, or was replaced. Nothing was "
                "committed; poll again to rejoin, and what was not committed is read again"
            )
        for item in offsets:
            tp = TopicPartition(item.info.name, item.partition)
            if not may_commit(state, member, generation, tp):
                owner = state.owner(tp)
                raise IllegalGenerationError(
                    f"group {self.group!r}: {tp} is not this member's to commit in generation "
                    f"{state.generation} ({'nobody owns it' if owner is None else f'{owner} owns it'}); "
                    "nothing was committed"
                )

    def _state(self, content: Content) -> GroupState:
        # The same note is asked for at every tick; reading it once is enough.
        if content.note is not self._known[0]:
            where = f"{self._table.path}, version {self._table.version}"
            self._known = (content.note, GroupState.from_json(where, content.note))
        return self._known[1]

    def as_of(self, timestamp_ms: int) -> dict[TopicPartition, Committed]:
        """The offsets as they were at a time."""
        with self._locked():
            return offsets_of(self._table.as_of(timestamp_ms).rows)

    # heartbeats

    def announce(self) -> None:
        """Leaves the mark by which a group is listed."""
        marker = json.dumps({"group": self.group}).encode()
        self.objects.put_if_absent(paths.group_marker(self.group), marker, durable=False)

    def beat(self, member: str, beat: Beat) -> None:
        """Overwrites a member's heartbeat."""
        data = json.dumps({"beat": beat.number, "released": beat.released_epoch}).encode()
        self.objects.put(paths.member_beat(self.group, member), data)

    def etags(self) -> Mapping[str, str]:
        """All heartbeats there are: encoded member -> a text that changes with every beat."""
        return {
            info.path.rsplit("/", 1)[-1]: f"{info.etag}/{info.modified}"
            for info in self.objects.list(paths.member_dir(self.group))
        }

    def released(self, member: str) -> int:
        """The epoch whose partitions a member says to have released; -1 if it never said."""
        data = self.objects.get(paths.member_beat(self.group, member))
        if data is None:
            return -1
        try:
            return int(json.loads(data)["released"])
        except (ValueError, KeyError, TypeError):
            # Somebody wrote into it by hand; the member's next beat puts it right.
            return -1

    def is_alive(self, state: GroupState) -> bool:
        """Whether a member beats: looks for as long as the members themselves may be silent."""
        if not state.members:
            return False
        longest = max(member.session_ms for member in state.members.values()) / 1000
        # For Kafka's members their broker beats; it counts their own heartbeats itself.
        beating = state.members if state.kafka is None else [COORDINATOR_BEAT]
        names = {paths.encode(member) for member in beating}
        first = self.etags()
        until = self._clock.monotonic() + longest
        while self._clock.monotonic() < until:
            self._clock.sleep(min(_LOOK_SECONDS, longest))
            now = self.etags()
            if any(now.get(name) != first.get(name) for name in names):
                return True
        return False

    def forget(self, members: Sequence[str]) -> None:
        """Removes the heartbeats of members that are gone."""
        self.forget_beats([paths.encode(member) for member in members])

    def forget_beats(self, names: Sequence[str]) -> None:
        """Removes heartbeats by the names that `etags` has for them."""
        folder = paths.member_dir(self.group)
        self.objects.delete([f"{folder}/{name}" for name in names])


def _row(item: OffsetToCommit, member: str | None, generation: int, now_ms: int) -> Row:
    return {
        "topic": item.info.name,
        "partition": item.partition,
        "offset": item.offset,
        "metadata": item.metadata,
        "member": member,
        "generation": generation,
        "committed_at": to_datetime(now_ms),
        "topic_id": item.info.id,
    }


def offsets_of(rows: Sequence[Row]) -> dict[TopicPartition, Committed]:
    """Committed offsets by partition."""
    return {
        TopicPartition(row["topic"], row["partition"]): Committed(
            offset=row["offset"],
            metadata=row["metadata"] or "",
            member=row["member"],
            generation=row["generation"],
            committed_at=row["committed_at"],
            topic_id=row["topic_id"],
        )
        for row in rows
    }

"""The registry of topics: one small Delta table, `__topics`, that says which topics there are.

G1  A topic exists when, and only when, the registry has a row of it that is not deleted.
G2  Of one name at most one row is live; every row of a name has another incarnation, and the highest
    one is kept for ever: a topic made again gets a new path, which no client of its former self knows.
G3  Readers see a change within `MAX_AGE` seconds; whoever changes something looks first.

Rows of deleted topics stay until their files are gone (`purged`). Safe to use from several threads.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.config import TopicConfig
from streamlog.errors import (
    CorruptLogError,
    InvalidRequestError,
    TopicExistsError,
    TopicNotFoundError,
)
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.table import Content, Row, SmallTable
from streamlog.model import to_datetime
from streamlog.schema import TIMESTAMP_TYPE
from streamlog.storage.objects import Objects

Rows = tuple[Row, ...]

MAX_AGE = 5.0
MAX_PARTITIONS = 10_000

_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("incarnation", pa.int32(), nullable=False),
        pa.field("partitions", pa.int32(), nullable=False),
        pa.field("config", pa.string(), nullable=False),
        pa.field("created_at", TIMESTAMP_TYPE, nullable=False),
        pa.field("deleted_at", TIMESTAMP_TYPE),
        pa.field("purged", pa.bool_(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What the registry knows of a topic."""

    name: str
    id: str
    incarnation: int
    partitions: int
    config: TopicConfig
    created_at: datetime

    @property
    def path(self) -> str:
        """The folder of the topic under the root."""
        return paths.topic_dir(self.name, self.incarnation)

    def _repr_html_(self) -> str:
        from streamlog import display

        return display.topics_html([self])


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A topic that is gone but for its files."""

    name: str
    id: str
    incarnation: int
    partitions: int
    deleted_at: datetime


class Registry:
    """The topics of one root."""

    def __init__(self, objects: Objects, runtime: Runtime, checkpointer: Checkpointer) -> None:
        self._case_blind = objects.local
        self._runtime = runtime
        self._table = SmallTable(objects, paths.TOPICS_TABLE, _SCHEMA, runtime, checkpointer)
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._version = -2
        self._live: dict[str, TopicInfo] = {}

    def live(self, *, refresh: bool = False) -> Mapping[str, TopicInfo]:
        """The topics by name, at most `MAX_AGE` seconds old."""
        with self._lock:
            now = self._runtime.clock.monotonic()
            if refresh or now - self._looked_at > MAX_AGE:
                self._take(self._table.read().rows)
                self._looked_at = now
            return self._live

    def get(self, name: str, *, refresh: bool = False) -> TopicInfo:
        """A topic by name; one that a cached look does not know is looked up afresh."""
        found = self.live(refresh=refresh).get(name)
        if found is None and not refresh:
            found = self.live(refresh=True).get(name)
        if found is None:
            raise not_found(name, self._live)
        return found

    def add(
        self, name: str, partitions: int, config: TopicConfig, *, if_not_exists: bool
    ) -> TopicInfo:
        """Registers a topic."""
        check_partitions(partitions)
        topic_id = self._runtime.ids.new()

        def change(rows: Rows) -> Sequence[Row] | None:
            if any(row["id"] == topic_id for row in rows):
                return None
            for row in rows:
                if row["deleted_at"] is None and row["topic"] == name:
                    if if_not_exists:
                        return None
                    raise TopicExistsError(
                        f"topic {name!r} exists already, with {row['partitions']} partitions; choose "
                        "another name, or ask for it with if_not_exists to use it as it is"
                    )
                same = row["topic"].lower() == name.lower() and row["topic"] != name
                if same and self._case_blind:
                    raise TopicExistsError(
                        f"topic {name!r} differs from {row['topic']!r} only by upper and lower case, "
                        "which some file systems cannot tell apart; choose another name"
                    )
            former = [row["incarnation"] for row in rows if row["topic"] == name]
            new: Row = {
                "topic": name,
                "id": topic_id,
                "incarnation": max(former, default=0) + 1,
                "partitions": partitions,
                "config": json.dumps(config.to_dict()),
                "created_at": to_datetime(self._runtime.clock.time_ms()),
                "deleted_at": None,
                "purged": False,
            }
            # A newer row carries the incarnation on; a purged one has nothing else to say.
            kept = [row for row in rows if row["topic"] != name or not row["purged"]]
            return sorted([*kept, new], key=lambda row: (row["topic"], row["incarnation"]))

        return self._update(change)[name]

    def alter(self, name: str, changes: Mapping[str, object | None]) -> TopicInfo:
        """Changes settings; None puts one back to its default."""

        def change(row: Row) -> Row:
            config = _config(row).updated(changes)
            return row | {"config": json.dumps(config.to_dict())}

        return self._update_one(name, change)[name]

    def grow(self, name: str, total: int) -> TopicInfo:
        """Raises the number of partitions."""
        check_partitions(total)

        def change(row: Row) -> Row:
            if total < row["partitions"]:
                raise InvalidRequestError(
                    f"topic {name!r} has {row['partitions']} partitions, and {total} are fewer: "
                    "partitions can only be added, because records stay where they are; make another "
                    "topic to have fewer"
                )
            return row | {"partitions": total}

        return self._update_one(name, change)[name]

    def mark_deleted(self, name: str, at: datetime) -> DeletedTopic:
        """The topic is gone for everybody from here on; its files still are to be removed.

        `at` is store time: a client whose clock is behind must not have the files purged at once.
        """
        deleted: list[Row] = []

        def change(row: Row) -> Row:
            deleted[:] = [row | {"deleted_at": at}]
            return deleted[0]

        self._update_one(name, change)
        return _deleted(deleted[0])

    def deleted(self) -> list[DeletedTopic]:
        """Deleted topics that may still have files."""
        with self._lock:
            rows = self._table.read().rows
            return [_deleted(row) for row in rows if row["deleted_at"] and not row["purged"]]

    def mark_purged(self, topic_id: str) -> None:
        """All files of a deleted topic are gone."""

        def change(rows: Rows) -> Sequence[Row] | None:
            found = [row for row in rows if row["id"] == topic_id and not row["purged"]]
            if not found:
                return None
            name, incarnation = found[0]["topic"], found[0]["incarnation"]
            newer = any(r["topic"] == name and r["incarnation"] > incarnation for r in rows)
            rest = [row for row in rows if row["id"] != topic_id]
            kept = rest if newer else [*rest, found[0] | {"purged": True}]
            return sorted(kept, key=lambda row: (row["topic"], row["incarnation"]))

        self._update(change)

    def _update_one(self, name: str, change: Callable[[Row], Row]) -> Mapping[str, TopicInfo]:
        def change_rows(rows: Rows) -> Sequence[Row] | None:
            for index, row in enumerate(rows):
                if row["topic"] == name and row["deleted_at"] is None:
                    new = change(row)
                    if new == row:
                        return None
                    return [*rows[:index], new, *rows[index + 1 :]]
            raise not_found(name, [r["topic"] for r in rows if r["deleted_at"] is None])

        return self._update(change_rows)

    def _update(self, change: Callable[[Rows], Sequence[Row] | None]) -> Mapping[str, TopicInfo]:
        def change_content(content: Content) -> Content | None:
            rows = change(content.rows)
            return None if rows is None else Content(tuple(rows))

        with self._lock:
            now = self._runtime.clock.monotonic()
            self._take(self._table.update(change_content).rows)
            self._looked_at = now
            return self._live

    def _take(self, rows: Sequence[Row]) -> None:
        """Keeps the infos of unchanged rows as they are: clients compare them by identity."""
        if self._table.version == self._version:
            return
        live: dict[str, TopicInfo] = {}
        for row in rows:
            if row["deleted_at"] is None:
                info = _info(row)
                known = self._live.get(info.name)
                live[info.name] = known if known == info else info
        self._live = live
        self._version = self._table.version


def check_partitions(count: object) -> None:
    """Refuses a number of partitions that is none."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_PARTITIONS:
        raise InvalidRequestError(
            f"{count!r} is not a number of partitions; allowed are 1 to {MAX_PARTITIONS}"
        )


def not_found(name: object, known: Mapping[str, object] | Sequence[str]) -> TopicNotFoundError:
    """The error for a topic that does not exist, with the nearest name that does."""
    import difflib

    near = difflib.get_close_matches(str(name), list(known), n=1)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif known:
        hint = "list the topics to see which there are"
    else:
        hint = "there are no topics yet; create it first"
    return TopicNotFoundError(f"there is no topic {name!r}; {hint}")


def _config(row: Row) -> TopicConfig:
    try:
        return TopicConfig.parse(json.loads(row["config"]))
    except (InvalidRequestError, ValueError, AttributeError) as error:
        raise CorruptLogError(
            f"the registry ({paths.TOPICS_TABLE}) holds settings of topic {row['topic']!r} that this "
            f"version of streamlog cannot read: {error} Upgrade streamlog, or restore the registry."
        ) from error


def _info(row: Row) -> TopicInfo:
    return TopicInfo(
        name=row["topic"],
        id=row["id"],
        incarnation=row["incarnation"],
        partitions=row["partitions"],
        config=_config(row),
        created_at=row["created_at"],
    )


def _deleted(row: Row) -> DeletedTopic:
    return DeletedTopic(
        name=row["topic"],
        id=row["id"],
        incarnation=row["incarnation"],
        partitions=row["partitions"],
        deleted_at=row["deleted_at"],
    )

"""A small Delta table whose one live file is its whole content (the registry of topics, for one).

Each commit replaces the live file (remove and add in one put-if-absent), so a reader of any engine sees
the current rows, Delta's time travel is their history, and the newest commit alone tells the state: no
snapshot is needed to open it. Beside the rows a commit carries a `note`, a few words for streamlog itself
that are no business of a SELECT; it changes together with the rows or not at all.

T1  A change is computed from the content of the very version it follows; when another client won the
    version, it is computed again from that one's content (two appends would make two topics of one name).
T2  A change may be computed again after it took effect, if its client slept through that: whoever makes
    one must recognise its own work.

One thread at a time. A crash leaves either the old content or the new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from streamlog.clock import Runtime
from streamlog.errors import (
    CorruptLogError,
    InvalidRequestError,
    StreamlogError,
    UnavailableError,
)
from streamlog.log import commit as commits
from streamlog.log.backoff import Backoff
from streamlog.log.checkpoints import Checkpointer
from streamlog.log.cleaner import Cleaner
from streamlog.log.commit import Commit
from streamlog.log.versions import (
    LOG_FLOOR_SECONDS,
    VACUUM_FLOOR_SECONDS,
    OvertakenError,
    TableGoneError,
    VersionLog,
)
from streamlog.model import to_datetime
from streamlog.storage.objects import Objects

T = TypeVar("T")
Row = dict[str, Any]
Note = dict[str, Any]

_OPEN_ATTEMPTS = 5
# Every commit removes a file, and a checkpoint lists removed files for so long: not for a week.
_PROPERTIES = {"delta.deletedFileRetentionDuration": "interval 1 hours"}
_STORE_TIME_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Content:
    """What the table holds at one version; never changed in place."""

    rows: tuple[Row, ...] = ()
    note: Note = field(default_factory=dict)


Change = Callable[[Content], Content | None]


@dataclass(frozen=True, slots=True)
class _File:
    """A data file of the table."""

    name: str
    size: int


class SmallTable:
    """Rows that are read and replaced as a whole."""

    def __init__(
        self,
        objects: Objects,
        path: str,
        schema: pa.Schema,
        runtime: Runtime,
        checkpointer: Checkpointer,
        history: float | None = None,
    ) -> None:
        """`history`: how many seconds of former versions are kept; None keeps them all."""
        self._objects = objects
        self.path = path
        self._schema = schema
        self._runtime = runtime
        self._checkpointer = checkpointer
        self._history = history
        self._versions = VersionLog(objects, path, runtime)
        self._content = Content()
        self._live: _File | None = None
        # A commit that was passed and whose content is still to be read: a store that falls silent
        # in between must not make this client believe in older content at a newer version.
        self._passed: Commit | None = None
        self._store_time = (float("-inf"), 0.0)

    @property
    def version(self) -> int:
        """The version last read; -1 while the table does not exist."""
        return self._versions.version

    def read(self) -> Content:
        """The current content; empty when there is no table yet."""
        self._refresh()
        return self._content

    def as_of(self, timestamp_ms: int) -> Content:
        """The content at a time, by the commits' own timestamps; empty before the first commit."""
        versions, _ = self._versions.listing()
        low, high = 0, len(versions)
        while low < high:
            middle = (low + high) // 2
            commit = self._versions.read(versions[middle])
            # A version that was cleaned away since the listing is older than all that are left.
            if commit is None or commit.timestamp_ms <= timestamp_ms:
                low = middle + 1
            else:
                high = middle
        index = low - 1
        while index >= 0:
            commit = self._versions.read(versions[index])
            if commit is not None and commit.adds:
                content = read_content(self._objects, self.path, commit, self._schema)
                if content is not None:
                    return content
                break
            index -= 1
        if index < 0 and (not versions or versions[0] == 0):
            return Content()
        oldest = self._versions.read(versions[0])
        since = "" if oldest is None else f" (since {to_datetime(oldest.timestamp_ms)})"
        raise InvalidRequestError(
            f"{self.path}: its history does not reach back to {to_datetime(timestamp_ms)}{since}"
        )

    def update(self, change: Change, timeout: float = 60.0) -> Content:
        """Replaces the content by `change(content)`; None means nothing to change.

        `change` may run several times and may raise to refuse. Returns what holds afterwards.
        """
        clock = self._runtime.clock
        pause = Backoff(self._runtime, clock.monotonic() + timeout, f"a change of {self.path}")
        _persist(self._refresh, pause)
        commit_id = self._runtime.ids.new()
        while True:
            new = change(self._content)
            if new is None:
                return self._content
            put_at = clock.monotonic()
            body = self._encode(new.rows)
            file = _File(
                f"{self.version + 1:020d}-{self._runtime.ids.new()}.parquet", int(body.size)
            )
            _persist(partial(self._put, file, body), pause)
            data = _persist(partial(self._build, new, file, commit_id), pause)
            won = self._settle(data, commit_id, pause)
            if won is None:
                _persist(self._open, pause)
                if self._live is not None and self._live.name == file.name:
                    return self._content
                continue
            if won:
                if clock.monotonic() - put_at > VACUUM_FLOOR_SECONDS / 4:
                    # A vacuum may have taken the file before the commit named it.
                    self._put(file, body)
                self._content, self._live = new, file
                self._checkpointer.passed(self.path, self.version, 1, after=self._clean)
                return new
            _persist(self._refresh, pause)
            pause.after_loss()

    def _clean(self) -> None:
        if self._history is not None:
            floor = max(self._history, LOG_FLOOR_SECONDS)
            Cleaner(self._objects, self._runtime, log_floor=floor).clean_small(self.path)

    def _settle(self, data: bytes, commit_id: str, pause: Backoff) -> bool | None:
        """Whether the version was won; None when the log overtook this client."""
        while True:
            try:
                return self._versions.try_commit(data, commit_id, durable=True)
            except UnavailableError as error:
                if not error.retriable:
                    raise
                pause.after_failure(error, unclear=True)
            except (OvertakenError, TableGoneError):
                return None

    def _encode(self, rows: tuple[Row, ...]) -> pa.Buffer:
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.Table.from_pylist(list(rows), schema=self._schema), sink, store_schema=False
        )
        return sink.getvalue()

    def _put(self, file: _File, body: pa.Buffer) -> None:
        self._objects.put_new(f"{self.path}/{file.name}", body, durable=True)

    def _build(self, new: Content, file: _File, commit_id: str) -> bytes:
        now_ms = self._runtime.clock.time_ms()
        actions = []
        if self.version < 0:
            actions += commits.create_actions(
                self._runtime.ids.new(), self._schema, now_ms, _PROPERTIES
            )
        if self._live is not None:
            actions.append(
                commits.remove_action(
                    self._live.name, self._live.size, self._store_ms(), data_change=True
                )
            )
        actions.append(commits.plain_add(file.name, file.size, len(new.rows), now_ms))
        return commits.build(
            "create" if self.version < 0 else "replace",
            commit_id=commit_id,
            previous=self._versions.commit_id or None,
            now_ms=now_ms,
            actions=actions,
            details={"durable": True, "note": new.note} if new.note else {"durable": True},
        )

    def _store_ms(self) -> int:
        """Store time for `deletionTimestamp`; a probe a minute, for it is compared with hours."""
        now = self._runtime.clock.monotonic()
        asked_at, answer = self._store_time
        if now - asked_at > _STORE_TIME_SECONDS:
            asked_at, answer = now, self._objects.store_time()
            self._store_time = (asked_at, answer)
        return int((answer + now - asked_at) * 1000)

    def _refresh(self) -> None:
        if self.version < 0:
            self._open()
            return
        try:
            while (commit := self._versions.next()) is not None:
                if commit.adds or commit.removes:
                    self._passed = commit
        except (OvertakenError, TableGoneError):
            self._open()
            return
        if self._passed is not None and not self._take(self._passed):
            self._open()

    def _open(self) -> None:
        for attempt in range(_OPEN_ATTEMPTS):
            confirmed = self._runtime.clock.monotonic()
            versions, _ = self._versions.listing()
            if not versions:
                self._versions.adopt(-1, "", confirmed)
                self._content, self._live, self._passed = Content(), None, None
                return
            newest = versions[-1]
            head = commit = self._versions.read(newest)
            # VACUUM and the like commit without files: the rows are those of the version before.
            while commit is not None and not commit.adds and commit.version > 0:
                commit = self._versions.read(commit.version - 1)
            if head is not None and commit is not None and commit.adds and self._take(commit):
                self._versions.adopt(newest, head.id, confirmed)
                return
            self._runtime.clock.sleep(0.01 * 2**attempt)
        raise CorruptLogError(
            f"{self.path}: the newest version ({newest}) names a file that is not there, or cannot be "
            "read. Restore the missing file from a backup."
        )

    def _take(self, commit: Commit) -> bool:
        """Adopts a commit's content; False if its file is gone (replaced and vacuumed since)."""
        if len(commit.adds) != 1 or commit.kind is None:
            raise CorruptLogError(
                f"{self.path}, version {commit.version} by {commit.engine} ({commit.operation}): only "
                "streamlog may write this table. While all clients are stopped, move that version and "
                "all above it out of _delta_log."
            )
        file = commit.adds[0]
        content = read_content(self._objects, self.path, commit, self._schema)
        if content is None:
            return False
        self._content = content
        self._passed = None
        self._live = _File(file.path, file.size)
        return True


def read_content(objects: Objects, path: str, commit: Commit, schema: pa.Schema) -> Content | None:
    """The content that one commit of a small table holds; None if its file is gone."""
    name = f"{path}/{commit.adds[0].path}"
    data = objects.get(name)
    if data is None:
        return None
    try:
        # Not `read_table`: for a few rows it would load Arrow's datasets (a command waits for that)
        # and start threads, which now and then abort a process that ends soon after.
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        table = table.select(schema.names)
        if not table.schema.equals(schema):
            table = table.cast(schema)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CorruptLogError(
            f"{name} is not a readable Parquet file ({error}); restore it from a backup."
        ) from error
    note = commit.details.get("note", {})
    if not isinstance(note, dict):
        raise CorruptLogError(
            f"{path}, version {commit.version}: its note is {str(note)[:80]!r}, not a map. While all clients "
            "are stopped, move that version and all above it out of _delta_log."
        )
    return Content(tuple(_rows(table)), note)


def _rows(table: pa.Table) -> Iterator[Row]:
    """The rows as dicts. Not `to_pylist`: a time zone makes that import pandas, for 0.2 s and nothing."""
    for part in table.to_batches():
        columns = []
        for column in part.columns:
            kind = column.type
            if pa.types.is_timestamp(kind) and kind.tz is not None:
                naive = column.view(pa.timestamp(kind.unit)).to_pylist()
                columns.append([at if at is None else at.replace(tzinfo=UTC) for at in naive])
            else:
                columns.append(column.to_pylist())
        for values in zip(*columns, strict=True):
            yield dict(zip(part.schema.names, values, strict=True))


def _persist(action: Callable[[], T], pause: Backoff) -> T:
    """Again and again while the store does not answer."""
    while True:
        try:
            return action()
        except StreamlogError as error:
            if not isinstance(error, UnavailableError) or not error.retriable:
                raise
            pause.after_failure(error)

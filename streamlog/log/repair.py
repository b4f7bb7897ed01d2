"""What can be mended in a table: a version that another engine replaced, a checkpoint that cannot be read.

Some engines commit by looking and then renaming (delta-spark on a local disk), and so can overwrite a commit
of streamlog that came in between. The lost commit is known well: its id from the commit that followed it, its
place from the versions around it, and, if it was an append, its records from the data file that is still
there, named by the offset at which the gap begins.

A damaged checkpoint is removed where the commits say the same: streamlog goes round it by itself, but no
other engine does, and none can be written above it.

X1  Nothing is guessed: one data file must fill the gap exactly, else the repair is refused and says why.
X2  What the other engine wrote there is kept under `__repairs/`; its files become orphans.
X3  All clients must be stopped meanwhile: the version is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.errors import CorruptLogError
from streamlog.log import commit as commits
from streamlog.log import files
from streamlog.log.commit import END, Commit, Segment
from streamlog.log.state import LogState
from streamlog.log.versions import VersionLog
from streamlog.storage.delta import LiveFile, load_snapshot
from streamlog.storage.objects import Objects


@dataclass(frozen=True, slots=True)
class Damage:
    """A replaced version, and what was there: an append of `file`, or a commit without records."""

    version: int
    by: str
    lost_id: str
    previous_id: str
    first: int
    end: int
    file: Segment | None


class Repair:
    """Finds and puts right a replaced version of one table."""

    def __init__(self, objects: Objects, table: str, runtime: Runtime) -> None:
        self._objects = objects
        self._table = table
        self._runtime = runtime
        self._versions = VersionLog(objects, table, runtime)

    def find(self) -> Damage | None:
        """The first replaced version; None if the chain is whole. CorruptLogError: beyond repair."""
        history = self._history()
        for before, found, after in zip(history, history[1:], history[2:], strict=False):
            whole = after.kind is None or after.previous == found.id
            if whole or found.kind is not None or after.previous is None:
                continue
            return self._judge(before, found, after, history)
        return None

    def apply(self, damage: Damage) -> None:
        """Puts the lost commit back, byte for byte what a reader needs of it."""
        now_ms = self._runtime.clock.time_ms()
        actions = []
        if damage.file is not None:
            actions = [
                commits.txn_action(END, damage.end, now_ms),
                commits.add_action(damage.file, now_ms, data_change=True),
            ]
        data = commits.build(
            "append" if damage.file is not None else "fence",
            commit_id=damage.lost_id,
            previous=damage.previous_id,
            now_ms=now_ms,
            actions=actions,
            details={"repaired": True},
        )
        path = paths.commit_file(self._table, damage.version)
        foreign = self._objects.get(path)
        if foreign is not None:
            kept = f"{paths.REPAIRS_DIR}/{paths.encode(self._table)}-{damage.version:020d}-{now_ms}.json"
            self._objects.put(kept, foreign)
        # A checkpoint at or above it has the other engine's version in it; the commits are all there.
        log = paths.log_dir(self._table)
        spoiled = [
            f"{log}/{name}"
            for name in self._objects.names(log)
            if name == "_last_checkpoint"
            or ((version := paths.parse_checkpoint(name)) is not None and version >= damage.version)
        ]
        self._objects.delete(spoiled)
        self._objects.put(path, data)
        self._objects.sync_all()

    def damaged_checkpoints(self) -> list[int]:
        """The newest checkpoints, as far as they cannot be read."""
        if not self._objects.supports_delta:
            return []
        found = []
        for version in self._versions.checkpoints():
            try:
                load_snapshot(self._objects, self._table, version)
            except CorruptLogError:
                found.append(version)
            else:
                break
        return found

    def drop_checkpoints(self, damaged: Sequence[int]) -> None:
        """Removes checkpoints that cannot be read. CorruptLogError if the log needs them."""
        versions, _ = self._versions.listing()
        older = [version for version in self._versions.checkpoints() if version not in damaged]
        base = max(older, default=-1)
        if not versions or versions[0] > base + 1:
            raise CorruptLogError(
                f"{self._table}: checkpoint {min(damaged)} cannot be read, and the commits before it are "
                "cleaned; restore it from a backup"
            )
        log = paths.log_dir(self._table)
        gone = [
            name for name in self._objects.names(log) if paths.parse_checkpoint(name) in damaged
        ]
        self._objects.delete([f"{log}/{name}" for name in ("_last_checkpoint", *gone)])

    def _history(self) -> list[Commit]:
        versions, _ = self._versions.listing()
        found = []
        for version in versions:
            commit = self._versions.read(version)
            if commit is not None:
                found.append(commit)
        return found

    def _judge(
        self, before: Commit, found: Commit, after: Commit, history: Sequence[Commit]
    ) -> Damage:
        state = self._state(before.version, history)
        ends = (
            c.adds[0].first_offset
            for c in history
            if c.version >= after.version and c.kind == "append"
        )
        end = next((first for first in ends if first is not None), state.end)
        file = self._filling(state, end, history) if end > state.end else None
        return Damage(
            found.version, found.author, str(after.previous), before.id, state.end, end, file
        )

    def _state(self, version: int, history: Sequence[Commit]) -> LogState:
        measure = partial(files.measure, self._objects, self._table)
        if history[0].version == 0:
            state = LogState(self._table, measure)
            for commit in history:
                if commit.version <= version:
                    state.apply(commit)
            return state
        return LogState.from_snapshot(
            self._table, load_snapshot(self._objects, self._table, version), measure
        )

    def _filling(self, state: LogState, end: int, history: Sequence[Commit]) -> Segment:
        """X1: the one data file that holds exactly the offsets of the gap."""
        known = {add.path for commit in history for add in commit.adds if commit.kind is not None}
        fitting = []
        for info in self._objects.list(self._table):
            name = info.path[len(self._table) + 1 :]
            if paths.parse_data_file(name) != state.end or name in known:
                continue
            file = LiveFile(name, info.size, None, None, None, None, None)
            segment = files.measure(self._objects, self._table, file)
            if (segment.first, segment.last, segment.records) == (
                state.end,
                end - 1,
                end - state.end,
            ):
                fitting.append(segment)
        if len(fitting) != 1:
            raise CorruptLogError(
                f"{self._table}: offsets {state.end} to {end - 1} were lost with a replaced version, and "
                f"{len(fitting)} data files could be them; restore the version from a backup"
            )
        return fitting[0]

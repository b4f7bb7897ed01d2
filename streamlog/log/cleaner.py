"""Removing what no reader can need any more: old commit files, old checkpoints, dead data files.

This is where logs lose data, so only streamlog cleans its tables (`delta.enableExpiredLogCleanup` is
off), and by these rules:

K1  A commit file goes only if it is older than the log floor by the store's clock (the time of a probe
    object just written), below a checkpoint that was just read back, and not among the newest N.
K2  Version by version upwards: whatever interrupts the cleaning, the lowest name is gone first, and what
    is left never looks like a whole log from version 0.
K3  A data file goes only if delta-rs names it in a dry run of vacuum and it is older than the vacuum
    floor. A writer commits its file within a quarter of that floor, or puts it again.

A crash leaves a log that is merely less clean. Any number of cleaners may run beside any load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.errors import CorruptLogError, UnavailableError
from streamlog.log.versions import LOG_FLOOR_SECONDS, VACUUM_FLOOR_SECONDS, VersionLog
from streamlog.storage.delta import load_snapshot, vacuum_candidates, write_checkpoint
from streamlog.storage.objects import ObjectInfo, Objects

# Followers a little behind go on version by version instead of opening anew.
KEEP_VERSIONS = 100


class Cleaner:
    """Cleans tables of one root."""

    def __init__(
        self,
        objects: Objects,
        runtime: Runtime,
        *,
        log_floor: float = LOG_FLOOR_SECONDS,
        vacuum_floor: float = VACUUM_FLOOR_SECONDS,
        keep: int = KEEP_VERSIONS,
    ) -> None:
        self._objects = objects
        self._runtime = runtime
        self._log_floor = log_floor
        self._vacuum_floor = vacuum_floor
        self._keep = keep

    def checkpoint(self, table: str) -> int | None:
        """Writes a checkpoint of the newest version if many came since the last; which one it was."""
        if not self._objects.supports_delta:
            return None
        versions, last = VersionLog(self._objects, table, self._runtime).listing()
        if not versions or versions[-1] - max(last, 0) < self._keep:
            return None
        write_checkpoint(self._objects, table, versions[-1])
        return versions[-1]

    def clean_log(self, table: str) -> int:
        """Deletes expired commit files and checkpoints; returns how many commits went."""
        limit = self._objects.store_time() - self._log_floor
        commits: dict[int, ObjectInfo] = {}
        checkpoints: list[tuple[int, ObjectInfo]] = []
        for info in self._objects.list(paths.log_dir(table)):
            name = info.path.rsplit("/", 1)[-1]
            version = paths.parse_commit(name)
            if version is not None:
                commits[version] = info
            elif (found := paths.parse_checkpoint(name)) is not None:
                checkpoints.append((found, info))
        base = self._verified(table, {version for version, _ in checkpoints})
        if base is None or not commits:
            return 0
        last = min(base, max(commits) - self._keep)
        expired: list[str] = []
        for version in sorted(commits):
            if version >= last or commits[version].modified >= limit:
                break
            expired.append(commits[version].path)
        self._delete_upwards(expired)
        self._objects.delete(
            [
                info.path
                for version, info in checkpoints
                if version < base and version < last and info.modified < limit
            ]
        )
        return len(expired)

    def clean_small(self, table: str) -> int:
        """Cleans a small table, whose data files are named by their versions; returns how many went.

        K4  A data file goes only with the commit that named it: its version is below all that are left.
        """
        self.clean_log(table)
        limit = self._objects.store_time() - self._log_floor
        names = self._objects.names(paths.log_dir(table))
        left = [version for name in names if (version := paths.parse_commit(name)) is not None]
        if not left:
            return 0
        log = paths.log_dir(table) + "/"
        dead = [
            info.path
            for info in self._objects.list(table)
            if not info.path.startswith(log)
            and info.modified < limit
            and (version := paths.parse_data_file(info.path.rsplit("/", 1)[-1])) is not None
            and version < min(left)
        ]
        self._objects.delete(dead)
        return len(dead)

    def vacuum(self, table: str) -> list[str]:
        """Deletes data files that no version within the floor names; returns their paths."""
        dead = [info.path for info in self.dead_files(table)]
        self._objects.delete(dead)
        return dead

    def dead_files(self, table: str) -> list[ObjectInfo]:
        """K3: what a vacuum would take now."""
        if not self._objects.supports_delta:
            return []
        versions, checkpoint = VersionLog(self._objects, table, self._runtime).listing()
        newest = versions[-1] if versions else checkpoint
        if newest < 0:
            return []
        limit = self._objects.store_time() - self._vacuum_floor
        log = paths.log_dir(table) + "/"
        aged = [
            info
            for info in self._objects.list(table)
            if info.modified < limit and not info.path.startswith(log)
        ]
        # delta-rs lists the folder once more, and replays the log: not for nothing.
        if not aged:
            return []
        hours = math.ceil(self._vacuum_floor / 3600)
        named = set(vacuum_candidates(self._objects, table, newest, hours))
        return [info for info in aged if info.path[len(table) + 1 :] in named]

    def _verified(self, table: str, checkpoints: set[int]) -> int | None:
        """The highest checkpoint that can really be read."""
        if not self._objects.supports_delta:
            return None
        for version in sorted(checkpoints, reverse=True):
            try:
                load_snapshot(self._objects, table, version)
            except (CorruptLogError, UnavailableError):
                continue
            return version
        return None

    def _delete_upwards(self, expired: Sequence[str]) -> None:
        # Stores delete a list in any order; with the lowest gone, the rest no longer passes for whole.
        self._objects.delete(expired[:1])
        self._objects.delete(expired[1:])

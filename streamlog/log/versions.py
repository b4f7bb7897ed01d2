"""The sequence of versions of one Delta table: reading the next one, and winning it.

This is the only code that puts a commit file. Its promises:

V1  One winner a version: commits go through put-if-absent and nothing else.
V2  A lost answer is not a lost race: after an unclear put the version itself is read; our id in it means
    that we won. Nothing else is tried before that is settled.
V3  Versions are read in order, none is skipped, and each commit of streamlog must name the id of the one
    before it.
V4  Who slept does not trust names: when more than a quarter of the log floor passed between confirming
    the view and the end of a request, commit files may have been cleaned meanwhile, and a missing or a
    won name proves nothing. Then the folder is listed: a checkpoint at or above the next version raises
    `OvertakenError`, and only a fresh snapshot decides. An empty folder raises `TableGoneError`.

One thread at a time. A crash leaves either nothing or a complete commit.
"""

from __future__ import annotations

from streamlog import paths
from streamlog.clock import Runtime
from streamlog.errors import CorruptLogError, StreamlogError, UnavailableError
from streamlog.log import commit as commits
from streamlog.log.commit import Commit
from streamlog.log.invariants import check_chain
from streamlog.storage.objects import Objects

# No commit file younger than this is ever cleaned (rule 6).
LOG_FLOOR_SECONDS = 3600.0
# No data file younger than this is ever vacuumed (rule 8).
VACUUM_FLOOR_SECONDS = 3600.0


class OvertakenError(StreamlogError):
    """The log moved on beyond what this client can follow version by version; open a fresh snapshot."""


class TableGoneError(StreamlogError):
    """There is no table (any more) at this path."""


class VersionLog:
    """Follows and extends the versions of one table."""

    def __init__(
        self, objects: Objects, table: str, runtime: Runtime, floor: float = LOG_FLOOR_SECONDS
    ) -> None:
        self.objects = objects
        self.table = table
        self._clock = runtime.clock
        self._patience = floor / 4
        self.version = -1
        self.commit_id = ""
        self._author = ""
        self._listed_at = float("-inf")
        self.confirmed_at = float("-inf")

    def adopt(self, version: int, commit_id: str, confirmed_at: float) -> None:
        """Takes up a view: `version` was the newest, or not older than it, at `confirmed_at`."""
        self.version = version
        self.commit_id = commit_id
        self._author = ""
        self.confirmed_at = confirmed_at

    @property
    def stale(self) -> bool:
        """Whether the view is too old to trust a name."""
        return self._clock.monotonic() - self.confirmed_at > self._patience

    def listing(self) -> tuple[list[int], int]:
        """All commit versions, sorted, and the highest checkpoint (-1 if none)."""
        commit_versions: list[int] = []
        checkpoint = -1
        self._listed_at = self._clock.monotonic()
        for name in self.objects.names(paths.log_dir(self.table)):
            version = paths.parse_commit(name)
            if version is not None:
                commit_versions.append(version)
                continue
            found = paths.parse_checkpoint(name)
            if found is not None:
                checkpoint = max(checkpoint, found)
        commit_versions.sort()
        return commit_versions, checkpoint

    def checkpoints(self) -> list[int]:
        """The versions that have a checkpoint, the newest first."""
        names = self.objects.names(paths.log_dir(self.table))
        found = {version for name in names if (version := paths.parse_checkpoint(name)) is not None}
        return sorted(found, reverse=True)

    def read(self, version: int) -> Commit | None:
        """The commit of a version, or None if there is no such file."""
        data = self.objects.get(paths.commit_file(self.table, version))
        return None if data is None else commits.parse(self.table, version, data)

    def next(self) -> Commit | None:
        """The commit after the view, which becomes the view; None when there is none yet."""
        started = self._clock.monotonic()
        commit = self.read(self.version + 1)
        # A version lost below others looks like "nothing new", however often one asks: look now and then.
        self._trust_names(
            doubt=commit is None and self._clock.monotonic() - self._listed_at > self._patience
        )
        if commit is not None:
            check_chain(self.table, commit, self.commit_id, self._author)
            self.version += 1
            self.commit_id = commit.id
            self._author = commit.author
        self.confirmed_at = started
        return commit

    def try_commit(self, data: bytes, commit_id: str, *, durable: bool) -> bool:
        """Puts the next version. True: it is ours. False: it is another's, to be read by `next`.

        UnavailableError: not settled; call again with the same bytes before anything else.
        """
        started = self._clock.monotonic()
        path = paths.commit_file(self.table, self.version + 1)
        won = False
        unclear: UnavailableError | None = None
        try:
            won = self.objects.put_if_absent(path, data, durable=durable)
        except UnavailableError as error:
            if not error.retriable:
                raise
            unclear = error
        self._trust_names()
        if not won:
            found = self.read(self.version + 1)
            if found is None:
                # An outright failure, or S3's 409 with nothing there: the same version is put again.
                raise unclear or UnavailableError(
                    f"{path}: the put was refused, yet nothing is there"
                )
            if found.id != commit_id:
                return False
            if durable:
                # Our own earlier put made it visible; whether its directory was synced is not known.
                self.objects.sync_all()
        self.adopt(self.version + 1, commit_id, started)
        return True

    def _trust_names(self, *, doubt: bool = False) -> None:
        if not self.stale and not doubt:
            return
        versions, checkpoint = self.listing()
        # A purge takes the checkpoints first and then the commits from 0 upwards: whoever wins a name
        # in what is left of a table finds neither.
        if checkpoint < 0 and (not versions or versions[0] > 0):
            raise TableGoneError(f"{self.table} does not exist (any more)")
        if checkpoint > self.version:
            raise OvertakenError(
                f"{self.table}: version {self.version} is behind checkpoint {checkpoint}"
            )
        beyond = [version for version in versions if version > self.version]
        # A directory listing is no snapshot: only a second look at the name itself proves a hole.
        if beyond and beyond[0] != self.version + 1 and self.read(self.version + 1) is None:
            raise hole(self.table, self.version + 1, beyond[-1])


def hole(table: str, missing: int, newest: int) -> CorruptLogError:
    """The error for a version that is missing below others that exist."""
    return CorruptLogError(
        f"{table}: version {missing} is missing though version {newest} exists. Restore "
        f"{paths.commit_file(table, missing)} from a backup; nothing was read past it."
    )

"""A partition's table as one client sees it: opened once, then followed version by version.

Opening is a LIST for the newest version and the highest checkpoint, deltalake's snapshot pinned at that
checkpoint, and then streamlog's own tail: every commit since is checked like any other, so that a foreign
append is refused at the next open as well, instead of being folded into a snapshot. A log without a
checkpoint is replayed from version 0; one whose checkpoint is damaged from an older one, or from version 0.

A view that met a commit it had to refuse stays broken: it never reads past it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from streamlog.clock import Runtime
from streamlog.errors import CorruptLogError, TopicDeletedError, UnavailableError
from streamlog.log import commit as commits
from streamlog.log import files, invariants
from streamlog.log.commit import Commit
from streamlog.log.state import LogState
from streamlog.log.versions import (
    LOG_FLOOR_SECONDS,
    OvertakenError,
    TableGoneError,
    VersionLog,
    hole,
)
from streamlog.storage.delta import TableSnapshot, load_snapshot
from streamlog.storage.objects import Objects

_log = logging.getLogger(__name__)
_OPEN_ATTEMPTS = 5


class PartitionView:
    """State and versions of one partition; one thread at a time."""

    def __init__(
        self, objects: Objects, table: str, runtime: Runtime, floor: float = LOG_FLOOR_SECONDS
    ) -> None:
        self.objects = objects
        self.table = table
        self._runtime = runtime
        self._measure = partial(files.measure, objects, table)
        self.versions = VersionLog(objects, table, runtime, floor)
        self.state = LogState(table, self._measure)
        self._broken: CorruptLogError | None = None
        # How often the table was read anew, instead of followed.
        self.opens = 0
        # Whether all versions seen so far are known to be on stable storage (rule 13).
        self.all_durable = False

    @property
    def is_open(self) -> bool:
        """Whether a version has been read."""
        return self.versions.version >= 0

    def open(self) -> None:
        """Reads the table anew. TableGoneError if there is none."""
        for attempt in range(_OPEN_ATTEMPTS):
            try:
                self._open()
                return
            except (UnavailableError, OvertakenError) as error:
                # A clean-up may have taken a file between the listing and its use: look again.
                if attempt == _OPEN_ATTEMPTS - 1:
                    raise UnavailableError(f"{self.table} could not be opened: {error}") from error
                self._runtime.clock.sleep(0.01 * 2**attempt)

    def catch_up(self) -> bool:
        """Applies all versions that are there by now; True if there were any."""
        self.check_sound()
        before = self.versions.version
        try:
            self._follow()
        except OvertakenError:
            self.open()
        except TableGoneError as error:
            raise TopicDeletedError(
                f"{self.table} was deleted and its files are gone; make the topic again to use it"
            ) from error
        return self.versions.version != before

    def check_sound(self) -> None:
        """Raises the error of the commit that had to be refused, if there was one."""
        if self._broken is not None:
            raise self._broken

    def adopt_own(self, data: bytes) -> None:
        """Applies a commit that was just won, from its bytes."""
        self.state.apply(commits.parse(self.table, self.versions.version, data))

    def _follow(self) -> None:
        versions = self.versions
        try:
            while True:
                at = versions.version, versions.commit_id, versions.confirmed_at
                commit = versions.next()
                if commit is None:
                    return
                try:
                    self.state.apply(commit)
                except CorruptLogError:
                    # Or the next append of this client would go on top of what it refuses.
                    versions.adopt(*at)
                    raise
                self.all_durable = self.all_durable and commit.details.get("durable") is True
        except CorruptLogError as error:
            self._broken = error
            raise

    def _open(self) -> None:
        confirmed = self._runtime.clock.monotonic()
        versions, checkpoint = self.versions.listing()
        if not versions and checkpoint < 0:
            raise TableGoneError(f"there is no table at {self.table}")
        self._broken = None
        self.opens += 1
        self.all_durable = False
        complete = bool(versions) and versions[0] == 0
        if checkpoint >= 0 and self.objects.supports_delta:
            try:
                self._from_checkpoint(checkpoint, confirmed)
            except CorruptLogError:
                # A checkpoint is derived data: the commits since an older one may all be there.
                if not self._from_older(checkpoint, versions, confirmed):
                    raise
                _log.warning("%s: checkpoint %d is unreadable; replaying", self.table, checkpoint)
        else:
            if not complete:
                raise hole(self.table, 0, versions[-1] if versions else checkpoint)
            self._from_start(confirmed)
        self._follow()
        newest = versions[-1] if versions else checkpoint
        if self.versions.version < newest:
            self._broken = hole(self.table, self.versions.version + 1, newest)
            raise self._broken

    def _from_older(self, damaged: int, versions: Sequence[int], confirmed: float) -> bool:
        """Starts below a checkpoint that cannot be read; False if none such reaches the newest."""
        if not versions:
            return False
        for checkpoint in self.versions.checkpoints():
            # Commits are cleaned upwards: if the next one is there, all that follow are.
            if checkpoint >= damaged or versions[0] > checkpoint + 1:
                continue
            try:
                self._from_checkpoint(checkpoint, confirmed)
            except (CorruptLogError, UnavailableError):
                continue
            return True
        if versions[0] > 0:
            return False
        self._from_start(confirmed)
        return True

    def _from_start(self, confirmed: float) -> None:
        self.state = LogState(self.table, self._measure)
        self.versions.adopt(-1, "", confirmed)

    def _from_checkpoint(self, checkpoint: int, confirmed: float) -> None:
        """Starts from the newest version up to the checkpoint that streamlog itself committed.

        A writer of streamlog refused whatever breaks the log before it, so the state there is sound;
        what other engines did since, a checkpoint of theirs may have folded in, and is checked here.
        """
        foreign: list[Commit] = []
        commit = self.versions.read(checkpoint)
        while commit is not None and commit.kind is None and commit.version > 0:
            foreign.append(commit)
            commit = self.versions.read(commit.version - 1)
        newest = foreign[0] if foreign else commit
        if foreign and commit is not None and self._start_at(commit, confirmed):
            return
        # Versions below were cleaned: the foreign ones are judged by their own words.
        for passed in reversed(foreign):
            invariants.check_definition(self.table, passed)
            invariants.check_foreign(self.table, passed)
        self._adopt(load_snapshot(self.objects, self.table, checkpoint), newest, confirmed)

    def _start_at(self, commit: Commit, confirmed: float) -> bool:
        """Starts at a version below the checkpoint, unless what it takes is not there any more."""
        try:
            snapshot = load_snapshot(self.objects, self.table, commit.version)
        except (CorruptLogError, UnavailableError):
            return False
        self._adopt(snapshot, commit, confirmed)
        return True

    def _adopt(self, snapshot: TableSnapshot, commit: Commit | None, confirmed: float) -> None:
        self.state = LogState.from_snapshot(self.table, snapshot, self._measure)
        self.versions.adopt(snapshot.version, commit.id if commit else "", confirmed)

"""Checkpoints in the background: opening stays cheap, appending never waits (rule 10).

Whoever commits a version that crosses the line writes its checkpoint. The line is every `INTERVAL`
versions, and further apart the more live files there are, because a checkpoint lists them all: its cost
a commit stays bounded (at most 8 listed files a commit). Failing to write one never fails an append; the
next line is another chance.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from streamlog.errors import StreamlogError
from streamlog.storage.delta import write_checkpoint
from streamlog.storage.objects import Objects

_log = logging.getLogger(__name__)
INTERVAL = 256
_FILES_A_COMMIT = 8


def crosses_line(version: int, live_files: int) -> bool:
    """Whether the writer of this version owes a checkpoint."""
    interval = INTERVAL
    while interval * _FILES_A_COMMIT < live_files:
        interval *= 2
    return version > 0 and version % interval == 0


class _Due(NamedTuple):
    table: str
    version: int
    after: Callable[[], object] | None


class Checkpointer:
    """One background thread a client, started at the first line crossed."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._wake = threading.Condition()
        self._due: deque[_Due] = deque()
        self._busy = False
        self._thread: threading.Thread | None = None

    def passed(
        self,
        table: str,
        version: int,
        live_files: int,
        after: Callable[[], object] | None = None,
    ) -> None:
        """A version was committed; queues its checkpoint if one is owed, and what comes `after` it."""
        if not self._objects.supports_delta or not crosses_line(version, live_files):
            return
        with self._wake:
            self._due = deque(item for item in self._due if item.table != table)
            self._due.append(_Due(table, version, after))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="streamlog-checkpoints", daemon=True
                )
                self._thread.start()
            self._wake.notify_all()

    def drain(self, timeout: float) -> bool:
        """Waits until nothing is due; False if that took too long."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._due and not self._busy, timeout)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._busy = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: bool(self._due))
                table, version, after = self._due.popleft()
                self._busy = True
            try:
                write_checkpoint(self._objects, table, version)
                if after is not None:
                    after()
            except StreamlogError as error:
                _log.warning("no checkpoint of %s at version %d: %s", table, version, error)
            except Exception:  # noqa: BLE001
                # deltalake raises its own kinds while writing; an append must not notice any of them.
                _log.exception("no checkpoint of %s at version %d", table, version)

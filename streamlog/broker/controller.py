"""Maintenance by brokers: the one that the view names as controller does it, if it was told to.

K1  Every commit carries the epoch of the view in which this broker was the controller, so a deposed one that
    does not know it yet is refused wherever its successor has been.
K2  It also holds the lease of maintenance loops: beside a `streamlog maintain --every` it stands by.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from streamlog.compaction.round import Round
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

_log = logging.getLogger(__name__)
_LEASE_SECONDS = 180.0


class Controller:
    """The maintenance loop of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings = broker.settings
        ttl = max(_LEASE_SECONDS, 3 * self._settings.maintain_seconds)
        self._lease = broker.log.lease(ttl, controller=True)
        # A thread of its own: a round may take minutes.
        self._thread = ThreadPoolExecutor(1, "streamlog-maintain")
        self._working: asyncio.Task[None] | None = None
        self._standing_by = False

    async def start(self) -> None:
        """Begins the loop, if this broker shall maintain."""
        if self._settings.maintain:
            self._working = asyncio.create_task(self._work())

    async def stop(self, seconds: float) -> None:
        """Ends the loop; a round under way is waited for so long."""
        if self._working is None:
            return
        self._working.cancel()
        with suppress(asyncio.CancelledError):
            await self._working
        self._working = None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(max(seconds, 1.0)):
                await loop.run_in_executor(self._thread, self._lease.release)
        except (StreamlogError, TimeoutError) as error:
            _log.warning("the lease of maintenance is not given back: %s", error)
        self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.run_in_executor(self._thread, self.turn)
            except StreamlogError as error:
                _log.warning("maintenance failed: %s", error)
            await asyncio.sleep(self._settings.maintain_seconds)

    def turn(self) -> Round | None:
        """One round, if it is ours to do; blocks."""
        epoch = self._broker.cluster.controller_epoch
        if epoch is None:
            self._lease.release()
            return None
        if not self._lease.hold():
            if not self._standing_by:
                _log.info("%s maintains this root; standing by", self._lease.holder)
            self._standing_by = True
            return None
        self._standing_by = False
        with self._lease.kept():
            found = self._broker.log.maintain(controller_epoch=epoch)
        self._broker.metrics.maintained(found)
        numbers = found.numbers()
        busy = any(
            numbers[name] for name in ("steps", "failures", "commits_cleaned", "files_vacuumed")
        )
        _log.log(logging.INFO if busy else logging.DEBUG, "maintenance: %s", found)
        for message in found.failures:
            _log.warning("maintenance: %s", message)
        return found

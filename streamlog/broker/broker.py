"""A broker: stateless, serving every topic of a root to Kafka's clients.

All that must survive is in the root; a broker that is killed takes nothing with it but its connections.

B1  The event loop never waits for storage: everything that touches it runs in `run`, on a thread.
B2  Stopping, in this order: the others are told, so that clients go to them; members of groups are told to
    join again; no new connections and no new requests; what is under way is answered. All of it together
    takes `drain_seconds` at most, and a second or two for what is then given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from streamlog.broker.cluster import Cluster
from streamlog.broker.controller import Controller
from streamlog.broker.groups.registry import Groups
from streamlog.broker.http import Http
from streamlog.broker.memory import Memory
from streamlog.broker.metrics import Metrics
from streamlog.broker.partitions import Partitions
from streamlog.broker.producer_ids import ProducerIds
from streamlog.broker.security import Security
from streamlog.broker.server import Server
from streamlog.broker.settings import BrokerSettings
from streamlog.broker.topic_cache import TopicCache
from streamlog.client import Log
from streamlog.clock import Runtime
from streamlog.log.topics import Topics

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)
_THREADS = 32
# A storage that did not answer for so long, and for as long as makes a broker dead, is silent.
_SILENT_SECONDS = 5.0
# Each step of stopping gets so long even when the time for draining is over.
_LAST_SECONDS = 0.5


class Broker:
    """One broker of one root."""

    def __init__(self, log: Log, settings: BrokerSettings, runtime: Runtime | None = None) -> None:
        self.log = log
        self.settings = settings
        self.runtime = runtime or Runtime()
        self.topics: Topics = log.admin()
        self.memory = Memory(settings.request_memory)
        self.metrics = Metrics(self.runtime.clock)
        self.security = Security(settings, self.topics, self.runtime)
        self.cluster = Cluster(settings, self.topics.objects, self.runtime)
        self.producer_ids = ProducerIds(self.topics.objects)
        self.topic_cache = TopicCache(self)
        self.partitions = Partitions(self)
        self.groups = Groups(self)
        self.stopping = False
        self.server = Server(self)
        self.controller = Controller(self)
        self.http = Http(self)
        self._serving = False
        self._pool = ThreadPoolExecutor(_THREADS, "streamlog-broker")
        self._watch()

    async def run(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Does something that may wait for storage."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: action(*args, **kwargs))

    async def read(self, action: Callable[[], T]) -> T:
        """Reads records from the storage."""
        self.metrics.read_store()
        return await self.run(action)

    async def start(self) -> None:
        """Takes the address, tells the others, then serves."""
        await self.security.start(self.run)
        await self.server.start()
        await self.http.start()
        await self.cluster.start(self.server.port)
        await self.server.serve()
        await self.controller.start()
        self._serving = True

    async def stop(self) -> None:
        """Leaves, answers what is under way, and ends (B2)."""
        self._serving = False
        loop = asyncio.get_running_loop()
        until = loop.time() + self.settings.drain_seconds
        await self.cluster.stop()
        self.stopping = True
        for host in self.partitions.hosts:
            # Those who wait for records get what there is.
            host.wake()
        await self._until(until, "groups", self.groups.stop())
        left = max(until - loop.time(), 0.0)
        await asyncio.gather(self.server.stop(left), self.controller.stop(left))
        await self._until(until, "commits", self.partitions.close())
        await self.http.stop()
        await self.security.stop()
        await self._end_threads(until)

    def unhealthy(self) -> str | None:
        """Why this broker should get no new clients; None while all is well."""
        if not self._serving:
            return "not serving"
        limit = self.settings.heartbeat_seconds * self.settings.missed_heartbeats + _SILENT_SECONDS
        silent = self._silent_seconds()
        return f"the storage is silent for {silent:.0f} s" if silent > limit else None

    def _silent_seconds(self) -> float:
        at = self.cluster.answered_at
        return 0.0 if at is None else self.runtime.clock.monotonic() - at

    async def _until(self, until: float, what: str, step: Awaitable[None]) -> None:
        left = until - asyncio.get_running_loop().time()
        try:
            await asyncio.wait_for(step, max(left, _LAST_SECONDS))
        except TimeoutError:
            _log.warning("%s are still under way after drain_seconds; nothing waits for them", what)

    async def _end_threads(self, until: float) -> None:
        """What still waits for a storage that does not answer is not waited for."""
        loop = asyncio.get_running_loop()
        ending = loop.run_in_executor(None, self._pool.shutdown)
        left = max(until - loop.time(), _LAST_SECONDS)
        _, late = await asyncio.wait((ending,), timeout=left)
        if late:
            _log.warning("some requests to the storage are still under way; nothing waits for them")

    def _watch(self) -> None:
        watch = self.metrics.watch
        cluster = self.cluster
        watch("connections", "Open connections.", lambda: self.server.connections)
        watch("request_memory_bytes", "Memory of requests under way.", lambda: self.memory.used)
        watch("tail_bytes", "Memory of the tails.", lambda: self.partitions.tail_bytes)
        watch("brokers", "Brokers in the newest view.", lambda: len(cluster.brokers()))
        watch("epoch", "The leader epoch: the number of the newest view.", lambda: cluster.epoch)
        watch(
            "is_controller",
            "1 on the broker that is the controller.",
            lambda: cluster.controller_epoch is not None,
        )
        watch(
            "storage_silent_seconds",
            "Since the storage last answered a heartbeat.",
            self._silent_seconds,
        )

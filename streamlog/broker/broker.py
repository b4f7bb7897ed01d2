"""A broker: stateless, serving every topic of a root to Kafka's clients.

All that must survive is in the root; a broker that is killed takes nothing with it but its connections.

B1  The event loop never waits for storage: everything that touches it runs in `run`, on a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from streamlog.broker.cluster import Cluster
from streamlog.broker.memory import Memory
from streamlog.broker.metrics import Metrics
from streamlog.broker.security import Security
from streamlog.broker.server import Server
from streamlog.broker.settings import BrokerSettings
from streamlog.client import Log
from streamlog.clock import Runtime
from streamlog.log.topics import Topics

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 32


class Broker:
    """One broker of one root."""

    def __init__(self, log: Log, settings: BrokerSettings, runtime: Runtime | None = None) -> None:
        self.log = log
        self.settings = settings
        self.runtime = runtime or Runtime()
        self.topics: Topics = log.admin()
        self.memory = Memory(settings.request_memory)
        self.metrics = Metrics()
        self.security = Security(settings, self.topics, self.runtime)
        self.cluster = Cluster(settings)
        self.server = Server(self)
        self._pool = ThreadPoolExecutor(_THREADS, "streamlog-broker")

    async def run(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Does something that may wait for storage."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: action(*args, **kwargs))

    async def start(self) -> None:
        """Listens, then tells the others."""
        await self.security.start(self.run)
        await self.server.start()
        await self.cluster.start(self.server.port)

    async def stop(self) -> None:
        """Leaves, answers what is under way, and ends."""
        await self.cluster.stop()
        await self.server.stop()
        await self.security.stop()
        self._pool.shutdown(wait=True)

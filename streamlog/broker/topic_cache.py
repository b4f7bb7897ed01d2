"""The registry of topics as the event loop sees it: never a wait for the storage where one is known.

K1  An entry older than `MAX_AGE` is still given out while a look is under way; one older than `TOO_OLD`
    is not. Nothing depends on it for safety: a deleted topic's partitions are sealed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamlog.broker.kafka_errors import Code, KafkaError
from streamlog.log.registry import TopicInfo

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

MAX_AGE = 1.0
TOO_OLD = 10.0


class TopicCache:
    """Topics by name and by id."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._names: Mapping[str, TopicInfo] = {}
        self._ids: dict[str, TopicInfo] = {}
        self._looked_at = float("-inf")
        self._look: asyncio.Task[None] | None = None

    async def named(self, name: str) -> TopicInfo:
        """A topic; one that is not known is looked for."""
        await self._fresh()
        info = self._names.get(name)
        if info is None:
            await self.refresh()
            info = self._names.get(name)
        if info is None:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return info

    async def with_id(self, topic_id: str) -> TopicInfo:
        """A topic by the hex digits of its id."""
        await self._fresh()
        info = self._ids.get(topic_id)
        if info is None:
            await self.refresh()
            info = self._ids.get(topic_id)
        if info is None:
            raise KafkaError(Code.UNKNOWN_TOPIC_ID)
        return info

    async def refresh(self) -> None:
        """Looks now."""
        if self._look is None:
            self._look = asyncio.create_task(self._run())
        await asyncio.shield(self._look)

    async def renew(self) -> None:
        """Looks after a change: a look that is under way may have begun before it."""
        if self._look is not None:
            await asyncio.wait({self._look})
        await self.refresh()

    async def _fresh(self) -> None:
        age = asyncio.get_running_loop().time() - self._looked_at
        if age > TOO_OLD:
            await self.refresh()
        elif age > MAX_AGE and self._look is None:
            self._look = asyncio.create_task(self._run())
            self._look.add_done_callback(_noticed)

    async def _run(self) -> None:
        try:
            started = asyncio.get_running_loop().time()
            infos = await self._broker.run(self._broker.topics.list, refresh=True)
            self._looked_at = started
            known = set(self._ids)
            self._names = {info.name: info for info in infos}
            self._ids = {info.id: info for info in infos}
            for gone in known - set(self._ids):
                self._broker.partitions.forget(gone)
        finally:
            self._look = None


def _noticed(done: asyncio.Task[None]) -> None:
    """A look in the background that failed is tried again by the next one who asks."""
    if not done.cancelled():
        done.exception()

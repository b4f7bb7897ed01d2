"""The partitions that a broker serves: their queues, tails, waiting consumers, and the look at the storage.

H1  Only committed records are visible: `end` moves after a commit of ours returned, or after another
    writer's commit was seen in the storage.
H2  Of one partition one commit is under way at a time; what comes meanwhile goes into the next one.
H3  Who waits for records is registered before looking for them, so that no wake-up is lost.
H4  While somebody waits, the storage is looked at for other writers' commits: often after a change, then
    less and less. Our own commits wake directly, and while they flow nobody looks.

The event loop owns everything here; threads run `Appender`, readers and looks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamlog.broker.appends import Appender, Produced, Wanted
from streamlog.broker.kafka_errors import Code, KafkaError
from streamlog.broker.stored import Stored
from streamlog.broker.tail import Chunk, Tail, TailMemory
from streamlog.errors import StreamlogError, TopicDeletedError
from streamlog.log.registry import TopicInfo

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker

_log = logging.getLogger(__name__)

# A commit takes up to so many bytes of requests, but at least one request.
_GROUP_BYTES = 32 << 20
_STORE_BYTES = 1 << 20


class PartitionHost:
    """One partition as this broker serves it."""

    def __init__(self, broker: Broker, info: TopicInfo, partition: int, memory: TailMemory) -> None:
        self._broker = broker
        self.info = info
        self.partition = partition
        self.start = 0
        self.end = 0
        self._rewrites: tuple[int, int] | None = None
        self.tail = Tail(memory)
        self._log = broker.topics.partition_log(info, partition)
        self._first_look = broker.topics.partition_reader(info, partition)
        self._writer = threading.Lock()
        self._appender = Appender(
            self._log,
            broker.runtime,
            max_decompressed=broker.settings.max_decompressed,
            commit_seconds=broker.settings.commit_seconds,
        )
        self.stored = Stored(lambda: broker.topics.partition_reader(info, partition), broker.read)
        self._queue: list[tuple[Wanted, asyncio.Future[Produced]]] = []
        self._pump: asyncio.Task[None] | None = None
        self._opening: asyncio.Future[None] | None = None
        self.waiters: set[asyncio.Event] = set()
        # When the storage is to be looked at next, and the pause after that (H4).
        self.due = 0.0
        self.pause = 0.0
        self.broken: StreamlogError | None = None

    # writing

    def enqueue(self, data: bytes, *, durable: bool) -> asyncio.Future[Produced]:
        """Queues the records of one request; they are appended in the order of these calls."""
        answer: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()
        self._queue.append((Wanted(data, durable), answer))
        if self._pump is None:
            self._pump = asyncio.create_task(self._run_pump())
        return answer

    async def _run_pump(self) -> None:
        try:
            while self._queue:
                await self._commit(self._next_group())
        finally:
            self._pump = None

    def _next_group(self) -> list[tuple[Wanted, asyncio.Future[Produced]]]:
        size = count = 0
        for wanted, _ in self._queue:
            size += len(wanted.data)
            if count and size > _GROUP_BYTES:
                break
            count += 1
        group, self._queue = self._queue[:count], self._queue[count:]
        return group

    async def _commit(self, group: Sequence[tuple[Wanted, asyncio.Future[Produced]]]) -> None:
        epoch = self._broker.cluster.epoch
        asked = [wanted for wanted, _ in group]
        metrics = self._broker.metrics
        started, lost = metrics.now(), self._log.lost_races
        try:
            chunks, seen = await self._broker.run(self._append, asked, epoch)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must be answered
            _log.exception("a commit to %s-%d failed", self.info.name, self.partition)
            for _, answer in group:
                if not answer.done():
                    answer.set_exception(error)
            return
        metrics.committed(metrics.now() - started, len(group), self._log.lost_races - lost)
        for chunk in chunks:
            self.tail.add(chunk)
            metrics.produced(self.info.name, chunk.next - chunk.first, len(chunk.data))
        self._saw(seen)
        for wanted, answer in group:
            if not answer.done():
                answer.set_result(wanted.answer)

    def _append(self, group: Sequence[Wanted], epoch: int) -> tuple[list[Chunk], _Seen]:
        with self._writer:
            chunks = self._appender.append(self.info, group, epoch)
            return chunks, (self._log.start, self._log.end, self._log.rewrites)

    # looking

    async def open(self) -> None:
        """The first look; after it `start` and `end` are known."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self.look())
        try:
            await asyncio.shield(self._opening)
        except BaseException:
            if self._opening.done():
                self._opening = None
            raise

    async def look(self) -> None:
        """Takes up what other writers did."""
        seen = await self._broker.run(self.glance, wait=True)
        if seen is not None:
            self._saw(seen)

    def glance(self, *, wait: bool = False) -> _Seen | None:
        """Looks at the storage, on a thread; None while a commit is under way, which looks by itself."""
        if not self._writer.acquire(blocking=wait):
            return None
        try:
            if self._log.is_open:
                self._log.refresh()
                return self._log.start, self._log.end, self._log.rewrites
            # A partition that nobody wrote to has no table, and looking should not make one.
            reader = self._first_look
            reader.refresh()
            if reader.version >= 0:
                self._log.refresh()
                return self._log.start, self._log.end, self._log.rewrites
            return reader.start, reader.end, None
        finally:
            self._writer.release()

    def saw(self, seen: _Seen) -> bool:
        """As `_saw`, for the watch; True if there was something new."""
        before = self.end
        self._saw(seen)
        return self.end != before

    def _saw(self, seen: _Seen) -> None:
        start, end, rewrites = seen
        if rewrites is not None and rewrites != self._rewrites:
            if self._rewrites is not None:
                # Files were replaced: records may have been erased, and must not be handed out any more.
                self.tail.clear()
                self.stored.forget()
            self._rewrites = rewrites
        self.start = max(self.start, start)
        if end > self.end:
            self.end = end
            self.wake()

    def wake(self) -> None:
        """Tells all that wait for this partition."""
        for waiter in self.waiters:
            waiter.set()

    # reading

    async def read(self, offset: int, max_bytes: int) -> list[bytes]:
        """Batches from `offset` on, about so many bytes; [] at the end."""
        if offset > self.end:
            # Perhaps another broker's record that we have not seen yet.
            await self.look()
        if not self.start <= offset <= self.end:
            raise KafkaError(Code.OFFSET_OUT_OF_RANGE)
        if offset == self.end:
            return []
        chunks = self.tail.read(offset, max_bytes)
        metrics = self._broker.metrics
        if chunks:
            metrics.fetched(True, sum(len(chunk.data) for chunk in chunks))
            return [chunk.data for chunk in chunks]
        chunk = await self.stored.read(
            offset,
            min(max_bytes, _STORE_BYTES),
            self.end,
            self._broker.cluster.epoch,
            stamped=self.info.config.message_timestamp_type == "LogAppendTime",
        )
        if chunk is None:
            return []
        metrics.fetched(False, len(chunk.data))
        if self._continues_tail(chunk):
            self.tail.add(chunk)
        return [chunk.data]

    def _continues_tail(self, chunk: Chunk) -> bool:
        """Whether a piece from the storage belongs to the tail: other writers' newest records do."""
        if self.tail.next is not None:
            return chunk.first == self.tail.next and chunk.next <= self.end
        return chunk.next == self.end

    async def close(self) -> None:
        """Waits for the commits under way."""
        if self._pump is not None:
            await asyncio.wait({self._pump})


# Log start, log end, and what changes when files were replaced (None while there is no table).
_Seen = tuple[int, int, tuple[int, int] | None]


class Partitions:
    """All partitions that were asked for so far."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._memory = TailMemory(broker.settings.tail_memory)
        self._hosts: dict[tuple[str, int], PartitionHost] = {}
        self._watch: asyncio.Task[None] | None = None
        local = broker.topics.objects.local
        self._shortest, self._longest = (0.001, 0.05) if local else (0.05, 1.0)
        self._lanes = 1 if local else 16

    def host(self, info: TopicInfo, partition: int) -> PartitionHost:
        """The host of a partition that exists."""
        if not 0 <= partition < info.partitions:
            raise KafkaError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        host = self._hosts.get((info.id, partition))
        if host is None:
            host = PartitionHost(self._broker, info, partition, self._memory)
            self._hosts[info.id, partition] = host
        host.info = info
        return host

    def forget(self, topic_id: str) -> None:
        """A topic is gone."""
        for key in [key for key in self._hosts if key[0] == topic_id]:
            host = self._hosts.pop(key)
            host.tail.clear()
            host.wake()

    @property
    def hosts(self) -> Sequence[PartitionHost]:
        """All that are known."""
        return list(self._hosts.values())

    @property
    def tail_bytes(self) -> int:
        """Memory that the tails take."""
        return self._memory.used

    def watch(self, host: PartitionHost, waiter: asyncio.Event) -> None:
        """Somebody waits for a partition (H3)."""
        if not host.waiters:
            host.due, host.pause = 0.0, self._shortest
        host.waiters.add(waiter)
        if self._watch is None:
            self._watch = asyncio.create_task(self._run_watch())

    async def _run_watch(self) -> None:
        """H4, until nobody waits."""
        loop = asyncio.get_running_loop()
        try:
            while watched := [host for host in self._hosts.values() if host.waiters]:
                now = loop.time()
                due = [host for host in watched if host.due <= now]
                if due:
                    size = -(-len(due) // self._lanes)
                    parts = [due[i : i + size] for i in range(0, len(due), size)]
                    await asyncio.gather(*map(self._look, parts))
                # With very many partitions each is looked at less often: the sum is what costs.
                longest = max(self._longest, len(watched) / 10_000)
                now = loop.time()
                for host in due:
                    host.due = now + host.pause
                    host.pause = min(host.pause * 2, longest)
                nearest = min(host.due for host in watched)
                await asyncio.sleep(min(max(nearest - loop.time(), 0.001), self._longest))
        finally:
            self._watch = None

    async def _look(self, hosts: Sequence[PartitionHost]) -> None:
        for host, seen in zip(hosts, await self._broker.run(_glances, hosts), strict=True):
            if isinstance(seen, TopicDeletedError):
                self.forget(host.info.id)
            elif isinstance(seen, StreamlogError):
                # Whoever reads there is told; the look itself goes on.
                host.broken = seen
                host.wake()
            elif seen is not None:
                host.broken = None
                if host.saw(seen):
                    host.pause = self._shortest

    async def close(self) -> None:
        """Waits for all commits under way."""
        if self._watch is not None:
            self._watch.cancel()
        for host in self.hosts:
            await host.close()


def _glances(hosts: Sequence[PartitionHost]) -> list[_Seen | StreamlogError | None]:
    seen: list[_Seen | StreamlogError | None] = []
    for host in hosts:
        try:
            seen.append(host.glance())
        except StreamlogError as error:
            seen.append(error)
    return seen

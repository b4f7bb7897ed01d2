"""Moves queued chunks into partitions: a few threads, many lanes, one bound on memory.

Invariants
1. `room` counts the bytes of batches open, being cut, queued and in flight; what ends gives its
   back.
2. A lane is in `ready`, or busy, or empty: never served by two threads.
3. A failure ends the chunks it concerns and no others; only fencing stops the producer.
4. Threads are daemons, started as needed and gone when there was nothing to do for a while: a
   producer that somebody forgot to close leaves none behind. An idle one is also the timer of
   lingering batches. While its topic is being appended to, or all threads are busy, a lingering
   batch keeps filling (it would only queue), but not for long, and not when others wait for room.
5. After `stop` every chunk ends: those queued by `stop`, those in flight by their thread, those
   that come later at once.

Locks: `lock` is a leaf apart from deliveries; buffers' locks are taken before it, never under it.
Deliveries end, callbacks and appends run without it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from streamlog.clock import Runtime
from streamlog.errors import (
    DeliveryTimeoutError,
    StreamlogError,
    UnavailableError,
)
from streamlog.log.topics import TopicInfo
from streamlog.producer.accumulator import Batch, TopicBuffer
from streamlog.producer.delivery import Chunk
from streamlog.producer.lane import Lane
from streamlog.producer.room import Room
from streamlog.producer.settings import ProducerSettings

logger = logging.getLogger(__name__)

# How long past its linger a batch may go on filling while it would only queue.
_GRACE = 0.05

# How long a thread waits for something to do.
_IDLE_SECONDS = 10.0


class Lingering(NamedTuple):
    """An open batch and the time it should be sent at."""

    due: float
    buffer: TopicBuffer
    batch: Batch

    @property
    def stale(self) -> bool:
        """Whether the batch was sent already, being full or flushed."""
        return self.buffer.batch is not self.batch


class Sender:
    """The threads of one producer."""

    def __init__(
        self,
        settings: ProducerSettings,
        runtime: Runtime,
        lane: Callable[[TopicInfo, int], Lane],
        seal: Callable[[TopicBuffer, Batch | None], None],
        failed: Callable[[Lane, StreamlogError], None],
    ) -> None:
        self._settings = settings
        self._clock = runtime.clock
        self._make_lane = lane
        self._seal = seal
        self._failed = failed
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        self.room = Room(self.lock, settings.buffer_bytes, self._wake)
        self._ended = threading.Condition(self.lock)
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._ready: deque[Lane] = deque()
        self._lingering: deque[Lingering] = deque()
        self._closed: deque[TopicBuffer] = deque()
        self._unfinished: set[Chunk] = set()
        # How many of them a topic has.
        self._queued: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._stopping: StreamlogError | None = None
        self._records = 0
        self._acknowledged = 0
        self._errors = 0
        self._appends = 0

    def linger(self, buffer: TopicBuffer, batch: Batch) -> None:
        """See to it that a batch just opened is sent in time."""
        entry = Lingering(batch.opened + self._settings.linger_ms / 1000, buffer, batch)
        with self.lock:
            self._lingering.append(entry)
            if len(self._lingering) == 1 or self.room.wanted:
                self._wake()

    def cut(self, buffer: TopicBuffer) -> None:
        """Have the closed batches of a topic cut and queued."""
        with self.lock:
            self._closed.append(buffer)
            self._wake()

    def enqueue(self, info: TopicInfo, chunks: Sequence[Chunk], reserved: int) -> Sequence[Chunk]:
        """Queue sealed chunks in order, for which `reserved` bytes were taken.

        Returns those that came too late, after `stop`; they are to be given to `refuse`.
        """
        with self.lock:
            self.room.used -= reserved
            self._records += sum(chunk.count for chunk in chunks)
            refused = chunks if self._stopping is not None else ()
            if not refused:
                for chunk in chunks:
                    lane = self._lane(info, chunk.partition)
                    lane.chunks.append(chunk)
                    self._unfinished.add(chunk)
                    self._queued[info.name] += 1
                    self.room.used += chunk.nbytes
                    if not lane.busy:
                        lane.busy = True
                        self._ready.append(lane)
                        self._wake()
            self.room.changed()
            return refused

    def refuse(self, info: TopicInfo, chunks: Sequence[Chunk]) -> None:
        """End chunks that came after `stop`."""
        if not chunks:
            return
        assert self._stopping is not None
        count = sum(chunk.count for chunk in chunks)
        logger.warning("%s: %d records were not written: %s", info.name, count, self._stopping)
        with self.lock:
            self._errors += count
        for chunk in chunks:
            self._end(chunk, error=self._stopping)

    def wait(self, timeout: float | None) -> None:
        """Wait until all that is queued now has ended."""
        with self.lock:
            pending = set(self._unfinished)
            if not self._ended.wait_for(lambda: pending.isdisjoint(self._unfinished), timeout):
                left = sum(chunk.count for chunk in pending & self._unfinished)
                raise UnavailableError(
                    f"{left} records were not written within {timeout} s; they may still be: "
                    "wait again, or look at their acks"
                )

    def stop(self, reason: StreamlogError) -> None:
        """Tell the threads to end; what is queued fails with `reason`."""
        dropped: list[Chunk] = []
        with self.lock:
            if self._stopping is None:
                self._stopping = reason
            for lane in self._lanes.values():
                dropped.extend(lane.chunks)
                lane.chunks.clear()
            for lane in self._ready:
                lane.busy = False
            self._ready.clear()
            self._lingering.clear()
            self._closed.clear()
            self.room.open = True
            self._work.notify_all()
            self._ended.notify_all()
            self.room.changed()
        self._drop(dropped, reason)

    def _drop(self, chunks: Sequence[Chunk], reason: StreamlogError) -> None:
        if chunks:
            count = sum(chunk.count for chunk in chunks)
            logger.warning("%d queued records were not written: %s", count, reason)
            self._settle(chunks, error=reason)

    @property
    def inside(self) -> bool:
        """Whether this is one of the sender's own threads: a callback is running."""
        return threading.current_thread() in self._threads

    @property
    def unfinished(self) -> list[Chunk]:
        """What is queued or in flight."""
        return list(self._unfinished)

    def join(self, timeout: float | None) -> None:
        """Wait for the threads after `stop`."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        for thread in list(self._threads):
            left = None if deadline is None else max(0.0, deadline - self._clock.monotonic())
            thread.join(left)

    def metrics(self) -> dict[str, int]:
        """Counts of records and appends, and the bytes in the buffer."""
        with self.lock:
            return {
                "records": self._records,
                "acknowledged": self._acknowledged,
                "errors": self._errors,
                "appends": self._appends,
                "buffered_bytes": self.room.used,
            }

    def with_lane(self, info: TopicInfo, partition: int, action: Callable[[Lane], int]) -> int:
        """Run `action` between two appends of a partition."""
        with self.lock:
            lane = self._lane(info, partition)
            self._ended.wait_for(lambda: not lane.busy or self._stopping is not None)
            if self._stopping is not None:
                raise type(self._stopping)(*self._stopping.args)
            lane.busy = True
        try:
            return action(lane)
        finally:
            self._leave(lane, [])

    def _wake(self) -> None:
        waiting = len(self._ready) + len(self._closed) + (1 if self._lingering else 0)
        if self._idle:
            self._work.notify()
        if waiting <= self._idle or len(self._threads) >= self._settings.max_in_flight:
            return
        name = f"streamlog-sender-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:
            # No more threads to be had, as at the interpreter's end: those there are will do.
            self._threads.remove(thread)
            if not self._threads:
                raise

    def _run(self) -> None:
        while True:
            task = self._next()
            if task is None:
                return
            try:
                if isinstance(task, Lane):
                    self._serve(task)
                elif isinstance(task, Lingering):
                    self._seal(task.buffer, task.batch)
                else:
                    self._seal(task, None)
            except Exception:
                # A thread that died would be missed by all topics; this is a fault of one.
                logger.exception("a sender thread met an error of its own")

    def _next(self) -> Lane | Lingering | TopicBuffer | None:
        """The next thing to do: a batch to cut, or a lane with chunks."""
        with self.lock:
            while self._stopping is None:
                if self._closed:
                    buffer = self._closed.popleft()
                    self._pass_on()
                    return buffer
                entry, timeout = self._due()
                if entry is not None:
                    self._lingering.remove(entry)
                    self._pass_on()
                    return entry
                if self._ready:
                    lane = self._ready.popleft()
                    self._pass_on()
                    return lane
                self._idle += 1
                woken = self._work.wait(_IDLE_SECONDS if timeout is None else timeout)
                self._idle -= 1
                if not woken and timeout is None and not self._busy:
                    break
            # Gone from the list under the same lock that says there is nothing to do: whoever has
            # something then starts another thread. After `stop` the list is what `join` waits for.
            if self._stopping is None:
                self._threads.remove(threading.current_thread())
            return None

    def _due(self) -> tuple[Lingering | None, float | None]:
        """The lingering batch to send now, or how long there will be none."""
        while self._lingering and self._lingering[0].stale:
            self._lingering.popleft()
        if not self._lingering:
            return None, None
        if self.room.wanted:
            return self._lingering[0], None
        now = self._clock.monotonic()
        timeout = self._lingering[0].due + _GRACE - now
        for entry in self._lingering:
            late = now - entry.due
            if late < 0:
                return None, min(timeout, -late)
            queues = bool(self._ready) or self._queued[entry.batch.info.name] > 0
            if not entry.stale and (not queues or late >= _GRACE):
                return entry, None
        return None, timeout

    @property
    def _busy(self) -> bool:
        return bool(self._closed or self._ready or self._lingering)

    def _pass_on(self) -> None:
        """Something is being done; somebody else should see to the rest, and keep the time."""
        if self._busy:
            self._wake()

    def _serve(self, lane: Lane) -> None:
        again: list[Chunk] = []
        try:
            with self.lock:
                group = lane.take() if lane.chunks else []
            expired = [chunk for chunk in group if lane.expired(chunk)]
            if expired:
                self._settle(expired, lane=lane, error=lane.timeout())
                gone = set(expired)
                group = [chunk for chunk in group if chunk not in gone]
            if group:
                again = self._append(lane, group)
        finally:
            self._leave(lane, again)

    def _append(self, lane: Lane, group: Sequence[Chunk]) -> list[Chunk]:
        """One append; returns the chunks that should be tried again."""
        again: list[Chunk] = []
        try:
            base, stamp = lane.append(group)
        except DeliveryTimeoutError as error:
            # Nothing was written. Chunks that came later than the first have time left.
            again = [chunk for chunk in group[1:] if not lane.expired(chunk)]
            self._settle([c for c in group if c not in again], lane=lane, error=error)
        except StreamlogError as error:
            self._settle(group, lane=lane, error=error)
        except Exception as error:
            logger.exception("%s: an append broke off", lane)
            self._settle(group, lane=lane, error=lane.unexpected(error))
        else:
            self._settle(group, base=base, stamp=stamp)
        return again

    def _leave(self, lane: Lane, again: Sequence[Chunk]) -> None:
        """Be done with a lane for now; chunks to try `again` stay at its front."""
        with self.lock:
            stopping = self._stopping
            lane.busy = False
            if stopping is None:
                lane.chunks.extendleft(reversed(again))
                if lane.chunks:
                    lane.busy = True
                    self._ready.append(lane)
                    self._wake()
            self._ended.notify_all()
        if stopping is not None:
            self._drop(again, stopping)

    def _lane(self, info: TopicInfo, partition: int) -> Lane:
        key = (info.id, partition)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = self._make_lane(info, partition)
        lane.info = info
        return lane

    def _settle(
        self,
        chunks: Sequence[Chunk],
        *,
        lane: Lane | None = None,
        base: int | None = None,
        stamp: int | None = None,
        error: StreamlogError | None = None,
    ) -> None:
        """End chunks: offsets follow one another from `base`, or all share `error`."""
        count = sum(chunk.count for chunk in chunks)
        if error is not None and lane is not None:
            logger.warning("%s: %d records were not written: %s", lane, count, error)
            try:
                # First, so that whoever learns of the error can send anew at once.
                self._failed(lane, error)
            except Exception:
                logger.exception("%s: could not find out what became of the topic", lane)
        for chunk in chunks:
            self._end(chunk, base=base, stamp=stamp, error=error)
            if base is not None:
                base += chunk.count
        with self.lock:
            if error is None:
                self._appends += 1
                self._acknowledged += count
            else:
                self._errors += count
            self.room.used -= sum(chunk.nbytes for chunk in chunks)
            self._unfinished.difference_update(chunks)
            for chunk in chunks:
                assert chunk.delivery is not None
                self._queued[chunk.delivery.topic] -= 1
            self.room.changed()
            self._ended.notify_all()

    def _end(
        self,
        chunk: Chunk,
        *,
        base: int | None = None,
        stamp: int | None = None,
        error: StreamlogError | None = None,
    ) -> None:
        assert chunk.delivery is not None
        chunk.delivery.end(chunk, base_offset=base, timestamp_ms=stamp, error=error)

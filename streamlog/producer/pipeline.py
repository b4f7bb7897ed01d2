"""From open batches to the sender: opens, seals and queues the batches of all topics.

Invariants
1. Batches of a topic are queued in the order they were closed (`seal_lock` is held from taking one
   out to queueing it), and a batch belongs to the incarnation of the topic it was opened for: if
   that one is gone its records fail, they never land in a namesake.
2. A buffer in `buffers` is the only one of its topic that takes records; who finds another one
   starts anew.
3. Every batch opened is queued or failed, also after `shut`; every reservation is used or given
   back.
4. Who fills a batch cuts it: its records are in his processor's cache, and beside a `send` in a
   loop another thread would get next to nothing of the interpreter. Sealing and queueing it is for
   the sender's threads, which no Ctrl-C interrupts halfway. Whoever needs it queued (a flush, a
   table behind it) does all that at once.

Locks, outer first: a buffer's `seal_lock`, its `lock`, the sender's. Called from senders' and
callers' threads.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa

from streamlog.clock import Runtime
from streamlog.errors import (
    ClosedError,
    FencedError,
    InvalidRequestError,
    StreamlogError,
    TopicDeletedError,
    TopicNotFoundError,
)
from streamlog.log.topics import TopicInfo, Topics
from streamlog.model import Header
from streamlog.producer.accumulator import FIRST_GRANT, Batch, Filled, TopicBuffer, cut
from streamlog.producer.ack import Ack, ack_of
from streamlog.producer.delivery import Chunk, Delivery
from streamlog.producer.lane import Lane
from streamlog.producer.partitioner import assign, split
from streamlog.producer.sender import Sender
from streamlog.producer.sequence import PartitionSequence, ProducerIdentity
from streamlog.producer.settings import ProducerSettings
from streamlog.producer.table import Piece

logger = logging.getLogger(__name__)

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0

# Without the interpreter's lock `send` may not do without one of its own.
_LOCK_FREE = bool(getattr(sys, "_is_gil_enabled", lambda: True)())


class Pipeline:
    """All that happens to a record between `send` and its lane."""

    def __init__(self, topics: Topics, settings: ProducerSettings, runtime: Runtime) -> None:
        self.topics = topics
        self.settings = settings
        self.clock = runtime.clock
        self._runtime = runtime
        self.identity = (
            None if settings.producer_id is None else ProducerIdentity(settings.producer_id, topics)
        )
        self._lock = threading.Lock()
        self.closed: StreamlogError | None = None
        self.buffers: dict[str, TopicBuffer] = {}
        # Buffers of topics that are gone, until their last batch is queued.
        self._leaving: list[TopicBuffer] = []
        # The open batches that `send` may fill directly: none when records need the long way.
        self.fast: dict[str, Batch] = {}
        self._direct = _LOCK_FREE and settings.partitioner is None
        self.sender = Sender(settings, runtime, self._lane, self.seal, self._failed)
        _live.add(self)

    def check_open(self) -> None:
        """Raise what closed the producer, if it is closed."""
        if self.closed is not None:
            raise type(self.closed)(*self.closed.args)

    def shut(self, reason: StreamlogError) -> None:
        """Accept nothing more."""
        with self._lock:
            if self.closed is None:
                self.closed = reason
            self.fast.clear()

    def flush(self, timeout: float | None) -> None:
        """Send what lingers and wait until all sent so far has its answer."""
        if self.sender.inside:
            raise InvalidRequestError(
                "flush was called in a delivery callback, which the sender's thread runs: it would "
                "wait for itself; call it elsewhere"
            )
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        self.drain_all()
        left = None if deadline is None else max(0.0, deadline - self.clock.monotonic())
        self.sender.wait(left)

    def close(self, timeout: float | None) -> None:
        """Flush, then stop; what is not written within `timeout` seconds fails, and close raises."""
        self.shut(ClosedError("the producer is closed; make another one to send more"))
        cut_off = ClosedError(
            "the producer was closed before this record was written; send it again"
        )
        if self.sender.inside:
            # A callback cannot wait for its own thread.
            self.sender.stop(cut_off)
            self.drain_all()
            return
        try:
            self.flush(timeout)
        finally:
            self.sender.stop(cut_off)
            self.drain_all()
            self.sender.join(None if timeout is None else 0.0)

    def forked(self) -> None:
        """In a child process: the threads are not here, and the records are the parent's."""
        error = ClosedError(
            "this producer was made before a fork, and its records are the parent's to send; make "
            "a producer in the child"
        )
        self._lock = threading.Lock()  # whoever held the old one is not here
        buffers = self._buffers()
        batches = [buffer.batch for buffer in buffers if buffer.batch is not None]
        closed = [filled.batch for buffer in buffers for filled in buffer.closed]
        for batch in batches + closed:
            batch.open = False
            batch.delivery.abandon(error)
        for chunk in self.sender.unfinished:
            if chunk.delivery is not None:
                chunk.delivery.abandon(error)
        self.closed = error
        self.buffers.clear()
        self._leaving.clear()
        self.fast.clear()
        self.sender = Sender(self.settings, self._runtime, self._lane, self.seal, self._failed)
        self.sender.stop(error)

    def buffer(self, topic: str) -> TopicBuffer:
        """The buffer of a topic, made at its first use."""
        self.check_open()
        if not isinstance(topic, str):
            raise InvalidRequestError(f"topic={topic!r} is a {type(topic).__name__}; give its name")
        buffer = self.buffers.get(topic)
        if buffer is not None:
            return buffer
        info = self._look_up(topic)
        with self._lock:
            self.check_open()
            buffer = self.buffers.get(topic)
            if buffer is None:
                sticky = self._runtime.rng.randrange(1 << 16)
                buffer = TopicBuffer(
                    info, self.settings.batch_records, self.settings.linger_ms, sticky
                )
                self.buffers[topic] = buffer
            return buffer

    def _look_up(self, topic: str) -> TopicInfo:
        """A topic seen for the first time; a silent store is asked again, up to `max_block_ms`."""
        deadline = self.clock.monotonic() + self.settings.max_block_ms / 1000
        pause = _FIRST_PAUSE
        while True:
            try:
                return self.topics.get(topic)
            except StreamlogError as error:
                wait = pause * (0.5 + self._runtime.rng.random())
                if not error.retriable or self.clock.monotonic() + wait >= deadline:
                    raise
            self.clock.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def add(
        self,
        buffer: TopicBuffer,
        key: bytes | None,
        value: bytes | None,
        stamp: int | None,
        headers: list[Header] | None,
        partition: int | None,
        size: int,
    ) -> Ack:
        """Put a checked record into its topic's batch; waits for room, up to `max_block_ms`."""
        topic = buffer.info.name
        limit = self.settings.batch_limit
        deadline = self.clock.monotonic() + self.settings.max_block_ms / 1000
        reserved = 0
        try:
            while True:
                wanted = 0
                ack: Ack | None = None
                filled: Filled | None = None
                with buffer.lock:
                    self.check_open()
                    current = self.buffers.get(topic) is buffer
                    if current:
                        batch = buffer.batch
                        if reserved:
                            batch = batch or self._open(buffer)
                            batch.grant(reserved)
                            reserved = 0
                        if batch is None:
                            wanted = max(size, min(FIRST_GRANT, limit))
                        elif size <= batch.room:
                            now_ms = self.clock.time_ms()
                            number = batch.add(key, value, now_ms, stamp, headers, partition, size)
                            ack = ack_of(batch.delivery, number)
                            if not batch.full(number, limit):
                                return ack
                        else:
                            wanted = batch.wants(size, limit)
                        if not wanted:
                            filled = self._close_batch(buffer)
                if not current:
                    buffer = self.buffer(topic)
                elif wanted:
                    left = max(0.0, deadline - self.clock.monotonic())
                    self.sender.room.reserve(wanted, left)
                    reserved = wanted
                else:
                    assert filled is not None
                    self._cut_full(filled)
                    if ack is not None:
                        return ack
        finally:
            if reserved:
                self.sender.room.release(reserved)

    def turn(self, batch: Batch, number: int, key: bytes | None, value: bytes) -> Ack | None:
        """The short way of `send` at a record that notes the time, or is the last of its batch.

        None if the batch was closed without it.
        """
        if not batch.turn(number, self.clock.time_ms()):
            return None
        try:
            batch.keys[number] = key
            batch.values[number] = value
        except IndexError:
            return None
        if not (batch.open or self.holds(batch, number)):
            return None
        if number == batch.max_records - 1:
            filled: Filled | None = None
            with batch.buffer.lock:
                if batch.buffer.batch is batch:
                    filled = self._close_batch(batch.buffer)
            if filled is not None:
                self._cut_full(filled)
        return ack_of(batch.delivery, number)

    def _cut_full(self, filled: Filled) -> None:
        """Cut a batch just closed, and let the sender queue it."""
        try:
            # An error is the sender's to meet again: it fails the batch, not this record alone.
            with suppress(Exception):
                filled.cut = cut(filled, self._deadline(filled.batch.opened))
        finally:
            self.sender.cut(filled.batch.buffer)

    def _open(self, buffer: TopicBuffer) -> Batch:
        """Begin a batch. Under the buffer's lock."""
        delivery = Delivery(buffer.info.name)
        batch = buffer.batch = Batch(buffer, delivery, self.clock.monotonic())
        delivery.hasten = partial(self.seal, buffer, batch)
        self.sender.linger(buffer, batch)
        if self._direct:
            self.fast[buffer.info.name] = batch
        return batch

    def _close_batch(self, buffer: TopicBuffer) -> Filled:
        """End the open batch. Under the buffer's lock."""
        if self.fast.get(buffer.info.name) is buffer.batch:
            self.fast.pop(buffer.info.name, None)
        return buffer.close_batch()

    def holds(self, batch: Batch, number: int) -> bool:
        """Whether a closed batch got a record that came while it was being closed."""
        buffer = batch.buffer
        with buffer.lock:
            pass  # closed for good
        self._cut(buffer)
        return batch.delivery.holds(number)

    def add_table(
        self, buffer: TopicBuffer, parts: Sequence[Piece], numbers: Sequence[pa.Array | None]
    ) -> Delivery:
        """Queue the pieces of a table behind what was sent to its topic before."""
        self.drain(buffer)
        size = sum(part.columns.nbytes for part in parts)
        self.sender.room.reserve(size, self.settings.max_block_ms / 1000)
        delivery = Delivery(buffer.info.name)
        try:
            with buffer.seal_lock:
                self.check_open()
                info = buffer.info
                chunks: list[Chunk] = []
                deadline = self._deadline(self.clock.monotonic())
                for part, explicit in zip(parts, numbers, strict=True):
                    sticky = buffer.next_sticky()
                    assigned = assign(part.columns.key, info.partitions, sticky, explicit)
                    cuts = split(part.columns, assigned, sticky)
                    chunks.extend(Chunk(number, columns, deadline) for number, columns in cuts)
                reserved, size = size, 0
                self._acknowledge_queued(chunks)
                delivery.seal(chunks)
                refused = self.sender.enqueue(info, chunks, reserved)
        finally:
            if size:
                self.sender.room.release(size)
        self.sender.refuse(info, refused)
        self._follow(buffer)
        return delivery

    def drain_all(self) -> None:
        """Queue the open batches of all topics."""
        for buffer in self._buffers():
            self.drain(buffer)

    def drain(self, buffer: TopicBuffer) -> None:
        """Queue the open batch of a topic; on return everything sent before is queued."""
        self.seal(buffer, buffer.batch)

    def seal(self, buffer: TopicBuffer, batch: Batch | None) -> None:
        """Close a batch, unless another thread did; then cut and queue what is closed."""
        if batch is not None:
            with buffer.lock:
                if buffer.batch is batch:
                    self._close_batch(buffer)
        self._cut(buffer)
        self._follow(buffer)

    def _cut(self, buffer: TopicBuffer) -> None:
        sealed: list[tuple[Batch, Sequence[Chunk]]] = []
        with buffer.seal_lock:
            while buffer.closed:
                filled = buffer.closed.popleft()
                sealed.append((filled.batch, self._cut_one(filled)))
        # Callbacks run without locks: they may send, to this topic too.
        for batch, refused in sealed:
            batch.delivery.call_back()
            self.sender.refuse(batch.info, refused)

    def _cut_one(self, filled: Filled) -> Sequence[Chunk]:
        """Cut a batch and queue its chunks; returns those that the sender did not take."""
        batch = filled.batch
        try:
            done = filled.cut or cut(filled, self._deadline(batch.opened))
        except Exception as error:
            self.sender.room.release(batch.granted)
            logger.exception("%s: a batch could not be built", batch.info.name)
            batch.delivery.fail(
                InvalidRequestError(
                    f"{batch.info.name}: the batch could not be built, "
                    f"nothing of it was sent: {error}"
                )
            )
            return ()
        self._acknowledge_queued(done.chunks)
        batch.delivery.seal(done.chunks, done.assigned, done.stamps, done.numbers)
        batch.drop()
        return self.sender.enqueue(batch.info, done.chunks, batch.granted)

    def _acknowledge_queued(self, chunks: Sequence[Chunk]) -> None:
        """With acks=0 a record has its answer when it is queued."""
        if not self.settings.waits:
            for chunk in chunks:
                chunk.done = True

    def _buffers(self) -> list[TopicBuffer]:
        with self._lock:
            return [*self.buffers.values(), *self._leaving]

    def refresh(self, topic: str) -> TopicInfo:
        """Look at a topic anew, and let its buffer know."""
        info = self.topics.get(topic, refresh=True)
        buffer = self.buffers.get(topic)
        if buffer is not None:
            self._follow(buffer)
        return info

    def _follow(self, buffer: TopicBuffer) -> None:
        """Let the next batch know what became of the topic: grown, changed, gone."""
        try:
            info = self.topics.get(buffer.info.name)
        except TopicNotFoundError:
            self._drop(buffer)
        except StreamlogError as error:
            logger.debug("%s: not refreshed: %s", buffer.info.name, error)
        else:
            if info.id != buffer.info.id:
                self._drop(buffer)
            elif info is not buffer.info:
                with buffer.lock:
                    buffer.follow(info)

    def _drop(self, buffer: TopicBuffer) -> None:
        """Forget the buffer of a topic that is gone; the next `send` asks the registry."""
        topic = buffer.info.name
        with self._lock:
            if self.buffers.get(topic) is not buffer:
                return
            del self.buffers[topic]
            self.fast.pop(topic, None)
            self._leaving.append(buffer)
        try:
            with buffer.lock:
                if buffer.batch is not None:
                    self._close_batch(buffer)
            self._cut(buffer)
        finally:
            with self._lock:
                self._leaving.remove(buffer)

    def _failed(self, lane: Lane, error: StreamlogError) -> None:
        """An append failed for good; see whether that concerns more than its records."""
        if isinstance(error, FencedError):
            self.shut(error)
            self.sender.stop(error)
            self.drain_all()
        elif isinstance(error, TopicDeletedError | TopicNotFoundError):
            try:
                self.topics.get(lane.info.name, refresh=True)
            except StreamlogError as other:
                logger.debug("%s: not refreshed: %s", lane.info.name, other)
            buffer = self.buffers.get(lane.info.name)
            if buffer is not None and buffer.info.id == lane.info.id:
                self._drop(buffer)

    def _lane(self, info: TopicInfo, partition: int) -> Lane:
        sequence = None if self.identity is None else PartitionSequence(self.identity)
        return Lane(info, partition, self.topics, self.settings, self._runtime, sequence)

    def _deadline(self, opened: float) -> float:
        return opened + self.settings.delivery_timeout_ms / 1000


# Those that may have something to send: a thread at work keeps its pipeline, even if nobody else does.
_live: weakref.WeakSet[Pipeline] = weakref.WeakSet()


def live() -> list[Pipeline]:
    """All pipelines of this process that are not closed."""
    return [pipeline for pipeline in _live if pipeline.closed is None]


def _forked() -> None:
    for pipeline in list(_live):
        pipeline.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

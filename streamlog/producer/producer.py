"""The producer: `send` a record, `send_batch` a table; get a handle on what becomes of it.

Data flow: send → open batch of the topic (`accumulator`) → chunks by partition (`partitioner`) →
lanes and threads (`sender`, `lane`) → one append a group of chunks (`log.partition`) → `delivery`
→ the handles.

Invariants
1. Records a thread sends to one partition are in the log in that order, `send` and `send_batch`
   mixed.
2. A record `send` refuses (wrong type, too large, no such topic) raises there and leaves no trace.
3. After `close`, or once fenced, nothing is accepted; all that was accepted has its answer.

Any number of threads may use one producer. A crash loses records not yet acknowledged; those
acknowledged are as safe as `acks` says. In a forked child a producer of the parent is closed: its
records are the parent's to send.
"""

from __future__ import annotations

import atexit
import logging
from types import TracebackType
from typing import Self

import pyarrow as pa

from streamlog.clock import Runtime
from streamlog.errors import (
    InvalidRequestError,
    PartitionNotFoundError,
    RecordTooLargeError,
    StreamlogError,
)
from streamlog.log.topics import TopicInfo, Topics
from streamlog.producer.ack import Ack, BatchAck
from streamlog.producer.partitioner import ask, check_explicit
from streamlog.producer.pipeline import Pipeline, live
from streamlog.producer.record import Headers, size_of, to_bytes, to_headers, to_stamp
from streamlog.producer.settings import ProducerSettings
from streamlog.producer.table import Piece, pieces

logger = logging.getLogger(__name__)

# How long the interpreter's end waits for a producer nobody closed.
_EXIT_SECONDS = 5.0


class Producer:
    """Sends records to topics. Made by `Log.producer`; close it, or use it in a `with` block."""

    def __init__(
        self,
        topics: Topics,
        settings: ProducerSettings | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.settings = settings or ProducerSettings()
        runtime = runtime or Runtime()
        self._clock = runtime.clock
        self._time_ms = runtime.clock.time_ms
        self._pipeline = Pipeline(topics, self.settings, runtime)
        self._fast = self._pipeline.fast

    def send(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Ack:
        """Queue a record and return a handle on it at once (unless the buffer is full).

        A `str` is sent as UTF-8; a value of None is a tombstone; `timestamp` is milliseconds since
        1970. What is wrong with the record itself is raised here; what goes wrong later is in the
        handle.
        """
        try:
            batch = self._fast[topic]
        except (KeyError, TypeError):
            return self._send(topic, value, key, headers, partition, timestamp)
        if (
            type(value) is bytes
            and (type(key) is bytes or (key is None and batch.null_keys))
            and headers is None
            and partition is None
            and timestamp is None
        ):
            # No lock: see the invariants of `accumulator`.
            size = len(value) if key is None else len(value) + len(key)
            room = batch.room - size
            if room >= 0 and size <= batch.max_record:
                batch.room = room
                number = next(batch.numbers)
                if number < batch.tick:
                    try:
                        batch.keys[number] = key
                        batch.values[number] = value
                    except IndexError:
                        pass  # closed and cut meanwhile, without this record
                    else:
                        if batch.open or self._pipeline.holds(batch, number):
                            ack = Ack()
                            ack.delivery = batch.delivery
                            ack.number = number
                            return ack
                else:
                    turned = self._pipeline.turn(batch, number, key, value)
                    if turned is not None:
                        return turned
        return self._send(topic, value, key, headers, partition, timestamp)

    def send_batch(self, topic: str, data: pa.Table | pa.RecordBatch) -> BatchAck:
        """Queue the rows of an Arrow table.

        Columns: `value`, and if wanted `key`, `headers`, `timestamp`, `partition`. Strings are
        accepted for keys and values. The table is checked first and accepted or refused whole; one
        larger than `buffer_bytes` waits until it has the buffer for itself.
        """
        pipeline = self._pipeline
        buffer = pipeline.buffer(topic)
        info = buffer.info
        try:
            parts = pieces(data, info, self._time_ms(), self.settings.batch_limit)
        except InvalidRequestError:
            # The topic may have grown, or its limits changed, since it was last looked at.
            fresh = pipeline.refresh(topic)
            if fresh is info:
                raise
            info, buffer = fresh, pipeline.buffer(topic)
            parts = pieces(data, info, self._time_ms(), self.settings.batch_limit)
        numbers = [self._numbers(part, info) for part in parts]
        return BatchAck(pipeline.add_table(buffer, parts, numbers))

    def flush(self, timeout: float | None = None) -> None:
        """Send what lingers and wait until all sent so far has its answer (in the handles)."""
        self._pipeline.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush, then stop; what is not written within `timeout` seconds fails, and close raises."""
        self._pipeline.close(timeout)

    def sequence(self, topic: str, partition: int) -> int:
        """How many records were sent to a partition under this `producer_id`: where to go on.

        After a restart it is the number that is in the log, unless sends had failed before.
        """
        pipeline = self._pipeline
        pipeline.check_open()
        if pipeline.identity is None:
            raise InvalidRequestError(
                "only a producer with a producer_id has a sequence; "
                "make it with producer(producer_id=...)"
            )
        info = pipeline.topics.get(topic)
        check_explicit(partition, topic, info.partitions)
        deadline = self._clock.monotonic() + self.settings.delivery_timeout_ms / 1000
        return pipeline.sender.with_lane(info, partition, lambda lane: lane.position(deadline))

    def metrics(self) -> dict[str, int]:
        """Records queued, acknowledged and failed, appends; and the bytes in the buffer now."""
        return self._pipeline.sender.metrics()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except StreamlogError:
            if error is None:
                raise
            logger.exception("closing the producer failed, after another error")

    def __repr__(self) -> str:
        state = "open" if self._pipeline.closed is None else "closed"
        return f"<Producer acks={self.settings.acks} {state}>"

    def _send(
        self,
        topic: str,
        value: object,
        key: object,
        headers: object,
        partition: object,
        timestamp: object,
    ) -> Ack:
        """`send`, the long way: converts and checks."""
        buffer = self._pipeline.buffer(topic)
        data = to_bytes(topic, "value", value)
        name = to_bytes(topic, "key", key)
        pairs = to_headers(topic, headers)
        stamp = to_stamp(topic, timestamp)
        size = size_of(name, data, pairs)
        try:
            _check(buffer.info, name, size)
        except InvalidRequestError:
            # The topic's limits may have been changed since they were last looked at.
            _check(self._pipeline.refresh(topic), name, size)
        number: int | None = None
        if partition is not None:
            number = self._explicit(topic, partition, buffer.info)
        elif self.settings.partitioner is not None:
            number = ask(self.settings.partitioner, topic, name, data, buffer.info.partitions)
        return self._pipeline.add(buffer, name, data, stamp, pairs, number, size)

    def _explicit(self, topic: str, partition: object, info: TopicInfo) -> int:
        try:
            return check_explicit(partition, topic, info.partitions)
        except PartitionNotFoundError:
            # The topic may have grown since it was last looked at.
            fresh = self._pipeline.refresh(topic)
            return check_explicit(partition, topic, fresh.partitions)

    def _numbers(self, part: Piece, info: TopicInfo) -> pa.Array | None:
        """The partitions a piece of a table names, those of the user's function included."""
        function = self.settings.partitioner
        if function is None or (part.partition is not None and not part.partition.null_count):
            return part.partition
        given = [None] * len(part.columns) if part.partition is None else part.partition.to_pylist()
        columns = part.columns
        rows = zip(given, columns.key.to_pylist(), columns.value.to_pylist(), strict=True)
        return pa.array(
            [
                ask(function, info.name, key, value, info.partitions) if number is None else number
                for number, key, value in rows
            ],
            pa.int32(),
        )


def _check(info: TopicInfo, key: bytes | None, size: int) -> None:
    """Refuse a record that the topic does not take."""
    if key is None and "compact" in info.config.cleanup_policy:
        raise InvalidRequestError(
            f"{info.name}: a compacted topic keeps the last record a key, "
            "so every record needs a key"
        )
    if size > info.config.max_message_bytes:
        raise RecordTooLargeError(
            f"{info.name}: the record has {size} bytes; max.message.bytes is "
            f"{info.config.max_message_bytes}: cut it, or raise the topic's limit"
        )


@atexit.register
def _close_all() -> None:
    """The interpreter ends: give producers nobody closed a short time to write what they have."""
    for pipeline in live():
        try:
            pipeline.close(_EXIT_SECONDS)
        except StreamlogError as error:
            logger.warning("a producer that was not closed lost records: %s", error)

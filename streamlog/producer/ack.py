"""The handles `send` and `send_batch` return: views on a `Delivery`, holding nothing of their own.

An `Ack` has no constructor: two attributes set from outside cost half of what a call of one does, and
a record has few other costs. Safe to use from any thread.
"""

from __future__ import annotations

from typing import NamedTuple

from streamlog.errors import StreamlogError
from streamlog.model import RecordMetadata
from streamlog.producer.delivery import Callback, Delivery


class Ack:
    """The promise of an answer for one record."""

    __slots__ = ("delivery", "number")

    delivery: Delivery
    number: int

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is; waits up to `timeout` seconds, and raises what went wrong."""
        delivery, number = self.delivery, self.number
        if not delivery.done(number):
            delivery.wait(number, timeout)
        metadata, error = delivery.outcome(number)
        if error is not None:
            # A batch shares its error: raised as it is, its traceback would grow with every handle.
            raise type(error)(*error.args) from error
        assert metadata is not None
        return metadata

    def exception(self, timeout: float | None = None) -> StreamlogError | None:
        """What went wrong with the record, or None; waits as `result` does."""
        delivery, number = self.delivery, self.number
        if not delivery.done(number):
            delivery.wait(number, timeout)
        return delivery.outcome(number)[1]

    def done(self) -> bool:
        """Whether the answer is known."""
        return self.delivery.done(self.number)

    def add_callback(self, callback: Callback) -> None:
        """Call `callback(metadata, error)` when the answer is known; one of the two is None.

        It runs in the thread that learns the answer (this one, if it is known already), so it
        should be quick.
        """
        self.delivery.add_callback(self.number, callback)

    def __repr__(self) -> str:
        state = "pending"
        if self.done():
            metadata, error = self.delivery.outcome(self.number)
            state = repr(metadata if error is None else error)
        return f"<Ack {self.delivery.topic} {state}>"


class BatchMetadata(NamedTuple):
    """Where a run of acknowledged records is: `records` offsets from `base_offset` on."""

    topic: str
    partition: int
    base_offset: int | None
    records: int


class BatchAck:
    """The promise of an answer for one `send_batch`."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        """Where the records are, a run of offsets each; raises the first error if some failed."""
        error = self.exception(timeout)
        if error is not None:
            raise type(error)(*error.args) from error
        return self.written()

    def exception(self, timeout: float | None = None) -> StreamlogError | None:
        """The first error among the parts, or None; waits up to `timeout` seconds."""
        if not self._delivery.finished:
            self._delivery.wait(None, timeout)
        if self._delivery.error is not None:
            return self._delivery.error
        return next((c.error for c in self._delivery.chunks if c.error is not None), None)

    def written(self) -> list[BatchMetadata]:
        """The parts acknowledged so far; after an error, what is in the log all the same."""
        return [
            BatchMetadata(self._delivery.topic, chunk.partition, chunk.base_offset, chunk.count)
            for chunk in self._delivery.chunks
            if chunk.done and chunk.error is None
        ]

    def done(self) -> bool:
        """Whether every record has its answer."""
        return self._delivery.finished

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"<BatchAck {self._delivery.topic} {state}, {len(self._delivery.chunks)} parts>"


def ack_of(delivery: Delivery, number: int) -> Ack:
    """The handle of a record."""
    ack = Ack()
    ack.delivery, ack.number = delivery, number
    return ack

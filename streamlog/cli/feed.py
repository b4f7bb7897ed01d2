"""Sends the lines of an input, in order, and keeps count of what was acknowledged.

Invariants:
1. `acknowledged` never counts a record whose answer is not known (with acks=0: was not accepted).
2. Answers are taken up in the order of sending, so memory is bounded by what the producer holds.
3. The first line that fails ends the feed: what came before it is flushed, nothing after it is
   sent, and the error names the line and says how many records are in the log for good.

One thread only.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NoReturn

from streamlog.cli.inputs import Outgoing
from streamlog.cli.output import BadInputError
from streamlog.clock import Clock
from streamlog.errors import StreamlogError
from streamlog.model import Header

if TYPE_CHECKING:
    from streamlog.producer import Ack, Producer

# How many records are sent between two looks at the answers.
_SETTLE_EVERY = 1000


class Pacer:
    """Lets through `rate` records a second; a wait for input is not made up for by a burst."""

    # Waits shorter than this cost more in waking up than they are long.
    _SHORTEST_SLEEP = 0.001
    _LONGEST_DEBT = 0.1

    def __init__(self, rate: float, clock: Clock) -> None:
        self._interval = 1 / rate
        self._clock = clock
        self._due = clock.monotonic()

    def pause(self) -> None:
        """Wait until the next record is due."""
        now = self._clock.monotonic()
        if self._due - now >= self._SHORTEST_SLEEP:
            self._clock.sleep(self._due - now)
        elif now - self._due > self._LONGEST_DEBT:
            self._due = now
        self._due += self._interval


class Feed:
    """One producer writing one topic from one input."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        headers: list[Header],
        partition: int | None,
        pacer: Pacer | None,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._headers = headers or None
        self._partition = partition
        self._pacer = pacer
        self._pending: deque[tuple[int, int, Ack]] = deque()
        self.paced = pacer is not None
        self.acknowledged = 0
        self.bytes = 0

    def send(self, number: int, record: Outgoing) -> None:
        """Send the record of line `number`; blocks while the producer's buffer is full."""
        if self._pacer is not None:
            self._pacer.pause()
        try:
            ack = self._producer.send(
                self._topic,
                record.value,
                key=record.key,
                headers=self._headers if record.headers is None else record.headers,
                partition=self._partition if record.partition is None else record.partition,
                timestamp=record.timestamp,
            )
        except StreamlogError as error:
            self.refuse(number, str(error), error)
        self._pending.append((number, len(record.key or b"") + len(record.value or b""), ack))
        if len(self._pending) % _SETTLE_EVERY == 0:
            self.settle()

    def settle(self) -> None:
        """Take up the answers that are there already."""
        while self._pending and self._pending[0][2].done():
            self._take()

    def finish(self) -> None:
        """Wait until everything sent is acknowledged."""
        self._producer.flush()
        while self._pending:
            self._take()

    def refuse(self, number: int, why: str, cause: Exception | None = None) -> NoReturn:
        """End the feed because of line `number`, after flushing what was sent before it."""
        self.finish()
        self._fail(number, why, cause)

    def _take(self) -> None:
        number, size, ack = self._pending.popleft()
        error = ack.exception()
        if error is None:
            self.acknowledged += 1
            self.bytes += size
            return
        # The rest may well have been written: other partitions, other batches.
        self._producer.flush()
        while self._pending:
            _, size, ack = self._pending.popleft()
            if ack.exception() is None:
                self.acknowledged += 1
                self.bytes += size
        self._fail(number, str(error), error)

    def _fail(self, number: int, why: str, cause: Exception | None) -> NoReturn:
        count = self.acknowledged
        kept = f"{count} record{'' if count == 1 else 's'}"
        verb = "was" if count == 1 else "were"
        raise BadInputError(f"line {number}: {why} ({kept} {verb} acknowledged)") from cause

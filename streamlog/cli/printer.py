"""The loop of `consume`: poll, print, and tell the group only of what was printed.

P1  A record counts as read when it was written to stdout and flushed. If writing fails (the pipe was
    closed, the disk is full, Ctrl-C), the consumer goes back to the first record of what it tried to
    write, so that leaving the group commits no record nobody saw.
P2  In a group, Ctrl-C, SIGTERM and SIGHUP end the loop between two polls: what was read is written,
    unless nobody takes it, and the member commits and leaves at once. Another signal ends the process
    on the spot, and commits nothing.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

from streamlog.cli import output
from streamlog.cli.formats import Render
from streamlog.errors import GroupNotFoundError
from streamlog.model import Record, TopicPartition

if TYPE_CHECKING:
    from streamlog.client import Log
    from streamlog.consumer import Consumer

# How long one poll waits for records; in between, the pipe is watched.
_WAIT_MS = 200
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Ending = Callable[[], bool]


class Stop:
    """Signals as a wish to end; use it with `with`, around everything that has to be left properly."""

    def __init__(self) -> None:
        self.number = 0
        self._wake: Callable[[], None] = lambda: None
        self._before: dict[int, signal._HANDLER] = {}

    @property
    def code(self) -> int:
        """The exit code that a shell gives to the signal."""
        return 128 + self.number

    def wakes(self, consumer: Consumer) -> None:
        """From now on a signal ends a poll that waits."""
        self._wake = consumer.wakeup
        if self.number:
            consumer.wakeup()

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.number:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.number = number
        self._wake()


def print_records(
    consumer: Consumer,
    render: Render,
    *,
    ended: Ending | None,
    max_messages: int | None,
    max_poll_records: int,
    stop: Stop | None = None,
) -> None:
    """Print until `ended`, `max_messages`, `stop`, or nobody reads our stdout any more."""
    reader_gone = output.stdout_watch()
    remaining = max_messages
    while remaining is None or remaining > 0:
        if (stop is not None and stop.number) or (ended is not None and ended()):
            return
        count = max_poll_records if remaining is None else min(max_poll_records, remaining)
        records = consumer.poll(timeout_ms=_WAIT_MS, max_records=count)
        if records:
            _write(consumer, records, render, stop)
            if remaining is not None:
                remaining -= len(records)
        elif reader_gone():
            return


def end_of_partitions(consumer: Consumer) -> Ending:
    """True once everything is printed that was there when this was called."""
    ends = consumer.end_offsets(consumer.assignment())

    def ended() -> bool:
        for tp in [tp for tp, end in ends.items() if consumer.position(tp) >= end]:
            del ends[tp]
        return not ends

    return ended


def end_of_share(
    consumer: Consumer, log: Log, group: str, partitions: Sequence[TopicPartition]
) -> Ending:
    """True once this member has printed its share of what was there, and no rebalance is under way."""
    ends = consumer.end_offsets(partitions)

    def ended() -> bool:
        mine = consumer.assignment()
        if any(consumer.position(tp) < ends[tp] for tp in mine if tp in ends):
            return False
        try:
            now = log.group(group).summary()
        except GroupNotFoundError:
            # Deleted by force meanwhile; the next poll joins again.
            return False
        return now.state == "stable" and now.generation == consumer.generation

    return ended


def _write(
    consumer: Consumer, records: Sequence[Record], render: Render, stop: Stop | None
) -> None:
    try:
        data = memoryview(b"".join([render(record) for record in records]))
        if stop is None:
            _write_all(data)
        else:
            _write_unless(stop, data)
    except BaseException as error:
        first: dict[TopicPartition, int] = {}
        for record in records:
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        for tp, offset in first.items():
            consumer.seek(tp, offset)
        if not isinstance(error, _StalledError):
            raise


class _StalledError(Exception):
    """A signal came while nobody read our stdout."""


def _write_all(data: memoryview) -> None:
    # With PYTHONUNBUFFERED, one write may take less than all: when the pipe closes, for one.
    while data:
        data = data[sys.stdout.buffer.write(data) :]
    sys.stdout.flush()


def _write_unless(stop: Stop, data: memoryview) -> None:
    """Write all, but wait no longer for a reader that fell asleep once a signal came."""
    sys.stdout.flush()
    descriptor = sys.stdout.fileno()
    room = select.poll()
    room.register(descriptor, select.POLLOUT)
    while data:
        while not room.poll(_WAIT_MS):
            if stop.number:
                raise _StalledError
        # As much as a pipe that has room at all takes without waiting.
        data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]

"""Where a consumer is and where it goes: seeks, and questions about offsets and times.

Offsets asked for are always answered by a fresh look at the log. Going somewhere never fails later
for a reason that could be told now: numbers and times are checked here, the range of the log at
the next fetch (it may have moved by then, and `auto_offset_reset` decides).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

from streamlog.consumer.fetcher import Fetcher
from streamlog.consumer.subscription import PartitionState, Subscription, check_partition
from streamlog.errors import InvalidRequestError
from streamlog.log.reader import PartitionReader
from streamlog.log.topics import TopicInfo, Topics
from streamlog.model import OffsetAndTimestamp, TopicPartition, to_datetime
from streamlog.schema import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS

T = TypeVar("T")

LAST_OFFSET: Final = 2**63 - 1


class Positions:
    """Seeks and offset questions of one consumer; belongs to its thread."""

    def __init__(self, topics: Topics, subscription: Subscription, fetcher: Fetcher) -> None:
        self._topics = topics
        self._subscription = subscription
        self._fetcher = fetcher

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go to an offset of one partition."""
        state = self._subscription.get(tp, "seek")
        if (
            isinstance(offset, bool)
            or not isinstance(offset, int)
            or not 0 <= offset <= LAST_OFFSET
        ):
            raise InvalidRequestError(
                f"seek: offset {offset!r} of {tp} is not valid; allowed: a whole number from 0 "
                "(for the ends of the log use seek_to_beginning or seek_to_end)"
            )
        state.seek(offset)

    def seek_to_beginning(self, tps: Sequence[TopicPartition]) -> None:
        """Go to the log start of these partitions, or of all."""
        states = self._subscription.several(tps, "seek_to_beginning")
        self._move(states, lambda reader: reader.start)

    def seek_to_end(self, tps: Sequence[TopicPartition]) -> None:
        """Go behind the last record of these partitions, or of all."""
        states = self._subscription.several(tps, "seek_to_end")
        self._move(states, lambda reader: reader.end)

    def seek_to_time(self, time: int | datetime, tps: Sequence[TopicPartition]) -> None:
        """Go to the first record at or after a time; behind the last one if there is none."""
        states = self._subscription.several(tps, "seek_to_time")
        timestamp_ms = to_ms(time, "seek_to_time")

        def target(reader: PartitionReader) -> int:
            found = reader.offset_for_time(timestamp_ms)
            return reader.end if found is None else found[0]

        self._move(states, target)

    def resolve(self, states: Sequence[PartitionState]) -> None:
        """Give partitions without a position the one their reset policy names.

        Done when "latest" is assigned, not at the first poll: records sent in between are wanted.
        """
        self._move([s for s in states if s.position is None and s.reset == "latest"], _end)
        self._move([s for s in states if s.position is None and s.reset == "earliest"], _start)

    def position(self, tp: TopicPartition) -> int:
        """The next offset to hand out."""
        state = self._subscription.get(tp, "position")
        self.resolve([state])
        if state.position is None:
            raise InvalidRequestError(
                f"position: {tp} has none, because auto_offset_reset is 'none'; seek first"
            )
        return state.position

    def ends(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The next offset to be written, a partition."""
        return self._ask(tps, _end, "end_offsets")

    def starts(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start, a partition."""
        return self._ask(tps, _start, "beginning_offsets")

    def for_times(
        self, times: Mapping[TopicPartition, int | datetime]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after a time, a partition; None if there is none."""
        wanted = {
            to_tp(tp, "offsets_for_times"): to_ms(time, "offsets_for_times")
            for tp, time in times.items()
        }
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for timestamp_ms in set(wanted.values()):

            def at(
                reader: PartitionReader, timestamp_ms: int = timestamp_ms
            ) -> OffsetAndTimestamp | None:
                hit = reader.offset_for_time(timestamp_ms)
                return None if hit is None else OffsetAndTimestamp(*hit)

            tps = [tp for tp, asked in wanted.items() if asked == timestamp_ms]
            found.update(self._ask(tps, at, "offsets_for_times"))
        return {tp: found[tp] for tp in wanted}

    def _move(
        self, states: Sequence[PartitionState], target: Callable[[PartitionReader], int]
    ) -> None:
        where = [(state.info, state.tp.partition) for state in states]
        for state, offset in zip(states, self._fetcher.ask(where, target), strict=True):
            state.seek(offset)

    def _ask(
        self, tps: Iterable[TopicPartition], question: Callable[[PartitionReader], T], doing: str
    ) -> dict[TopicPartition, T]:
        wanted = [to_tp(tp, doing) for tp in tps]
        assigned = {state.tp: state.info for state in self._subscription.states}
        where: list[tuple[TopicInfo, int]] = []
        for tp in wanted:
            info = assigned.get(tp) or self._topics.get(tp.topic)
            check_partition(tp, info)
            where.append((info, tp.partition))
        return dict(zip(wanted, self._fetcher.ask(where, question), strict=True))


def _start(reader: PartitionReader) -> int:
    return reader.start


def _end(reader: PartitionReader) -> int:
    return reader.end


def to_tp(value: object, doing: str) -> TopicPartition:
    """A `TopicPartition` from one, or from a plain pair."""
    if isinstance(value, TopicPartition):
        return value
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return TopicPartition(*value)
    raise InvalidRequestError(f"{doing}: {value!r} is not a TopicPartition(topic, partition)")


def to_ms(time: int | datetime, doing: str) -> int:
    """Epoch milliseconds from themselves or from an aware datetime; only 1970 to 9999."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise InvalidRequestError(
                f"{doing}: {time!r} has no time zone, so it names no moment; add tzinfo=UTC"
            )
        since = time - to_datetime(0)
        value = (since.days * 86_400 + since.seconds) * 1000 + -(-since.microseconds // 1000)
    elif isinstance(time, bool) or not isinstance(time, int):
        raise InvalidRequestError(
            f"{doing}: {time!r} is not a time; allowed: milliseconds since 1970, or an "
            "aware datetime"
        )
    else:
        value = time
    if not MIN_TIMESTAMP_MS <= value <= MAX_TIMESTAMP_MS:
        raise InvalidRequestError(
            f"{doing}: timestamp {time} is out of range; allowed: {MIN_TIMESTAMP_MS} (1970) to "
            f"{MAX_TIMESTAMP_MS} (9999), in milliseconds"
        )
    return value

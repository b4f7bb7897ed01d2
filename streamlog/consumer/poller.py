"""One poll: fetch, wait for what is not written yet, hand out.

Waiting adapts: the shortest interval after records came, twice as long after every empty round, up
to the longest. A silent local log with 16 partitions is so looked at 20 times a second, at
microseconds a look.

`fetch_min_bytes` and `fetch_max_wait_ms` work as in Kafka's fetch request: a poll that finds some
records, but fewer bytes than asked for, waits for more until the wait or its own timeout is over.
What an earlier fetch left in the buffers is handed out without waiting.
"""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

from streamlog.clock import Clock
from streamlog.consumer.fetcher import SLICE_S, Fetcher
from streamlog.consumer.group.session import GroupSession
from streamlog.consumer.settings import ConsumerSettings
from streamlog.consumer.subscription import Mode, PartitionState, Subscription
from streamlog.errors import InvalidRequestError, TopicDeletedError
from streamlog.log.topics import Topics

Piece: TypeAlias = tuple[PartitionState, pa.RecordBatch]


class Poller:
    """The loop behind `Consumer.poll`; belongs to the consumer's thread, `wakeup` excepted."""

    def __init__(
        self,
        topics: Topics,
        settings: ConsumerSettings,
        clock: Clock,
        subscription: Subscription,
        fetcher: Fetcher,
        group: GroupSession | None = None,
    ) -> None:
        self._topics = topics
        self._settings = settings
        self._clock = clock
        self._subscription = subscription
        self._fetcher = fetcher
        self._group = group
        self._shortest, self._longest = settings.poll_interval_s(local=fetcher.local)
        self._interval = self._shortest
        self._synced_at = 0.0
        self._woken = False

    def wakeup(self) -> None:
        """Make the poll that waits, or else the next one that would wait, return empty."""
        self._woken = True

    def synced(self) -> None:
        """The subscription was just made from the registry."""
        self._synced_at = self._clock.monotonic()

    def poll(self, timeout_ms: float, limit: int, *, one: bool) -> list[Piece]:
        """Up to `limit` rows, in pieces of one partition each; only the first piece if `one`."""
        _check(timeout_ms, limit)
        if self._subscription.mode is Mode.NONE:
            raise InvalidRequestError("poll: nothing to read; subscribe or assign first")
        self._fetcher.raise_failure()
        started = self._clock.monotonic()
        deadline = started + timeout_ms / 1000
        full_by = min(deadline, started + self._settings.fetch_max_wait_ms / 1000)
        states = self._subscription.turn()
        left_over = any(state.batches for state in states)
        enough = 1 if left_over else self._settings.fetch_min_bytes
        while True:
            if self._turn():
                states = self._subscription.turn()
            try:
                self._fetcher.fill(
                    states,
                    records=limit,
                    enough=enough,
                    deadline=deadline if enough == 1 else full_by,
                    woken=self._is_woken,
                )
            except TopicDeletedError:
                # A topic that is gone matches no pattern any more; otherwise the user must know.
                if not self._without_deleted():
                    raise
                states = self._subscription.turn()
                continue
            nbytes = sum(state.nbytes for state in states)
            now = self._clock.monotonic()
            if nbytes and (nbytes >= enough or now >= full_by):
                self._interval = self._shortest
                return _drain(states, limit, self._settings.fetch_max_bytes, one=one)
            if self._woken or now >= deadline:
                self._woken = False
                return []
            self._wait(min(self._interval, (full_by if nbytes else deadline) - now))

    def _wait(self, seconds: float) -> None:
        """Sleep, in slices short enough for a wakeup; the next wait is twice as long."""
        self._interval = min(self._interval * 2, self._longest)
        until = self._clock.monotonic() + seconds
        while not self._woken:
            left = until - self._clock.monotonic()
            if left <= 0:
                return
            self._clock.sleep(min(left, SLICE_S))

    def _turn(self) -> bool:
        """Follow the group, or the registry; True if the set of partitions changed."""
        if self._subscription.mode is Mode.GROUP:
            return self._group is not None and self._group.turn()
        if self._group is not None:
            self._group.auto_commit()
        return self._is_due() and self._sync()

    def _without_deleted(self) -> bool:
        """Whether to go on without a topic that is gone."""
        if self._subscription.mode is Mode.GROUP:
            return self._group is not None and self._group.follow_topics()
        return self._subscription.mode is Mode.PATTERN and self._sync()

    def _is_woken(self) -> bool:
        return self._woken

    def _is_due(self) -> bool:
        age = self._clock.monotonic() - self._synced_at
        return age * 1000 >= self._settings.metadata_max_age_ms

    def _sync(self) -> bool:
        """Take up what the registry lists by now; True if the set of partitions changed."""
        before = self._subscription.keys()
        self._subscription.sync(self._topics.list())
        self.synced()
        changed = self._subscription.keys() != before
        if changed:
            self._fetcher.retain(self._subscription.states)
        return changed


def _drain(states: list[PartitionState], limit: int, max_bytes: int, *, one: bool) -> list[Piece]:
    """Take rows out of the buffers, partition by partition in their turn."""
    pieces: list[Piece] = []
    for state in states:
        while state.batches and limit > 0 and max_bytes > 0:
            before = state.nbytes
            rows = state.take(limit)
            pieces.append((state, rows))
            if one:
                return pieces
            limit -= rows.num_rows
            max_bytes -= before - state.nbytes
    return pieces


def _check(timeout_ms: float, limit: int) -> None:
    if (
        isinstance(timeout_ms, bool)
        or not isinstance(timeout_ms, int | float)
        or not timeout_ms >= 0
    ):
        raise InvalidRequestError(f"poll: timeout_ms is {timeout_ms!r}; allowed: a number from 0")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidRequestError(f"poll: max_records is {limit!r}; allowed: a whole number from 1")

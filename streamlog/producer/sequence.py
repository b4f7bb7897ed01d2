"""A producer with a stable id: its epoch, and how far it got in each partition.

Invariants
1. Whoever starts takes the next epoch (put-if-absent, one winner), and before its first append to
   a partition commits that epoch there: an older holder that wakes up later is fenced, its append
   refused.
2. The sequence of a partition counts the records sent there under the id. It is committed with the
   records, so after a crash it says how many are in the log; it is never used twice: a batch whose
   outcome is unknown may still be on its way, and another one with its mark would pass for it.
3. A sequence has 32 bits. At the end of them the id takes a new epoch and counts from 0; if that
   epoch is not the next one, another holder started meanwhile, and this one is fenced.

A `PartitionSequence` belongs to the thread that appends to its partition; the identity is shared
and locked.
"""

from __future__ import annotations

import threading

from streamlog.errors import FencedError
from streamlog.log.partition import PartitionLog, ProducerMark
from streamlog.log.topics import Topics

SEQUENCES = 1 << 32


class ProducerIdentity:
    """A stable producer id and the epoch it holds."""

    def __init__(self, producer_id: str, topics: Topics) -> None:
        self.producer_id = producer_id
        self._topics = topics
        self._lock = threading.Lock()
        self.epoch = topics.take_epoch(producer_id)

    def renew(self, spent: int) -> int:
        """The epoch after `spent`, whose sequence is used up."""
        with self._lock:
            if self.epoch == spent:
                taken = self._topics.take_epoch(self.producer_id)
                if taken != spent + 1:
                    raise fenced(self.producer_id, spent, taken - 1)
                self.epoch = taken
            return self.epoch


class PartitionSequence:
    """The count of an id in one partition."""

    def __init__(self, identity: ProducerIdentity) -> None:
        self._identity = identity
        self._known = False
        self.epoch = 0
        self.sequence = 0

    def open(self, log: PartitionLog, deadline: float) -> None:
        """Continue from what the partition says, and fence older holders there."""
        if self._known:
            return
        identity = self._identity
        state = log.producer_state(identity.producer_id)
        epoch = identity.epoch
        if state is not None and state[0] > epoch:
            raise fenced(identity.producer_id, epoch, state[0])
        self.epoch = epoch
        self.sequence = 0 if state is None else state[1]
        if state is None or state[0] < epoch:
            log.fence(ProducerMark(identity.producer_id, epoch, self.sequence), deadline)
        self._known = True

    def mark(self, count: int) -> ProducerMark:
        """What the commit of the next `count` records has to carry."""
        if self.sequence + count >= SEQUENCES:
            self.epoch = self._identity.renew(self.epoch)
            self.sequence = 0
        self.sequence += count
        return ProducerMark(self._identity.producer_id, self.epoch, self.sequence)


def fenced(producer_id: str, epoch: int, newer: int) -> FencedError:
    """The error of a holder that was replaced."""
    return FencedError(
        f"producer id {producer_id!r} (epoch {epoch}) was taken over by epoch {newer}; "
        "one live producer an id: close this one, or give it another producer_id"
    )

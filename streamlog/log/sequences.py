"""What Kafka's idempotent producers have written to a partition: which batch is next, which came already.

A batch has a producer id, an epoch, and the sequences of its first and last record. The commit that appends
it carries a transaction `kafka:<id>` with epoch and last sequence, so that every broker and every later
open knows where the producer stands, and in its `commitInfo` the batch itself with its offset, so that a
repeated batch can be answered with the place of its first copy. The last five batches of a producer are
remembered, as Kafka does: a client has at most five requests under way.

Q1  A batch is appended only if it is the next one of its producer, by the state of the very version that
    its commit follows.
Q2  An epoch never goes back; a higher one begins again at sequence 0.

Pure; one thread at a time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

KAFKA_PREFIX = "kafka:"
_SEQUENCES = 2**31
_REMEMBERED = 5
# Producers whose batches are remembered; of all others the transaction still tells where they stand.
_PRODUCERS = 10_000


@dataclass(frozen=True, slots=True)
class BatchMark:
    """A batch on its way into an append, `start` records into it."""

    producer_id: int
    epoch: int
    first: int
    last: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """A batch that is in the log."""

    epoch: int
    first: int
    last: int
    offset: int


Judgement = Literal["next", "duplicate", "fenced", "gap"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a batch; `offset` is where its first copy is, if that is still known."""

    judgement: Judgement
    offset: int | None = None


NEXT = Verdict("next")


class Sequences:
    """The producers of one partition, as of one version."""

    def __init__(self, older: Callable[[int], tuple[int, int] | None]) -> None:
        """`older`: epoch and last sequence of a producer by its transaction."""
        self._older = older
        self._known: OrderedDict[int, deque[Written]] = OrderedDict()

    def judge(self, batches: Iterable[BatchMark]) -> list[Verdict]:
        """What becomes of each batch, given that those before it that are next are written."""
        ahead: dict[int, tuple[int, int]] = {}
        verdicts = []
        for batch in batches:
            verdict = self._judge(batch, ahead.get(batch.producer_id))
            if verdict is NEXT:
                ahead[batch.producer_id] = (batch.epoch, batch.last)
            verdicts.append(verdict)
        return verdicts

    def _judge(self, batch: BatchMark, ahead: tuple[int, int] | None) -> Verdict:
        reached = ahead or self.reached(batch.producer_id)
        if reached is None:
            return NEXT
        epoch, last = reached
        if batch.epoch < epoch:
            return Verdict("fenced")
        if batch.epoch > epoch:
            return NEXT if batch.first == 0 else Verdict("gap")
        if batch.first == (last + 1) % _SEQUENCES:
            return NEXT
        for written in self._known.get(batch.producer_id, ()):
            if (written.epoch, written.first, written.last) == (epoch, batch.first, batch.last):
                return Verdict("duplicate", written.offset)
        behind = (last - batch.last) % _SEQUENCES < _SEQUENCES // 2
        return Verdict("duplicate" if behind else "gap")

    def reached(self, producer_id: int) -> tuple[int, int] | None:
        """Epoch and last sequence of a producer."""
        known = self._known.get(producer_id)
        return (known[-1].epoch, known[-1].last) if known else self._older(producer_id)

    def write(self, rows: Sequence[Sequence[int]]) -> None:
        """Takes up the batches of a commit, as `rows_of` gave them."""
        for producer_id, epoch, first, last, offset in rows:
            known = self._known.setdefault(producer_id, deque(maxlen=_REMEMBERED))
            known.append(Written(epoch, first, last, offset))
            self._known.move_to_end(producer_id)
        while len(self._known) > _PRODUCERS:
            self._known.popitem(last=False)


def rows_of(batches: Iterable[BatchMark], base_offset: int) -> list[list[int]]:
    """The batches for `commitInfo`, once the offsets are known."""
    return [[b.producer_id, b.epoch, b.first, b.last, base_offset + b.start] for b in batches]


def readable(rows: Any) -> bool:
    """Whether what a commit says of its batches is what `rows_of` writes."""
    return isinstance(rows, list) and all(
        isinstance(row, list) and len(row) == 5 and all(isinstance(n, int) for n in row)
        for row in rows
    )

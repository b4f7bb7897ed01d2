"""One commit for all that came while the last one was under way: the produce path of one partition.

A1  Requests are appended in the order in which they came, and the batches of one producer in the order of
    their sequences; a group is one commit, so its offsets are contiguous.
A2  A request fails alone: a batch that is damaged, too large or out of order is answered with its error and
    the others of its group go on.
A3  A repeated batch is not written again; it is answered with the place of its first copy, or with
    DUPLICATE_SEQUENCE_NUMBER, which clients take for success, where that place is not known any more.
A4  Before another writer's commit is overtaken, all batches are judged again by what it left (RegroupError).
A5  A gap is believed only after a look at the log: clients take its error for the end of their producer.

`Appender.append` blocks and runs on a thread; one call at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from streamlog.batch import RecordColumns
from streamlog.broker import records
from streamlog.broker.kafka_errors import Code, KafkaError
from streamlog.broker.records import Batch
from streamlog.broker.tail import Chunk
from streamlog.clock import Runtime
from streamlog.errors import StreamlogError
from streamlog.log.partition import PartitionLog, RegroupError
from streamlog.log.registry import TopicInfo
from streamlog.log.sequences import BatchMark, Verdict
from streamlog.schema import MAX_TIMESTAMP_MS, RECORD_SCHEMA

_REGROUPS = 100


@dataclass(slots=True)
class Produced:
    """The answer to one request for one partition; `offset` is None where it is not known (A3)."""

    offset: int | None = None
    timestamp_ms: int = -1
    error: Exception | None = None


@dataclass(slots=True)
class Wanted:
    """One request's records for the partition."""

    data: bytes
    durable: bool
    answer: Produced = field(default_factory=Produced)


@dataclass(slots=True)
class _Piece:
    """A batch that is decoded and waits for its offset."""

    wanted: Wanted
    batch: Batch
    columns: RecordColumns
    exact: bool
    now_ms: int


class Appender:
    """Appends the requests of one partition."""

    def __init__(
        self, log: PartitionLog, runtime: Runtime, *, max_decompressed: int, commit_seconds: float
    ) -> None:
        self.log = log
        self._clock = runtime.clock
        self._max_decompressed = max_decompressed
        self._commit_seconds = commit_seconds

    def append(self, info: TopicInfo, group: Sequence[Wanted], leader_epoch: int) -> list[Chunk]:
        """Answers every request of the group; what was written comes back for the tail."""
        pieces: list[_Piece] = []
        for wanted in group:
            try:
                pieces += self._decoded(info, wanted)
            except StreamlogError as error:
                wanted.answer.error = error
        if not pieces:
            return []
        try:
            return self._append(info, pieces, leader_epoch)
        except StreamlogError as error:
            for piece in pieces:
                answer = piece.wanted.answer
                if answer.error is None and answer.offset is None:
                    answer.error = error
            return []

    def _decoded(self, info: TopicInfo, wanted: Wanted) -> list[_Piece]:
        now_ms = self._clock.time_ms()
        config = info.config
        stamped = config.message_timestamp_type == "LogAppendTime"
        pieces = []
        for batch in records.parse(wanted.data):
            if len(batch.raw) > config.max_message_bytes:
                raise KafkaError(
                    Code.MESSAGE_TOO_LARGE,
                    f"a batch of {len(batch.raw)} bytes is larger than max.message.bytes "
                    f"({config.max_message_bytes}) of topic {info.name!r}",
                )
            decoded = records.decode(
                batch, now_ms=now_ms, log_append_time=stamped, limit=self._max_decompressed
            )
            if "compact" in config.cleanup_policy and decoded.columns.key.null_count:
                raise KafkaError(
                    Code.INVALID_RECORD,
                    f"topic {info.name!r} is compacted by key, and a record has none",
                )
            if decoded.columns.time_range_us()[1] > MAX_TIMESTAMP_MS * 1000:
                raise KafkaError(Code.INVALID_TIMESTAMP, "a timestamp lies beyond the year 9999")
            pieces.append(_Piece(wanted, batch, decoded.columns, decoded.exact, now_ms))
            if stamped:
                wanted.answer.timestamp_ms = now_ms
        if not pieces:
            raise KafkaError(Code.INVALID_RECORD, "a request without records")
        return pieces

    def _append(self, info: TopicInfo, pieces: Sequence[_Piece], leader_epoch: int) -> list[Chunk]:
        deadline = self._clock.monotonic() + self._commit_seconds
        compression = info.config.compression_type
        for _ in range(_REGROUPS):
            if not self.log.is_open:
                self.log.refresh()
            pieces = self._judged(pieces)
            if not pieces:
                return []
            marks = _marks(pieces)
            try:
                done = self.log.append(
                    RecordColumns.concat([piece.columns for piece in pieces]),
                    durable=any(piece.wanted.durable for piece in pieces),
                    compression=compression,
                    batches=marks,
                    deadline=deadline,
                )
            except RegroupError:
                continue
            return _placed(pieces, done.base_offset, leader_epoch, info)
        raise KafkaError(Code.REQUEST_TIMED_OUT, "other brokers write the same batches")

    def _judged(self, pieces: Sequence[_Piece]) -> list[_Piece]:
        """The pieces that are to be written; the others are answered (A2, A3)."""
        left: list[_Piece] = [p for p in pieces if p.wanted.answer.error is None]
        marked = [piece for piece in left if piece.batch.idempotent]
        if not marked:
            return left
        refused: set[int] = set()
        verdicts = self.log.judge(_marks(marked))
        if any(verdict.judgement == "gap" for verdict in verdicts):
            # Another broker may have written what is missing here: a look decides (A5).
            self.log.refresh()
            verdicts = self.log.judge(_marks(marked))
        for piece, verdict in zip(marked, verdicts, strict=True):
            if verdict.judgement != "next":
                refused.add(id(piece))
                _answer(piece, verdict)
        # A gap makes all that follow it of the same producer a gap as well: judged next time round.
        return [piece for piece in left if id(piece) not in refused]


def _marks(pieces: Sequence[_Piece]) -> list[BatchMark]:
    marks = []
    start = 0
    for piece in pieces:
        batch = piece.batch
        if batch.idempotent:
            marks.append(
                BatchMark(
                    batch.producer_id,
                    batch.producer_epoch,
                    batch.base_sequence,
                    batch.last_sequence,
                    start,
                )
            )
        start += batch.count
    return marks


def _answer(piece: _Piece, verdict: Verdict) -> None:
    answer = piece.wanted.answer
    if verdict.judgement == "duplicate":
        if verdict.offset is None:
            answer.error = KafkaError(Code.DUPLICATE_SEQUENCE_NUMBER)
        elif answer.offset is None:
            answer.offset = verdict.offset
        return
    batch = piece.batch
    if verdict.judgement == "fenced":
        answer.error = KafkaError(
            Code.INVALID_PRODUCER_EPOCH,
            f"producer {batch.producer_id} has a newer epoch than {batch.producer_epoch}",
        )
        return
    answer.error = KafkaError(
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"sequence {batch.base_sequence} is not the next of producer {batch.producer_id}",
    )


def _placed(
    pieces: Sequence[_Piece], base: int | None, leader_epoch: int, info: TopicInfo
) -> list[Chunk]:
    if base is None:
        # Written by an attempt of ours whose file was compacted since: where, nobody can tell.
        for piece in pieces:
            piece.wanted.answer.error = KafkaError(Code.DUPLICATE_SEQUENCE_NUMBER)
        return []
    chunks = []
    for piece in pieces:
        count = piece.batch.count
        if piece.wanted.answer.offset is None:
            piece.wanted.answer.offset = base
        data = (
            piece.batch.at(base, leader_epoch)
            if piece.exact
            else _encoded(piece, base, leader_epoch, info)
        )
        chunks.append(Chunk(base, base + count, data))
        base += count
    return chunks


def _encoded(piece: _Piece, base: int, leader_epoch: int, info: TopicInfo) -> bytes:
    columns = piece.columns
    offsets = pa.array(np.arange(base, base + len(columns), dtype=np.int64))
    rows = pa.RecordBatch.from_arrays(
        [offsets, columns.timestamp, columns.key, columns.value, columns.headers],
        schema=RECORD_SCHEMA,
    )
    stamped = info.config.message_timestamp_type == "LogAppendTime"
    return records.encode(rows, leader_epoch, log_append_time=stamped)

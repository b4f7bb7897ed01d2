"""Reading what is no longer in a partition's tail: from Parquet, with read-ahead.

A consumer that catches up asks for one piece after the other. The reader that served the last piece has its
row group at hand, so it is kept for whoever asks at the offset where it stopped; and the piece after that
one is read while the client digests the first. Consumers at the same offset share one read.

The event loop calls `read`; the work is done on threads, one reader at a time in one thread.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import pyarrow as pa

from streamlog.broker import records
from streamlog.broker.tail import Chunk
from streamlog.log.reader import PartitionReader

Run = Callable[[Callable[[], Chunk | None]], Awaitable[Chunk | None]]

_READERS = 4
_MAX_RECORDS = 50_000
# Files that one piece is gathered from.
_FILES = 64
# Pieces that were read ahead and that nobody has asked for yet.
_AHEAD = 8


class Stored:
    """The stored records of one partition."""

    def __init__(self, reader: Callable[[], PartitionReader], run: Run) -> None:
        self._new_reader = reader
        self._run = run
        # By the offset at which each one goes on.
        self._idle: OrderedDict[int, PartitionReader] = OrderedDict()
        self._pieces: OrderedDict[int, asyncio.Future[Chunk | None]] = OrderedDict()
        self.reads = 0

    async def read(
        self, offset: int, max_bytes: int, end: int, leader_epoch: int, *, stamped: bool
    ) -> Chunk | None:
        """The piece from `offset` on, and the next one begun; None if there is nothing before the end."""
        piece = await self._piece(offset, max_bytes, leader_epoch, stamped)
        self._pieces.pop(offset, None)
        if piece is not None and piece.next < end and len(self._pieces) < _AHEAD:
            self._piece(piece.next, max_bytes, leader_epoch, stamped)
        return piece

    def forget(self) -> None:
        """The log was rewritten: nothing that was read ahead counts."""
        self._pieces.clear()
        self._idle.clear()

    def _piece(
        self, offset: int, max_bytes: int, leader_epoch: int, stamped: bool
    ) -> asyncio.Future[Chunk | None]:
        found = self._pieces.get(offset)
        if found is not None and not (found.done() and found.exception()):
            return found
        self.reads += 1
        reader = self._idle.pop(offset, None)
        if reader is None and len(self._idle) >= _READERS:
            _, reader = self._idle.popitem(last=False)
        chosen = reader or self._new_reader()

        def work() -> Chunk | None:
            return read_chunk(chosen, offset, max_bytes, leader_epoch, stamped=stamped)

        task = asyncio.ensure_future(self._run(work))
        task.add_done_callback(lambda done: self._returned(chosen, done))
        self._pieces[offset] = task
        while len(self._pieces) > 2 * _AHEAD:
            self._pieces.popitem(last=False)
        return task

    def _returned(self, reader: PartitionReader, done: asyncio.Future[Chunk | None]) -> None:
        # A read that failed is told to whoever awaits it; its reader is not used again.
        if done.cancelled() or done.exception() is not None:
            return
        piece = done.result()
        if piece is not None:
            self._idle[piece.next] = reader


def read_chunk(
    reader: PartitionReader, offset: int, max_bytes: int, leader_epoch: int, *, stamped: bool
) -> Chunk | None:
    """A piece of the log as a batch for consumers; blocks."""
    if offset >= reader.end:
        reader.refresh()
    parts: list[pa.RecordBatch] = []
    at, left = offset, max_bytes
    # Micro-appends are a file each: a piece takes many of them, or who catches up reads them one by one.
    while left > 0 and len(parts) < _FILES:
        rows = reader.read(at, max_records=_MAX_RECORDS, max_bytes=left)
        if rows is None:
            break
        parts.append(rows)
        at = int(rows.column("offset")[rows.num_rows - 1].as_py()) + 1
        left -= rows.nbytes
        if at >= reader.end:
            break
    if parts:
        whole = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        data = records.encode(whole, leader_epoch, log_append_time=stamped)
        return Chunk(offset, at, data)
    end = reader.end
    if offset >= end:
        return None
    # All from here to the end was erased: consumers must get past it.
    return Chunk(offset, end, records.encode_gap(offset, end - 1, leader_epoch))

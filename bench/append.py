"""One micro-append of 100 records: against deltalake's own, and on a log that has grown large."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

import streamlog
from bench.measure import Result, fresh_folder, in_turns
from streamlog.batch import RecordColumns
from streamlog.log.partition import PartitionLog
from streamlog.schema import RECORD_SCHEMA

BATCH = 100
ROUNDS = 20
BLOCK = 20
COMMITS = 20_000
LIVE_FILES = 5_000


def run() -> list[Result]:
    """The ratios of an append."""
    return [*_against_deltalake(), *_on_a_large_log()]


def _columns() -> RecordColumns:
    keys = [b"user-%05d" % number for number in range(BATCH)]
    return RecordColumns.of(keys, [b"v" * 100] * BATCH, np.full(BATCH, 1_700_000_000_000))


def _log(root: Path) -> tuple[streamlog.Log, PartitionLog]:
    log = streamlog.connect(root)
    info = log.create_topic("t")
    return log, log._topics.partition_log(info, 0)


def _append(log: PartitionLog, columns: RecordColumns, *, durable: bool = False) -> None:
    log.append(columns, durable=durable, compression="snappy")


def _against_deltalake() -> list[Result]:
    columns = _columns()
    with fresh_folder() as root:
        _, log = _log(root / "ours")
        theirs = str(root / "theirs")
        offsets = count(0, BATCH)

        def append_theirs() -> None:
            first = next(offsets)
            numbers = pa.array(np.arange(first, first + BATCH, dtype=np.int64))
            table = pa.Table.from_arrays(
                [numbers, columns.timestamp, columns.key, columns.value, columns.headers],
                schema=RECORD_SCHEMA,
            )
            write_deltalake(theirs, table, mode="append")

        for _ in range(20):
            _append(log, columns)
            append_theirs()
        ours, delta = in_turns(lambda: _append(log, columns), append_theirs, ROUNDS, BLOCK)
        durable, _ = in_turns(
            lambda: _append(log, columns, durable=True), lambda: None, ROUNDS, BLOCK
        )
    detail = (
        f"{ours * 1e3:.2f} ms (acks=all {durable * 1e3:.2f} ms), deltalake {delta * 1e3:.1f} ms"
    )
    return [
        Result(
            "append of 100 records: times faster than write_deltalake, p50",
            delta / ours,
            15,
            detail=detail,
        )
    ]


def _on_a_large_log() -> list[Result]:
    columns = _columns()
    with fresh_folder() as root:
        owner, large = _log(root / "large")
        _, small = _log(root / "small")
        for _ in range(COMMITS - LIVE_FILES):
            _append(large, columns)
        large.truncate(large.end)
        for _ in range(LIVE_FILES):
            _append(large, columns)
        for _ in range(100):
            _append(small, columns)
        # Checkpoints are written beside appends, not within them: let those of the filling end.
        owner._checkpointer.drain(120)
        ours, base = in_turns(
            lambda: _append(large, columns), lambda: _append(small, columns), ROUNDS, BLOCK
        )
    return [
        Result(
            f"append at {COMMITS:,} commits and {LIVE_FILES:,} files: of its cost at 100, p50",
            ours / base,
            1.3,
            at_least=False,
            detail=f"{ours * 1e3:.2f} ms and {base * 1e3:.2f} ms",
        )
    ]

"""Consuming against the raw limit: the same tuples from Arrow, the same files by `pq.read_table`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import streamlog
from bench.measure import Result, fresh_folder, in_turns
from bench.produce import make_records
from streamlog.model import Record

RECORDS = 1_000_000
PARTITIONS = 4
ROUNDS = 5


def run() -> list[Result]:
    """The ratios of reading a topic."""
    with fresh_folder() as root:
        log = streamlog.connect(root)
        log.create_topic("t", partitions=PARTITIONS)
        keys, values = make_records(RECORDS)
        table = pa.table(
            {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        )
        del keys, values
        with log.producer(acks=1) as producer:
            producer.send_batch("t", table).result()
        del table
        files = sorted((root / "topics" / "t").glob("*/*.parquet"))
        tables = [pq.read_table(file) for file in files]
        raw_records, our_records = in_turns(
            lambda: [build(table) for table in tables], lambda: consume(log), ROUNDS
        )
        raw_arrow, our_arrow = in_turns(lambda: read(files), lambda: consume_arrow(log), ROUNDS)
    return [
        Result(
            "consume as records: of building the tuples from Arrow",
            raw_records / our_records,
            0.6,
            detail=f"{RECORDS / our_records / 1e6:.2f}M records/s",
        ),
        Result(
            "poll_arrow: of pq.read_table",
            raw_arrow / our_arrow,
            0.7,
            detail=f"{RECORDS / our_arrow / 1e6:.2f}M records/s",
        ),
    ]


def build(table: pa.Table) -> int:
    """The records of a table, the plain way, batch by batch as a consumer hands them out."""
    made = 0
    for batch in table.to_batches(max_chunksize=10_000):
        offset, timestamp, key, value, headers = batch.columns
        rows = zip(
            offset.to_pylist(),
            (timestamp.cast(pa.int64()).to_numpy() // 1000).tolist(),
            key.to_pylist(),
            value.to_pylist(),
            headers.to_pylist(),
            strict=True,
        )
        records = [Record("t", 0, o, t, k, v, tuple(h or ())) for o, t, k, v, h in rows]
        made += len(records)
    return made


def read(files: list[Path]) -> int:
    """All files, by pyarrow alone."""
    return sum(pq.read_table(file).num_rows for file in files)


def consume(log: streamlog.Log) -> None:
    """Every record as a `Record`."""
    with log.consumer("t", auto_offset_reset="earliest", max_poll_records=10_000) as consumer:
        seen = 0
        while seen < RECORDS:
            seen += len(consumer.poll(timeout_ms=1000))


def consume_arrow(log: streamlog.Log) -> None:
    """Every record in Arrow tables."""
    with log.consumer(
        "t",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=64 << 20,
        fetch_max_bytes=256 << 20,
    ) as consumer:
        seen = 0
        while seen < RECORDS:
            seen += consumer.poll_arrow(timeout_ms=1000).num_rows

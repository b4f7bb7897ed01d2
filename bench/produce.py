"""Producing against the raw limit: what Arrow and Parquet alone cost for the same records.

The raw limit of `send` builds the Arrow columns from lists of the same Python objects, 50,000 at a
time (the producer's default), and writes them with pyarrow, one file a partition: no code at all a
record, no hashing, no cutting by key, no checks, no handles, no commits. The same with a plain loop
that takes the records one by one, as any call a record has to, is measured beside it: the distance
between the two is the interpreter's, not the producer's. The raw limit of `send_batch` writes files
of the same records from Arrow columns that are there already. Both sides write the same number of
records of the same size, with the same compression, to the same disk, in turns; the ratio is that
of the medians.
"""

from __future__ import annotations

import gc
import random
import shutil
import statistics
import string
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import streamlog
from streamlog.batch import RecordColumns, encode_table
from streamlog.config import TopicConfig
from streamlog.producer import ProducerSettings
from streamlog.schema import RECORD_SCHEMA

RECORDS = 1_000_000
PARTITIONS = 4
BATCH = ProducerSettings().batch_records
VALUE_BYTES = 100
COMPRESSION = TopicConfig().compression_type
ROUNDS = 5
SEND_REQUIRED = 0.5
SEND_BATCH_REQUIRED = 0.7

Records = tuple[list[bytes], list[bytes]]


def run() -> list[tuple[str, float, float]]:
    """The ratios to the raw limit, each with its name and the least it has to be."""
    keys, values = make_records(RECORDS)
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    columns = split(RecordColumns.of(keys, values, np.zeros(RECORDS, np.int64)))
    send = ratio(
        lambda root: raw_send(root, keys, values),
        lambda root: produce(root, keys, values),
    )
    beside_loop = ratio(
        lambda root: raw_loop(root, keys, values),
        lambda root: produce(root, keys, values),
    )
    send_batch = ratio(
        lambda root: raw_write(root, columns),
        lambda root: produce_table(root, table),
    )
    return [
        ("send + flush, of the raw limit", send, SEND_REQUIRED),
        ("send + flush, of a plain loop (for information)", beside_loop, 0.0),
        ("send_batch + flush, of the raw limit", send_batch, SEND_BATCH_REQUIRED),
    ]


def make_records(count: int) -> Records:
    """Keys that repeat, and values of random letters: neither flatters the compression."""
    rng = random.Random(7)
    letters = string.ascii_uppercase.encode()
    noise = bytes(rng.choices(letters, k=VALUE_BYTES + 1_000_003))
    # Slices of one text at coprime steps: distinct objects, made quickly.
    values = [
        noise[at : at + VALUE_BYTES] for at in ((i * 7_919) % 1_000_003 for i in range(count))
    ]
    keys = [b"user-%08d" % rng.randrange(100_000) for _ in range(count)]
    return keys, values


def ratio(raw: Callable[[Path], float], ours: Callable[[Path], float]) -> float:
    """Seconds of the raw limit over ours, in turns, each in a fresh folder."""
    raw_seconds, our_seconds = [], []
    for _ in range(ROUNDS):
        raw_seconds.append(in_fresh_folder(raw))
        our_seconds.append(in_fresh_folder(ours))
    return statistics.median(raw_seconds) / statistics.median(our_seconds)


def in_fresh_folder(action: Callable[[Path], float]) -> float:
    root = Path(tempfile.mkdtemp(prefix="streamlog-bench-"))
    gc.collect()
    try:
        return action(root)
    finally:
        shutil.rmtree(root)


def raw_send(root: Path, keys: list[bytes], values: list[bytes]) -> float:
    """Lists into columns, columns into Parquet."""
    started = time.perf_counter()
    for batch, at in enumerate(range(0, len(keys), BATCH)):
        write_batch(root, keys[at : at + BATCH], values[at : at + BATCH], batch)
    return time.perf_counter() - started


def raw_loop(root: Path, keys: list[bytes], values: list[bytes]) -> float:
    """Records into lists one by one, lists into columns, columns into Parquet."""
    started = time.perf_counter()
    batch_keys: list[bytes] = []
    batch_values: list[bytes] = []
    batch = 0
    for key, value in zip(keys, values, strict=True):
        batch_keys.append(key)
        batch_values.append(value)
        if len(batch_keys) == BATCH:
            write_batch(root, batch_keys, batch_values, batch)
            batch_keys, batch_values, batch = [], [], batch + 1
    return time.perf_counter() - started


def write_batch(root: Path, keys: list[bytes], values: list[bytes], batch: int) -> None:
    """One batch, a file a partition."""
    stamps = np.full(len(keys), time.time_ns() // 1_000_000, np.int64)
    write_files(root, split(RecordColumns.of(keys, values, stamps)), batch)


def raw_write(root: Path, parts: list[RecordColumns]) -> float:
    """Parquet from columns, by pyarrow alone."""
    started = time.perf_counter()
    write_files(root, parts)
    return time.perf_counter() - started


def split(columns: RecordColumns) -> list[RecordColumns]:
    """Equal shares, without looking at the keys."""
    share = len(columns) // PARTITIONS
    return [columns.slice(number * share, share) for number in range(PARTITIONS)]


def write_files(root: Path, parts: list[RecordColumns], batch: int = 0) -> None:
    """One file a share, as the log would have it."""
    for number, part in enumerate(parts):
        offsets = pa.array(np.arange(len(part), dtype=np.int64))
        table = pa.Table.from_arrays(
            [offsets, part.timestamp, part.key, part.value, part.headers], schema=RECORD_SCHEMA
        )
        (root / f"{batch}-{number}.parquet").write_bytes(encode_table(table, COMPRESSION))


def produce(root: Path, keys: list[bytes], values: list[bytes]) -> float:
    """`send` of every record, and `flush`."""
    log = streamlog.connect(root)
    log.create_topic("t", partitions=PARTITIONS)
    with log.producer(acks=1) as producer:
        started = time.perf_counter()
        send = producer.send
        for key, value in zip(keys, values, strict=True):
            send("t", value, key)
        producer.flush()
        seconds = time.perf_counter() - started
    check(log, len(keys))
    return seconds


def produce_table(root: Path, table: pa.Table) -> float:
    """`send_batch` of one table, and `flush`."""
    log = streamlog.connect(root)
    log.create_topic("t", partitions=PARTITIONS)
    with log.producer(acks=1) as producer:
        started = time.perf_counter()
        producer.send_batch("t", table)
        producer.flush()
        seconds = time.perf_counter() - started
    check(log, table.num_rows)
    return seconds


def check(log: streamlog.Log, records: int) -> None:
    """A fast producer that loses records would be worthless."""
    found = log.describe("t").records
    if found != records:
        raise RuntimeError(f"{found} of {records} records are in the log")


if __name__ == "__main__":
    for name, measured, required in run():
        print(f"{name}: {measured:.2f} (at least {required})")

"""What maintenance costs: bytes written again, files left, appends held up, seconds a record.

`rewritten` and `live files` are of a partition with 50 appends a second and a run a minute, for ten such
minutes (the appends come as fast as they can; what is counted does not depend on the pace).
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import streamlog
from bench.measure import Result, fresh_folder
from streamlog.batch import RecordColumns
from streamlog.log.partition import PartitionLog

APPENDS_A_MINUTE = 3_000
MINUTES = 10
BATCH = 100
LATENCY_SECONDS = 6.0
LATENCY_ROUNDS = 5
KEYS = 1_000_000
SIZES = (5_000_000, 10_000_000, 20_000_000)
_CHUNK = 1_000_000
_MEMORY_GB = 4.0

_LOOP = """
import sys, streamlog
log = streamlog.connect(sys.argv[1])
print("ready", flush=True)
while True:
    log.maintain()
"""
_COMPACT = """
import resource, sys, time, streamlog
log = streamlog.connect(sys.argv[1])
started = time.monotonic()
(done,) = log.maintainer().run(actions=("compact",))
assert done.status == "done", done
print(time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, done.records_dropped)
"""


def run() -> list[Result]:
    """The figures of maintenance."""
    return [*_long_run(), _held_up(), *_keys()]


def _partition(log: streamlog.Log, topic: str) -> PartitionLog:
    return log._topics.partition_log(log.topic(topic), 0)


def _columns(rng: np.random.Generator) -> RecordColumns:
    keys = [b"user-%05d" % number for number in rng.integers(0, 10_000, BATCH)]
    values = [rng.bytes(100) for _ in range(BATCH)]
    return RecordColumns.of(keys, values, np.full(BATCH, time.time_ns() // 1_000_000))


def _long_run() -> list[Result]:
    rng = np.random.default_rng(1)
    with fresh_folder() as root:
        log = streamlog.connect(root / "root")
        log.create_topic("t")
        writer = _partition(log, "t")
        appended = rewritten = 0
        most = 0
        for _ in range(MINUTES):
            columns = _columns(rng)
            for _ in range(APPENDS_A_MINUTE):
                writer.append(columns, durable=False, compression="snappy")
            done = log.maintain()
            rewritten += int(done.numbers()["bytes_written"])
            most = max(most, log.describe("t").files)
        appended = APPENDS_A_MINUTE * MINUTES * BATCH
        live = log.describe("t")
        if live.records != appended:
            raise AssertionError(f"{live.records} records are left of {appended}")
        # Of the same records at their final size: small files are larger than what is in them.
        factor = 1 + rewritten / live.bytes
    return [
        Result(
            "bytes written, of what the records take at the end",
            factor,
            3,
            at_least=False,
            detail=f"{MINUTES} runs, {APPENDS_A_MINUTE} appends between two",
        ),
        Result("live files after a run, at most", most, 100, at_least=False, unit=""),
    ]


def _held_up() -> Result:
    """Appends at 100 a second, with and without maintenance in a loop beside them, in turns."""
    rng = np.random.default_rng(2)
    alone: list[float] = []
    beside: list[float] = []
    with fresh_folder() as root:
        log = streamlog.connect(root / "root")
        log.create_topic("t")
        writer = _partition(log, "t")
        columns = _columns(rng)

        def measure() -> float:
            times = []
            end = time.monotonic() + LATENCY_SECONDS
            while time.monotonic() < end:
                started = time.perf_counter()
                writer.append(columns, durable=False, compression="snappy")
                times.append(time.perf_counter() - started)
                time.sleep(0.01)
            return statistics.quantiles(times, n=100)[98]

        measure()
        for _ in range(LATENCY_ROUNDS):
            alone.append(measure())
            with subprocess.Popen(
                [sys.executable, "-c", _LOOP, log.root], stdout=subprocess.PIPE
            ) as job:
                assert job.stdout is not None
                job.stdout.readline()
                try:
                    beside.append(measure())
                finally:
                    job.kill()
    least, most = statistics.median(alone), statistics.median(beside)
    return Result(
        "append p99 during maintenance: of that without",
        most / least,
        2,
        at_least=False,
        detail=f"{most * 1000:.2f} ms, alone {least * 1000:.2f} ms",
    )


def _keys() -> list[Result]:
    """Compaction by key in a process of its own; how its cost a record grows."""
    each: list[float] = []
    peak = 0.0
    with fresh_folder() as root:
        for size in SIZES:
            place = root / str(size)
            _fill(place, size)
            ran = subprocess.run(
                [sys.executable, "-c", _COMPACT, str(place)],
                capture_output=True,
                text=True,
                check=True,
            )
            spent, memory, _ = ran.stdout.split()
            each.append(float(spent) / size * 1e6)
            peak = max(peak, int(memory) * resource.getpagesize() / 4096 / 2**20)
    detail = ", ".join(
        f"{size // 10**6}M: {cost:.2f} us" for size, cost in zip(SIZES, each, strict=True)
    )
    return [
        Result(
            "compaction by key: a record of 20M, of one of 5M",
            each[-1] / each[0],
            1.5,
            at_least=False,
            detail=f"{KEYS} keys; {detail} a record",
        ),
        Result(
            "compaction by key: memory at 20M records",
            peak,
            _MEMORY_GB,
            at_least=False,
            unit="GB",
        ),
    ]


def _fill(place: Path, size: int) -> None:
    rng = np.random.default_rng(3)
    log = streamlog.connect(place)
    log.create_topic("t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    value = pa.array([rng.bytes(100)], pa.binary())
    with log.producer(acks=1) as producer:
        for _ in range(size // _CHUNK):
            numbers = rng.integers(0, KEYS, _CHUNK).astype(str)
            keys = pa.array(np.char.add("user-", numbers), pa.string()).cast(pa.binary())
            values = value.take(pa.array(np.zeros(_CHUNK, np.int64)))
            producer.send_batch("t", pa.table({"key": keys, "value": values})).result()
        producer.send("t", b"the newest file is never touched", key=b"last").result()

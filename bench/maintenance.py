"""What maintenance costs: bytes written again, files left, appends held up, seconds a record (`compaction`).

`rewritten` and `live files` are of a partition with 50 appends a second and a run a minute, for ten such
minutes (the appends come as fast as they can; what is counted does not depend on the pace).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import numpy as np

import streamlog
from bench import compaction
from bench.measure import Result, fresh_folder
from streamlog.batch import RecordColumns
from streamlog.log.partition import PartitionLog

APPENDS_A_MINUTE = 3_000
MINUTES = 10
BATCH = 100
LATENCY_SECONDS = 6.0
LATENCY_ROUNDS = 5

_LOOP = """
import sys, streamlog
log = streamlog.connect(sys.argv[1])
print("ready", flush=True)
while True:
    log.maintain()
"""


def run() -> list[Result]:
    """The figures of maintenance."""
    return [*_long_run(), _held_up(), *compaction.run()]


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

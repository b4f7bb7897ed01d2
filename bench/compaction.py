"""Compaction by key: what a record costs as the partition grows, and the memory, in one process and on Spark.

The memory is that of the compacting process and all below it (Spark: the driver's Python, the JVM and the
Python workers), each shared page counted once, looked at five times a second.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

import streamlog
from bench.measure import Result, fresh_folder

KEYS = 1_000_000
VALUE_BYTES = 100
SIZES = (5_000_000, 10_000_000, 20_000_000)
_CHUNK = 1_000_000
_MEMORY_GB = 4.0
_LOOK_SECONDS = 0.2

_COMPACT = """
started = time.monotonic()
(done,) = log.maintainer(engine).run(actions=("compact",))
assert done.status == "done", done
print(time.monotonic() - started)
"""
_LOCAL = (
    """
import sys, time, streamlog
log, engine = streamlog.connect(sys.argv[1]), None
"""
    + _COMPACT
)
# The JVM has 2 GB: driver and executor are one here, and the Python workers stand beside it.
_SPARK = (
    """
import sys, time, streamlog
from streamlog.spark import session
from streamlog.spark.maintenance import SparkEngine
quiet = {"spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g"}
spark = session("bench", "local[2]", quiet, delta=False)
spark.range(1).mapInArrow(lambda rows: rows, "id LONG").collect()
log = streamlog.connect(sys.argv[1])
engine = SparkEngine(spark, log)
"""
    + _COMPACT
)


def run() -> list[Result]:
    """How the cost a record grows, and the memory it takes."""
    programs = {"in one process": _LOCAL}
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        print("bench maintenance: Spark needs Java 17 or later, and there is none", file=sys.stderr)
    else:
        programs["on Spark, two cores"] = _SPARK
    costs: dict[str, list[float]] = {name: [] for name in programs}
    peaks = dict.fromkeys(programs, 0.0)
    for size in SIZES:
        with fresh_folder() as root:
            _fill(root / "filled", size)
            for name, program in programs.items():
                place = root / "compacted"
                shutil.copytree(root / "filled", place)
                spent, peak = _measured(program, place)
                costs[name].append(spent / size * 1e6)
                peaks[name] = max(peaks[name], peak)
                shutil.rmtree(place)
    return [result for name in programs for result in _results(name, costs[name], peaks[name])]


def _results(name: str, costs: Sequence[float], peak: float) -> list[Result]:
    detail = ", ".join(
        f"{size // 10**6}M: {cost:.2f} us" for size, cost in zip(SIZES, costs, strict=True)
    )
    return [
        Result(
            f"compaction by key {name}: a record of 20M, of one of 5M",
            costs[-1] / costs[0],
            1.5,
            at_least=False,
            detail=f"{KEYS} keys; {detail} a record",
        ),
        Result(f"compaction by key {name}: memory", peak, _MEMORY_GB, at_least=False, unit="GB"),
    ]


def _measured(program: str, place: Path) -> tuple[float, float]:
    """Seconds of a compaction in a process of its own, and the most memory it took, in GB."""
    peak = 0.0
    done = threading.Event()
    with subprocess.Popen(
        [sys.executable, "-c", program, str(place)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as job:

        def watch() -> None:
            nonlocal peak
            while not done.wait(_LOOK_SECONDS):
                peak = max(peak, _memory(job.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        out, _ = job.communicate()
        done.set()
        watcher.join()
    if job.returncode:
        raise RuntimeError(f"the compaction of {place} failed with exit code {job.returncode}")
    return float(out.split()[-1]), peak


def _memory(pid: int) -> float:
    total = 0
    try:
        top = psutil.Process(pid)
        family = [top, *top.children(recursive=True)]
    except psutil.Error:
        return 0.0
    for process in family:
        try:
            full = process.memory_full_info()
        except psutil.Error:
            continue  # it ended meanwhile
        total += getattr(full, "pss", full.uss)
    return total / 2**30


def _fill(place: Path, size: int) -> None:
    """Values are random: what compresses away would be no load."""
    rng = np.random.default_rng(3)
    log = streamlog.connect(place)
    log.create_topic("t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    ends = pa.py_buffer(np.arange(0, VALUE_BYTES * _CHUNK + 1, VALUE_BYTES, dtype=np.int32))
    with log.producer(acks=1) as producer:
        for _ in range(size // _CHUNK):
            numbers = rng.integers(0, KEYS, _CHUNK).astype(str)
            keys = pa.array(np.char.add("user-", numbers), pa.string()).cast(pa.binary())
            data = pa.py_buffer(rng.bytes(VALUE_BYTES * _CHUNK))
            values = pa.Array.from_buffers(pa.binary(), _CHUNK, [None, ends, data])
            producer.send_batch("t", pa.table({"key": keys, "value": values})).result()
        producer.send("t", b"the newest file is never touched", key=b"last").result()

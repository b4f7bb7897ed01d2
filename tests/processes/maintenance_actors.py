"""The processes of the maintenance soak: each does one thing and tells it, a line of JSON at a time.

`python -m tests.processes.maintenance_actors ROLE ROOT [ARGUMENT…]`. Readers and the stream end when they
are given a line on stdin; the maintainer runs until it is killed.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import streamlog
from streamlog.clock import Runtime
from streamlog.log.cleaner import Cleaner
from streamlog.storage.open import open_objects

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# Nothing but merges touches it: every record stays, for every reader.
LOAD = "load"
# Loses records after some seconds.
BRIEF = "brief"
# Keeps the last record a key; some keys are erased again and again.
KEYS = "keys"
# What the Spark stream read of the three.
COPY = "copy"

# A few appends fill a segment, so that merges of merges happen within seconds.
SEGMENT_BYTES = 40_000
RETENTION_MS = 6_000
SOURCES: dict[str, tuple[int, dict[str, object]]] = {
    LOAD: (8, {"segment.bytes": SEGMENT_BYTES}),
    BRIEF: (2, {"segment.bytes": SEGMENT_BYTES // 2, "retention.ms": RETENTION_MS}),
    KEYS: (
        2,
        {
            "segment.bytes": SEGMENT_BYTES // 2,
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": 0.2,
            "delete.retention.ms": 3_000,
        },
    ),
}
ERASED = ("gone-0", "gone-1")
_KEYS = 200
# Appends a second that one producer makes into LOAD; a fourth as many go to the other topics.
RATE = 100
# How often a round of maintenance erases a key.
_ERASING = 0.2
# Commit files of LOAD go after so long, not after an hour: all clients of the soak are awake.
_LOG_FLOOR_SECONDS = 30.0


def say(**words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def producer(root: str, name: str, seconds: str, seed: str) -> None:
    """A file a partition and round; what was acknowledged is told with its place."""
    log = streamlog.connect(root, create=False)
    rng = random.Random(f"{name} {seed}")
    number = 0

    def fresh() -> str:
        nonlocal number
        number += 1
        return f"{name}:{number}"

    rounds = 0
    with log.producer(acks=1, linger_ms=0) as sender:
        started = time.monotonic()
        while time.monotonic() < started + float(seconds):
            sent = []
            for topic, (partitions, _) in SOURCES.items():
                each = range(partitions) if topic == LOAD else [rounds % partitions]
                for partition in each:
                    value: str | None = fresh()
                    key = None
                    if topic == KEYS:
                        key = (
                            rng.choice(ERASED) if rng.random() < 0.1 else f"k{rng.randrange(_KEYS)}"
                        )
                        value = None if rng.random() < 0.1 else value
                    ack = sender.send(topic, value, key=key, partition=partition)
                    sent.append((topic, key, value, ack))
            sender.flush()
            placed = []
            for topic, key, value, ack in sent:
                at = ack.result()
                placed.append((topic, at.partition, at.offset, key, value, at.timestamp))
            say(acknowledged=placed)
            rounds += 1
            # By the clock, not by pauses: a round that was slow is made up for.
            due = started + rounds * SOURCES[LOAD][0] / RATE
            time.sleep(max(0.0, due - time.monotonic()))
    say(done=rounds)


def reader(root: str, group: str) -> None:
    """Follows all topics, alone or as a member of a group."""
    log = streamlog.connect(root, create=False)
    stop = _told_to_stop()
    chosen = {"group_id": group} if group else {}
    with log.consumer(*SOURCES, auto_offset_reset="earliest", **chosen) as consumer:
        while not stop.is_set():
            if records := consumer.poll(timeout_ms=200):
                say(
                    read=[
                        (r.topic, r.partition, r.offset, *_texts(r.key, r.value)) for r in records
                    ]
                )
    say(done=True)


def maintainer(root: str) -> None:
    """Maintenance of every kind without a pause, until it is killed."""
    log = streamlog.connect(root, create=False)
    objects = open_objects(root, None, Runtime())
    cleaner = Cleaner(objects, Runtime(), log_floor=_LOG_FLOOR_SECONDS)
    say(started=True)
    while True:
        found = log.maintain()
        kinds = [f"{item.action} {item.status}" for item in found.outcomes]
        say(steps=kinds, failures=found.failures)
        table = log.topic(LOAD).path
        gone = sum(cleaner.clean_log(f"{table}/{part}") for part in range(SOURCES[LOAD][0]))
        say(commits_cleaned=gone)
        # Seldom: its proof reads every file there is, and none is deleted within the first hour.
        if random.random() < _ERASING:
            eraser = log.eraser(KEYS, [random.choice(ERASED)])
            erased = eraser.run(purge=random.random() < 0.5)
            say(erased=sum(item.records for item in erased))


def stream(root: str, checkpoint: str) -> None:
    """A query of Spark from the three topics into COPY; told to stop, it reads to the end first."""
    from streamlog.spark import session

    stop = _told_to_stop()
    settings = {"spark.driver.memory": "1g", "spark.ui.showConsoleProgress": "false"}
    spark = session("streamlog-soak", "local[2]", settings, delta=False)
    spark.sparkContext.setLogLevel("OFF")

    def query(**trigger: object) -> StreamingQuery:
        frame = (
            spark.readStream.format("streamlog")
            .option("root", root)
            .option("subscribe", ",".join(SOURCES))
            .option("startingOffsets", "earliest")
            # BRIEF loses what it may lose; the check knows which that is.
            .option("failOnDataLoss", "false")
            .load()
            .selectExpr(
                "concat(topic, ' ', partition) AS key",
                "to_json(struct(topic, partition, offset, CAST(key AS STRING) AS key, "
                "CAST(value AS STRING) AS value)) AS value",
            )
        )
        writer = frame.writeStream.format("streamlog").option("root", root).option("topic", COPY)
        return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()  # type: ignore[arg-type]

    running = query(processingTime="1 second")
    told = -1
    while not stop.is_set():
        if not running.isActive:
            running.awaitTermination()
            raise AssertionError("the query ended by itself")
        progress = running.lastProgress
        if progress is not None and progress.batchId != told:
            told = progress.batchId
            say(batch=told, rows=progress.numInputRows)
        time.sleep(0.2)
    running.stop()
    query(availableNow=True).awaitTermination()
    spark.stop()
    say(done=True)


def _told_to_stop() -> threading.Event:
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    return stop


def _texts(*values: bytes | None) -> list[str | None]:
    return [None if value is None else value.decode() for value in values]


def main() -> None:
    roles: dict[str, Callable[..., None]] = {
        "producer": producer,
        "reader": reader,
        "maintainer": maintainer,
        "stream": stream,
    }
    roles[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main()

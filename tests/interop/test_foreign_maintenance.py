"""OPTIMIZE and VACUUM by delta-rs on a partition that is written and read at the same time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

import streamlog

SECONDS = 4.0


def test_delta_rs_maintains_beside_a_producer_and_a_consumer(tmp_path: Path) -> None:
    log = streamlog.connect(tmp_path / "root")
    log.create_topic("t")
    sent: list[bytes] = []
    read: list[bytes | None] = []
    over = threading.Event()
    failures: list[BaseException] = []

    def produce() -> None:
        try:
            with log.producer(linger_ms=0) as producer:
                while not over.is_set():
                    value = b"v%d" % len(sent)
                    producer.send("t", value).result()
                    sent.append(value)
                    time.sleep(0.02)
        except BaseException as error:
            failures.append(error)

    def consume() -> None:
        try:
            with log.consumer("t", auto_offset_reset="earliest") as consumer:
                while not over.is_set() or len(read) < len(sent):
                    read.extend(record.value for record in consumer.poll(timeout_ms=50))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
    for thread in threads:
        thread.start()
    optimized = 0
    table = Path(log.root, "topics/t/0")
    until = time.monotonic() + SECONDS
    try:
        while time.monotonic() < until and not failures:
            time.sleep(0.2)
            try:
                delta = DeltaTable(table)
                optimized += delta.optimize.compact()["numFilesRemoved"] > 0
                delta.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)
            except (CommitFailedError, DeltaError):
                continue  # it lost the race: that is its trouble, not the log's
    finally:
        over.set()
        for thread in threads:
            thread.join(30)
    assert not failures
    assert optimized
    assert read == sent
    # Our own maintenance takes over what the other engine left.
    for _ in range(2):
        assert all(item.status == "done" for item in log.maintainer().run())
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        again: list[bytes | None] = []
        while len(again) < len(sent):
            again += [record.value for record in consumer.poll(timeout_ms=1000)]
    assert again == sent

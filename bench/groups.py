"""Consumer groups: commits a second, and how long people wait when members come, leave and die."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import streamlog
from bench.measure import Result, fresh_folder
from streamlog import TopicPartition

ROUNDS = 5
COMMITS = 400
SESSION_MS = 2_000


def run() -> list[Result]:
    """The figures of a group on a local disk."""
    with fresh_folder() as root:
        log = _log(root)
        return [_commits(log), *_handovers(root)]


def _log(root: Path) -> streamlog.Log:
    log = streamlog.connect(root)
    log.create_topic("t", partitions=4)
    with log.producer() as producer:
        for number in range(1000):
            producer.send("t", b"x" * 100, partition=number % 4)
    return log


def _member(root: Path, group: str) -> streamlog.Consumer:
    return streamlog.connect(root).consumer(
        "t",
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=SESSION_MS // 8,
    )


def _commits(log: streamlog.Log) -> Result:
    with log.consumer("t", group_id="commits", auto_offset_reset="earliest") as consumer:
        consumer.poll(timeout_ms=1000)
        tps = [TopicPartition("t", number) for number in range(4)]
        started = time.perf_counter()
        for number in range(COMMITS):
            consumer.commit(dict.fromkeys(tps, number % 250))
        rate = COMMITS / (time.perf_counter() - started)
    return Result("commits a second of one group (4 partitions each)", rate, 200, unit="/s")


def _handovers(root: Path) -> list[Result]:
    first, left, died = [], [], []
    for number in range(ROUNDS):
        group = f"handover-{number}"
        started = time.perf_counter()
        mine = _member(root, group)
        while not mine.poll(timeout_ms=10):
            pass
        first.append(time.perf_counter() - started)
        other = _member(root, group)
        _share(mine, other)
        started = time.perf_counter()
        other.close()
        _own_all(mine)
        left.append(time.perf_counter() - started)
        victim = _member(root, group)
        _share(mine, victim)
        # As if killed: nobody beats for it any more, and it says no goodbye.
        victim._group._membership.stop()  # type: ignore[union-attr]
        started = time.perf_counter()
        _own_all(mine)
        died.append(time.perf_counter() - started)
        mine.close()
    beyond = statistics.median(died) - SESSION_MS / 1000
    return [
        Result("first member: from join to first record", _median(first), 1, False, "s"),
        Result(
            "graceful leave: until the others have its partitions", _median(left), 1, False, "s"
        ),
        Result("death: takeover beyond the session timeout", beyond, 2, False, "s"),
    ]


def _share(one: streamlog.Consumer, two: streamlog.Consumer) -> None:
    while len(one.assignment()) != 2 or len(two.assignment()) != 2:
        one.poll(timeout_ms=10)
        two.poll(timeout_ms=10)


def _own_all(consumer: streamlog.Consumer) -> None:
    while len(consumer.assignment()) != 4:
        consumer.poll(timeout_ms=10)


def _median(values: list[float]) -> float:
    return statistics.median(values)

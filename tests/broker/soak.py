"""`PYTHONPATH=.:tests python -m broker.soak` (`make soak`): every record counted, memory watched.

Two broker processes over one root, with maintenance; an idempotent producer and a group of two consumers by
confluent-kafka. One of the brokers is killed and started again every few minutes. At the end every
acknowledged record was consumed, in order within its partition and without a gap, and the memory of the
broker that lived through it all has not grown since a third of the time.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from broker.processes import BrokerProcess, broker_process
from confluent_kafka import Consumer, Producer

import streamlog

PARTITIONS = 4
GROWTH = 1.25
TAIL_BYTES = 8 << 20
KILL_EVERY = 150.0


class Load:
    """A producer at a rate, and what it was promised."""

    def __init__(self, addresses: str, rate: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": addresses,
                "enable.idempotence": True,
                "linger.ms": 50,
                "message.timeout.ms": 120_000,
            }
        )
        self._rate = rate
        self.acknowledged: set[int] = set()
        self.failed: list[Any] = []
        self.sent = 0

    def run(self, until: float) -> None:
        started = time.monotonic()
        while time.monotonic() < until:
            due = int((time.monotonic() - started) * self._rate)
            while self.sent < due:
                number = self.sent
                self._producer.produce(
                    "soak",
                    b"%d" % number,
                    partition=number % PARTITIONS,
                    on_delivery=lambda error, _, number=number: self._delivered(error, number),
                )
                self.sent += 1
            self._producer.poll(0.02)
        self._producer.flush(150)

    def _delivered(self, error: Any, number: int) -> None:
        if error is None:
            self.acknowledged.add(number)
        else:
            self.failed.append(error)


class Member:
    """One consumer of the group; what it saw, by partition and offset."""

    def __init__(self, addresses: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": addresses,
                "group.id": "soak",
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": 10_000,
            }
        )
        self.seen: dict[tuple[int, int], int] = {}

    def run(self, done: threading.Event) -> None:
        self._consumer.subscribe(["soak"])
        while not done.is_set():
            for message in self._consumer.consume(1000, 0.2):
                if message.error() is None:
                    place = (message.partition(), message.offset())
                    self.seen[place] = int(message.value())
        self._consumer.close()


def memory(broker: BrokerProcess) -> float:
    """Resident MiB of a broker."""
    for line in Path(f"/proc/{broker.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the broker is gone")


def soak(root: Path, minutes: float, rate: int) -> dict[str, Any]:
    """Runs it; the figures, or an AssertionError."""
    with streamlog.connect(root) as log:
        log.create_topic("soak", partitions=PARTITIONS, config={"retention.ms": 3_600_000})
    samples: list[float] = []
    kills = 0
    # A small tail, so that it is full long before the first look at the memory.
    options = ("-X", f"tail_memory={TAIL_BYTES}")
    with broker_process(root, "--maintain", *options) as steady, ExitStack() as stack:
        second = stack.enter_context(broker_process(root, *options))
        addresses = f"{steady.address},{second.address}"
        load, members = Load(addresses, rate), [Member(addresses), Member(addresses)]
        done = threading.Event()
        until = time.monotonic() + minutes * 60
        threads = [threading.Thread(target=member.run, args=(done,)) for member in members]
        threads.append(threading.Thread(target=load.run, args=(until,)))
        for thread in threads:
            thread.start()
        kill_at = time.monotonic() + KILL_EVERY
        while time.monotonic() < until:
            time.sleep(5)
            samples.append(memory(steady))
            if time.monotonic() > kill_at:
                second.kill()
                kills += 1
                listen = f"127.0.0.1:{second.port}"
                second = stack.enter_context(broker_process(root, *options, listen=listen))
                kill_at = time.monotonic() + KILL_EVERY
        threads[-1].join()
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            seen = {number for member in members for number in member.seen.values()}
            if load.acknowledged <= seen:
                break
            time.sleep(0.5)
        done.set()
        for thread in threads:
            thread.join()
    assert not load.failed, load.failed[:3]
    check(load, members)
    third = len(samples) // 3
    early = statistics.median(samples[third : 2 * third])
    late = statistics.median(samples[2 * third :])
    assert late <= early * GROWTH, f"memory grew from {early:.0f} to {late:.0f} MiB"
    return {
        "minutes": minutes,
        "records": len(load.acknowledged),
        "kills": kills,
        "memory_early_mib": round(early),
        "memory_late_mib": round(late),
    }


def check(load: Load, members: list[Member]) -> None:
    """Nothing lost, nothing twice, no gap, in order."""
    places: dict[tuple[int, int], int] = {}
    for member in members:
        for place, number in member.seen.items():
            assert places.setdefault(place, number) == number, place
    assert load.acknowledged <= set(places.values()), "acknowledged records were not consumed"
    assert len(set(places.values())) == len(places), "a record is in the log twice"
    for partition in range(PARTITIONS):
        mine = sorted((offset, number) for (p, offset), number in places.items() if p == partition)
        assert [offset for offset, _ in mine] == list(range(len(mine))), "offsets have a gap"
        assert [number for _, number in mine] == sorted(number for _, number in mine), "order"


def main(arguments: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=int, default=1000, help="records a second")
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        print(soak(Path(folder) / "root", given.minutes, given.rate))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Appends, readers and maintenance at once, while the maintaining process is killed again and again.

`python -m tests.processes.maintenance_soak [--seconds 180] [--seed 1]` is the long form; the test suite
runs a short one. What must hold, whatever happens:

- every acknowledged record is read exactly once by every reader, at the offset of its acknowledgement;
- offsets are dense, and a producer's records keep their order in a partition;
- the files that are live in the end are few, though every batch made one.

As a process: `… actor producer ROOT NAME SECONDS`, `… actor reader ROOT`, `… actor maintainer ROOT`; a
reader ends when it has read up to the offsets that it is given on stdin.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable

import streamlog
from tests.processes.group_soak import read_words

ROOT = Path(__file__).parents[2]
TOPIC = "load"
PARTITIONS = 3
PRODUCERS = 2
READERS = 2
GROUP = "readers"
# A few appends fill a segment, so that merges of merges happen within seconds.
SEGMENT_BYTES = 40_000


def say(**words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


# the processes


def producer(root: str, name: str, seconds: str) -> None:
    """Small batches, each a file; what was acknowledged is told with its place."""
    log = streamlog.connect(root, create=False)
    until = time.monotonic() + float(seconds)
    number = 0
    with log.producer(acks=1, linger_ms=0) as sender:
        while time.monotonic() < until:
            acks = []
            for _ in range(9):
                acks.append((number, sender.send(TOPIC, f"{name}:{number}", partition=number % 3)))
                number += 1
            sender.flush()
            placed = [(n, ack.result().partition, ack.result().offset) for n, ack in acks]
            say(name=name, acknowledged=placed)
            time.sleep(0.05)
    say(done=number)


def reader(root: str, group: str) -> None:
    """Follows the topic, alone or as the only member of a group, until it has all it is told of."""
    log = streamlog.connect(root, create=False)
    ends: dict[int, int] = {}

    def listen() -> None:
        ends.update({int(part): end for part, end in json.loads(sys.stdin.readline()).items()})

    threading.Thread(target=listen, daemon=True).start()
    chosen = {"group_id": group} if group else {}
    position = dict.fromkeys(range(PARTITIONS), 0)
    with log.consumer(TOPIC, auto_offset_reset="earliest", **chosen) as consumer:
        while not ends or any(position[part] < end for part, end in ends.items()):
            records = consumer.poll(timeout_ms=200)
            for record in records:
                position[record.partition] = record.offset + 1
            if records:
                say(read=[(r.partition, r.offset, (r.value or b"").decode()) for r in records])
    say(done=True)


def maintainer(root: str) -> None:
    """Runs without a pause, until it is killed."""
    log = streamlog.connect(root, create=False)
    say(started=True)
    while True:
        for step in log.maintainer().run():
            say(status=step.status, files=step.files_before, note=step.note)


# the soak


@dataclass
class Soak:
    """One run; every process keeps its words in a file of its own."""

    folder: Path
    seed: int
    seconds: float
    kills: int = 0
    words: dict[str, list[Path]] = field(default_factory=dict)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.root = self.folder / "root"
        self.log = streamlog.connect(self.root)
        self.log.create_topic(TOPIC, partitions=PARTITIONS, config={"segment.bytes": SEGMENT_BYTES})

    def start(self, role: str, *arguments: object) -> subprocess.Popen[bytes]:
        files = self.words.setdefault(role, [])
        path = self.folder / f"{role}-{len(files)}.jsonl"
        files.append(path)
        command = [sys.executable, "-m", "tests.processes.maintenance_soak", "actor", role]
        with path.open("wb") as out:
            process = subprocess.Popen(
                [*command, str(self.root), *map(str, arguments)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.running.append(process)
        return process

    def run(self) -> None:
        try:
            self.act()
        finally:
            for process in self.running:
                if process.poll() is None:
                    process.kill()
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()

    def act(self) -> None:
        readers = [self.start("reader", GROUP if index == 0 else "") for index in range(READERS)]
        producers = [self.start("producer", f"p{i}", self.seconds) for i in range(PRODUCERS)]
        victim = self.start("maintainer")
        while any(process.poll() is None for process in producers):
            self.wait_for_life(victim)
            time.sleep(self.rng.uniform(0, 3))
            assert victim.poll() is None, self.words["maintainer"][-1].read_text()[-2000:]
            victim.kill()
            assert victim.wait() == -signal.SIGKILL
            self.kills += 1
            victim = self.start("maintainer")
        ends = {part.partition: part.end for part in self.log.describe(TOPIC).partitions}
        for process in readers:
            assert process.stdin is not None
            process.stdin.write(json.dumps(ends).encode() + b"\n")
            process.stdin.flush()
        for process in readers:
            assert process.wait(120) == 0
        victim.kill()
        victim.wait()

    def wait_for_life(self, victim: subprocess.Popen[bytes]) -> None:
        """Killed while it starts it would never maintain anything."""
        until = time.monotonic() + 60
        while not self.words["maintainer"][-1].stat().st_size:
            assert victim.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)

    def check(self) -> dict[str, int]:
        """The promises; returns counts for a report."""
        acknowledged: dict[tuple[int, int], str] = {}
        sent = 0
        for path in self.words["producer"]:
            said = read_words(path)
            sent += said[-1]["done"]
            for word in said[:-1]:
                for number, partition, offset in word["acknowledged"]:
                    acknowledged[partition, offset] = f"{word['name']}:{number}"
        assert len(acknowledged) == sent
        for path in self.words["reader"]:
            self.check_reader([word for word in read_words(path) if "read" in word], acknowledged)
        steps = [word for path in self.words["maintainer"] for word in read_words(path)]
        found = [word["status"] for word in steps if "status" in word]
        assert "failed" not in found, [word for word in steps if word.get("status") == "failed"]
        # A killed run tells nothing: the log itself has what it committed.
        kinds = [self.kinds(partition) for partition in range(PARTITIONS)]
        self.log.maintainer().run()
        self.log.maintainer().run()
        topic = self.log.describe(TOPIC)
        for part in topic.partitions:
            table = DeltaTable(str(self.root / "topics" / TOPIC / str(part.partition)))
            offsets = sorted(table.to_pyarrow_table(columns=["offset"])["offset"].to_pylist())
            assert offsets == list(range(part.end)), "what Delta reads is dense and single too"
        return {
            "kills": self.kills,
            "records": sent,
            "steps_told": found.count("done"),
            "merges": sum(each.count("rewrite") for each in kinds),
            "appends": sum(each.count("append") for each in kinds),
            "files": topic.files,
            "bytes": topic.bytes,
        }

    def kinds(self, partition: int) -> list[str]:
        """What each version of a partition did."""
        table = self.root / "topics" / TOPIC / str(partition)
        commits = sorted((table / "_delta_log").glob("*.json"))
        infos = [json.loads(commit.read_bytes().splitlines()[0]) for commit in commits]
        return [info["commitInfo"]["streamlog"]["kind"] for info in infos]

    def check_reader(
        self, words: list[dict[str, list[tuple[int, int, str]]]], wanted: dict[tuple[int, int], str]
    ) -> None:
        positions = dict.fromkeys(range(PARTITIONS), 0)
        found: dict[tuple[int, int], str] = {}
        for partition, offset, value in (record for word in words for record in word["read"]):
            assert offset == positions[partition], f"seed {self.seed}: not dense, or not once"
            positions[partition] += 1
            found[partition, offset] = value
        assert found == wanted, f"seed {self.seed}: not what was acknowledged"
        for partition in range(PARTITIONS):
            for name in range(PRODUCERS):
                own = [
                    int(found[partition, offset].partition(":")[2])
                    for offset in range(positions[partition])
                    if found[partition, offset].startswith(f"p{name}:")
                ]
                assert own == sorted(own), "in the order of sending"


def soak(folder: Path, seconds: float, seed: int) -> dict[str, int]:
    """One run with its checks."""
    run = Soak(folder, seed, seconds)
    run.run()
    return run.check()


def main() -> None:
    if sys.argv[1:2] == ["actor"]:
        actors: dict[str, Callable[..., None]] = {
            "producer": producer,
            "reader": reader,
            "maintainer": maintainer,
        }
        actors[sys.argv[2]](*sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}, {chosen.seconds:g} s")
    with tempfile.TemporaryDirectory(prefix="streamlog-soak-") as folder:
        print(soak(Path(folder), chosen.seconds, chosen.seed))


if __name__ == "__main__":
    main()

"""A group under load while its members are killed, suspended, resumed, added and removed at random.

`python -m tests.processes.group_soak [--seconds 180] [--seed 1]` is the long form (`make soak`); the test
suite runs a short one. What must hold, whatever happens:

- every record is processed at least once;
- no record is processed twice in one generation, so none twice within one ownership;
- two members never own a partition in the same generation;
- a committed offset never goes back, in no version of the group's table.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import streamlog
from tests.processes.group_member import TOPIC

ROOT = Path(__file__).parents[2]
PARTITIONS = 32
MEMBERS = 8
SESSION_MS = 3_000
GROUP = "soak"
RATE = 400


@dataclass
class Soak:
    """One run; every member ever started keeps its words in a file of its own."""

    folder: Path
    seed: int
    members: int = MEMBERS
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    words: list[Path] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.log = streamlog.connect(self.folder / "root")
        self.log.create_topic(TOPIC, partitions=PARTITIONS)
        self.sent = 0
        self.stopping = False

    def start_member(self) -> None:
        path = self.folder / f"member-{len(self.words)}.jsonl"
        self.words.append(path)
        with path.open("wb") as out:
            self.processes.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "tests.processes.group_member",
                        str(self.folder / "root"),
                        GROUP,
                        str(SESSION_MS),
                    ],
                    cwd=ROOT,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )

    def produce(self) -> None:
        """Steady load, every record its own number."""
        with self.log.producer(acks=1, linger_ms=20) as producer:
            while not self.stopping:
                for _ in range(RATE // 20):
                    producer.send(TOPIC, b"%d" % self.sent, partition=self.sent % PARTITIONS)
                    self.sent += 1
                time.sleep(0.05)

    def disturb(self) -> None:
        """One thing that happens to a member."""
        alive = [p for p in self.processes if p.poll() is None]
        choice = self.rng.choice(["kill", "suspend", "resume", "add", "remove"])
        suspended = [p for p in alive if is_stopped(p.pid)]
        running = [p for p in alive if p not in suspended]
        if choice == "kill" and len(running) > 2:
            self.rng.choice(running).kill()
        elif choice == "suspend" and len(running) > 2:
            os.kill(self.rng.choice(running).pid, signal.SIGSTOP)
        elif choice == "resume" and suspended:
            os.kill(self.rng.choice(suspended).pid, signal.SIGCONT)
        elif choice == "add" and len(alive) < self.members:
            self.start_member()
        elif choice == "remove" and len(running) > 2:
            self.rng.choice(running).terminate()
        else:
            return
        self.counts[choice] = self.counts.get(choice, 0) + 1

    def run(self, seconds: float) -> None:
        for _ in range(self.members):
            self.start_member()
        producer = threading.Thread(target=self.produce)
        producer.start()
        try:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(self.rng.uniform(0.3, 1.5))
                self.disturb()
            for process in self.processes:
                if process.poll() is None and is_stopped(process.pid):
                    os.kill(process.pid, signal.SIGCONT)
        finally:
            self.stopping = True
            producer.join()
        try:
            self.drain()
        finally:
            self.end()

    def drain(self) -> None:
        """Waits until the group has committed everything; a fresh member makes sure somebody is there."""
        self.start_member()
        group = self.log.group(GROUP)
        left, until = -1, time.monotonic() + 60
        while time.monotonic() < until:
            rows = group.describe().partitions
            if rows and all(row.lag == 0 for row in rows):
                return
            now = sum(row.end - (row.committed or 0) for row in rows)
            if now != left:
                # Slow is no failure: the minute is for a group that stands still.
                left, until = now, time.monotonic() + 60
            time.sleep(0.2)
        raise AssertionError(f"not drained (seed {self.seed}): {group.describe()}")

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def check(self) -> dict[str, int]:
        """The promises; returns counts for a report."""
        said = [word for path in self.words for word in read_words(path)]
        processed: dict[tuple[int, int], int] = {}
        in_generation: dict[tuple[int, int, int], str] = {}
        owners: dict[tuple[int, int], str] = {}
        for word in said:
            if "owns" in word:
                for partition in word["owns"]:
                    key = (word["generation"], partition)
                    other = owners.setdefault(key, word["member"])
                    assert other == word["member"], f"seed {self.seed}: two owners of {key}"
            for partition, offset in word.get("processed", []):
                processed[partition, offset] = processed.get((partition, offset), 0) + 1
                once = (word["generation"], partition, offset)
                assert once not in in_generation, f"seed {self.seed}: twice in a generation: {once}"
                in_generation[once] = word["member"]
        wanted = {(n % PARTITIONS, n // PARTITIONS) for n in range(self.sent)}
        missing = wanted - set(processed)
        assert not missing, f"seed {self.seed}: {len(missing)} records were never processed"
        versions = self.check_history()
        return self.counts | {
            "records": self.sent,
            "processed": sum(processed.values()),
            "generations": max(generation for generation, _ in owners),
            "versions": versions,
        }

    def check_history(self) -> int:
        """No version of the group's table takes an offset back."""
        table = self.folder / "root" / "__consumer_offsets" / GROUP
        before: dict[tuple[str, int], int] = {}
        commits = sorted((table / "_delta_log").glob("*.json"))
        for commit in commits:
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            names = [action["add"]["path"] for action in actions if "add" in action]
            for row in pq.read_table(table / names[0], use_threads=False).to_pylist():
                key = (row["topic"], row["partition"])
                assert row["offset"] >= before.get(key, 0), f"{commit.name}: {key} went back"
                before[key] = row["offset"]
        return len(commits)


def is_stopped(pid: int) -> bool:
    """Whether a process is suspended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except FileNotFoundError:
        return False


def read_words(path: Path) -> list[dict[str, Any]]:
    """Whole lines only: a killed process may leave half a line."""
    lines = path.read_text(errors="replace").split("\n")[:-1]
    broken = [line for line in lines if line.startswith("Traceback")]
    assert not broken, path.read_text()[-2000:]
    return [json.loads(line) for line in lines if line.startswith("{")]


def soak(folder: Path, seconds: float, seed: int, members: int = MEMBERS) -> dict[str, int]:
    """One run with its checks."""
    run = Soak(folder, seed, members)
    run.run(seconds)
    return run.check()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}, {chosen.seconds:g} s")
    with tempfile.TemporaryDirectory(prefix="streamlog-soak-") as folder:
        print(soak(Path(folder), chosen.seconds, chosen.seed))


if __name__ == "__main__":
    main()

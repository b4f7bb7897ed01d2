"""Appends, readers, a Spark stream and maintenance at once, while maintenance and the stream are killed.

`python -m tests.processes.maintenance_soak [--seconds 300] [--seed 1]` is the long form (`make soak`); the
test suite runs a short one. Two producers make 200 appends a second over 8 partitions, and some more into a
topic with retention and one compacted by key; a reader and a group of two follow all of it; a query of
Spark copies it into another topic; maintenance of every kind runs in a loop. What must hold is in
`maintenance_check`, what each process does in `maintenance_actors`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import streamlog
from tests.processes.group_soak import read_words
from tests.processes.maintenance_actors import COPY, ERASED, KEYS, LOAD, SEGMENT_BYTES, SOURCES
from tests.processes.maintenance_check import Check, Content, Place, Record

ROOT = Path(__file__).parents[2]
PRODUCERS = 2
MEMBERS = 2
GROUP = "readers"
COPIES = 4
_END = "end"
# How long a maintainer lives after its start, at most and as a share of the run: short enough to die in the
# middle of everything, long enough to get something done. And how long a stream does, at least and at most.
_MAINTAINER_SECONDS = 20.0
_MAINTAINER_SHARE = 0.25
_STREAM_SECONDS = (40.0, 120.0)
# Generous: nothing here is about speed.
_PATIENCE = 180.0


@dataclass
class Actor:
    """A process and the file of its words."""

    process: subprocess.Popen[bytes]
    words: Path

    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """With its children: Spark's JVM would go on for a while."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"stop\n")
        self.process.stdin.flush()

    def said(self, word: str) -> bool:
        return f'"{word}"'.encode() in self.words.read_bytes()

    def tail(self) -> str:
        return self.words.read_text(errors="replace")[-2000:]


@dataclass
class Soak:
    """One run; every process keeps its words in a file of its own."""

    folder: Path
    seed: int
    seconds: float
    spark: bool
    kills: int = 0
    stream_kills: int = 0
    actors: dict[str, list[Actor]] = field(default_factory=dict)
    ends: dict[Place, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.root = self.folder / "root"
        self.log = streamlog.connect(self.root)
        for topic, (partitions, config) in SOURCES.items():
            self.log.create_topic(topic, partitions=partitions, config=config)
        self.log.create_topic(COPY, partitions=COPIES, config={"segment.bytes": SEGMENT_BYTES})

    def start(self, role: str, *arguments: object) -> Actor:
        actors = self.actors.setdefault(role, [])
        path = self.folder / f"{role}-{len(actors)}.jsonl"
        command = [sys.executable, "-m", "tests.processes.maintenance_actors", role]
        with path.open("wb") as out:
            process = subprocess.Popen(
                [*command, str(self.root), *map(str, arguments)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        actors.append(Actor(process, path))
        return actors[-1]

    def run(self) -> None:
        try:
            self.act()
        finally:
            for actor in (actor for group in self.actors.values() for actor in group):
                if actor.alive():
                    actor.kill()
                if actor.process.stdin is not None:
                    actor.process.stdin.close()

    def act(self) -> None:
        readers = [self.start("reader", "")]
        members = [self.start("reader", GROUP) for _ in range(MEMBERS)]
        stream = self.start("stream", self.folder / "checkpoint") if self.spark else None
        if stream is not None:
            # The load begins when all are there, or a short run would be over before the stream began.
            self.wait(lambda: stream.said("batch"), stream)
        producers = [
            self.start("producer", f"p{i}", self.seconds, self.seed) for i in range(PRODUCERS)
        ]
        victim = self.start("maintainer")
        most = min(_MAINTAINER_SECONDS, _MAINTAINER_SHARE * self.seconds)
        stream_until = time.monotonic() + self.rng.uniform(*_STREAM_SECONDS)
        while any(producer.alive() for producer in producers):
            # Killed while it starts it would never maintain anything.
            self.wait(lambda: victim.said("started"), victim)  # noqa: B023
            time.sleep(self.rng.uniform(0, most))
            assert victim.alive(), victim.tail()
            victim.kill()
            self.kills += 1
            victim = self.start("maintainer")
            if stream is not None and time.monotonic() > stream_until and stream.said("batch"):
                assert stream.alive(), stream.tail()
                stream.kill()
                self.stream_kills += 1
                stream = self.start("stream", self.folder / "checkpoint")
                stream_until = time.monotonic() + self.rng.uniform(*_STREAM_SECONDS)
        self.mark_ends()
        for group in (readers, members):
            self.wait(lambda: self.ended(group), *group)  # noqa: B023
        for actor in (*readers, *members, *([stream] if stream is not None else [])):
            actor.stop()
            assert actor.process.wait(_PATIENCE) == 0, actor.tail()
        assert victim.alive(), victim.tail()
        victim.kill()

    def mark_ends(self) -> None:
        """A last record in each partition: who got it got all it will get."""
        with self.log.producer() as producer:
            for topic, (partitions, _) in SOURCES.items():
                for partition in range(partitions):
                    at = producer.send(topic, _END, key=_END, partition=partition).result()
                    self.ends[topic, partition, at.offset] = Record(_END, _END, at.timestamp)

    def ended(self, actors: Sequence[Actor]) -> bool:
        marks = f'"{_END}", "{_END}"]'.encode()
        found = sum(actor.words.read_bytes().count(marks) for actor in actors)
        return found >= len(self.ends)

    def wait(self, done: Callable[[], bool], *actors: Actor) -> None:
        until = time.monotonic() + _PATIENCE
        while not done():
            for actor in actors:
                assert actor.alive(), actor.tail()
            assert time.monotonic() < until, [actor.tail() for actor in actors]
            time.sleep(0.1)

    def check(self) -> dict[str, float]:
        """The promises; returns counts for a report."""
        acknowledged = dict(self.ends)
        rounds = 0
        for actor in self.actors["producer"]:
            said = read_words(actor.words)
            rounds += said[-1]["done"]
            for topic, partition, offset, *content in (
                item for word in said[:-1] for item in word["acknowledged"]
            ):
                assert (topic, partition, offset) not in acknowledged, "one offset, two records"
                acknowledged[topic, partition, offset] = Record(*content)
        check = Check(self.log, acknowledged)
        check.dense()
        counts: dict[str, float] = {
            "kills": self.kills,
            "stream_kills": self.stream_kills,
            "records": len(acknowledged),
            "appends_a_second": round(rounds * SOURCES[LOAD][0] / self.seconds),
            "retentions": check.retention(),
        }
        counts |= self.check_maintenance()
        counts["missed_by_reader"] = self.check_readers(check)
        self.log.eraser(KEYS, ERASED).run(purge=True)
        # A killed run tells nothing: the log itself has what it committed.
        counts["merges"] = max(counts["merge done"], check.kinds(LOAD).count("rewrite"))
        for _ in range(2):
            self.log.maintain()
        check.tables()
        if self.spark:
            counts["missed_by_stream"] = check.reader("the stream", check.copied())
        load = self.log.describe(LOAD)
        return counts | {"files": load.files, "bytes": load.bytes}

    def check_maintenance(self) -> dict[str, float]:
        counts = dict.fromkeys(("merge done", "compact done", "retain done"), 0)
        counts |= dict.fromkeys(("void", "erased", "commits_cleaned"), 0)
        for word in (
            word for actor in self.actors["maintainer"] for word in read_words(actor.words)
        ):
            assert not word.get("failures"), word
            for step in word.get("steps", ()):
                name = "void" if step.endswith("void") else step
                counts[name] += 1
            for name in ("erased", "commits_cleaned"):
                counts[name] += word.get(name, 0)
        return dict(counts)

    def check_readers(self, check: Check) -> int:
        alone, *members = [check.consumer(_reads(actor)) for actor in self.actors["reader"]]
        together: dict[Place, Content] = {}
        for found in members:
            assert not together.keys() & found.keys(), "two members got one record"
            together |= found
        check.reader("the group", together)
        return check.reader("the reader", alone)


def _reads(actor: Actor) -> list[tuple[Place, Content]]:
    words: list[dict[str, Any]] = read_words(actor.words)
    rows = [row for word in words for row in word.get("read", ())]
    return [((topic, part, offset), (key, value)) for topic, part, offset, key, value in rows]


def has_java() -> bool:
    return bool(os.environ.get("JAVA_HOME") or shutil.which("java"))


def soak(folder: Path, seconds: float, seed: int, *, spark: bool) -> dict[str, float]:
    """One run with its checks; the seed is in the message of whatever fails."""
    run = Soak(folder, seed, seconds, spark)
    try:
        run.run()
        return run.check()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = parser.parse_args()
    spark = has_java()
    print(
        f"seed {chosen.seed}, {chosen.seconds:g} s" + ("" if spark else ", without Java no Spark")
    )
    with tempfile.TemporaryDirectory(prefix="streamlog-soak-") as folder:
        print(soak(Path(folder), chosen.seconds, chosen.seed, spark=spark))


if __name__ == "__main__":
    main()

"""Real processes on one root: killed at every step of a commit, racing, tailing."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import streamlog
from tests.processes.actors import BATCH, BATCHES, TOPIC

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.processes.actors", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def words(process: subprocess.Popen[str]) -> tuple[list[dict[str, Any]], str]:
    """What a process said in whole lines, and its complaints."""
    out, err = process.communicate(timeout=100)
    lines = [line for line in out.split("\n")[:-1] if line]
    return [json.loads(line) for line in lines], err


def contents(root: Path) -> list[tuple[int, str]]:
    log = streamlog.connect(root, create=False)
    consumer = log.consumer(TOPIC, auto_offset_reset="earliest", max_poll_records=10_000)
    with consumer:
        found = []
        while records := consumer.poll(timeout_ms=100):
            found += [(record.offset, (record.value or b"").decode()) for record in records]
    return found


def die_at(root: Path, step: int) -> bool:
    """Kills a producer before one write, checks what it left, and lets a successor go on."""
    process = start("dying", root, step)
    said, err = words(process)
    survived = bool(said) and said[-1] == {"alive": True}
    assert survived or process.returncode == -signal.SIGKILL, err
    acknowledged = [(word["offset"], str(word["number"])) for word in said if "number" in word]
    # What was acknowledged is there, in its place; beyond it at most the batch that was on its way.
    left = contents(root)
    assert left[: len(acknowledged)] == acknowledged
    assert len(left) - len(acknowledged) in (0, BATCH)
    assert left == [(offset, str(offset)) for offset in range(len(left))]
    # A successor with the same id learns how far it got: nothing is lost, nothing doubled.
    successor = start("dying", root, 10**6)
    said, err = words(successor)
    assert said[-1] == {"alive": True}, err
    total = len(left) + BATCH * BATCHES
    assert contents(root) == [(offset, str(offset)) for offset in range(total)]
    table = DeltaTable(str(root / "topics" / TOPIC / "0")).to_pyarrow_table()
    assert sorted(table["offset"].to_pylist()) == list(range(total))
    return survived


def test_killed_at_every_step_of_the_commit(tmp_path: Path) -> None:
    """Steps are counted until one is too many for the program: it then ends by itself."""
    with ThreadPoolExecutor(2) as pool:
        step, survived = 0, False
        while not survived:
            steps = range(step, step + 4)
            ended = list(pool.map(lambda n: die_at(tmp_path / f"r{n}", n), steps))
            survived = any(ended)
            assert ended == sorted(ended), "once it survives, it survives with more steps too"
            step += 4
            assert step < 200
    assert step > BATCHES * 6, "data put, commit put, their syncs and the link, for each batch"


def test_four_processes_append_while_two_tail(tmp_path: Path) -> None:
    """One of the writers is killed again and again, and goes on under its id."""
    root = tmp_path / "root"
    log = streamlog.connect(root)
    log.create_topic(TOPIC)
    count = 300
    names = ["a", "b", "c", "d"]
    tailers = [start("tailer", root, count * len(names)) for _ in range(2)]
    writers = {name: start("writer", root, name, count) for name in names}
    rng = random.Random(4)
    acknowledged: list[tuple[int, str]] = []
    kills = 0
    for _ in range(4):
        time.sleep(0.6 + 0.3 * rng.random())
        victim = writers["a"]
        kills += victim.poll() is None
        victim.kill()
        said, err = words(victim)
        acknowledged += [(w["offset"], f"a:{w['number']}") for w in said if "number" in w]
        assert "Traceback" not in err
        writers["a"] = start("writer", root, "a", count)
    for name, writer in writers.items():
        said, err = words(writer)
        assert said[-1] == {"done": count}, err
        acknowledged += [(w["offset"], f"{name}:{w['number']}") for w in said if "number" in w]
    followed = []
    for tailer in tailers:
        said, err = words(tailer)
        assert tailer.returncode == 0, err
        followed.append([tuple(record) for word in said for record in word["records"]])
    assert kills >= 1, "no writer was ever killed at work"
    assert followed[0] == followed[1] == contents(root)
    offsets = [offset for offset, _ in followed[0]]
    assert offsets == list(range(count * len(names))), "dense, each once, in order"
    for name in names:
        own = [value for _, value in followed[0] if value.startswith(f"{name}:")]
        assert own == [f"{name}:{number}" for number in range(count)], "in the order of sending"
    assert set(acknowledged) <= set(followed[0])

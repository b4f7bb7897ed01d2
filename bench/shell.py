"""What a person at a shell waits for, and what a consumer costs while nothing happens."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import streamlog
from bench.measure import Result, fresh_folder, in_turns, seconds

ROUNDS = 11
IDLE_SECONDS = 10.0


def run() -> list[Result]:
    """The start of the program, and an idle consumer."""
    return [*_start(), *_idle()]


def _start() -> list[Result]:
    with fresh_folder() as root:
        log = streamlog.connect(root)
        for number in range(10):
            log.create_topic(f"topic-{number}", partitions=4)
        arguments = [sys.executable, "-m", "streamlog.cli", "--root", str(root), "topic", "list"]

        def ask() -> None:
            subprocess.run(arguments, check=True, capture_output=True)

        def bare() -> None:
            subprocess.run([sys.executable, "-c", "pass"], check=True)

        ask()
        listing, python = in_turns(ask, bare, ROUNDS)
        lines = b"one\ntwo\n"
        produce = statistics.median(
            seconds(
                lambda: subprocess.run(
                    [
                        sys.executable,
                        "-m",
                        "streamlog.cli",
                        "--root",
                        str(root),
                        "produce",
                        "topic-1",
                    ],
                    input=lines,
                    check=True,
                    capture_output=True,
                )
            )
            for _ in range(ROUNDS)
        )
    return [
        Result(
            "streamlog topic list, from the shell",
            listing,
            0.5,
            at_least=False,
            unit="s",
            detail=f"python alone {python:.2f} s",
        ),
        Result(
            "streamlog produce of two lines, from the shell",
            produce,
            1.0,
            at_least=False,
            unit="s",
        ),
    ]


def _idle() -> list[Result]:
    with fresh_folder() as root:
        log = streamlog.connect(root)
        log.create_topic("t", partitions=16)
        with log.producer() as producer:
            for partition in range(16):
                producer.send("t", b"x", partition=partition)
        with log.consumer("t", auto_offset_reset="latest") as consumer:
            consumer.poll(timeout_ms=1000)
            started, used = time.perf_counter(), time.process_time()
            while time.perf_counter() - started < IDLE_SECONDS:
                consumer.poll(timeout_ms=1000)
            share = (time.process_time() - used) / (time.perf_counter() - started)
    return [
        Result(
            "idle consumer on 16 partitions: share of a core",
            100 * share,
            2.0,
            at_least=False,
            unit="%",
        )
    ]

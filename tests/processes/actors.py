"""Programs for real processes: `python -m tests.processes.actors NAME ARGUMENT…`; JSON lines on stdout.

dying   ROOT STEP    sends records and kills itself before the STEP-th system call that writes
writer  ROOT NAME N  sends N records under the producer id NAME, going on where NAME stopped before
tailer  ROOT N       follows the topic until it has N records
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import streamlog

TOPIC = "t"
BATCHES = 3
BATCH = 4


def say(**words: object) -> None:
    """One line, at once: a killed process's last words must be out."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def dying(root: str, step: str) -> None:
    """Every write goes through these calls, so the death is at every step of every commit."""
    left = int(step)

    def deadly(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            # Reads go on: only calls that change something are steps.
            if call is not real_open or args[1] & (os.O_WRONLY | os.O_RDWR):
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
            return call(*args, **kwargs)

        return run

    real_open = os.open
    log = streamlog.connect(root)
    log.create_topic(TOPIC, if_not_exists=True)
    with log.producer(acks="all", producer_id="victim", linger_ms=0) as producer:
        first = producer.sequence(TOPIC, 0)
        for name in ("open", "fsync", "link", "unlink", "mkdir", "rename"):
            setattr(os, name, deadly(getattr(os, name)))
        for batch in range(BATCHES):
            numbers = range(first + batch * BATCH, first + (batch + 1) * BATCH)
            acks = [producer.send(TOPIC, b"%d" % number) for number in numbers]
            producer.flush()
            for number, ack in zip(numbers, acks, strict=True):
                say(number=number, offset=ack.result().offset)
    say(alive=True)


def writer(root: str, name: str, count: str) -> None:
    """Records are NAME:0, NAME:1, …; acknowledged ones are told as (number, offset)."""
    log = streamlog.connect(root)
    with log.producer(acks=1, producer_id=name, linger_ms=1) as producer:
        start = producer.sequence(TOPIC, 0)
        say(start=start)
        for number in range(start, int(count)):
            ack = producer.send(TOPIC, f"{name}:{number}")
            if number % 7 == 6:
                say(number=number, offset=ack.result().offset)
        producer.flush()
    say(done=int(count))


def tailer(root: str, count: str) -> None:
    """All records as (offset, value) until there are enough."""
    log = streamlog.connect(root)
    seen = 0
    with log.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
        while seen < int(count):
            records = consumer.poll(timeout_ms=1000)
            seen += len(records)
            say(records=[(r.offset, (r.value or b"").decode()) for r in records])


if __name__ == "__main__":
    actors: dict[str, Callable[..., None]] = {"dying": dying, "writer": writer, "tailer": tailer}
    actors[sys.argv[1]](*sys.argv[2:])

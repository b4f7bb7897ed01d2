"""A member of a group as a process: `python -m tests.processes.group_member ROOT GROUP SESSION_MS`.

Says what it does as JSON lines, each at once: what it owns at every generation, what it processes before
it commits that, and what was committed. SIGTERM ends it gracefully.
"""

from __future__ import annotations

import json
import signal
import sys
from types import FrameType

import streamlog
from streamlog.errors import FencedError

TOPIC = "load"


def say(**words: object) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def main(root: str, group: str, session_ms: str) -> None:
    ending = False

    def end(signum: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)
    log = streamlog.connect(root, create=False)
    consumer = log.consumer(
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=int(session_ms),
        heartbeat_interval_ms=int(session_ms) // 6,
        enable_auto_commit=False,
        max_poll_records=200,
    )
    owned: tuple[int, list[int]] = (-1, [])
    with consumer:
        consumer.subscribe([TOPIC])
        say(joined=consumer.member_id)
        while not ending:
            records = consumer.poll(timeout_ms=100)
            now = (consumer.generation, sorted(tp.partition for tp in consumer.assignment()))
            if now != owned:
                owned = now
                say(member=consumer.member_id, generation=now[0], owns=now[1])
            if not records:
                continue
            say(
                member=consumer.member_id,
                generation=now[0],
                processed=[(record.partition, record.offset) for record in records],
            )
            try:
                consumer.commit()
            except FencedError as error:
                say(fenced=str(error))
    say(left=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

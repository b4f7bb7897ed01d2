"""Consumer groups of real clients: members killed, offsets shown and reset by Kafka's own tool.

Members are programs of their own (kcat, Kafka's console consumer), so that killing one is what a crash is.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable

import aiokafka
import confluent_kafka
import kafka
import pytest

import streamlog
from tests.broker.harness import RunningBroker
from tests.clients import readers, writers
from tests.clients.programs import CONSUMER, GROUPS, kcat_command, started, tool, tool_command
from tests.clients.writers import Message

SECONDS = 60.0


class Lines:
    """What a program prints, read as it comes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.found: list[str] = []
        self._stream = process.stdout
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._stream is not None
        try:
            for line in self._stream:
                self.found.append(line.rstrip("\n"))
        except ValueError:
            pass  # closed while we waited: the program's time is over

    def wait(self, enough: Callable[[list[str]], bool]) -> list[str]:
        until = time.monotonic() + SECONDS
        while not enough(found := list(self.found)):
            assert time.monotonic() < until, found[-20:]
            time.sleep(0.02)
        return found


def fill(log: streamlog.Log, topic: str, partitions: int, count: int) -> None:
    log.create_topic(topic, partitions=partitions)
    messages = [Message(str(n), f"k{n}", partition=n % partitions) for n in range(count)]
    writers.embedded(log, topic, messages)


def kcat_member(address: str, group: str, topic: str) -> list[str]:
    return kcat_command(
        address,
        *("-G", group, "-u", "-q", "-f", "%p %s\n"),
        *("-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=6000"),
        *("-X", "heartbeat.interval.ms=500", "-X", "auto.commit.interval.ms=200"),
        topic,
    )


def java_member(address: str, group: str, topic: str) -> list[str]:
    return tool_command(
        CONSUMER,
        address,
        *("--topic", topic, "--group", group, "--from-beginning"),
        *("--formatter-property", "print.partition=true"),
        *("--formatter-property", "key.separator= "),
        *("--command-property", "session.timeout.ms=6000"),
        *("--command-property", "heartbeat.interval.ms=500"),
        *("--command-property", "auto.commit.interval.ms=200"),
    )


@pytest.mark.processes
@pytest.mark.parametrize("member", [kcat_member, java_member])
def test_others_take_over_what_a_killed_member_had(
    broker: RunningBroker,
    log: streamlog.Log,
    member: Callable[[str, str, str], list[str]],
) -> None:
    name = f"killed-{member.__name__.replace('_', '-')}"
    fill(log, name, partitions=4, count=40)

    def value(line: str) -> str:
        return line.rsplit(maxsplit=1)[-1]

    with started(member(broker.address, name, name)) as first:
        one = Lines(first)
        one.wait(lambda lines: len(lines) == 40)
        with started(member(broker.address, name, name)) as second:
            two = Lines(second)
            # Both have partitions once both print: records go on coming until that is so.
            sent = 40
            until = time.monotonic() + SECONDS
            while not two.found or len(one.found) <= 40:
                assert time.monotonic() < until, (one.found[40:], two.found)
                batch = [Message(str(n), partition=n % 4) for n in range(sent, sent + 4)]
                writers.embedded(log, name, batch)
                sent += 4
                time.sleep(0.3)
            second.kill()
            batch = [Message(str(n), partition=n % 4) for n in range(sent, sent + 40)]
            writers.embedded(log, name, batch)
            sent += 40

            def all_seen(_: list[str]) -> bool:
                return {*map(value, one.found), *map(value, two.found)} >= set(
                    map(str, range(sent))
                )

            one.wait(all_seen)


def test_offsets_are_shown_and_reset_by_kafkas_tool(
    broker: RunningBroker, log: streamlog.Log
) -> None:
    address = broker.address
    fill(log, "reset", partitions=2, count=20)
    assert len(readers.confluent_group(address, "reset", 20, "billing")) == 20
    writers.embedded(log, "reset", [Message("late", partition=0)])

    assert "billing" in tool(GROUPS, address, "--list").split()
    shown = tool(GROUPS, address, "--describe", "--group", "billing")
    rows = [line.split() for line in shown.splitlines() if line.startswith("billing")]
    assert sorted(row[1:6] for row in rows) == [
        ["reset", "0", "10", "11", "1"],
        ["reset", "1", "10", "10", "0"],
    ]
    state = tool(GROUPS, address, "--describe", "--group", "billing", "--state")
    assert "Empty" in state

    moved = ("--reset-offsets", "--group", "billing", "--topic", "reset")
    plan = tool(GROUPS, address, *moved, "--to-earliest", "--dry-run")
    assert plan.count(" 0") >= 2
    assert log.group("billing").describe().state.lower() == "empty"
    tool(GROUPS, address, *moved, "--to-offset", "7", "--execute")
    found = readers.confluent_group(address, "reset", 7, "billing")
    assert min(seen.offset for seen in found) == 7
    assert len(found) == 7

    tool(GROUPS, address, "--delete-offsets", "--group", "billing", "--topic", "reset")
    tool(GROUPS, address, "--delete", "--group", "billing")
    assert "billing" not in tool(GROUPS, address, "--list").split()


def test_every_library_goes_on_where_it_stopped(broker: RunningBroker, log: streamlog.Log) -> None:
    """One group, one library after the other: offsets are the group's, not the client's."""
    address = broker.address
    fill(log, "passed-on", partitions=1, count=40)

    found = [seen.value for seen in readers.confluent_group(address, "passed-on", 10, "shared")]

    consumer = kafka.KafkaConsumer(
        "passed-on",
        bootstrap_servers=address,
        group_id="shared",
        enable_auto_commit=False,
        max_poll_records=10,
    )
    try:
        until = time.monotonic() + SECONDS
        while len(found) < 20 and time.monotonic() < until:
            for records in consumer.poll(timeout_ms=500, max_records=20 - len(found)).values():
                found += [record.value.decode() for record in records]
        consumer.commit()
    finally:
        consumer.close()

    async def by_aiokafka() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            "passed-on", bootstrap_servers=address, group_id="shared", enable_auto_commit=False
        )
        await consumer.start()
        try:
            async with asyncio.timeout(SECONDS):
                for _ in range(10):
                    found.append((await consumer.getone()).value.decode())
            await consumer.commit()
        finally:
            await consumer.stop()

    asyncio.run(by_aiokafka())
    found.extend(seen.value for seen in readers.java(address, "passed-on", 10, "--group", "shared"))
    assert found == [str(n) for n in range(40)]


def test_who_seeks_by_time_reads_from_there(broker: RunningBroker, log: streamlog.Log) -> None:
    log.create_topic("timed", partitions=1)
    start = 1_700_000_000_000
    writers.embedded(log, "timed", [Message(str(n), timestamp=start + n) for n in range(10)])
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.address, "group.id": "timed", "enable.auto.commit": False}
    )
    try:
        place = confluent_kafka.TopicPartition("timed", 0, start + 6)
        (found,) = consumer.offsets_for_times([place], timeout=SECONDS)
        consumer.assign([found])
        values = [m.value() for m in consumer.consume(4, SECONDS)]
        assert values == [b"6", b"7", b"8", b"9"]
    finally:
        consumer.close()

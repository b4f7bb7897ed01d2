"""The programs of others, run as people run them: kcat of Debian, Kafka's own tools of Maven."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import pytest

from bench.jars import MissingError, java, tool_jars

SECONDS = 90.0

CONFIGS = "kafka.admin.ConfigCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
TOPICS = "org.apache.kafka.tools.TopicCommand"
VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"


def kcat_command(address: str, *arguments: str) -> list[str]:
    """kcat with a broker; the test is skipped where there is none."""
    program = shutil.which("kcat")
    if program is None:
        pytest.skip("kcat is not installed (Debian: apt install kcat)")
    return [program, "-b", address, *arguments]


@cache
def _java() -> Sequence[str] | str:
    try:
        # Short runs: the quick compiler only, the small collector.
        options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m"]
        return [java(), *options, "-cp", os.pathsep.join(map(str, tool_jars()))]
    except MissingError as error:
        return str(error)


def tool_command(tool: str, address: str, *arguments: str) -> list[str]:
    """A tool of Kafka with a broker; the test is skipped where there is no Java, or no way to its jars."""
    found = _java()
    if isinstance(found, str):
        pytest.skip(f"Kafka's tools cannot be had: {found}")
    return [*found, tool, "--bootstrap-server", address, *arguments]


def run(command: Sequence[str], text: str | None = None) -> str:
    """What a program prints; it must end well."""
    done = subprocess.run(
        command,
        input=text if text is not None else "",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    shown = " ".join(word for word in command if len(word) < 200)
    assert done.returncode == 0, f"{shown}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def kcat(address: str, *arguments: str, text: str | None = None) -> str:
    """Runs kcat."""
    return run(kcat_command(address, *arguments), text)


def tool(name: str, address: str, *arguments: str, text: str | None = None) -> str:
    """Runs a tool of Kafka."""
    return run(tool_command(name, address, *arguments), text)


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A program at work, with its output to be read; it never outlives the block."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            bufsize=1,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

"""Kafka's own command line tools, of version 4.3.1: topics, settings, offsets, performance."""

from __future__ import annotations

import json
from pathlib import Path

import streamlog
from tests.broker.harness import RunningBroker
from tests.clients import readers, writers
from tests.clients.programs import (
    CONFIGS,
    CONSUMER_PERFORMANCE,
    DELETE_RECORDS,
    LOG_DIRS,
    OFFSETS,
    PRODUCER_PERFORMANCE,
    TOPICS,
    VERSIONS,
    run,
    tool,
    tool_command,
)
from tests.clients.writers import Message


def test_topics_are_made_described_altered_and_deleted(
    broker: RunningBroker, log: streamlog.Log
) -> None:
    address = broker.address
    made = ("--create", "--topic", "made", "--partitions", "2", "--replication-factor", "3")
    tool(TOPICS, address, *made, "--config", "cleanup.policy=compact")
    assert log.topic("made").config.to_dict() == {"cleanup.policy": "compact"}
    assert "made" in tool(TOPICS, address, "--list").split()

    tool(TOPICS, address, "--alter", "--topic", "made", "--partitions", "4")
    shown = tool(TOPICS, address, "--describe", "--topic", "made")
    assert "PartitionCount: 4\tReplicationFactor: 1\tConfigs: cleanup.policy=compact" in shown
    me = broker.broker.cluster.me.node_id
    assert shown.count(f"Leader: {me}\tReplicas: {me}\tIsr: {me}") == 4

    tool(TOPICS, address, "--delete", "--topic", "made")
    assert "made" not in {info.name for info in log.topics()}


def test_settings_are_changed_and_shown(broker: RunningBroker, log: streamlog.Log) -> None:
    log.create_topic("configured", config={"segment.bytes": 1000})
    of_topic = ("--entity-type", "topics", "--entity-name", "configured")
    tool(
        CONFIGS,
        broker.address,
        *(
            "--alter",
            *of_topic,
            "--add-config",
            "retention.ms=5000,cleanup.policy=[compact,delete]",
        ),
        *("--delete-config", "segment.bytes"),
    )
    assert log.topic("configured").config.to_dict() == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "5000",
    }
    shown = tool(CONFIGS, broker.address, "--describe", *of_topic)
    assert (
        "retention.ms=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000"
        in shown
    )
    assert "segment.bytes" not in shown
    everything = tool(CONFIGS, broker.address, "--describe", "--all", *of_topic)
    assert "min.insync.replicas=1" in everything

    me = str(broker.broker.cluster.me.node_id)
    of_broker = ("--entity-type", "brokers", "--entity-name", me)
    shown = tool(CONFIGS, broker.address, "--describe", "--all", *of_broker)
    assert "num.partitions=3" in shown


def test_offsets_sizes_and_versions_are_shown_and_records_deleted(
    broker: RunningBroker, log: streamlog.Log, tmp_path: Path
) -> None:
    address = broker.address
    log.create_topic("measured", partitions=2)
    writers.embedded(log, "measured", [Message(str(n), partition=n % 2) for n in range(10)])

    assert tool(OFFSETS, address, "--topic", "measured").split() == ["measured:0:5", "measured:1:5"]

    report = tool(LOG_DIRS, address, "--describe", "--topic-list", "measured")
    (line,) = [line for line in report.splitlines() if line.startswith("{")]
    (node,) = json.loads(line)["brokers"]
    sizes = {part["partition"]: part["size"] for part in node["logDirs"][0]["partitions"]}
    assert sizes == {
        f"measured-{p.partition}": p.bytes for p in log.describe("measured").partitions
    }

    plan = tmp_path / "offsets.json"
    wanted = [{"topic": "measured", "partition": p, "offset": o} for p, o in ((0, 3), (1, -1))]
    plan.write_text(json.dumps({"partitions": wanted, "version": 1}))
    told = tool(DELETE_RECORDS, address, "--offset-json-file", str(plan))
    assert "partition: measured-0\tlow_watermark: 3" in told
    assert "partition: measured-1\tlow_watermark: 5" in told
    assert [part.start for part in log.describe("measured").partitions] == [3, 5]
    firsts = tool(OFFSETS, address, "--topic", "measured", "--time", "earliest").split()
    assert firsts == ["measured:0:3", "measured:1:5"]
    found = readers.confluent_group(address, "measured", 2, "after-deletion")
    assert [(seen.partition, seen.offset) for seen in found] == [(0, 3), (0, 4)]

    versions = tool(VERSIONS, address)
    assert "Produce(0): 0 to 13 [usable: 13]" in versions
    assert "Fetch(1): 4 to" in versions


def test_the_performance_tools_run(broker: RunningBroker, log: streamlog.Log) -> None:
    log.create_topic("fast", partitions=3)
    command = tool_command(
        PRODUCER_PERFORMANCE,
        broker.address,
        *("--topic", "fast", "--num-records", "20000", "--record-size", "100"),
        *("--throughput", "-1", "--command-property", "acks=all"),
    )
    assert "20000 records sent" in run(command)
    assert log.describe("fast").records == 20_000

    shown = tool(
        CONSUMER_PERFORMANCE,
        broker.address,
        *("--topic", "fast", "--num-records", "20000", "--timeout", "60000"),
    )
    figures = shown.strip().splitlines()[-1].split(", ")
    assert int(float(figures[4])) >= 20_000

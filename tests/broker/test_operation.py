"""Metrics and health over HTTP, logs, and what a broker does while it drains."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker.asking import metadata_frame, parse_metadata, read_frame
from broker.harness import RunningBroker, running_broker
from broker.processes import SECONDS, broker_process
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

import streamlog
from streamlog.broker import logs
from streamlog.broker.call import Call, Peer
from streamlog.broker.metrics import Metrics
from streamlog.model import TopicPartition

STEADY: dict[str, Any] = {"heartbeat_seconds": 0.1, "missed_heartbeats": 100}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Topic `t` of two partitions; group `g` has committed two of the five records in the first."""
    root = tmp_path / "root"
    with streamlog.connect(root) as log:
        log.create_topic("t", partitions=2)
        with log.producer() as producer:
            for number in range(5):
                producer.send("t", b"%d" % number, partition=0).result(SECONDS)
        with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.poll(timeout_ms=1000)
            consumer.commit()
        log.group("g").reset(2, partitions=[TopicPartition("t", 0)])
    return root


@pytest.fixture
def broker(root: Path) -> Iterator[RunningBroker]:
    with running_broker(root, **STEADY, http_port=0, metrics_seconds=0.0) as broker:
        yield broker


def get(port: int | None, path: str, method: str = "GET") -> tuple[int, bytes]:
    assert port is not None
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def figures(text: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    """Metrics by name and label values."""
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_metrics_tell_of_requests_logs_groups_and_brokers(broker: RunningBroker) -> None:
    AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=SECONDS)
    status, text = get(broker.broker.http.port, "/metrics")
    assert status == 200
    found = figures(text)
    assert found["streamlog_requests_total", ("Metadata", "NONE")] >= 1
    assert found["streamlog_request_seconds_count", ("Metadata",)] >= 1
    assert found["streamlog_request_seconds_sum", ("Metadata",)] > 0
    assert found["streamlog_received_bytes_total", ()] > 0
    assert found["streamlog_sent_bytes_total", ()] > 0
    assert found["streamlog_log_end_offset", ("0", "t")] == 5
    assert found["streamlog_log_start_offset", ("0", "t")] == 0
    assert found["streamlog_log_end_offset", ("1", "t")] == 0
    assert found["streamlog_group_lag", ("g", "0", "t")] == 3
    assert found["streamlog_brokers", ()] == 1
    assert found["streamlog_epoch", ()] == 1
    assert found["streamlog_is_controller", ()] == 1
    assert found["process_resident_memory_bytes", ()] > 1e6
    with streamlog.connect(broker.broker.log.root) as log, log.producer() as producer:
        producer.send("t", b"one more", partition=0).result(SECONDS)
    found = figures(get(broker.broker.http.port, "/metrics?x=1")[1])
    assert found["streamlog_log_end_offset", ("0", "t")] == 6
    assert found["streamlog_group_lag", ("g", "0", "t")] == 4


def test_what_others_count_has_its_name() -> None:
    metrics = Metrics()
    metrics.produced("t", 10, 1000)
    metrics.committed(0.02, batches=3, conflicts=2)
    metrics.committed(0.5, batches=1)
    metrics.fetched(hit=True, size=100)
    metrics.fetched(hit=False, size=50)
    metrics.read_store()
    call = Call(None, Peer("h"), 0, 3, "c", None)  # type: ignore[arg-type]
    with metrics.request(call) as counted:
        counted.answered({"error_code": 42})
    parts = [{"index": 0, "error_code": 0}, {"index": 1, "error_code": 6}]
    with metrics.request(call) as counted:
        counted.answered({"responses": [{"name": "t", "partition_responses": parts}]})
    with metrics.request(call) as counted:
        counted.answered(None)
    found = figures(metrics.text())
    assert found["streamlog_produced_records_total", ("t",)] == 10
    assert found["streamlog_produced_bytes_total", ("t",)] == 1000
    assert found["streamlog_commit_seconds_count", ()] == 2
    assert found["streamlog_commit_seconds_bucket", ("0.025",)] == 1
    assert found["streamlog_commit_batches_bucket", ("1.0",)] == 1
    assert found["streamlog_commit_batches_sum", ()] == 4
    assert found["streamlog_commit_conflicts_total", ()] == 2
    assert found["streamlog_fetches_total", ("hit",)] == 1
    assert found["streamlog_fetches_total", ("miss",)] == 1
    assert found["streamlog_fetched_bytes_total", ()] == 150
    assert found["streamlog_store_reads_total", ()] == 1
    assert found["streamlog_refusals_total", ("Produce", "NOT_LEADER_OR_FOLLOWER")] == 1
    assert found["streamlog_requests_total", ("Produce", "INVALID_REQUEST")] == 1
    assert found["streamlog_requests_total", ("Produce", "NONE")] == 2


def test_what_clients_write_and_read_is_counted(broker: RunningBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "acks": "all"})
    for number in range(100):
        producer.produce("t", b"%d" % number, partition=1)
    assert producer.flush(SECONDS) == 0
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "counted"})
    try:
        consumer.assign([KafkaPartition("t", number, 0) for number in (0, 1)])
        seen = 0
        while seen < 105:
            seen += sum(message.error() is None for message in consumer.consume(200, 1.0))
        found = figures(get(broker.broker.http.port, "/metrics")[1])
    finally:
        consumer.close()
    assert found["streamlog_produced_records_total", ("t",)] == 100
    assert found["streamlog_produced_bytes_total", ("t",)] > 0
    assert found["streamlog_commit_seconds_count", ()] >= 1
    # What was produced here is read from memory; what was there before, from the storage.
    assert found["streamlog_fetches_total", ("hit",)] >= 1
    assert found["streamlog_fetches_total", ("miss",)] >= 1
    assert found["streamlog_store_reads_total", ()] >= 1
    assert found["streamlog_log_end_offset", ("1", "t")] == 100


def test_brokers_together_tell_everything_once(root: Path) -> None:
    with (
        running_broker(root, **STEADY, http_port=0) as one,
        running_broker(root, **STEADY, http_port=0) as two,
    ):
        deadline = time.monotonic() + SECONDS
        while one.broker.cluster.epoch != two.broker.cluster.epoch:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        told = [figures(get(b.broker.http.port, "/metrics")[1]) for b in (one, two)]
    ends = [key for found in told for key in found if key[0] == "streamlog_log_end_offset"]
    assert sorted(ends) == [("streamlog_log_end_offset", (number, "t")) for number in "01"]
    lags = [key for found in told for key in found if key[0] == "streamlog_group_lag"]
    assert len(lags) == len(set(lags)) >= 1
    assert sorted(found["streamlog_is_controller", ()] for found in told) == [0, 1]


def test_a_healthy_broker_says_so_and_anything_else_is_refused(broker: RunningBroker) -> None:
    port = broker.broker.http.port
    status, body = get(port, "/healthz")
    assert (status, json.loads(body)) == (200, {"status": "ok", "node": 1})
    assert get(port, "/")[0] == 404
    assert get(port, "/metrics", "POST")[0] == 405
    assert get(port, "/healthz", "HEAD")[0] == 405
    assert port is not None
    for nonsense, answer in ((b"hello\r\n\r\n", b"HTTP/1.1 400 "), (b"x" * 100_000, b"")):
        with socket.create_connection(("127.0.0.1", port), SECONDS) as connection:
            connection.sendall(nonsense)
            connection.shutdown(socket.SHUT_WR)
            try:
                assert connection.recv(1000).startswith(answer)
            except ConnectionResetError:
                assert answer == b""
    assert get(port, "/healthz")[0] == 200


def test_without_an_address_there_is_no_http(root: Path) -> None:
    with running_broker(root, **STEADY) as broker:
        assert broker.broker.http.port is None


@pytest.mark.processes
def test_a_process_answers_over_http(root: Path) -> None:
    with broker_process(root, "--http", "127.0.0.1:0") as broker:
        line = broker.wait_for_log("metrics on http://127.0.0.1:")
        port = int(line.split("metrics on http://127.0.0.1:")[1].split("/")[0])
        assert get(port, "/healthz")[0] == 200
        assert b"streamlog_epoch 1.0" in get(port, "/metrics")[1]
        assert broker.stop() == 0


class Slow:
    """Topics whose listing waits until it may go on."""

    def __init__(self, topics: Any) -> None:
        self._topics = topics
        self.asked = threading.Event()
        self.go_on = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._topics, name)

    def list(self, refresh: bool = False) -> Any:
        self.asked.set()
        assert self.go_on.wait(SECONDS)
        return self._topics.list(refresh)


def test_what_is_under_way_is_answered_while_a_broker_drains(root: Path) -> None:
    with running_broker(root, **STEADY, http_port=0) as running:
        broker = running.broker
        slow = Slow(broker.topics)
        broker.topics = slow  # type: ignore[assignment]
        address = ("127.0.0.1", broker.server.port)
        with socket.create_connection(address, SECONDS) as busy:
            busy.sendall(metadata_frame())
            assert slow.asked.wait(SECONDS)
            stopping = asyncio.run_coroutine_threadsafe(broker.stop(), running.loop)
            # The others are told first: this one is not in the newest view any more.
            deadline = time.monotonic() + SECONDS
            while list((root / "__brokers/live").iterdir()):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert get(broker.http.port, "/healthz")[0] == 503
            assert _refuses(address)
            assert not stopping.done()
            slow.go_on.set()
            found = parse_metadata(read_frame(busy))
            assert [topic.name for topic in found.topics] == ["t"]
            assert busy.recv(1) == b""
        stopping.result(SECONDS)


def test_draining_has_an_end(root: Path) -> None:
    with running_broker(root, **STEADY, drain_seconds=0.2) as running:
        broker = running.broker
        slow = Slow(broker.topics)
        broker.topics = slow  # type: ignore[assignment]
        with socket.create_connection(("127.0.0.1", broker.server.port), SECONDS) as busy:
            busy.sendall(metadata_frame())
            assert slow.asked.wait(SECONDS)
            asyncio.run_coroutine_threadsafe(broker.stop(), running.loop).result(SECONDS)
            assert busy.recv(1) == b""
        slow.go_on.set()


def _refuses(address: tuple[str, int]) -> bool:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(address, 5).close()
        except ConnectionRefusedError:
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def own_logging() -> Iterator[None]:
    """Puts the process's logging back as it was."""
    root, own = logging.getLogger(), logging.getLogger("streamlog")
    before = root.handlers[:], root.level, own.handlers[:], own.level
    yield
    root.handlers[:], own.handlers[:] = before[0], before[2]
    root.setLevel(before[1])
    own.setLevel(before[3])


@pytest.mark.usefixtures("own_logging")
def test_events_are_lines_for_people_or_for_machines() -> None:
    logger = logging.getLogger("streamlog.broker.test")
    plain, lines = io.StringIO(), io.StringIO()
    logs.set_up("plain", "info", plain)
    logger.info("node %d", 3)
    logger.debug("not shown")
    assert plain.getvalue().endswith("Z INFO test: node 3\n")
    logs.set_up("json", "debug", lines)
    logger.debug('a "quoted"\nmessage', extra={"topic": "t", "when": Path("x")})
    try:
        raise ValueError("wrong")
    except ValueError:
        logger.exception("failed")
    first, second = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert first["message"] == 'a "quoted"\nmessage'
    assert (first["level"], first["topic"], first["when"]) == ("debug", "t", "x")
    assert "ValueError: wrong" in second["exception"]

"""A real Kafka beside the bench: a broker on loopback, of the jars that `bench.jars` fetches."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.jars import MissingError, broker_jars, java, tail
from bench.measure import fresh_folder

_START_SECONDS = 90.0
_STOP_SECONDS = 20.0


@contextmanager
def broker(partitions: int) -> Iterator[str]:
    """A broker with one node; its address. It ends with the context, and its data with it.

    A topic that is written to is made then, with so many partitions.
    """
    classpath = os.pathsep.join(map(str, broker_jars()))
    with fresh_folder() as folder:
        client, controller = _free_ports(2)
        settings = folder / "server.properties"
        settings.write_text(_settings(folder, client, controller, partitions))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        run = [java(), "-Xmx1g", "-cp", classpath]
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
        formatted = subprocess.run([*run, *tool], capture_output=True, text=True, check=False)
        if formatted.returncode:
            raise MissingError(f"Kafka's storage tool failed: {tail(formatted.stderr)}")
        output = folder / "broker.log"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [*run, "kafka.Kafka", str(settings)], stdout=stream, stderr=subprocess.STDOUT
            )
        try:
            _wait(process, client, output)
            yield f"127.0.0.1:{client}"
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _settings(folder: Path, client: int, controller: int, partitions: int) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{client}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(folder / "data"),
        "num.partitions": str(partitions),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _wait(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            raise MissingError(f"the Kafka broker ended at its start: {tail(output.read_text())}")
        if time.monotonic() > deadline:
            raise MissingError(f"the Kafka broker did not listen within {_START_SECONDS:g} s")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [int(item.getsockname()[1]) for item in sockets]
    finally:
        for item in sockets:
            item.close()

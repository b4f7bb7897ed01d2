"""A real Kafka beside the bench: its jars by Maven, a broker on loopback, Spark's jars to read from it.

The jars are kept in the user's cache folder; a second run needs neither Maven nor the network.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.measure import fresh_folder

KAFKA = "4.3.1"
# The token provider of 4.2.0 is not published; that of 4.0.0 has what the source calls.
SPARK_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.0",
)
_BROKER_JARS = (f"org.apache.kafka:kafka_2.13:{KAFKA}",)
_START_SECONDS = 90.0
_STOP_SECONDS = 20.0


class MissingError(Exception):
    """There can be no Kafka here; the message says why."""


def spark_jars() -> list[Path]:
    """What Spark needs to read from Kafka and to write to it."""
    return _fetched("spark", SPARK_JARS, transitive=False)


@contextmanager
def broker(partitions: int) -> Iterator[str]:
    """A broker with one node; its address. It ends with the context, and its data with it.

    A topic that is written to is made then, with so many partitions.
    """
    java = _java()
    classpath = os.pathsep.join(map(str, _fetched("broker", _BROKER_JARS, transitive=True)))
    with fresh_folder() as folder:
        client, controller = _free_ports(2)
        settings = folder / "server.properties"
        settings.write_text(_settings(folder, client, controller, partitions))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        run = [java, "-Xmx1g", "-cp", classpath]
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
        formatted = subprocess.run([*run, *tool], capture_output=True, text=True, check=False)
        if formatted.returncode:
            raise MissingError(f"Kafka's storage tool failed: {_tail(formatted.stderr)}")
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
            raise MissingError(f"the Kafka broker ended at its start: {_tail(output.read_text())}")
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


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if found is None:
        raise MissingError("there is no Java; install 17 or later, or set JAVA_HOME")
    return found


def _fetched(name: str, artifacts: Sequence[str], *, transitive: bool) -> list[Path]:
    """The jars of Maven artifacts, with or without what they depend on."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    version = uuid.uuid5(uuid.NAMESPACE_OID, " ".join(artifacts)).hex[:8]
    folder = base / "streamlog" / "bench" / f"{name}-{version}"
    if not folder.is_dir():
        _fetch(folder, artifacts, transitive=transitive)
    return sorted(folder.glob("*.jar"))


def _fetch(folder: Path, artifacts: Sequence[str], *, transitive: bool) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingError("there is no Maven (mvn) to fetch Kafka's jars")
    with fresh_folder() as work:
        pom = work / "pom.xml"
        pom.write_text(_pom(artifacts, transitive=transitive))
        jars = work / "jars"
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
        copied = subprocess.run(command, capture_output=True, text=True, check=False)
        if copied.returncode or not jars.is_dir():
            raise MissingError(f"Maven did not fetch {artifacts[0]}: {_tail(copied.stdout)}")
        # Moved as a whole, so that a run that was interrupted leaves no half a folder.
        part = folder.with_name(folder.name + f".{os.getpid()}")
        part.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(jars, part)
        try:
            part.rename(folder)
        except OSError:
            shutil.rmtree(part)  # another run was first


def _pom(artifacts: Sequence[str], *, transitive: bool) -> str:
    alone = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    wanted = ""
    for artifact in artifacts:
        group, name, version = artifact.split(":")
        wanted += (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version>{'' if transitive else alone}</dependency>"
        )
    return (
        "<project><modelVersion>4.0.0</modelVersion>"
        "<groupId>streamlog</groupId><artifactId>bench</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{wanted}</dependencies></project>"
    )


def _tail(text: str, lines: int = 3) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-lines:]) or "no output"

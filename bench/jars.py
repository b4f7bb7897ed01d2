"""Jars of Maven: a Kafka, its tools, and what Spark needs to talk to it; for the bench and for the tests.

They are kept in the user's cache folder; a second run needs neither Maven nor the network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

KAFKA = "4.3.1"
# The token provider of 4.2.0 is not published; that of 4.0.0 has what the source calls.
SPARK_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.0",
)
_BROKER_JARS = (f"org.apache.kafka:kafka_2.13:{KAFKA}",)
_TOOL_JARS = (*_BROKER_JARS, f"org.apache.kafka:kafka-tools:{KAFKA}")


class MissingError(Exception):
    """There can be no Kafka here; the message says why."""


def spark_jars() -> list[Path]:
    """What Spark needs to read from Kafka and to write to it."""
    return _fetched("spark", SPARK_JARS, transitive=False)


def broker_jars() -> list[Path]:
    """A Kafka broker."""
    return _fetched("broker", _BROKER_JARS, transitive=True)


def tool_jars() -> list[Path]:
    """Kafka's command line tools."""
    return _fetched("tools", _TOOL_JARS, transitive=True)


def java() -> str:
    """The program."""
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
    with tempfile.TemporaryDirectory(prefix="streamlog-jars-") as name:
        work = Path(name)
        pom = work / "pom.xml"
        pom.write_text(_pom(artifacts, transitive=transitive))
        jars = work / "jars"
        command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
        copied = subprocess.run(command, capture_output=True, text=True, check=False)
        if copied.returncode or not jars.is_dir():
            raise MissingError(f"Maven did not fetch {artifacts[0]}: {tail(copied.stdout)}")
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


def tail(text: str, lines: int = 3) -> str:
    """The end of what a program said."""
    return " | ".join(line.strip() for line in text.strip().splitlines()[-lines:]) or "no output"

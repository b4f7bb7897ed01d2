"""What `docs/deploy` holds is valid, and names settings that exist."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from streamlog.broker.options import PREFIX, load_settings
from streamlog.broker.settings import BrokerSettings

DOCS = Path(__file__).parents[2] / "docs"
UNIT = DOCS / "deploy/streamlog-broker.service"


def test_the_systemd_unit_is_valid(tmp_path: Path) -> None:
    text = UNIT.read_text()
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    program, *arguments = shlex.split(parser["Service"]["ExecStart"])
    assert Path(program).name == "streamlog"
    assert arguments[0] == "broker"
    stop = float(parser["Service"]["TimeoutStopSec"])
    assert stop > 1.5 * BrokerSettings().drain_seconds
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        # The program is not installed there on this machine; the rest is checked as it stands.
        copy = tmp_path / UNIT.name
        copy.write_text(text.replace(program, sys.executable))
        done = subprocess.run(
            [analyze, "verify", "--man=no", str(copy)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert UNIT.name not in done.stderr, done.stderr


def documents() -> dict[tuple[str, str], Any]:
    found = yaml.safe_load_all((DOCS / "deploy/kubernetes.yaml").read_text())
    return {(item["kind"], item["metadata"]["name"]): item for item in found}


def test_the_kubernetes_manifest_hangs_together() -> None:
    found = documents()
    pods = found["StatefulSet", "streamlog"]["spec"]
    labels = pods["template"]["metadata"]["labels"]
    assert pods["selector"]["matchLabels"].items() <= labels.items()
    assert found["Service", pods["serviceName"]]["spec"]["clusterIP"] == "None"
    for service in (item for (kind, _), item in found.items() if kind == "Service"):
        assert service["spec"]["selector"].items() <= labels.items()
    pod = pods["template"]["spec"]
    container = pod["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert container["readinessProbe"]["httpGet"]["port"] in ports
    assert pod["terminationGracePeriodSeconds"] > 1.5 * BrokerSettings().drain_seconds
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_the_manifest_s_options_are_a_broker_s() -> None:
    container = documents()["StatefulSet", "streamlog"]["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["streamlog"]
    command, *arguments = container["args"]
    assert command == "broker"
    flags: dict[str, object] = {}
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if name != "log-format":
            flags[name] = value.replace("$(POD_NAME)", "streamlog-0") or True
    environment = {
        entry["name"]: entry["value"]
        for entry in container["env"]
        if entry["name"].startswith(PREFIX)
    }
    # It listens beyond its machine, and needs no `insecure` for that.
    settings = load_settings(None, environment, flags)
    assert (settings.port, settings.http_port, settings.maintain) == (9092, 9093, True)
    assert settings.advertised_host == "streamlog-0.streamlog.default.svc.cluster.local"


def test_the_table_of_settings_has_them_all() -> None:
    text = (DOCS / "brokers-operation.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    table = rows[: next(i for i, row in enumerate(rows) if "streamlog_" in row)]
    named = {name for row in table for name in row.split("|")[1].split("`")[1::2]}
    named = {name for name in named if not name.startswith("--")}
    # Hosts and ports are told together.
    parts = {"host", "port", "advertised_host", "advertised_port", "http_host", "http_port"}
    known = {field.name for field in fields(BrokerSettings)} - parts
    assert named == known | {"listen", "advertise", "http"}
